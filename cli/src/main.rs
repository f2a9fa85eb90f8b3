// SPDX-License-Identifier: GPL-2.0

//! The command `rrxe` adds, shows and checks RDMA links of the rrxe driver.

// A failed test may panic.
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::unwrap_used))]

mod args;
mod capture;
mod device;
mod doctor;
mod links;
mod manage;
mod netdev;
mod status;
#[cfg(test)]
mod testing;
mod tool;
mod top;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser};

use args::{Arguments, Command};
use tool::Failure;

/// Exit status if the doctor finds a fault.
const FAULTY: u8 = 1;
/// Exit status if a command fails.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok((text, status)) => {
            // The reader of a pipe may have ended, which is no failure of this program.
            let _ = io::stdout().write_all(text.as_bytes());
            status
        }
        Err(failure) => {
            eprintln!("rrxe: {failure}");
            ExitCode::from(FAILED)
        }
    }
}

/// Runs a subcommand, and returns the text to print and the exit status.
fn run(command: Command) -> Result<(String, ExitCode), Failure> {
    let mut status = ExitCode::SUCCESS;
    let text = match command {
        Command::Add { name, netdev } => manage::add(&name, &netdev)?,
        Command::Del { name } => manage::delete(&name)?,
        Command::Status { json } => status::run(json)?,
        Command::Doctor { peer, json, wait } => {
            let report = doctor::run(peer.as_deref(), wait)?;
            if !report.is_healthy() {
                status = ExitCode::from(FAULTY);
            }
            report.text(json)
        }
        Command::Up { netdev } => links::up(&netdev)?,
        Command::Down { netdev, again } => links::down(&netdev, again)?,
        Command::Apply => links::apply()?,
        Command::Udev { device, name } => links::udev(&device, &name)?,
        Command::Top { interval, count } => top::run(interval, count)?,
        Command::Capture { name, file, count } => match capture::run(&name, &file, count)? {},
        Command::Completions { shell } => completions(shell),
    };
    Ok((text, status))
}

/// Returns the completion script for a shell.
fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "rrxe", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

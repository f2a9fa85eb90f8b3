// SPDX-License-Identifier: GPL-2.0

//! Results, one line each, in the Test Anything Protocol.

use std::{fmt::Display, process::ExitCode};

/// Counts and prints results.
pub struct Tap {
    prefix: String,
    passed: u32,
    failed: u32,
}

impl Tap {
    /// Names every result `prefix: …`.
    pub fn new(prefix: String) -> Self {
        Self {
            prefix,
            passed: 0,
            failed: 0,
        }
    }

    /// Prints one result.
    pub fn result<E: Display>(&mut self, name: &str, result: Result<(), E>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("ok - {}: {name}", self.prefix);
            }
            Err(why) => {
                self.failed += 1;
                println!("not ok - {}: {name} # {why}", self.prefix);
            }
        }
    }

    /// Prints that a test can't run here.
    pub fn skip(&self, name: &str, why: &str) {
        println!("ok - {}: {name} # SKIP {why}", self.prefix);
    }

    /// Success if something passed and nothing failed.
    pub fn verdict(&self) -> ExitCode {
        if self.failed == 0 && self.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

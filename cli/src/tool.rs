// SPDX-License-Identifier: GPL-2.0

//! Runs other programs. rrxe reads RDMA and network devices by `rdma -j` and `ip -j` of iproute2,
//! because no crate speaks the RDMA part of netlink.

use std::{
    env, fmt, io,
    process::{Command, Stdio},
};

use serde::de::DeserializeOwned;

/// Directories of programs. The PATH of ordinary users lacks those of administrators on Debian, and
/// the programs that udev starts have no PATH.
const SYSTEM_DIRECTORIES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The reason why a command of the user failed: one or more sentences.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl Failure {
    /// Returns whether `rdma` failed because the kernel has no RDMA core, and can load none.
    pub(crate) fn is_of_absent_core(&self) -> bool {
        self.0.contains("NETLINK_RDMA")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Result of a program that has run.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Whether its status was 0.
    pub(crate) succeeded: bool,
    /// Its status, or none if a signal ended it.
    pub(crate) status: Option<i32>,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
}

/// Runs a program in the C locale, without input.
///
/// # Errors
///
/// If the program could not be started.
pub(crate) fn run(program: &str, arguments: &[&str]) -> io::Result<Output> {
    let output = command(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()?;
    Ok(Output {
        succeeded: output.status.success(),
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Returns the description of a program to start, which is searched in the system's directories,
/// too.
pub(crate) fn command(program: &str) -> Command {
    let path = search_path(&env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.env("PATH", path);
    command
}

/// Returns the directories in which programs are searched: those of PATH, and the system's. An
/// empty part of PATH would be the present directory.
fn search_path(path: &str) -> String {
    match path {
        "" => SYSTEM_DIRECTORIES.to_owned(),
        path => format!("{path}:{SYSTEM_DIRECTORIES}"),
    }
}

/// Runs a program and returns its standard output.
///
/// # Errors
///
/// If the program could not be started, or failed.
pub(crate) fn text(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let output = run(program, arguments).map_err(|error| missing(program, &error))?;
    if output.succeeded {
        return Ok(output.stdout);
    }
    let command = arguments.join(" ");
    let reason = output.stderr.trim();
    Err(Failure(format!("{program} {command} failed: {reason}")))
}

/// Runs a program and parses its standard output, which is JSON. An empty output is the default
/// value.
///
/// # Errors
///
/// If the program could not be started, failed, or printed another form of data.
pub(crate) fn json<T: DeserializeOwned + Default>(
    program: &str,
    arguments: &[&str],
) -> Result<T, Failure> {
    let output = text(program, arguments)?;
    parse(&output).map_err(|error| {
        let command = arguments.join(" ");
        Failure(format!(
            "{program} {command} printed unexpected data: {error}"
        ))
    })
}

/// Parses JSON. A blank text is the default value.
fn parse<T: DeserializeOwned + Default>(text: &str) -> serde_json::Result<T> {
    if text.trim().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(text)
}

/// Returns the message for a program that could not be started.
pub(crate) fn missing(program: &str, error: &io::Error) -> Failure {
    if error.kind() != io::ErrorKind::NotFound {
        return Failure(format!("{program} could not be started: {error}."));
    }
    let package = match program {
        "ip" | "rdma" => "iproute2",
        "ping" => "iputils-ping",
        "systemctl" | "systemd-escape" => "systemd",
        "udevadm" => "udev",
        other => other,
    };
    Failure(format!(
        "The program {program} is missing: install the package {package}."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_output_is_the_default_value() {
        let numbers: Vec<u32> = parse(" \n").unwrap();
        assert!(numbers.is_empty());
    }

    #[test]
    fn programs_of_the_system_are_found_without_a_path() {
        assert_eq!(search_path(""), SYSTEM_DIRECTORIES);
        assert!(search_path("/opt/bin").starts_with("/opt/bin:/usr/local/sbin:"));
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let failure = missing("rdma", &io::Error::from(io::ErrorKind::NotFound));
        assert!(failure.0.contains("rdma") && failure.0.contains("iproute2"));
    }

    #[test]
    fn the_failure_of_rdma_without_the_core_is_recognized() {
        for (text, is_absent) in [
            (
                "rdma -j link failed: Failed to open NETLINK_RDMA socket",
                true,
            ),
            ("rdma -j link failed: error: Operation not permitted", false),
        ] {
            assert_eq!(
                Failure(text.to_owned()).is_of_absent_core(),
                is_absent,
                "{text}"
            );
        }
    }

    #[test]
    fn a_failed_program_is_an_error_with_its_message() {
        let failure = text("sh", &["-c", "echo why >&2; exit 3"]).unwrap_err();
        assert!(failure.0.ends_with("failed: why"), "{failure}");
    }
}

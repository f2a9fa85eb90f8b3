// SPDX-License-Identifier: GPL-2.0

//! Results in the Test Anything Protocol (TAP), one line each.

use std::{fmt::Display, process::ExitCode};

/// A printer of results, which counts them.
pub struct Tap {
    prefix: String,
    passed: u32,
    failed: u32,
}

impl Tap {
    /// Creates a printer that puts `prefix` in front of the name of every result.
    pub fn new(prefix: String) -> Self {
        Self {
            prefix,
            passed: 0,
            failed: 0,
        }
    }

    /// Prints the result of a case.
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

    /// Prints that a case is skipped.
    pub fn skip(&self, name: &str, why: &str) {
        println!("ok - {}: {name} # SKIP {why}", self.prefix);
    }

    /// Returns success if a case passed and none failed.
    pub fn verdict(&self) -> ExitCode {
        if self.failed == 0 && self.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Lets the command run with an older glibc than that of the machine which built it.
//!
//! Rust's standard library uses two functions of glibc 2.39 if they exist, by weak symbols. The
//! linker makes the version GLIBC_2.39 of glibc a requirement of the program nevertheless, so that
//! the program does not start on Debian 12. Symbols that are 0 mean to the standard library that
//! the functions do not exist.

use std::env;

/// Functions to which the standard library refers weakly, newer than glibc 2.34.
const ABSENT: [&str; 2] = ["pidfd_spawnp", "pidfd_getpid"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux")
        && env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu")
    {
        for function in ABSENT {
            println!("cargo::rustc-link-arg-bins=-Wl,--defsym={function}=0");
        }
    }
}

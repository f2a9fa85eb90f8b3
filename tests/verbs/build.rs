// SPDX-License-Identifier: GPL-2.0

//! Generates Rust declarations of libibverbs from `verbs.h`, with the bindgen of the toolbox
//! container.

use std::{env, path::Path, process::Command};

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let status = Command::new("bindgen")
        .args([
            "verbs.h",
            "--default-enum-style=consts",
            "--no-prepend-enum-name",
        ])
        .args([
            "--allowlist-function=ibv_.*",
            "--allowlist-type=ibv_.*|verbs_context",
        ])
        .args([
            "--allowlist-var=IBV_.*",
            "--with-derive-default",
            "--no-layout-tests",
        ])
        .arg("-o")
        .arg(Path::new(&out).join("verbs.rs"))
        .status()
        .expect("the toolbox has bindgen");
    assert!(status.success(), "bindgen failed");
    println!("cargo:rerun-if-changed=verbs.h");
    println!("cargo:rustc-link-lib=ibverbs");
}

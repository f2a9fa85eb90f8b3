// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

//! Generates Rust declarations of libibverbs' private provider interface with bindgen, and links
//! against libibverbs' private symbols. The environment variable `RRXE_RDMA_CORE` names the output
//! directory of tools/lib/rdma-core-headers, and `BINDGEN` the program if it is not called bindgen.

use std::{env, fs, path::Path, process::Command};

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let core = env::var("RRXE_RDMA_CORE").expect("tools/rrxe build-provider sets RRXE_RDMA_CORE");
    let include = Path::new(&core).join("include");
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let uapi = Path::new(&manifest).join("../../include/uapi");
    let bindgen = env::var_os("BINDGEN").unwrap_or_else(|| "bindgen".into());
    let status = Command::new(&bindgen)
        .args(["provider.h", "--default-enum-style=consts"])
        .args(["--no-prepend-enum-name", "--with-derive-default"])
        .args(["--no-layout-tests", "--use-core", "--no-doc-comments"])
        .args(["--allowlist-function=ibv_cmd_.*|verbs_.*|_verbs_.*|ibv_qp_to_qp_ex"])
        .args([
            "--allowlist-type=ibv_.*|verbs_.*|ib_uverbs_.*|rxe_.*|mminfo|rrxe_.*|rdma_driver_id",
        ])
        .args(["--allowlist-var=IBV_.*|VERBS_.*|RRXE_.*|RDMA_DRIVER_.*|IB_USER_VERBS_.*"])
        .arg("-o")
        .arg(Path::new(&out).join("verbs.rs"))
        .arg("--")
        .arg(format!("-I{}", include.display()))
        .arg(format!("-I{}", uapi.display()))
        .status()
        .expect("bindgen is installed");
    assert!(status.success(), "bindgen failed");

    let version = fs::read_to_string(Path::new(&core).join("version")).expect("the file is there");
    println!("cargo:rustc-env=RDMA_CORE_VERSION={}", version.trim());
    let pabi = fs::read_to_string(Path::new(&core).join("pabi")).expect("the version is there");
    let pabi: u32 = pabi.trim().parse().expect("the version is a number");
    // The name of the function contains the version of the private interface. So the dynamic loader
    // refuses a provider that was built for another version.
    let register = format!("pub(crate) use verbs_register_driver_{pabi} as register_driver;\n");
    fs::write(Path::new(&out).join("register.rs"), register)
        .expect("cargo's directory is writable");
    // Versions of the interface differ in these texts. A flag is set if a header has its text.
    let header = |name| fs::read_to_string(include.join(name)).expect("the header is there");
    let headers = header("infiniband/driver.h") + &header("infiniband/verbs.h");
    for (flag, text) in [
        ("context_takes_fds", "struct ibv_fd_arr *fd_arr"),
        (
            "cq_takes_buffer",
            "struct verbs_create_cq_prov_attr *prov_attr",
        ),
        ("qp_takes_attributes", "ib_uverbs_ex_create_qp_resp *resp,\n\t\t\t  size_t resp_size,\n\t\t\t  struct ibv_command_buffer *driver"),
        (
            "dmabuf_takes_buffer",
            "struct verbs_mr *vmr,\n\t\t\t  struct ibv_command_buffer *driver);",
        ),
        ("has_reg_mr_ex", "(*reg_mr_ex)"),
        ("has_port_speed", "(*query_port_speed)"),
        ("has_flush", "(*wr_flush)"),
    ] {
        println!("cargo:rustc-check-cfg=cfg({flag})");
        if headers.contains(text) {
            println!("cargo:rustc-cfg={flag}");
        }
    }
    // The package metadata of an ELF file, which `coredumpctl` and `readelf --notes` show.
    println!("cargo:rustc-link-arg=-Xlinker");
    println!(
        r#"cargo:rustc-link-arg=--package-metadata={{"type":"cargo","name":"librrxe","version":"{}"}}"#,
        env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION"),
    );
    println!("cargo:rerun-if-changed=provider.h");
    println!(
        "cargo:rerun-if-changed={}",
        uapi.join("rdma/rrxe-abi.h").display()
    );
    println!("cargo:rerun-if-env-changed=RRXE_RDMA_CORE");
    println!("cargo:rerun-if-env-changed=BINDGEN");
    println!("cargo:rustc-link-search=native={core}/lib");
    println!("cargo:rustc-link-lib=dylib=ibverbs");
}

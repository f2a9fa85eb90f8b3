// SPDX-License-Identifier: GPL-2.0

//! Checks of the kernel, the module, libibverbs, device files and limits.

use crate::doctor::{
    facts::{Facts, Kernel, Module},
    finding::{error, warning, Finding},
};

/// Oldest kernel that rrxe supports.
const OLDEST_KERNEL: (u32, u32) = (7, 3);
/// Configuration options of the kernel that rrxe needs, as in `tools/lib/host.sh`.
pub(super) const NEEDED_OPTIONS: [&str; 10] = [
    "RUST",
    "MODULES",
    "INFINIBAND",
    "INFINIBAND_USER_ACCESS",
    "INFINIBAND_USER_MEM",
    "INFINIBAND_ADDR_TRANS",
    "INFINIBAND_ON_DEMAND_PAGING",
    "INET",
    "IPV6",
    "NET_UDP_TUNNEL",
];
/// Bytes of locked memory with which common RDMA programs run.
const ENOUGH_MEMLOCK: u64 = 64 << 20;

/// Checks whether rrxe can run on the kernel. A loaded module has answered this question.
pub(super) fn kernel(facts: &Facts) -> Vec<Finding> {
    let kernel = &facts.kernel;
    if facts.module.is_loaded {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if release_number(&kernel.release).is_some_and(|number| number < OLDEST_KERNEL) {
        findings.push(error(
            "kernel",
            format!("Kernel {} is too old for rrxe.", kernel.release),
            "Boot a kernel of version 7.3 or newer.",
        ));
    }
    if let Some(config) = &kernel.config {
        findings.extend(missing_options(kernel, config));
    }
    findings
}

/// Returns the first two numbers of a kernel's release.
fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '+']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn missing_options(kernel: &Kernel, config: &str) -> Vec<Finding> {
    let is_set = |name: &str| {
        config.lines().any(|line| {
            let value = line
                .strip_prefix("CONFIG_")
                .and_then(|rest| rest.strip_prefix(name));
            matches!(value, Some("=y" | "=m"))
        })
    };
    let remedy =
        "Boot a kernel of your distribution that was built with Rust and without PREEMPT_RT.";
    let mut problems: Vec<_> = NEEDED_OPTIONS
        .into_iter()
        .filter(|name| !is_set(name))
        .map(|name| format!("Kernel {} was built without CONFIG_{name}.", kernel.release))
        .collect();
    if is_set("PREEMPT_RT") {
        problems.push(format!(
            "Kernel {} was built with CONFIG_PREEMPT_RT, which rrxe does not support.",
            kernel.release
        ));
    }
    let found = problems.into_iter();
    found
        .map(|problem| error("kernel", problem, remedy))
        .collect()
}

/// Checks whether the module is loaded, or can be loaded.
pub(super) fn module(facts: &Facts) -> Vec<Finding> {
    let (module, kernel) = (&facts.module, &facts.kernel);
    if module.is_loaded {
        return Vec::new();
    }
    let Some(installed) = &module.installed else {
        return vec![not_installed(module, kernel)];
    };
    let mut findings = Vec::new();
    if let Some(line) = module.blocks.first() {
        findings.push(error(
            "module",
            format!("modprobe's configuration blocks the module by the line '{line}'."),
            "Remove this line from the file in /etc/modprobe.d that contains it.",
        ));
    }
    if kernel.wants_signatures && !installed.is_signed {
        findings.push(error(
            "module",
            "The kernel loads signed modules only, and rrxe.ko has no signature.",
            "Sign rrxe.ko by the kernel's scripts/sign-file with a key that the machine trusts (mokutil --import), or turn off Secure Boot.",
        ));
    }
    findings
}

fn not_installed(module: &Module, kernel: &Kernel) -> Finding {
    let release = &kernel.release;
    let others = module.other_releases.join(", ");
    let problem = match others.as_str() {
        "" => format!("The module rrxe is not installed for the running kernel {release}."),
        others => format!(
            "The module rrxe is installed for {others}, and not for the running kernel {release}."
        ),
    };
    error(
        "module",
        problem,
        "Run `make` and `sudo make install` in rrxe's source tree.",
    )
}

/// Checks whether the loaded module is the installed one.
pub(super) fn module_version(facts: &Facts) -> Vec<Finding> {
    let module = &facts.module;
    let installed = module.installed.as_ref();
    match (
        &module.loaded_version,
        installed.and_then(|each| each.version.as_ref()),
    ) {
        (Some(loaded), Some(installed)) if loaded != installed => vec![warning(
            "module-version",
            format!("Version {loaded} of rrxe is loaded, and version {installed} is installed."),
            "Delete all links, and run `rmmod rrxe` and `modprobe rrxe`.",
        )],
        _ => Vec::new(),
    }
}

/// Checks whether libibverbs finds a provider for rrxe's devices.
pub(super) fn provider(facts: &Facts) -> Vec<Finding> {
    let provider = &facts.provider;
    let Some(wanted) = &provider.wanted else {
        return vec![error(
            "provider",
            "The library libibverbs is not installed.",
            "Install the package ibverbs-providers (on Debian and Ubuntu), or libibverbs (on Fedora).",
        )];
    };
    let suffix = format!("-rdmav{wanted}.so");
    let usable: Vec<_> = provider
        .libraries
        .iter()
        .filter_map(|name| name.strip_prefix("lib")?.strip_suffix(&suffix))
        .collect();
    if usable.is_empty() {
        return vec![no_provider(wanted, &provider.libraries)];
    }
    if usable
        .iter()
        .any(|name| provider.drivers.iter().any(|driver| driver == name))
    {
        return Vec::new();
    }
    vec![error(
        "provider",
        "No file in /etc/libibverbs.d names the provider of rrxe's devices.",
        "Write the line `driver rxe` to /etc/libibverbs.d/rxe.driver.",
    )]
}

fn no_provider(wanted: &str, libraries: &[String]) -> Finding {
    let problem = match libraries.first() {
        Some(library) => format!(
            "libibverbs requires providers for version {wanted} of its private interface, and {library} is for another one."
        ),
        None => "libibverbs has no provider for rrxe's devices.".to_owned(),
    };
    error(
        "provider",
        problem,
        "Install the package ibverbs-providers (rdma-core on Fedora) of the same version as libibverbs.",
    )
}

/// Checks the files through which programs reach the devices.
pub(super) fn device_files(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let links = facts.devices.iter().filter(|each| each.is_rrxe());
    for link in links.filter(|each| !facts.files.uverbs.contains(&each.name)) {
        findings.push(error(
            "device-files",
            format!("Link {} has no device file in /dev/infiniband.", link.name),
            "Run `modprobe ib_uverbs`; in a container, pass /dev/infiniband into it.",
        ));
    }
    if !facts.devices.is_empty() && !facts.files.has_rdma_cm {
        findings.push(warning(
            "device-files",
            "The device file /dev/infiniband/rdma_cm is missing, so programs that use librdmacm fail.",
            "Run `modprobe rdma_ucm`; in a container, pass /dev/infiniband into it.",
        ));
    }
    if let Some(path) = facts.files.forbidden.first() {
        findings.push(error(
            "device-files",
            format!("This user may not open {path}."),
            format!("Run `chmod 666 {path}`. The kernel gives this mode to the file: look for the udev rule or the program that changed it."),
        ));
    }
    findings
}

/// Checks the limit on locked memory.
pub(super) fn memlock(facts: &Facts) -> Vec<Finding> {
    let limit = facts.memlock.limit;
    match limit.filter(|bytes| !facts.memlock.is_exempt && *bytes < ENOUGH_MEMLOCK) {
        Some(bytes) => vec![warning(
            "memlock",
            format!("Processes of this session may lock {} KiB of memory only.", bytes >> 10),
            "Write the line `* - memlock unlimited` to /etc/security/limits.d/rdma.conf, and log in again.",
        )],
        None => Vec::new(),
    }
}

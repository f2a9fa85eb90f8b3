// SPDX-License-Identifier: GPL-2.0

//! Collects the facts about this host.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::{
    facts::{DeviceFiles, Facts, InstalledModule, Kernel, Memlock, Module, Provider},
    firewall::Rules,
    port,
};
use crate::{
    device::{self, entries, file_name, read},
    netdev,
    tool::{self, Failure},
};

/// Directories in which a linker finds libibverbs.
const LIBRARY_DIRECTORIES: [&str; 4] = ["/usr/lib/*", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
/// Error of a call that the kernel's code refuses.
const EPERM: i32 = 1;
/// Error of a call that the mode of a file refuses.
const EACCES: i32 = 13;
/// Capability that exempts from the limit on locked memory (CAP_IPC_LOCK).
const IPC_LOCK: u32 = 14;

/// Returns all facts but those about a peer.
///
/// # Errors
///
/// If iproute2 is missing or fails.
pub(super) fn host() -> Result<Facts, Failure> {
    let netdevs = netdev::all()?;
    let devices = device::all(&netdevs)?;
    let system = output("rdma", &["system", "show"]);
    let mut unknown = Vec::new();
    let kernel = kernel();
    Ok(Facts {
        module: module(&kernel.release),
        kernel,
        provider: provider(),
        files: device_files(),
        netns_exclusive: system.contains("netns exclusive"),
        devices,
        netdevs,
        port: port::collect(),
        rules: rules(&mut unknown),
        memlock: memlock(),
        peer: None,
        unknown,
    })
}

fn kernel() -> Kernel {
    let release = read(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let places = [
        format!("/boot/config-{release}"),
        format!("/usr/lib/modules/{release}/config"),
        format!("/lib/modules/{release}/build/.config"),
    ];
    let lockdown = read(Path::new("/sys/kernel/security/lockdown")).unwrap_or_default();
    let enforced = read(Path::new("/sys/module/module/parameters/sig_enforce"));
    Kernel {
        config: places.iter().find_map(|path| read(Path::new(path))),
        wants_signatures: enforced.as_deref() == Some("Y")
            || lockdown.contains("[integrity]")
            || lockdown.contains("[confidentiality]"),
        release,
    }
}

fn module(release: &str) -> Module {
    let loaded = Path::new("/sys/module/rrxe");
    Module {
        is_loaded: loaded.exists(),
        loaded_version: read(&loaded.join("version")),
        installed: installed_module(),
        other_releases: other_releases(release),
        blocks: blocks(&output("modprobe", &["-c"])),
    }
}

/// Returns the standard output of a program, or an empty text if it fails.
fn output(program: &str, arguments: &[&str]) -> String {
    tool::text(program, arguments).unwrap_or_default()
}

fn installed_module() -> Option<InstalledModule> {
    let described = tool::text("modinfo", &["rrxe"]).ok()?;
    let field = |name: &str| {
        let mut lines = described.lines();
        lines.find_map(|line| {
            Some(
                line.strip_prefix(name)?
                    .strip_prefix(':')?
                    .trim()
                    .to_owned(),
            )
        })
    };
    Some(InstalledModule {
        version: field("version"),
        is_signed: field("signer").is_some_and(|signer| !signer.is_empty()),
    })
}

/// Returns the kernels, except the running one, for which the module is installed.
fn other_releases(release: &str) -> Vec<String> {
    let has_module = |tree: &PathBuf| {
        let index = fs::read_to_string(tree.join("modules.dep")).unwrap_or_default();
        index.lines().any(|line| {
            line.split(':')
                .next()
                .is_some_and(|path| path.contains("/rrxe.ko"))
        })
    };
    let trees = entries(Path::new("/lib/modules"));
    let found = trees
        .into_iter()
        .filter(has_module)
        .map(|tree| file_name(&tree));
    found.filter(|other| other != release).collect()
}

/// Returns the lines of modprobe's configuration that keep rrxe from being loaded.
fn blocks(configuration: &str) -> Vec<String> {
    let is_block = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            ["blacklist", "rrxe"] => true,
            ["install", "rrxe", program, ..] => {
                program.ends_with("/false") || program.ends_with("/true")
            }
            _ => false,
        }
    };
    configuration
        .lines()
        .filter(is_block)
        .map(str::to_owned)
        .collect()
}

fn provider() -> Provider {
    let library = find_library("libibverbs.so.1");
    let mut drivers = Vec::new();
    for path in entries(Path::new("/etc/libibverbs.d")) {
        let text = read(&path).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.strip_prefix("driver "));
        drivers.extend(names.map(|name| name.trim().to_owned()));
    }
    let directory = library
        .as_ref()
        .and_then(|path| Some(path.parent()?.join("libibverbs")));
    let files = entries(&directory.unwrap_or_default());
    let libraries = files
        .iter()
        .map(|path| file_name(path))
        .filter(|name| is_provider(name))
        .collect();
    Provider {
        wanted: library.and_then(|path| private_version(&fs::read(path).ok()?)),
        libraries,
        drivers,
    }
}

/// Returns whether a file is a provider for rrxe's devices.
fn is_provider(name: &str) -> bool {
    name.starts_with("librxe-rdmav") || name.starts_with("librrxe-rdmav")
}

/// Returns the path of a library of this machine's architecture.
fn find_library(name: &str) -> Option<PathBuf> {
    let architecture = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut directories = LIBRARY_DIRECTORIES
        .iter()
        .map(|each| each.replace('*', &architecture));
    directories.find_map(|directory| {
        let path = Path::new(&directory).join(name);
        path.exists().then_some(path)
    })
}

/// Returns N of the text "-rdmavN.so", with which libibverbs makes the names of providers.
fn private_version(library: &[u8]) -> Option<String> {
    let mark = b"-rdmav";
    let at = library
        .windows(mark.len())
        .position(|window| window == mark)?;
    let rest = library.get(at + mark.len()..)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    let version: String = digits.map(|digit| char::from(*digit)).collect();
    (!version.is_empty()).then_some(version)
}

fn device_files() -> DeviceFiles {
    let (mut uverbs, mut forbidden) = (Vec::new(), Vec::new());
    for path in entries(Path::new("/sys/class/infiniband_verbs")) {
        let Some(link) = read(&path.join("ibdev")) else {
            continue;
        };
        let file = Path::new("/dev/infiniband").join(file_name(&path));
        let opened = OpenOptions::new().read(true).write(true).open(&file);
        let access = access(opened.as_ref().err());
        if access != Access::Absent {
            uverbs.push(link);
        }
        if access == Access::Forbidden {
            forbidden.push(file.display().to_string());
        }
    }
    DeviceFiles {
        uverbs,
        forbidden,
        has_rdma_cm: Path::new("/dev/infiniband/rdma_cm").exists(),
    }
}

/// Whether this process can use a device file.
#[derive(Debug, PartialEq)]
enum Access {
    Granted,
    Forbidden,
    /// The file is missing, or its device belongs to another network namespace.
    Absent,
}

/// Interprets the error with which a device file was opened. ib_core refuses a device of another
/// network namespace by EPERM, and the file's mode refuses a user by EACCES. The devices controller
/// of cgroups refuses a container by EPERM, too, which needs the file from its host.
fn access(error: Option<&io::Error>) -> Access {
    match error {
        None => Access::Granted,
        Some(error) if error.kind() == ErrorKind::NotFound => Access::Absent,
        Some(error) => match error.raw_os_error() {
            Some(EPERM) => Access::Absent,
            Some(EACCES) => Access::Forbidden,
            _ => Access::Granted,
        },
    }
}

/// Returns the rules of the firewall. Only root may read them.
fn rules(unknown: &mut Vec<String>) -> Option<Rules> {
    let mut rules = Rules::default();
    let mut is_read = false;
    if let Ok(ruleset) = tool::json("nft", &["-j", "list", "ruleset"]) {
        rules.nft = ruleset;
        is_read = true;
    }
    for (is_v6, program) in [
        (false, "iptables-save"),
        (true, "ip6tables-save"),
        (false, "iptables-legacy-save"),
        (true, "ip6tables-legacy-save"),
    ] {
        if let Ok(text) = tool::text(program, &[]) {
            rules.iptables.push((is_v6, text));
            is_read = true;
        }
    }
    if !is_read {
        unknown.push(
            "The rules of the firewall, which take root and nft or iptables to read.".to_owned(),
        );
    }
    is_read.then_some(rules)
}

fn memlock() -> Memlock {
    let status = read(Path::new("/proc/self/status")).unwrap_or_default();
    let limits = read(Path::new("/proc/self/limits")).unwrap_or_default();
    // sudo passes on the limit of the user's session, which is that of interest.
    let is_for_user = std::env::var_os("SUDO_UID").is_some();
    Memlock {
        limit: memlock_limit(&limits),
        is_exempt: !is_for_user && has_capability(&status, IPC_LOCK),
    }
}

/// Returns the soft limit on locked memory in the text of /proc/self/limits.
fn memlock_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns whether the text of /proc/self/status has the effective capability of this number.
fn has_capability(status: &str, number: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = set.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| (bits >> number) & 1 == 1)
}

/// Returns the numbers of the sockets that have a UDP port, in the text of /proc/net/udp.
pub(super) fn sockets(text: &str, port: u16) -> BTreeSet<u64> {
    let suffix = format!(":{port:04X}");
    let sockets = text.lines().skip(1).filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let has_port = words.get(1)?.ends_with(&suffix);
        has_port.then(|| words.get(9)?.parse().ok()).flatten()
    });
    sockets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_block_the_module_are_found() {
        for (line, is_block) in [
            ("blacklist rrxe", true),
            ("blacklist rdma_rxe", false),
            ("install rrxe /bin/false", true),
            ("install rrxe /sbin/modprobe --ignore-install rrxe", false),
            ("options rrxe pollers=1", false),
        ] {
            assert_eq!(!blocks(line).is_empty(), is_block, "{line}");
        }
    }

    #[test]
    fn the_private_version_of_libibverbs_is_found() {
        assert_eq!(
            private_version(b"x\0%s-rdmav34.so\0y"),
            Some("34".to_owned())
        );
        assert_eq!(private_version(b"x"), None);
    }

    #[test]
    fn limits_and_capabilities_are_parsed() {
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  65536  unlimited  bytes\n";
        assert_eq!(memlock_limit(limits), Some(65536));
        assert_eq!(
            memlock_limit("Max locked memory  unlimited  unlimited  bytes"),
            None
        );
        assert!(has_capability("CapEff:\t0000000000004000\n", IPC_LOCK));
        assert!(!has_capability("CapEff:\t0000000000000001\n", IPC_LOCK));
    }

    #[test]
    fn errors_of_device_files_are_interpreted() {
        for (errno, wanted) in [
            (1, Access::Absent),
            (2, Access::Absent),
            (13, Access::Forbidden),
            (16, Access::Granted),
        ] {
            assert_eq!(
                access(Some(&io::Error::from_raw_os_error(errno))),
                wanted,
                "{errno}"
            );
        }
        assert_eq!(access(None), Access::Granted);
    }

    #[test]
    fn sockets_of_the_port_are_found() {
        let text = "sl local rem st\n 1: 00000000:12B7 00000000:0000 07 0:0 0:0 0 0 0 227 2\n 2: 00000000:0035 0:0 07 0:0 0:0 0 0 0 9 2\n";
        assert_eq!(sockets(text, 4791), BTreeSet::from([227]));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Tables of faults: each changes the facts of a healthy host, and names the finding and a part of
//! its remedy.

use serde_json::json;

use super::{run, software::NEEDED_OPTIONS};
use crate::{
    device::{Device, Gid},
    doctor::{
        facts::{DeviceFiles, Facts, InstalledModule, Kernel, Memlock, Module, PortUse, Provider},
        firewall::Rules,
    },
    netdev::Netdev,
};

mod peer;

/// Returns the facts of a host without a fault: one link on eth0, with one address.
fn healthy() -> Facts {
    Facts {
        kernel: Kernel {
            release: "7.3.4+deb13-amd64".to_owned(),
            ..Kernel::default()
        },
        module: Module {
            is_loaded: true,
            installed: Some(InstalledModule::default()),
            ..Module::default()
        },
        provider: Provider {
            wanted: Some("34".to_owned()),
            libraries: vec!["librxe-rdmav34.so".to_owned()],
            drivers: vec!["mlx5".to_owned(), "rxe".to_owned()],
        },
        files: DeviceFiles {
            uverbs: vec!["rrxe0".to_owned()],
            forbidden: Vec::new(),
            has_rdma_cm: true,
        },
        devices: vec![link()],
        netdevs: vec![eth0()],
        port: PortUse {
            is_bound: true,
            ..PortUse::default()
        },
        rules: Some(Rules::default()),
        ..Facts::default()
    }
}

fn link() -> Device {
    Device {
        name: "rrxe0".to_owned(),
        firmware: Some("rrxe 0.1.0".to_owned()),
        netdev: Some("eth0".to_owned()),
        state: "ACTIVE".to_owned(),
        mtu: Some(1024),
        gids: vec![Gid {
            index: 0,
            gid: "::ffff:10.0.0.1".parse().unwrap(),
            address: "10.0.0.1".parse().unwrap(),
        }],
        ..Device::default()
    }
}

fn eth0() -> Netdev {
    netdev(json!({
        "ifname": "eth0", "flags": ["UP", "LOWER_UP"], "mtu": 1500,
        "addr_info": [{"local": "10.0.0.1"}, {"local": "fe80::1"}],
    }))
}

fn netdev(description: serde_json::Value) -> Netdev {
    serde_json::from_value(description).unwrap()
}

/// A change of the facts, the name of the check that finds it, and a part of the remedy.
type Case = (&'static str, fn(&mut Facts), &'static str);

/// Checks that each change leads to exactly one finding, with the check's name and the remedy.
fn expect(check: &str, cases: &[Case]) {
    for (name, change, remedy) in cases {
        let mut facts = healthy();
        change(&mut facts);
        let found = run(&facts);
        assert_eq!(found.len(), 1, "{name}: {found:#?}");
        assert_eq!(found[0].check, check, "{name}: {found:#?}");
        assert!(found[0].remedy.contains(remedy), "{name}: {found:#?}");
        assert!(
            found[0].problem.ends_with('.') && found[0].remedy.ends_with('.'),
            "{name}"
        );
    }
}

fn set(facts: &mut Facts, counter: &str, count: u64) {
    facts.devices[0].counters.insert(counter.to_owned(), count);
}

fn unload(facts: &mut Facts) {
    facts.module.is_loaded = false;
}

/// Removes the link, and keeps the user of the UDP port.
fn without_link(facts: &mut Facts, port: PortUse) {
    facts.devices.clear();
    facts.port = port;
}

#[test]
fn a_healthy_host_has_no_finding() {
    assert_eq!(run(&healthy()), []);
}

#[test]
fn a_module_that_can_be_loaded_is_no_fault() {
    let mut facts = healthy();
    unload(&mut facts);
    facts.kernel.config = Some(config());
    assert_eq!(run(&facts), []);
}

/// Returns the configuration of a kernel that has all that rrxe needs.
fn config() -> String {
    let set = |name: &&str| format!("CONFIG_{name}=m\n");
    NEEDED_OPTIONS.iter().map(set).collect()
}

#[test]
fn the_same_options_are_needed_for_the_build() {
    let script = include_str!("../../../../tools/lib/host.sh");
    let (_, list) = script.split_once("NEEDED_OPTIONS=(").unwrap();
    let (list, _) = list.split_once(')').unwrap();
    assert_eq!(list.split_whitespace().collect::<Vec<_>>(), NEEDED_OPTIONS);
}

#[test]
fn kernels_that_are_unfit_are_found() {
    expect(
        "kernel",
        &[
            (
                "too old",
                |facts| {
                    unload(facts);
                    facts.kernel.release = "7.2.12-amd64".to_owned()
                },
                "7.3 or newer",
            ),
            (
                "real-time",
                |facts| {
                    unload(facts);
                    facts.kernel.config = Some(format!("{}CONFIG_PREEMPT_RT=y\n", config()));
                },
                "without PREEMPT_RT",
            ),
            (
                "no Rust",
                |facts| {
                    unload(facts);
                    let config = config()
                        .replace("CONFIG_RUST=m", "# CONFIG_RUST is not set\nCONFIG_RUST_X=y");
                    facts.kernel.config = Some(config);
                },
                "built with Rust",
            ),
        ],
    );
}

#[test]
fn modules_that_cannot_be_loaded_are_found() {
    expect(
        "module",
        &[
            (
                "absent",
                |facts| {
                    unload(facts);
                    facts.module.installed = None
                },
                "make install",
            ),
            (
                "for another kernel",
                |facts| {
                    unload(facts);
                    facts.module.installed = None;
                    facts.module.other_releases = vec!["7.3.1".to_owned()];
                },
                "make install",
            ),
            (
                "blocked",
                |facts| {
                    unload(facts);
                    facts.module.blocks = vec!["blacklist rrxe".to_owned()]
                },
                "/etc/modprobe.d",
            ),
            (
                "unsigned",
                |facts| {
                    unload(facts);
                    facts.kernel.wants_signatures = true
                },
                "Sign rrxe.ko",
            ),
        ],
    );
    expect(
        "module-version",
        &[(
            "old",
            |facts| {
                facts.module.loaded_version = Some("0.1.0".to_owned());
                facts.module.installed = Some(InstalledModule {
                    version: Some("0.2.0".to_owned()),
                    is_signed: false,
                });
            },
            "rmmod rrxe",
        )],
    );
}

#[test]
fn faults_of_user_space_are_found() {
    expect(
        "provider",
        &[
            (
                "no libibverbs",
                |facts| facts.provider.wanted = None,
                "ibverbs-providers",
            ),
            (
                "no provider",
                |facts| facts.provider.libraries.clear(),
                "ibverbs-providers",
            ),
            (
                "another interface",
                |facts| facts.provider.wanted = Some("59".to_owned()),
                "same version",
            ),
            (
                "no driver file",
                |facts| facts.provider.drivers.clear(),
                "driver rxe",
            ),
            (
                "librrxe without its driver file",
                |facts| facts.provider.libraries = vec!["librrxe-rdmav34.so".to_owned()],
                "driver rxe",
            ),
        ],
    );
    expect(
        "device-files",
        &[
            (
                "no uverbs",
                |facts| facts.files.uverbs.clear(),
                "modprobe ib_uverbs",
            ),
            (
                "no rdma_cm",
                |facts| facts.files.has_rdma_cm = false,
                "modprobe rdma_ucm",
            ),
            (
                "forbidden",
                |facts| {
                    facts
                        .files
                        .forbidden
                        .push("/dev/infiniband/uverbs0".to_owned())
                },
                "chmod 666 /dev/infiniband/uverbs0",
            ),
        ],
    );
    expect(
        "memlock",
        &[(
            "small",
            |facts| facts.memlock.limit = Some(8 << 20),
            "memlock unlimited",
        )],
    );
    for memlock in [
        Memlock {
            limit: Some(8 << 20),
            is_exempt: true,
        },
        Memlock {
            limit: Some(64 << 20),
            is_exempt: false,
        },
    ] {
        let mut facts = healthy();
        facts.memlock = memlock;
        assert_eq!(run(&facts), []);
    }
}

#[test]
fn faults_of_links_are_found() {
    expect(
        "link",
        &[
            (
                "no link",
                |facts| without_link(facts, PortUse::default()),
                "rrxe add rrxe0",
            ),
            (
                "only hardware",
                |facts| {
                    facts.devices[0].firmware = Some("1.0".to_owned());
                    facts.devices[0].hardware = true;
                    facts.port = PortUse::default();
                },
                "rrxe add rrxe0",
            ),
        ],
    );
    expect(
        "other-driver",
        &[(
            "rdma_rxe",
            |facts| facts.devices[0].firmware = None,
            "rdma link del rrxe0",
        )],
    );
    expect(
        "netns",
        &[(
            "another namespace",
            |facts| {
                facts.devices[0].netdev = None;
                facts.port = PortUse::default();
            },
            "ip netns exec",
        )],
    );
    expect(
        "state",
        &[
            (
                "down",
                |facts| {
                    facts.devices[0].state = "DOWN".to_owned();
                    facts.netdevs[0].flags.clear()
                },
                "ip link set eth0 up",
            ),
            (
                "no carrier",
                |facts| {
                    facts.devices[0].state = "DOWN".to_owned();
                    facts.netdevs[0].flags = vec!["UP".to_owned()]
                },
                "cable",
            ),
            (
                "unknown",
                |facts| facts.devices[0].state = "DOWN".to_owned(),
                "dmesg",
            ),
        ],
    );
    expect(
        "addresses",
        &[
            (
                "none",
                |facts| facts.netdevs[0].addresses.clear(),
                "ip addr add",
            ),
            (
                "link-local",
                |facts| {
                    facts.netdevs[0].addresses.remove(0);
                },
                "ip addr add",
            ),
            (
                "a port of a bridge",
                |facts| {
                    facts.netdevs[0].addresses.clear();
                    facts.netdevs[0].master = Some("br0".to_owned())
                },
                "rrxe add rrxe0 br0",
            ),
            (
                "a duplicate",
                |facts| facts.netdevs[0].addresses[1].dadfailed = true,
                "ip addr del fe80::1",
            ),
        ],
    );
    expect(
        "gids",
        &[(
            "missing",
            |facts| facts.devices[0].gids.clear(),
            "rrxe add rrxe0 eth0",
        )],
    );
    expect(
        "mtu",
        &[("small", |facts| facts.netdevs[0].mtu = 1111, "1112")],
    );
}

#[test]
fn hidden_links_are_mentioned() {
    let mut facts = healthy();
    without_link(&mut facts, PortUse::default());
    facts.netns_exclusive = true;
    assert!(run(&facts)[0].problem.contains("netns exclusive"));
}

/// Checks that a user of the port is named together with the missing link.
fn expect_port(change: fn(&mut Facts), problem: &str, remedy: &str) {
    let mut facts = healthy();
    let bound = PortUse {
        is_bound: true,
        ..PortUse::default()
    };
    without_link(&mut facts, bound);
    change(&mut facts);
    let found = run(&facts);
    let checks: Vec<_> = found.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, ["link", "port"], "{found:#?}");
    assert!(found[1].problem.contains(problem), "{found:#?}");
    assert!(found[1].remedy.contains(remedy), "{found:#?}");
}

#[test]
fn users_of_the_port_are_found() {
    let tunnel = |facts: &mut Facts| {
        let info = json!({"info_kind": "vxlan", "info_data": {"port": 4791}});
        facts
            .netdevs
            .push(netdev(json!({"ifname": "vx", "linkinfo": info})));
    };
    expect_port(tunnel, "tunnel vx", "ip link del vx");
    expect_port(
        |facts| facts.port.has_fou = true,
        "ip fou",
        "ip fou del port 4791",
    );
    let process = |facts: &mut Facts| facts.port.processes.push("python3 (PID 7)".to_owned());
    expect_port(process, "python3 (PID 7)", "End this process");
    expect_port(|_| {}, "unknown socket", "ss -aunp");
}

#[test]
fn faults_shown_by_counters_are_found() {
    expect(
        "loss",
        &[(
            "loss",
            |facts| {
                set(facts, "sent_pkts", 1000);
                set(facts, "rto_resends", 10)
            },
            "tc -s qdisc show dev eth0",
        )],
    );
    expect(
        "failures",
        &[
            (
                "no response",
                |facts| set(facts, "retry_exceeded_err", 1),
                "rrxe doctor PEER",
            ),
            (
                "no receives",
                |facts| set(facts, "retry_rnr_exceeded_err", 1),
                "rnr_retry",
            ),
        ],
    );
    expect(
        "drops",
        &[
            ("damage", |facts| set(facts, "drop_icrc", 10), "NAT"),
            ("overflow", |facts| set(facts, "drop_overflow", 10), "CPU"),
            (
                "peer",
                |facts| set(facts, "drop_peer", 10),
                "source address",
            ),
            (
                "interface",
                |facts| set(facts, "drop_interface", 10),
                "routes",
            ),
            (
                "sending",
                |facts| set(facts, "send_err", 10),
                "ip route get",
            ),
        ],
    );
    let mut facts = healthy();
    set(&mut facts, "sent_pkts", 10_000);
    set(&mut facts, "completer_retry_err", 99);
    set(&mut facts, "drop_icrc", 9);
    assert_eq!(run(&facts), []);
}

#[test]
fn a_firewall_that_drops_packets_is_found_once() {
    expect(
        "firewall",
        &[(
            "nft",
            |facts| {
                facts.rules = Some(Rules {
                    nft: json!({"nftables": [{"chain": {"family": "ip", "table": "f", "name": "in", "hook": "input", "policy": "drop"}}]}),
                    ..Rules::default()
                });
            },
            "nft insert rule ip f in udp dport 4791 accept",
        )],
    );
}

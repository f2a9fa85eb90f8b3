// SPDX-License-Identifier: GPL-2.0

//! An administrator's process: it adds and removes rrxe links, network devices, network namespaces
//! and the module while attackers use them.

use std::{
    process::{Child, Command, Stdio},
    sync::atomic::Ordering::Relaxed,
};

use crate::{
    ops::noise,
    profile::Profile,
    rng::Rng,
    stats::{self, Stats},
    watch,
};

/// Names of the actions in the report.
pub const ACTIONS: [&str; 7] = [
    "admin add",
    "admin link del",
    "admin netdev",
    "admin netns del",
    "admin settings",
    "admin rmmod",
    "admin modprobe",
];

/// Number of network namespaces that are added and removed.
const NAMESPACES: u64 = 3;

/// Takes actions until the end of the run. `first_kind` is the index of the first action among the
/// kinds of operations that [`Stats`] counts.
pub fn run(profile: &Profile, stats: &'static Stats, first_kind: usize) -> i32 {
    let mut rng = Rng::new(profile.seed, &[u64::MAX - 1]);
    let until = stats::now() + profile.seconds * 1000;
    let admin = Admin {
        profile,
        stats,
        first_kind,
    };
    while stats::now() < until {
        let namespace = rng.below(NAMESPACES);
        if profile.unload && rng.one_in(4) {
            admin.reload();
            continue;
        }
        match rng.below(16) {
            0..=6 => admin.add(namespace),
            7..=8 => admin.run(1, &format!("rdma link del rrxec{namespace}")),
            9 => admin.run(2, &format!("ip -n fz{namespace} link del d0")),
            10..=11 => admin.run(3, &format!("ip netns del fz{namespace}")),
            12..=14 => admin.set(namespace, &mut rng),
            _ => admin.add(namespace),
        }
        noise::pause(rng.below(400_000));
    }
    0
}

struct Admin<'a> {
    profile: &'a Profile,
    stats: &'static Stats,
    first_kind: usize,
}

impl Admin<'_> {
    /// Adds a namespace with a network device and an rrxe link. Parts that exist already stay.
    fn add(&self, namespace: u64) {
        for command in [
            format!("ip netns add fz{namespace}"),
            format!("ip -n fz{namespace} link add d0 type dummy"),
            format!("ip -n fz{namespace} addr add 10.88.{namespace}.1/24 dev d0"),
            format!("ip -n fz{namespace} link set d0 up"),
            format!(
                "ip netns exec fz{namespace} rdma link add rrxec{namespace} type rrxe netdev d0"
            ),
        ] {
            self.run(0, &command);
        }
    }

    fn set(&self, namespace: u64, rng: &mut Rng) {
        let setting = match rng.below(5) {
            0 => format!("ip -n fz{namespace} link set d0 down"),
            1 => format!("ip -n fz{namespace} link set d0 up"),
            2 => format!(
                "ip -n fz{namespace} link set d0 mtu {}",
                300 + rng.below(9000)
            ),
            3 => format!("ip -n fz{namespace} addr del 10.88.{namespace}.1/24 dev d0"),
            _ => format!("ip -n fz{namespace} addr add fd88:{namespace}::1/64 dev d0 nodad"),
        };
        self.run(4, &setting);
    }

    /// Removes the module while it is in use, loads it again, and adds the links of the run again.
    fn reload(&self) {
        self.run(5, "rmmod rrxe");
        self.run(6, "modprobe rrxe");
        for host in 1..=2 {
            self.run(
                6,
                &format!("ip netns exec h{host} rdma link add rrxe{host} type rrxe netdev eth0"),
            );
        }
    }

    fn run(&self, action: usize, command: &str) {
        let mut words = command.split(' ');
        let program = words.next().unwrap_or_default();
        let child = Command::new(program)
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let errno = match child {
            Ok(child) => self.finish(child, command),
            Err(error) => error.raw_os_error().unwrap_or(5),
        };
        self.stats.count(self.first_kind + action, errno);
    }

    /// Waits for a command. Returns its exit status, which the report shows as an errno. A command
    /// that hangs is a failure of the run and counts as errno 110 (ETIMEDOUT).
    fn finish(&self, mut child: Child, command: &str) -> i32 {
        let until = stats::now() + self.profile.timeout;
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return status.code().unwrap_or(4);
            }
            if stats::now() > until {
                break;
            }
            noise::pause(5000);
        }
        self.stats.failures.fetch_add(1, Relaxed);
        watch::print_stacks(
            child.id() as i32,
            &format!("`{command}` takes longer than {} ms", self.profile.timeout),
        );
        let _ = child.kill();
        110
    }
}

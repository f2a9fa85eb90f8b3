// SPDX-License-Identifier: GPL-2.0

//! The random parameters of a seed: the faults, operations and sizes that it mixes.
//!
//! This is swarm testing: a seed that enables all features rarely exercises one of them deeply, so
//! each seed draws a random subset.

use roce::mtu::Mtu;

use crate::rng::Rng;

/// The impairments of the network (tc-netem(8)): faults in permille of the packets, and delays.
#[derive(Clone, Debug)]
pub(crate) struct Impairments {
    pub(crate) drop: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
    pub(crate) corrupt: u32,
    /// The sender has no memory for the packet.
    pub(crate) no_memory: u32,
    /// Number of nanoseconds that every packet takes.
    pub(crate) latency: u64,
    /// Maximum additional delay of a reordered packet in nanoseconds.
    pub(crate) jitter: u64,
}

impl Impairments {
    /// Returns the impairments of a network without faults.
    pub(crate) fn none(latency: u64) -> Self {
        Self {
            drop: 0,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
            no_memory: 0,
            latency,
            jitter: 0,
        }
    }
}

/// The kinds of work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    Local,
    Datagram,
}

impl Kind {
    pub(crate) const ALL: [Self; 12] = [
        Self::Send,
        Self::SendImm,
        Self::SendInv,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::AtomicWrite,
        Self::Flush,
        Self::Local,
        Self::Datagram,
    ];

    /// Returns whether the kind is posted to connected QPs.
    pub(crate) fn is_connected(self) -> bool {
        self != Self::Datagram
    }
}

/// The deliberate errors, in permille of the work requests or packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mistakes {
    /// Work requests that name memory or a receive queue to which the peer grants no access.
    pub(crate) bad_remote: u32,
    /// Misaligned atomics.
    pub(crate) misaligned: u32,
    /// Send work requests that the host refuses, or whose local memory is missing.
    pub(crate) bad_local: u32,
    /// Receives that the host refuses, or whose local memory is missing.
    pub(crate) bad_recv: u32,
    /// Receives that are too short.
    pub(crate) short_recv: u32,
    /// READ responses whose payload is shortened by one byte on the way.
    pub(crate) short_answer: u32,
    /// Packets whose access to the responder's memory fails or meets a page fault.
    pub(crate) memory_fault: u32,
}

/// A disturbance of QPs while traffic flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chaos {
    /// `modify_qp` to ERR.
    Error,
    /// `modify_qp` to RESET.
    Reset,
    /// The QP is destroyed. Another QP gets its number later.
    Destroy,
    /// SQD, and later RTS again.
    Drain,
    /// A region is deregistered while peers use it, and another replaces it.
    Revoke,
    /// The translation and the rights of a region change, but not its key.
    Reregister,
    /// Attributes change in RTS.
    Modify,
    /// Calls that `modify_qp` must refuse.
    BadModify,
    /// All packets to one node are lost.
    Blackhole,
    /// The next completions of a node don't fit in their CQ.
    Overflow,
}

/// All parameters that a seed draws at its start.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    pub(crate) mtu: Mtu,
    pub(crate) pairs: usize,
    /// Number of work requests that each end posts, except the ends that only receive.
    pub(crate) ops: u32,
    /// Length of the longest message in packets.
    pub(crate) longest: u32,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) impairments: Impairments,
    pub(crate) mistakes: Mistakes,
    pub(crate) chaos: Vec<Chaos>,
    pub(crate) near_wrap: bool,
    /// The connections are unreliable instead of reliable.
    pub(crate) unreliable: bool,
    /// The connections are extended reliable ones. One end has only a requester. The other end has
    /// only a responder. It takes receives from the shared receive queues that the requests name.
    pub(crate) xrc: bool,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// `max_rd_atomic` and `max_dest_rd_atomic` of both ends of a connection.
    pub(crate) rd_atomic: u8,
    pub(crate) sq: u32,
    pub(crate) rq: u32,
    pub(crate) window: usize,
    pub(crate) srq: bool,
    pub(crate) unsignaled: u32,
    pub(crate) fence: u32,
    /// Permille of the packets after which a forged one arrives.
    pub(crate) forged: u32,
    /// Probability, in permille, that an application replenishes the receives when it runs.
    pub(crate) recv_eagerness: u32,
    /// The hosts keep early packets.
    pub(crate) keeps_early: bool,
    /// Upper bound, in nanoseconds, of the random delay between an event, such as the arrival of a
    /// packet, and the poll of the engine.
    pub(crate) laziness: u64,
    /// Maximum number of nanoseconds between two runs of an application.
    pub(crate) pace: u64,
}

impl Swarm {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mtu = match rng.below(10) {
            0..=5 => Mtu::Bytes256,
            6 => Mtu::Bytes512,
            7 => Mtu::Bytes1024,
            8 => Mtu::Bytes2048,
            _ => Mtu::Bytes4096,
        };
        let pairs = rng.pick(&[1, 1, 1, 2, 2, 3]);
        // Some seeds have messages that exceed the engine's limit of packets in flight.
        let long = rng.chance(20);
        let longest = if long {
            700
        } else {
            rng.pick(&[1, 2, 3, 5, 8, 12, 40])
        };
        let mtu = if long { Mtu::Bytes256 } else { mtu };
        let sq = if long {
            rng.pick(&[1, 2, 4])
        } else {
            rng.pick(&[1, 2, 3, 5, 8, 13, 16, 32])
        };
        let ops = if long { 12 } else { rng.range(40, 160) };
        let unreliable = rng.chance(80);
        let xrc = !unreliable && rng.chance(100);
        let mistakes = mistakes(rng);
        let mut kinds = kinds(rng);
        if xrc {
            kinds.retain(|kind| !matches!(kind, Kind::AtomicWrite | Kind::Flush));
            kinds.push(Kind::Send);
        }
        if unreliable {
            kinds = vec![Kind::Send, Kind::SendImm, Kind::Write, Kind::WriteImm];
        }
        let quick = rng.chance(700);
        Self {
            mtu,
            pairs,
            ops: (ops / pairs as u64) as u32,
            longest,
            kinds,
            impairments: impairments(rng),
            mistakes,
            unreliable,
            xrc,
            chaos: chaos(rng),
            near_wrap: rng.chance(700),
            // With a timeout of exponent 5 there is no RTO.
            timeout: rng.pick(&[5, 5, 8, 8, 8, 9, 9, 9, 10, 10, 12, 12, 0]),
            retry_cnt: rng.pick(&[7, 7, 7, 7, 7, 6, 3, 1, 0]),
            rnr_retry: rng.pick(&[7, 7, 7, 7, 6, 3, 1, 0]),
            min_rnr_timer: rng.pick(&[1, 2, 5, 8, 10, 12, 14]),
            rd_atomic: rng.pick(&[1, 1, 2, 3, 4, 8, 16]),
            sq,
            rq: if long {
                rng.pick(&[1, 2])
            } else {
                rng.pick(&[1, 2, 4, 8, 16])
            },
            window: rng.range(1, u64::from(sq) + 3) as usize,
            srq: rng.chance(250),
            unsignaled: rng.pick(&[0, 0, 200, 500, 1000]),
            fence: rng.pick(&[0, 0, 200, 600]),
            forged: rng.pick(&[0, 0, 20, 200]),
            recv_eagerness: rng.pick(&[1000, 1000, 900, 500, 150]),
            keeps_early: rng.chance(600),
            laziness: rng.pick(&[0, 0, 1_000, 20_000, 200_000]),
            pace: if quick { 20_000 } else { 400_000 },
        }
    }

    /// Returns the length of the longest message in bytes.
    pub(crate) fn max_message(&self) -> u32 {
        self.longest * self.mtu.bytes()
    }

    /// Returns the length in bytes of the area at the start of a node's memory that holds the data
    /// to send. Nothing writes to this area.
    pub(crate) fn source(&self) -> usize {
        (2 * self.max_message() as usize).max(1 << 16)
    }

    /// Returns the length in bytes of each region that exists when the simulation starts.
    pub(crate) fn target(&self) -> usize {
        (self.max_message() as usize).max(1 << 14)
    }

    /// Returns the acknowledgment timeout in nanoseconds, or a substitute for it if the timer is
    /// disabled.
    pub(crate) fn ack_timeout(&self) -> u64 {
        match self.timeout {
            0 => 4096 << 9,
            exponent => crate::requester::ack_timeout(exponent),
        }
    }
}

fn kinds(rng: &mut Rng) -> Vec<Kind> {
    let density = rng.pick(&[150, 400, 700, 1000]);
    let mut kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| kind.is_connected() && rng.chance(density))
        .collect();
    if kinds.is_empty() {
        kinds.push(rng.pick(&[Kind::Send, Kind::Write, Kind::Read]));
    }
    kinds
}

pub(crate) fn impairments(rng: &mut Rng) -> Impairments {
    let latency = rng.pick(&[1_000, 5_000, 20_000, 100_000]);
    if rng.chance(100) {
        return Impairments::none(latency);
    }
    let is_heavy = rng.chance(250);
    let mut level = |light: &[u32], heavy: &[u32]| {
        if rng.chance(500) {
            0
        } else {
            rng.pick(if is_heavy { heavy } else { light })
        }
    };
    let drop = level(&[5, 10, 30, 50], &[100, 200]);
    let duplicate = level(&[10, 50], &[200, 500]);
    let reorder = level(&[10, 50], &[200, 500]);
    let corrupt = level(&[5, 20], &[50, 100]);
    let no_memory = level(&[5, 20], &[50, 100]);
    Impairments {
        drop,
        duplicate,
        reorder,
        corrupt,
        no_memory,
        latency,
        jitter: rng.pick(&[5_000, 50_000, 500_000, 3_000_000]),
    }
}

fn mistakes(rng: &mut Rng) -> Mistakes {
    if rng.chance(500) {
        return Mistakes::default();
    }
    let mut level = |rates: &[u32]| {
        if rng.chance(600) {
            0
        } else {
            rng.pick(rates)
        }
    };
    Mistakes {
        bad_remote: level(&[5, 20, 60]),
        misaligned: level(&[20, 100]),
        bad_local: level(&[5, 20, 60]),
        bad_recv: level(&[5, 30]),
        short_recv: level(&[5, 30]),
        short_answer: level(&[2, 10]),
        memory_fault: level(&[2, 20]),
    }
}

fn chaos(rng: &mut Rng) -> Vec<Chaos> {
    const ALL: [Chaos; 10] = [
        Chaos::Error,
        Chaos::Reset,
        Chaos::Destroy,
        Chaos::Drain,
        Chaos::Revoke,
        Chaos::Reregister,
        Chaos::Modify,
        Chaos::BadModify,
        Chaos::Blackhole,
        Chaos::Overflow,
    ];
    if rng.chance(400) {
        return Vec::new();
    }
    let density = rng.pick(&[120, 300]);
    let mut chaos = Vec::new();
    for kind in ALL {
        while rng.chance(density) {
            chaos.push(kind);
        }
    }
    chaos
}

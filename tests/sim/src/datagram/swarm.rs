// SPDX-License-Identifier: GPL-2.0

//! The random parameters of a seed of datagrams.

use roce::mtu::Mtu;
use roce::qp::QpKind;

use crate::rng::Rng;
use crate::swarm::{impairments, Impairments};

/// Number of bytes of the memory that datagrams are sent from.
pub(super) const SOURCE: usize = 1 << 15;

/// Queue key of QP1 (IBTA 1.x §3.5.3).
pub(super) const GSI_QKEY: u32 = 0x8001_0000;
/// Length in bytes of each datagram that QP1 accepts.
pub(super) const MAD_LEN: u32 = 256;

/// Two queue keys, so that some datagrams don't match.
const QKEYS: [u32; 2] = [0x1111_1111, 0x0bad_cafe];

/// All parameters that a seed draws at its start.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    pub(super) kind: QpKind,
    pub(super) mtu: Mtu,
    pub(super) qps: usize,
    /// Number of work requests that each QP posts.
    pub(super) ops: u32,
    pub(super) impairments: Impairments,
    pub(super) sq: u32,
    pub(super) rq: u32,
    pub(super) window: usize,
    pub(super) srq: bool,
    /// Probability, in permille, that [`Self::qkey`] draws the second of [`QKEYS`] on a UD QP.
    pub(super) odd_qkey: u32,
    /// Permille of the datagrams that exceed the MTU.
    pub(super) too_long: u32,
    /// Permille of the work requests that no datagram QP can carry out, or whose memory is missing.
    pub(super) bad_local: u32,
    /// Permille of the receives that are invalid, or whose memory is missing.
    pub(super) bad_recv: u32,
    /// Permille of the receives that may be too short for a datagram of the MTU.
    pub(super) short_recv: u32,
    /// Permille of the datagrams to the multicast group.
    pub(super) multicast: u32,
    pub(super) unsignaled: u32,
    /// Probability, in permille, that an application posts receives when it runs.
    pub(super) recv_eagerness: u32,
    /// Number of disturbances of QPs.
    pub(super) chaos: u32,
    /// Maximum number of nanoseconds between two runs of an application.
    pub(super) pace: u64,
}

impl Swarm {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let kind = if rng.chance(200) {
            QpKind::Gsi
        } else {
            QpKind::Ud
        };
        let sq = rng.pick(&[1, 2, 3, 8, 16, 80]);
        let faulty = rng.chance(500);
        let mut level = |rates: &[u32]| if faulty { rng.pick(rates) } else { 0 };
        let (odd_qkey, too_long) = (level(&[0, 50, 300]), level(&[0, 20, 200]));
        let (bad_local, bad_recv) = (level(&[0, 5, 30]), level(&[0, 5, 30]));
        let short_recv = level(&[0, 50]);
        Self {
            kind,
            mtu: rng.pick(&[Mtu::Bytes256, Mtu::Bytes256, Mtu::Bytes1024, Mtu::Bytes4096]),
            qps: rng.range(2, 6) as usize,
            ops: rng.range(20, 80) as u32,
            impairments: impairments(rng),
            sq,
            rq: rng.pick(&[1, 2, 4, 16, 64]),
            window: rng.range(1, u64::from(sq) + 1) as usize,
            srq: rng.chance(250),
            odd_qkey,
            too_long,
            bad_local,
            bad_recv,
            short_recv,
            multicast: rng.pick(&[0, 100, 500]),
            unsignaled: rng.pick(&[0, 0, 300, 1000]),
            recv_eagerness: rng.pick(&[1000, 900, 500, 100]),
            chaos: rng.pick(&[0, 0, 2, 8, 20]),
            pace: rng.pick(&[5_000, 50_000]),
        }
    }

    /// Draws the queue key of a QP or of a work request.
    pub(super) fn qkey(&self, rng: &mut Rng) -> u32 {
        match self.kind {
            QpKind::Gsi => GSI_QKEY,
            _ if rng.chance(self.odd_qkey) => QKEYS[1],
            _ => QKEYS[0],
        }
    }
}

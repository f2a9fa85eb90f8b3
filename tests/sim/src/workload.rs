// SPDX-License-Identifier: GPL-2.0

//! The work requests and receives that the applications post.

use roce::ids::{Imm, Lkey, Rkey, Srqn};
use roce::wc::WcStatus;
use roce::wr::{AtomicOp, FlushKind, LocalOp, RemoteAddr, SendExtra, SendOp, SendSlot, SendWr};

use crate::memory::{Grant, Memory, Region};
use crate::message::{LocalFault, Message};
use crate::recv::{self, RecvFault, FOREIGN_RING, XRC_RINGS};
use crate::rng::Rng;
use crate::swarm::{Kind, Swarm};

/// Number of regions at the start: one with all rights, one read-only, one write-only, and one with
/// all rights that may be revoked.
pub(crate) const TARGETS: usize = 4;

pub(crate) const NOTHING: Grant = Grant {
    read: false,
    write: false,
    atomic: false,
    flush: false,
};

pub(crate) const EVERYTHING: Grant = Grant {
    read: true,
    write: true,
    atomic: true,
    flush: true,
};

/// The rights of the target regions.
pub(crate) const GRANTS: [Grant; TARGETS] = [
    EVERYTHING,
    Grant {
        read: true,
        ..NOTHING
    },
    Grant {
        write: true,
        ..NOTHING
    },
    EVERYTHING,
];

/// A generator of work requests.
pub(crate) struct Workload<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) swarm: &'a Swarm,
    /// The memory of this end, and the peer's.
    pub(crate) local: &'a mut Memory,
    pub(crate) remote: &'a mut Memory,
}

impl Workload<'_> {
    /// Draws a work request of kind `kind`. `results` is the offset of its READ or atomic result.
    pub(crate) fn message(&mut self, kind: Kind, wr_id: u64, slot: u32, results: usize) -> Message {
        let length = self.length(kind);
        let op = self.operation(kind, length);
        let fault = self.fault(kind, length);
        let opens = match op {
            SendOp::Local(LocalOp::RegMr | LocalOp::BindMw) => Some(self.window()),
            _ => None,
        };
        let gathers = matches!(
            op,
            SendOp::Send(_) | SendOp::Write(..) | SendOp::AtomicWrite(_)
        );
        let local = if gathers {
            self.rng
                .below((self.swarm.source() - length as usize) as u64) as usize
        } else {
            results
        };
        let payload = if gathers {
            self.local.bytes[local..local + length as usize].into()
        } else {
            [].into()
        };
        Message {
            wr: SendWr {
                slot: SendSlot(slot),
                wr_id,
                op,
                length,
                signaled: !self.rng.chance(self.swarm.unsignaled),
                solicited: self.rng.chance(300),
                fence: self.rng.chance(self.swarm.fence),
                srqn: self.queue(),
            },
            fault,
            opens,
            payload,
            local,
            first: 0,
            packets: 0,
            cuts: Vec::new(),
            filled: 0,
            answered: false,
            executed: false,
            msns: Vec::new(),
            original: 0,
            completed: None,
        }
    }

    /// Draws the shared receive queue that an XRC request names, nearly always one of its domain.
    fn queue(&mut self) -> Srqn {
        if !self.swarm.xrc {
            return Srqn::default();
        }
        if self.rng.chance(self.swarm.mistakes.bad_remote) {
            return recv::srqn(self.rng.pick(&[FOREIGN_RING, 0, 99]));
        }
        recv::srqn(self.rng.pick(&XRC_RINGS))
    }

    /// Draws a length, often close to a multiple of the MTU, where off-by-one errors are likely.
    fn length(&mut self, kind: Kind) -> u32 {
        match kind {
            Kind::CompareSwap | Kind::FetchAdd | Kind::AtomicWrite => return 8,
            Kind::Local | Kind::Datagram => return 0,
            _ => {}
        }
        let mtu = self.swarm.mtu.bytes();
        let longest = self.swarm.max_message();
        let length = match self.rng.below(4) {
            0 => self.rng.below(64) as u32,
            1 => mtu * self.rng.range(1, u64::from(self.swarm.longest)) as u32,
            2 => {
                let near = mtu * self.rng.range(1, u64::from(self.swarm.longest)) as u32;
                near + self.rng.below(3) as u32 - 1
            }
            _ => self.rng.below(u64::from(longest) + 1) as u32,
        };
        length.clamp(u32::from(kind == Kind::Flush), longest)
    }

    fn operation(&mut self, kind: Kind, length: u32) -> SendOp {
        let imm = Imm(self.rng.next() as u32);
        match kind {
            Kind::Send => SendOp::Send(SendExtra::Plain),
            Kind::SendImm => SendOp::Send(SendExtra::Imm(imm)),
            Kind::SendInv => SendOp::Send(SendExtra::Invalidate(self.remote_key())),
            Kind::Write => SendOp::Write(self.address(kind, length), None),
            Kind::WriteImm => SendOp::Write(self.address(kind, length), Some(imm)),
            Kind::Read => SendOp::Read(self.address(kind, length)),
            Kind::AtomicWrite => SendOp::AtomicWrite(self.address(kind, length)),
            Kind::CompareSwap => {
                // Small values make many comparisons succeed.
                let op = AtomicOp::CompareSwap {
                    compare: self.rng.below(3),
                    swap: self.rng.below(3),
                };
                SendOp::Atomic(self.address(kind, length), op)
            }
            Kind::FetchAdd => {
                let add = self.rng.pick(&[1, u64::MAX, self.rng.clone().next()]);
                SendOp::Atomic(self.address(kind, length), AtomicOp::FetchAdd { add })
            }
            Kind::Flush => {
                let kind_of = FlushKind {
                    placement: self.rng.range(1, 3) as u8,
                    selectivity: self.rng.below(2) as u8,
                };
                SendOp::Flush(self.address(kind, length), kind_of)
            }
            Kind::Local | Kind::Datagram => SendOp::Local(match self.rng.below(3) {
                0 => LocalOp::RegMr,
                1 => LocalOp::BindMw,
                _ => LocalOp::Invalidate(Lkey(self.key_to_close(false))),
            }),
        }
    }

    /// Draws a key at the peer for a SEND to invalidate, nearly always a valid one.
    fn remote_key(&mut self) -> Rkey {
        let bad = self.rng.chance(self.swarm.mistakes.bad_remote);
        if bad {
            return Rkey(self.rng.next() as u32 | 1 << 31);
        }
        Rkey(self.key_to_close(true))
    }

    /// Adds a region that peers may access once a work request has made its key valid, as a window
    /// or a registration. Returns the key.
    fn window(&mut self) -> u32 {
        let key = self.rng.next() as u32 & !(1 << 31);
        let skipped = 8 * self.rng.below(self.swarm.target() as u64 / 16) as usize;
        let len = self.rng.range(8, (self.swarm.target() - skipped) as u64) as usize;
        let start = self.swarm.source() + skipped;
        let grant = self.rng.pick(&GRANTS);
        self.local.regions.push(Region {
            key,
            start,
            at: start,
            len,
            grant,
            live: false,
        });
        key
    }

    /// Returns, for 3 of 10 operations, the index of the newest valid window of the peer that
    /// allows such an operation.
    fn open_window(&mut self, kind: Kind, length: u32) -> Option<usize> {
        if !self.rng.chance(300) {
            return None;
        }
        let serves = |region: &Region| {
            let grants = match kind {
                Kind::Read => region.grant.read,
                Kind::Write | Kind::WriteImm | Kind::AtomicWrite => region.grant.write,
                _ => region.grant.atomic,
            };
            region.live && grants && region.len >= length.max(8) as usize
        };
        let mut windows = self.remote.regions.iter().skip(TARGETS);
        let newest = windows.rposition(serves)?;
        Some(TARGETS + newest)
    }

    /// Draws the key to invalidate, here or at the peer. The key is seldom one that operations use,
    /// since its invalidation moves QPs to ERR.
    fn key_to_close(&mut self, remote: bool) -> u32 {
        let spoils = self.rng.chance(2 * self.swarm.mistakes.bad_remote);
        let memory = if remote {
            &mut *self.remote
        } else {
            &mut *self.local
        };
        let used = |region: &&Region| region.live && region.len > SPARE;
        match memory.regions.iter().skip(TARGETS).find(used) {
            Some(window) if spoils => window.key,
            _ => spare(self.rng, memory),
        }
    }

    /// Draws a range at the peer with the rights that the operation needs, unless an error is due.
    fn address(&mut self, kind: Kind, length: u32) -> RemoteAddr {
        let wrong = self.rng.chance(self.swarm.mistakes.bad_remote);
        let misaligned = self.rng.chance(self.swarm.mistakes.misaligned);
        let region = match kind {
            _ if wrong => self.rng.below(TARGETS as u64) as usize,
            Kind::Read => self.rng.pick(&[0, 0, 1, 3]),
            Kind::Write | Kind::WriteImm | Kind::AtomicWrite => self.rng.pick(&[0, 0, 2, 3]),
            _ => self.rng.pick(&[0, 0, 3]),
        };
        let region = match self.open_window(kind, length) {
            Some(window) if !wrong => window,
            _ => region,
        };
        let region = &self.remote.regions[region];
        let mut rkey = Rkey(region.key);
        let room = region.len as u64 - u64::from(length);
        // A few addresses that all QPs share make operations collide.
        let mut offset = match self.rng.below(3) {
            0 => 0,
            1 => room.min(64),
            _ => self.rng.below(room + 1),
        };
        if matches!(kind, Kind::CompareSwap | Kind::FetchAdd | Kind::AtomicWrite) {
            offset &= !7;
            offset += u64::from(misaligned) * self.rng.range(1, 7).min(room - offset);
        }
        if wrong {
            match self.rng.below(3) {
                0 => rkey = Rkey(self.rng.next() as u32 | 1 << 31),
                1 => offset = room + (1 + self.rng.below(8)) * 8,
                _ => offset = 0u64.wrapping_sub(8),
            }
        }
        RemoteAddr {
            va: (self.remote.base + region.start as u64).wrapping_add(offset),
            rkey,
        }
    }

    fn fault(&mut self, kind: Kind, length: u32) -> LocalFault {
        if !self.rng.chance(self.swarm.mistakes.bad_local) {
            return LocalFault::None;
        }
        if self.rng.chance(300) {
            let status = self.rng.pick(&[WcStatus::LocQpOpErr, WcStatus::LocProtErr]);
            return LocalFault::Malformed(status);
        }
        match kind {
            Kind::Local => LocalFault::Refused(WcStatus::MwBindErr),
            Kind::Flush => LocalFault::None,
            _ if length == 0 => LocalFault::None,
            _ => self.rng.pick(&[LocalFault::Missing, LocalFault::Late]),
        }
    }
}

/// Length in bytes of a region that no operation accesses.
const SPARE: usize = 7;

/// Creates a region whose only use is that its key can be invalidated.
fn spare(rng: &mut Rng, memory: &mut Memory) -> u32 {
    let key = rng.next() as u32 & !(1 << 31);
    memory.regions.push(Region {
        key,
        start: 0,
        at: 0,
        len: SPARE,
        grant: NOTHING,
        live: true,
    });
    key
}

/// Draws the length and the fault of a receive.
pub(crate) fn receive(rng: &mut Rng, swarm: &Swarm, perfect: bool) -> (u32, RecvFault) {
    let mut length = swarm.max_message();
    if perfect {
        return (length, RecvFault::None);
    }
    if rng.chance(swarm.mistakes.short_recv) {
        length = rng.below(u64::from(length) + 1) as u32;
    }
    if !rng.chance(swarm.mistakes.bad_recv) {
        return (length, RecvFault::None);
    }
    let malformed = RecvFault::Malformed(WcStatus::LocQpOpErr);
    let fault = rng.pick(&[RecvFault::Unreachable, malformed]);
    (length, fault)
}

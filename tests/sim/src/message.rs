// SPDX-License-Identifier: GPL-2.0

//! A posted send work request as the oracle knows it: the packets that it must become, and its
//! progress at both ends.

use std::rc::Rc;

use roce::host::Fetch;
use roce::mtu::Mtu;
use roce::wc::{WcOpcode, WcStatus};
use roce::wire::packet::{AtomicEth, Body, Reth, SendPart, WritePart};
use roce::wr::{AtomicOp, LocalOp, SendExtra, SendOp, SendSlot, SendWr};

/// A fault of a work request at its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalFault {
    None,
    /// The host refuses the work request when it is taken.
    Malformed(WcStatus),
    /// The host reports the memory as missing when the engine checks it, or else when the host
    /// moves the bytes.
    Missing,
    /// The host reports the memory as missing only when it moves the bytes.
    Late,
    /// A local operation that fails with this status.
    Refused(WcStatus),
}

/// A posted send work request.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) wr: SendWr,
    pub(crate) fault: LocalFault,
    /// The key of a local region that the operation makes valid.
    pub(crate) opens: Option<u32>,
    /// The bytes that a SEND, WRITE or ATOMIC WRITE moves.
    pub(crate) payload: Rc<[u8]>,
    /// Offset of the payload in memory, or of the destination of a READ or atomic.
    pub(crate) local: usize,
    /// Extended number of its first packet. Extended numbers count packets from 0 and don't wrap.
    pub(crate) first: u64,
    /// Number of PSNs that the message takes.
    pub(crate) packets: u64,
    /// Ends of the requests into which a READ was cut, as extended packet numbers.
    pub(crate) cuts: Vec<u64>,
    /// Number of bytes of a READ response that have arrived.
    pub(crate) filled: u32,
    /// The whole response, not just an acknowledgment, has arrived.
    pub(crate) answered: bool,
    /// The responder carried the message out.
    pub(crate) executed: bool,
    /// For each request that was carried out and [wants a response](Self::wants_response): one past
    /// its last number, and the MSN at that time.
    pub(crate) msns: Vec<(u64, u32)>,
    /// The original value that an atomic returned.
    pub(crate) original: u64,
    pub(crate) completed: Option<WcStatus>,
}

/// A message in a send queue.
pub(crate) trait Posted {
    /// Returns its work request, as the engine takes it.
    fn wr(&self) -> SendWr;

    /// Returns its fault.
    fn fault(&self) -> LocalFault;
}

impl Posted for Message {
    fn wr(&self) -> SendWr {
        self.wr
    }

    fn fault(&self) -> LocalFault {
        self.fault
    }
}

/// Takes the next message. `taken` is the number of messages before it.
pub(crate) fn take(messages: &[impl Posted], taken: &mut usize) -> Fetch<SendWr> {
    let Some(message) = messages.get(*taken) else {
        return Fetch::Empty;
    };
    *taken += 1;
    match message.fault() {
        LocalFault::Malformed(status) => Fetch::Malformed(message.wr(), status),
        _ => Fetch::Wr(message.wr()),
    }
}

/// Retires the oldest of the `taken` messages, which must be the one in `slot`. `retired` is the
/// number of messages before it.
pub(crate) fn retire(
    taken: &[impl Posted],
    retired: &mut usize,
    slot: SendSlot,
) -> Result<(), String> {
    let oldest = taken.get(*retired).map(|oldest| oldest.wr().slot);
    if oldest != Some(slot) {
        return Err(format!("retired {slot:?}, the oldest taken is {oldest:?}"));
    }
    *retired += 1;
    Ok(())
}

/// Returns the number of PSNs that a work request takes.
pub(crate) fn packets(wr: &SendWr, mtu: Mtu) -> u64 {
    match wr.op {
        SendOp::Local(_) => 0,
        SendOp::Atomic(..) | SendOp::AtomicWrite(_) | SendOp::Flush(..) => 1,
        _ => u64::from(wr.length.div_ceil(mtu.bytes()).max(1)),
    }
}

impl Message {
    /// Returns one past its last extended packet number.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.packets
    }

    /// Returns one past the last packet that is answered together with `ext`.
    pub(crate) fn answer_end(&self, ext: u64) -> u64 {
        let cut = self.cuts.iter().find(|cut| **cut > ext);
        cut.copied().unwrap_or(self.end())
    }

    /// Returns whether the answer to `ext` is the first packet of a response.
    pub(crate) fn answer_starts(&self, ext: u64) -> bool {
        ext == self.first || self.cuts.contains(&ext)
    }

    /// Returns whether the message needs a response that is more than an acknowledgment.
    pub(crate) fn wants_response(&self) -> bool {
        matches!(
            self.wr.op,
            SendOp::Read(_) | SendOp::Atomic(..) | SendOp::AtomicWrite(_) | SendOp::Flush(..)
        )
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.wr.op, SendOp::Read(_))
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.wr.op, SendOp::Local(_))
    }

    /// Returns whether the host finds the memory missing when it sends the packet at `offset`. With
    /// some faults only the memory of the last packet is missing.
    pub(crate) fn lacks(&self, offset: u32, mtu: Mtu) -> bool {
        match self.fault {
            LocalFault::None => false,
            LocalFault::Late => offset.saturating_add(mtu.bytes()) >= self.wr.length,
            _ => true,
        }
    }

    /// Returns the number of payload bytes of the segment with this index.
    pub(crate) fn segment_len(&self, index: u64, mtu: Mtu) -> u32 {
        let offset = index as u32 * mtu.bytes();
        (self.wr.length - offset).min(mtu.bytes())
    }

    pub(crate) fn opcode(&self) -> WcOpcode {
        match self.wr.op {
            SendOp::Send(_) | SendOp::Datagram(..) => WcOpcode::Send,
            SendOp::Write(..) => WcOpcode::RdmaWrite,
            SendOp::Read(_) => WcOpcode::RdmaRead,
            SendOp::Atomic(_, AtomicOp::CompareSwap { .. }) => WcOpcode::CompSwap,
            SendOp::Atomic(_, AtomicOp::FetchAdd { .. }) => WcOpcode::FetchAdd,
            SendOp::AtomicWrite(_) => WcOpcode::AtomicWrite,
            SendOp::Flush(..) => WcOpcode::Flush,
            SendOp::Local(LocalOp::Invalidate(_)) => WcOpcode::LocalInv,
            SendOp::Local(LocalOp::RegMr) => WcOpcode::RegMr,
            SendOp::Local(LocalOp::BindMw) => WcOpcode::BindMw,
        }
    }

    /// Returns whether its last packet makes the peer's completion a solicited one.
    pub(crate) fn solicits(&self) -> bool {
        self.wr.solicited && matches!(self.wr.op, SendOp::Send(_) | SendOp::Write(_, Some(_)))
    }

    /// Returns the body of the request packet with this index, and the number of its payload bytes.
    /// A READ request asks for the packets before `end`.
    pub(crate) fn request(&self, index: u64, end: u64, mtu: Mtu) -> (Body, u32) {
        let offset = index as u32 * mtu.bytes();
        let len = self.segment_len(index, mtu);
        let reth = |at: roce::wr::RemoteAddr| Reth {
            va: at.va,
            rkey: at.rkey,
            length: self.wr.length,
        };
        let last = index + 1 == self.packets;
        match self.wr.op {
            SendOp::Send(extra) => (Body::Send(send_part(index, last, extra)), len),
            SendOp::Write(at, imm) => {
                let part = match (index, last) {
                    (0, true) => WritePart::Only(reth(at), imm),
                    (0, false) => WritePart::First(reth(at)),
                    (_, false) => WritePart::Middle,
                    (_, true) => WritePart::Last(imm),
                };
                (Body::Write(part), len)
            }
            SendOp::Read(at) => {
                let mut reth = reth(at);
                let stop = (end - self.first) as u32 * mtu.bytes();
                reth.va += u64::from(offset);
                reth.length = stop.min(self.wr.length) - offset;
                (Body::ReadRequest(reth), 0)
            }
            SendOp::Atomic(at, op) => {
                let eth = AtomicEth {
                    va: at.va,
                    rkey: at.rkey,
                    op,
                };
                (Body::Atomic(eth), 0)
            }
            SendOp::AtomicWrite(at) => (Body::AtomicWrite(reth(at)), len),
            SendOp::Flush(at, kind) => (Body::Flush(kind, reth(at)), 0),
            SendOp::Datagram(..) | SendOp::Local(_) => (Body::Cnp, 0),
        }
    }

    /// Returns the payload of the request packet with this index.
    pub(crate) fn segment(&self, index: u64, mtu: Mtu) -> &[u8] {
        let start = index as usize * mtu.bytes() as usize;
        let end = (start + mtu.bytes() as usize).min(self.payload.len());
        &self.payload[start.min(end)..end]
    }
}

fn send_part(index: u64, last: bool, extra: SendExtra) -> SendPart {
    match (index, last) {
        (0, true) => SendPart::Only(extra),
        (0, false) => SendPart::First,
        (_, false) => SendPart::Middle,
        (_, true) => SendPart::Last(extra),
    }
}

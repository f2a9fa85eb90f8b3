// SPDX-License-Identifier: GPL-2.0

//! Raw packet QPs: send and receive whole frames of the link layer (`IB_QPT_RAW_PACKET`).
//!
//! ib_core lets only processes with `CAP_NET_RAW` create such QPs, and they may send raw packets by
//! a packet socket, too. Flow rules ([`crate::verbs::flow`]) select the frames that a raw packet QP
//! receives.

use kernel::{page::PAGE_SIZE, prelude::*};
use rdma::{
    net::{
        netdev::{Kind, Netdev},
        skb::{FrameQueue, TxFrame, TxSkb},
    },
    verbs::mr::Span,
};
use roce::{
    host::Count,
    qp::TransmitFault,
    transmit::{Source, Transmit},
    wc::WcStatus,
};

use crate::{
    device::stats::{Counter, Counters},
    net::{outgoing::Outgoing, tx::Payload},
    qp::{effects::RunEffects, engine::Core, parked::gather_error, sge::OwnMemory, Qp},
};

/// Bytes of a VLAN tag, which a network device's MTU does not include.
const VLAN_TAG: u32 = 4;
/// Maximum bytes of a frame, whatever the network device's MTU is: a page, and room for headers.
const MAX_FRAME: u32 = 128 + PAGE_SIZE as u32;

/// A frame under construction.
struct RawFrame {
    /// Buffer of the frame.
    skb: TxSkb,
    /// A part of the frame could not be appended.
    incomplete: bool,
}

impl Payload for RawFrame {
    fn append(&mut self, span: &Span<'_>) {
        self.incomplete |= self.skb.put_span(span).is_err();
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.incomplete |= self.skb.put(bytes).is_err();
    }
}

impl RawFrame {
    /// Creates an empty frame with room for `length` bytes. Returns `None` if there is no memory,
    /// or if the network device needs too much headroom.
    fn new(netdev: &Netdev, length: u32) -> Option<Self> {
        Some(Self {
            skb: TxSkb::new(netdev.headroom()?, length as usize)?,
            incomplete: false,
        })
    }

    /// Returns the frame. Returns `None` if a part of it is missing.
    fn finish(self) -> Option<TxFrame> {
        match self.incomplete {
            true => None,
            false => self.skb.into_frame().ok(),
        }
    }
}

/// Returns whether `netdev` sends frames of `length` bytes.
fn fits(netdev: &Netdev, length: u32) -> bool {
    let header = netdev.header_len();
    let longest = netdev.mtu().saturating_add(header).saturating_add(VLAN_TAG);
    (header.max(1)..=longest.min(MAX_FRAME)).contains(&length)
}

/// Builds the frame of a work request, and passes copies of it to the other QPs of the device whose
/// flow rules match. Returns `None` if the frame is lost: there is no network device or no memory,
/// or the device needs too much headroom. Bottom halves disabled, turn lock (`qp/turn.rs`) held.
///
/// # Errors
///
/// `LocLenErr` if the network device does not send frames of this length, and the reason why the
/// work request's memory cannot be read.
pub(crate) fn build(
    core: &mut Core,
    qp: &Qp,
    transmit: &Transmit,
) -> Result<Option<Outgoing>, TransmitFault> {
    let Source::Send { slot, .. } = transmit.source else {
        return Ok(None);
    };
    let (length, counters) = (transmit.packet.payload_len, &core.counters);
    let Some(netdev) = qp.device.link.netdev() else {
        return lost(counters);
    };
    if !fits(&netdev, length) {
        return Err(TransmitFault::Local(WcStatus::LocLenErr));
    }
    let Some(mut frame) = RawFrame::new(&netdev, length) else {
        return lost(counters);
    };
    let own = OwnMemory {
        mrs: &qp.device.mrs,
        pd: core.pd.id(),
        recent: &mut core.own_region,
        parked: &mut core.parked,
    };
    core.sq
        .gather(slot, 0, length, &mut frame, own)
        .map_err(gather_error)?;
    let Some(frame) = frame.finish() else {
        return lost(counters);
    };
    let flows = &qp.device.link.flows;
    // A frame that is sent by the loopback device comes back by it, and meets the flow rules there.
    if !flows.is_empty() && netdev.kind() != Kind::Loopback {
        flows.loop_back(qp, &frame);
    }
    Ok(Some(Outgoing::Frame(frame, netdev)))
}

/// Counts a lost frame.
fn lost(counters: &Counters) -> Result<Option<Outgoing>, TransmitFault> {
    counters.count(Count::SendErr);
    Ok(None)
}

/// Takes in the frames that wait for `qp`, within `budget`. If on-demand memory for a frame is not
/// resident, the QP is parked and the frame is put back to the front of the queue. Bottom halves
/// disabled, turn lock held.
pub(crate) fn receive(
    core: &mut Core,
    qp: &Qp,
    frames: &FrameQueue,
    budget: &mut u32,
    effects: &mut RunEffects,
) {
    while *budget > 0 && !core.parked.is_parked() {
        let Some(frame) = frames.pop() else {
            return;
        };
        *budget = budget.wrapping_sub(1);
        let length = frame.len();
        core.with_engine(qp, None, effects, |engine, host| {
            engine.handle_frame(length, host, |host| {
                host.rq.scatter_frame(&frame, host.own.reborrow())
            });
        });
        if core.parked.is_parked() {
            frames.put_back(frame);
            effects.is_parked = true;
            return;
        }
        core.counters.add(Counter::ReceivedPackets, 1);
        core.counters.add(Counter::ReceivedBytes, u64::from(length));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Raw packet QPs: whole frames of the link layer, from user space to the network device and back.
//!
//! ib_core lets only those make such QPs who may send raw packets anyway (`CAP_NET_RAW`). What they
//! receive rules say ([`crate::verbs::flow`]).

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
    qp::{effects::RunEffects, engine::Core, parked::ungathered, sge::OwnMemory, Qp},
};

/// The tag of a VLAN, which isn't part of a network device's MTU.
const VLAN_TAG: u32 = 4;
/// No frame is longer, whatever the network device takes: a page behind some headers.
const MAX_FRAME: u32 = 128 + PAGE_SIZE as u32;

/// A frame under construction.
struct RawFrame {
    skb: TxSkb,
    /// Something could not be appended.
    torn: bool,
}

impl Payload for RawFrame {
    fn append(&mut self, span: &Span<'_>) {
        self.torn |= self.skb.put_span(span).is_err();
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.torn |= self.skb.put(bytes).is_err();
    }
}

impl RawFrame {
    /// With room for `length` bytes.
    fn new(netdev: &Netdev, length: u32) -> Option<Self> {
        Some(Self {
            skb: TxSkb::new(netdev.headroom()?, length as usize)?,
            torn: false,
        })
    }

    /// The frame, if nothing of it is missing.
    fn finish(self) -> Option<TxFrame> {
        match self.torn {
            true => None,
            false => Some(self.skb.into_frame()),
        }
    }
}

/// Whether `netdev` takes frames of so many bytes.
fn fits(netdev: &Netdev, length: u32) -> bool {
    let header = netdev.header_len();
    let longest = netdev.mtu().saturating_add(header).saturating_add(VLAN_TAG);
    (header.max(1)..=longest.min(MAX_FRAME)).contains(&length)
}

/// Builds the frame of a work request, and shows it to the device's rules. `None` if it is lost. Bottom halves disabled.
///
/// # Errors
///
/// `LocLenErr` if the network device doesn't take frames of that length, and what is wrong with the
/// work request's memory. That there is no network device or memory is no error: the frame is lost.
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
        .map_err(ungathered)?;
    let Some(frame) = frame.finish() else {
        return lost(counters);
    };
    let flows = &qp.device.link.flows;
    // The loopback device itself brings back what is sent.
    if !flows.is_empty() && netdev.kind() != Kind::Loopback {
        flows.loop_back(qp, &frame);
    }
    Ok(Some(Outgoing::Frame(frame, netdev)))
}

fn lost(counters: &Counters) -> Result<Option<Outgoing>, TransmitFault> {
    counters.count(Count::SendErr);
    Ok(None)
}

/// Takes in frames that wait for `qp`, until one finds its memory absent: then the QP stands still,
/// and that frame is the next again. Bottom halves disabled.
pub(crate) fn receive(
    core: &mut Core,
    qp: &Qp,
    frames: &FrameQueue,
    budget: &mut u32,
    effects: &mut RunEffects,
) {
    while *budget > 0 && !core.parked.stands() {
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
        if core.parked.stands() {
            frames.put_back(frame);
            effects.is_parked = true;
            return;
        }
        core.counters.add(Counter::ReceivedPackets, 1);
        core.counters.add(Counter::ReceivedBytes, u64::from(length));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The GSI QP (QP1): which management datagrams (MADs) it takes, and which sender of them ib_core
//! sees.
//!
//! Any host can send a datagram to QP1: its Q_Key is public, and the sender's address is not
//! verified. ib_core responds to some MADs, and for that it looks up the link-layer address of the
//! sender. If the address is not known, ib_core sleeps until the neighbour has replied, for at most
//! a second (`ib_init_ah_attr_from_wc()`, verbs.c; `rdma_addr_find_l2_eth_by_grh()`, addr.c). It
//! sleeps in the work item that handles all MADs of a device, and in ib_cm's work items, one for
//! each CM message. All devices of the host share ib_cm's workqueue. It has a queue for each CPU,
//! which handles one work item at a time (`ib_cm_init()`, cm.c) and whose length has no limit
//! (`cm_recv_handler()`, cm.c). So such datagrams in the queue of a CPU would stop the connection
//! management of all devices on that CPU.
//!
//! rrxe needs no link-layer addresses: the IP layer finds them when a packet leaves. So rrxe gives
//! ib_core another sender of a request, a stand-in. Its address is the destination of the request,
//! which is an address of this host and needs no look-up (`addr_resolve_neigh()`, addr.c). Its flow
//! label is the number of the true sender ([`Senders`]), and its service level marks it as a
//! stand-in. For the response ib_core creates an address handle with that address, flow label and
//! service level. When the response is sent, rrxe replaces the stand-in by the true sender.
//!
//! The sender of a response gets a stand-in, too: ib_core matches a response with its request
//! without the sender's address (`rcv_has_same_gid()`, mad.c). The QP takes only responses to
//! requests that it has sent recently (`sent_requests.rs`).
//!
//! The administrator of a network namespace can make ib_core look up even the host's own address:
//! by a routing rule for packets that the host sends, or by deleting the address from the local
//! routing table. A guest network is a network namespace whose administrator is not the host's. It
//! may have only few requests in ib_cm's queue at a time, and the time that ib_cm takes for them is
//! charged to its budget (`cm_budget.rs`). Behind each of these requests rrxe queues a request of
//! its own, a probe (`probe.rs`). ib_cm's response to the probe shows that ib_cm has handled both.
//! Other requests to the devices of guest networks have a low rate (`guest_limits.rs`).
//!
//! A user can stop ib_cm's work items for as long as it likes: they wait for locks that a stopped
//! thread of the user may hold. So a probe follows some of the other CM messages, too. The QP takes
//! no more CM messages while too many probes are without a response (`cm_queue.rs`).
//!
//! ib_core trusts two kinds of fields in CM messages: the GUIDs of their senders, and the times for
//! which ib_core has to wait. It gets a copy of each message, in which rrxe has replaced the GUIDs
//! and limited the times (`sanitize.rs`).

mod cm_budget;
mod cm_queue;
mod guest_limits;
mod keyed_hash;
mod probe;
mod rate;
mod sanitize;
mod senders;
mod sent_requests;

use kernel::{
    prelude::*,
    sync::{Arc, ArcBorrow},
};
use rdma::{device::gid::Gid, verbs::av::Av};
use roce::{
    ids::Qpn,
    qp::QpState,
    time::Instant,
    wire::mad::{requesting_qp, MadHeader, MadKind, MAD_LEN},
};

pub(crate) use self::{
    cm_budget::CmBudget,
    cm_queue::CmQueue,
    guest_limits::GuestLimits,
    sanitize::SanitizedMad,
    senders::{Senders, StandIn},
};
use self::{
    rate::{Pace, Paces, Rate},
    sanitize::Guids,
    sent_requests::SentRequests,
};
use crate::{
    device::{stats::Counter, Device},
    net::rx::RxPacket,
    qp::{effects::RunEffects, engine::Core, Qp},
};

/// Rates of MADs that get no response: the burst, and the MADs a second. Senders are divided by a
/// hash of their addresses. `guaranteed` is the rate of the senders of one hash, `extra` is their
/// further rate, and `total` is the further rate of all senders together (`rate.rs`).
const ONE_WAY: Paces = Paces {
    guaranteed: Pace::new(8, 32),
    extra: Pace::new(1_024, 4_096),
    total: Pace::new(2_048, 8_192),
};
/// Rates of requests to this host, and of responses to requests of this host: the burst, and the
/// MADs a second. ib_core queues MADs that come faster than it handles them, and its queue has no
/// limit.
const REQUESTS: Paces = Paces {
    guaranteed: Pace::new(8, 4),
    extra: Pace::new(512, 512),
    total: Pace::new(1_024, 1_024),
};

/// State of a GSI QP: the rates of MADs that it takes, its recent requests, and the MAD that it is
/// receiving. Protected by the QP's turn lock, the lock of its protocol engine.
pub(crate) struct Gsi {
    /// Rate of MADs that get no response.
    one_way: Rate,
    /// Rate of requests and responses.
    requests: Rate,
    /// Requests that the QP has sent recently.
    sent_requests: SentRequests,
    /// Key from which the GUIDs are computed that replace the senders' GUIDs.
    guids: Guids,
    /// The MAD that the QP is receiving, as ib_core sees it.
    pub(crate) sanitized: SanitizedMad,
    /// The probe that follows this MAD, if any, with the stand-in for the probe's sender.
    probe: Option<(StandIn, RxPacket)>,
}

impl Gsi {
    /// Creates the state of a QP that has received no MAD. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            one_way: Rate::new(ONE_WAY)?,
            requests: Rate::new(REQUESTS)?,
            sent_requests: SentRequests::new()?,
            guids: Guids::new(),
            sanitized: SanitizedMad::default(),
            probe: None,
        })
    }

    /// Checks whether the QP takes a packet. If so, stores the MAD's sanitized form, with a number
    /// for the sender, and the probe that must follow the MAD. With the turn lock held.
    ///
    /// The caller has checked that receives are posted for the MAD and for a probe. So a MAD that
    /// is dropped because receives are missing does not count for a rate.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    fn check(&mut self, now: Instant, device: &Device, packet: &RxPacket) -> Result<(), Counter> {
        (self.sanitized, self.probe) = (SanitizedMad::default(), None);
        // ib_core is disabling the device, and is about to free objects that its work items use:
        // see `settle_gsi` in disassociate.rs.
        if device.link.check_stays().is_err() {
            return Err(Counter::DropState);
        }
        let mut mad = [0; MAD_LEN];
        if packet.read_payload(0, &mut mad).is_err() {
            return Err(Counter::DropInvalid);
        }
        let header = mad.first_chunk().and_then(MadHeader::parse);
        let header = header.ok_or(Counter::DropInvalid)?;
        let (sender, now) = (packet.endpoints.source, nanos(now));
        let kind = header.kind();
        match kind {
            MadKind::OneWay => admitted(self.one_way.admits(sender, now))?,
            MadKind::Response(exchange) if !self.sent_requests.has(exchange, now) => {
                return Err(Counter::DropUnsolicited);
            }
            MadKind::Response(_) => admitted(self.requests.admits(sender, now))?,
            MadKind::Request if device.link.is_of_host() => {
                admitted(self.requests.admits(sender, now))?;
            }
            MadKind::Request if header.may_reach_cm() => {
                admitted(self.requests.admits(sender, now))?;
                let stand_in = take_request(device, sender)?;
                self.probe = Some(probe_behind(device, packet, stand_in)?);
            }
            MadKind::Request => admitted(device.workqueues.guests.admits(sender))?,
        }
        if header.may_reach_cm() && self.probe.is_none() && device.cm_queue.count() {
            self.probe = cm_queue_probe(device, packet)?;
        }
        self.sanitized = SanitizedMad {
            stand_in: (kind != MadKind::OneWay).then(|| device.senders.remember(sender)),
            mad: Some(self.guids.sanitize(sender, mad)),
        };
        Ok(())
    }

    /// Checks whether `qp` may send a MAD with this payload, and records the MAD if it is a
    /// request. With the turn lock held.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    pub(crate) fn check_sent(&mut self, qp: &Qp, payload: &[u8]) -> Result<(), Counter> {
        let requesting = payload.first_chunk().and_then(requesting_qp);
        if requesting.is_some_and(|requesting| is_connected(qp, requesting)) {
            return Err(Counter::DropConnected);
        }
        let header = payload.first_chunk().and_then(MadHeader::parse);
        if let Some(exchange) = header.and_then(|header| header.request_exchange()) {
            self.sent_requests.note(exchange, nanos(qp.now()));
        }
        Ok(())
    }

    /// Takes the probe that follows the MAD received last, if there is one, and stores its
    /// stand-in. With the turn lock held.
    fn take_probe(&mut self) -> Option<RxPacket> {
        self.sanitized = SanitizedMad::default();
        let (stand_in, probe) = self.probe.take()?;
        self.sanitized.stand_in = Some(stand_in);
        Some(probe)
    }
}

impl Core {
    /// Checks whether a GSI QP takes a MAD: whether receives are posted for the MAD and for a probe
    /// behind it, and the conditions of [`Gsi::check`]. Accepts every packet of other QPs. With the
    /// turn lock held.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    pub(crate) fn check_management(
        &mut self,
        qp: &Qp,
        now: Instant,
        packet: &RxPacket,
    ) -> Result<(), Counter> {
        let Some(gsi) = &mut self.gsi else {
            return Ok(());
        };
        match (self.engine.receives(), self.rq.posted()) {
            (false, _) => Err(Counter::DropState),
            (true, ..2) => Err(Counter::DropNoReceive),
            (true, _) => gsi.check(now, &qp.device, packet),
        }
    }

    /// Has a GSI QP receive the probe that follows the MAD received last, if there is one. With the
    /// turn lock held.
    pub(crate) fn receive_probe(&mut self, qp: &Qp, now: Instant, effects: &mut RunEffects) {
        let Some(probe) = self.gsi.as_mut().and_then(|gsi| gsi.take_probe()) else {
            return;
        };
        self.with_engine(qp, Some(&probe), effects, |engine, host| {
            engine.handle_packet(now, &probe.packet, host);
        });
    }
}

/// Returns whether the QP with the number `qpn` is a QP of the device of `gsi`, has a peer, and is
/// not in ERR.
///
/// A user whose `rdma_cm_id` has no QP may name any QP in a connection request (`cma_connect_ib()`,
/// cma.c). If that QP has a connection, the peer takes the connection for stale and ends it
/// (`cm_match_req()`, cm.c). ib_core asks for connections of QPs without a peer only: a QP gets its
/// peer when the peer has agreed, and the request isn't repeated from then on (`cm_rep_handler()`,
/// cm.c).
fn is_connected(gsi: &Qp, qpn: Qpn) -> bool {
    let has_peer = |qp: ArcBorrow<'_, Qp>| {
        Arc::ptr_eq(&qp.device, &gsi.device)
            && qp.filter.has_peer()
            && !qp.cached_state.is(QpState::Err)
    };
    gsi.net.qps(qpn).with(qpn.get(), has_peer).unwrap_or(false)
}

/// Counts a request of `sender` to a device of a guest network in the network's budget. Returns the
/// stand-in for the sender of the probe behind it.
///
/// # Errors
///
/// The counter of the drop.
fn take_request(device: &Device, sender: Gid) -> Result<StandIn, Counter> {
    // ib_cm doesn't handle MADs of this device, so it would not respond to the probe.
    if !device.has_connection_management() {
        return Err(Counter::DropState);
    }
    let number = device.workqueues.guests.take(sender, &device.link);
    number.map(StandIn::Probe).ok_or(Counter::DropRate)
}

/// Returns the probe behind a CM message that measures ib_cm's queue (`cm_queue.rs`), with the
/// stand-in for the probe's sender. Returns `None` if ib_cm handles no MADs of the device: then it
/// neither responds to probes, nor queues the message. On a device of a guest network, the probe
/// counts as a request in the network's budget.
///
/// # Errors
///
/// The counter of the drop.
fn cm_queue_probe(
    device: &Device,
    packet: &RxPacket,
) -> Result<Option<(StandIn, RxPacket)>, Counter> {
    if !device.has_connection_management() {
        return Ok(None);
    }
    let stand_in = match device.link.is_of_host() {
        true => {
            let number = device.cm_queue.take(packet.endpoints.destination);
            number.map(StandIn::QueueProbe).ok_or(Counter::DropRate)?
        }
        false => take_request(device, packet.endpoints.source)?,
    };
    probe_behind(device, packet, stand_in).map(Some)
}

/// Builds the probe behind a MAD. The caller has taken the probe's number, so a MAD that is dropped
/// because no number is free allocates no memory.
///
/// # Errors
///
/// `DropRate` if memory is short; then the number is given back.
fn probe_behind(
    device: &Device,
    packet: &RxPacket,
    stand_in: StandIn,
) -> Result<(StandIn, RxPacket), Counter> {
    let Some(probe) = probe::behind(packet, &device.link) else {
        match stand_in {
            StandIn::Probe(number) => device.link.context().cm_budget.give_back(number),
            StandIn::QueueProbe(number) => device.cm_queue.give_back(number),
            StandIn::Sender(_) => {}
        }
        return Err(Counter::DropRate);
    };
    // This probe measures ib_cm's queue in any case, so the next such probe is due later.
    device.cm_queue.restart();
    Ok((stand_in, probe))
}

/// Returns whether `av` is the address of ib_core's response to a probe. If so, frees the probe's
/// place among the probes without responses. Any context.
pub(crate) fn take_probe_response(device: &Device, av: &Av) -> bool {
    match StandIn::of_response(av) {
        Some(StandIn::Probe(number)) => device.workqueues.guests.end(&device.link, number),
        Some(StandIn::QueueProbe(number)) => device.cm_queue.end(number),
        Some(StandIn::Sender(_)) | None => return false,
    }
    true
}

/// Returns a time as nanoseconds in an `i64`.
fn nanos(now: Instant) -> i64 {
    i64::try_from(now.0).unwrap_or(i64::MAX)
}

/// Converts the answer of [`Rate::admits`]: returns the counter of the drop if it is `false`.
fn admitted(admitted: bool) -> Result<(), Counter> {
    match admitted {
        true => Ok(()),
        false => Err(Counter::DropRate),
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Management datagrams, and the senders of them that ib_core is told.
//!
//! Anybody can write a datagram to QP1: its Q_Key is public, and nobody looks at the sender. ib_core answers some, and for
//! that it looks up the link-layer address of the sender. If that is not known, it sleeps until the neighbour has answered,
//! a second at most (`ib_init_ah_attr_from_wc()`, verbs.c; `rdma_addr_find_l2_eth_by_grh()`, addr.c). It does so in the work
//! item that takes all MADs of a device, and in the one that connects for all devices of the host, whose queue has no limit
//! (`cm_recv_handler()`, cm.c). A queue of such datagrams would stop all connection management of the host.
//!
//! rrxe needs no link-layer addresses: the IP layer finds them when a packet leaves. So ib_core is told another sender of a
//! question: the address that the question came to, which is this host's own and needs no look-up
//! (`addr_resolve_neigh()`, addr.c). The flow label is the number of the true sender ([`Senders`]), and the service level
//! says so. ib_core makes an address handle of these for the answer; there the true sender takes its place again.
//!
//! A response gets a number, too: ib_core finds the request without its sender (`rcv_has_same_gid()`, mad.c). The QP takes
//! only those to questions that it has sent of late (`asked.rs`).
//!
//! An administrator of the network can make the host's own address one that has to be looked up: by a rule for what the
//! host sends, or by taking it out of the table of local addresses. The network of one who is none of the host's has few questions
//! in the queue of connection management at once, and pays for their time (`cm_budget.rs`). Behind each rrxe asks a question of its own
//! (`probe.rs`), whose answer says that ib_core has handled both. Other questions to such an administrator's devices have a low rate
//! (`guests.rs`).
//!
//! ib_core may stand still for as long as a user likes. Such a question of rrxe's own follows some other datagrams of
//! connection management, too: without an answer the QP takes no more of these (`cm_queue.rs`).
//!
//! ib_core believes the messages of connection management: the GUIDs that they name for their senders, and the times for
//! which it is to wait. It gets a copy in which rrxe has replaced the former and limited the latter (`sanitized.rs`).

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

/// Datagrams that are not answered.
const FINALS: Paces = Paces {
    sure: Pace::new(8, 32),
    most: Pace::new(1_024, 4_096),
    all: Pace::new(2_048, 8_192),
};
/// Questions, and responses to those of this host: more than ib_core handles would fill its queue, which has no limit.
const QUESTIONS: Paces = Paces {
    sure: Pace::new(8, 4),
    most: Pace::new(512, 512),
    all: Pace::new(1_024, 1_024),
};

/// The rates of the management datagrams that a GSI QP takes, what it has asked, and what the present one is to be. The
/// holder of the QP's turn has it.
pub(crate) struct Gsi {
    finals: Rate,
    questions: Rate,
    asked: SentRequests,
    guids: Guids,
    /// The datagram that is taken, as ib_core sees it.
    pub(crate) sanitized: SanitizedMad,
    /// The probe that is to follow it, and its stand-in.
    probe: Option<(StandIn, RxPacket)>,
}

impl Gsi {
    /// No datagram has come. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            finals: Rate::new(FINALS)?,
            questions: Rate::new(QUESTIONS)?,
            asked: SentRequests::new()?,
            guids: Guids::new(),
            sanitized: SanitizedMad::default(),
            probe: None,
        })
    }

    /// Checks whether the QP takes a packet, and numbers its sender. Notes how ib_core is to see it. With the turn.
    ///
    /// The packet is a management datagram, and there are receives for it and for a probe: what is dropped for want of these
    /// takes nothing from others.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    fn check(&mut self, now: Instant, device: &Device, packet: &RxPacket) -> Result<(), Counter> {
        (self.sanitized, self.probe) = (SanitizedMad::default(), None);
        // ib_core is about to free what its work items use: see `settle_gsi` in unplug.rs.
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
            MadKind::Final => admitted(self.finals.admits(sender, now))?,
            MadKind::Response(exchange) if !self.asked.has(exchange, now) => {
                return Err(Counter::DropUnasked);
            }
            MadKind::Response(_) => admitted(self.questions.admits(sender, now))?,
            MadKind::Question if device.link.is_of_host() => {
                admitted(self.questions.admits(sender, now))?;
            }
            MadKind::Question if header.may_reach_cm() => {
                admitted(self.questions.admits(sender, now))?;
                let stand_in = take_question(device, sender)?;
                self.probe = Some(probe_behind(device, packet, stand_in)?);
            }
            MadKind::Question => admitted(device.workqueues.guests.admits(sender))?,
        }
        if header.may_reach_cm() && self.probe.is_none() && device.cm_queue.count() {
            self.probe = take_check(device, packet)?;
        }
        self.sanitized = SanitizedMad {
            stand_in: (kind != MadKind::Final).then(|| device.senders.remember(sender)),
            mad: Some(self.guids.sanitize(sender, mad)),
        };
        Ok(())
    }

    /// Checks whether a datagram may leave that `qp` sends, and notes it if so. With the turn.
    ///
    /// # Errors
    ///
    /// The counter of the drop.
    pub(crate) fn check_sent(&mut self, qp: &Qp, payload: &[u8]) -> Result<(), Counter> {
        let requesting = payload.first_chunk().and_then(requesting_qp);
        if requesting.is_some_and(|requesting| is_connected(qp, requesting)) {
            return Err(Counter::DropClaim);
        }
        let header = payload.first_chunk().and_then(MadHeader::parse);
        if let Some(exchange) = header.and_then(|header| header.opens()) {
            self.asked.note(exchange, nanos(qp.now()));
        }
        Ok(())
    }

    /// Takes the probe that is to follow a datagram, if one is, and notes its stand-in. With the turn.
    fn follow(&mut self) -> Option<RxPacket> {
        self.sanitized = SanitizedMad::default();
        let (stand_in, probe) = self.probe.take()?;
        self.sanitized.stand_in = Some(stand_in);
        Some(probe)
    }
}

impl Core {
    /// Checks whether the QP takes a packet, if it is a GSI QP: whether it has receives for the datagram and for a probe
    /// behind it, and those of [`Gsi::check`].
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

    /// Has a GSI QP take the probe that follows a question, if one does.
    pub(crate) fn follow_question(&mut self, qp: &Qp, now: Instant, effects: &mut RunEffects) {
        let Some(probe) = self.gsi.as_mut().and_then(|gsi| gsi.follow()) else {
            return;
        };
        self.with_engine(qp, Some(&probe), effects, |engine, host| {
            engine.handle_packet(now, &probe.packet, host);
        });
    }
}

/// Whether the QP with this number is one of the device of `gsi`, and has a peer.
///
/// Any user may name any QP in a request for a connection, if it has none of its own in connection management
/// (`cma_connect_ib()`, cma.c). The peer takes the connection of a QP that asks for another one for stale, and ends it
/// (`cm_match_req()`, cm.c). ib_core asks for connections of QPs without a peer only: the QP gets one when the peer has agreed,
/// and the request isn't repeated from then on (`cm_rep_handler()`, cm.c).
fn is_connected(gsi: &Qp, qpn: Qpn) -> bool {
    let has_peer = |qp: ArcBorrow<'_, Qp>| {
        Arc::ptr_eq(&qp.device, &gsi.device)
            && qp.filter.has_peer()
            && !qp.cached_state.is(QpState::Err)
    };
    gsi.net.qps(qpn).with(qpn.get(), has_peer).unwrap_or(false)
}

/// Takes a question of `sender` to a guest's device, and returns the stand-in of the probe behind it.
///
/// # Errors
///
/// The counter of the drop.
fn take_question(device: &Device, sender: Gid) -> Result<StandIn, Counter> {
    // Nobody would answer the probe.
    if !device.has_connection_management() {
        return Err(Counter::DropState);
    }
    let number = device.workqueues.guests.take(sender, &device.link);
    number.map(StandIn::Probe).ok_or(Counter::DropRate)
}

/// Returns the probe that is due behind a datagram, with its stand-in. `None` if nobody would answer it, nor queue the
/// datagram. For ib_core a probe is a question: the network of a guest's device pays for it.
///
/// # Errors
///
/// The counter of the drop.
fn take_check(device: &Device, packet: &RxPacket) -> Result<Option<(StandIn, RxPacket)>, Counter> {
    if !device.has_connection_management() {
        return Ok(None);
    }
    let stand_in = match device.link.is_of_host() {
        true => {
            let number = device.cm_queue.take(packet.endpoints.destination);
            number.map(StandIn::Check).ok_or(Counter::DropRate)?
        }
        false => take_question(device, packet.endpoints.source)?,
    };
    probe_behind(device, packet, stand_in).map(Some)
}

/// Builds the probe behind a datagram, whose number was taken before: what is dropped for want of one allocates nothing.
///
/// # Errors
///
/// `DropRate` if there is no memory; the number is given back.
fn probe_behind(
    device: &Device,
    packet: &RxPacket,
    stand_in: StandIn,
) -> Result<(StandIn, RxPacket), Counter> {
    let Some(probe) = probe::behind(packet, &device.link) else {
        match stand_in {
            StandIn::Probe(number) => device.link.context().cm_budget.give_back(number),
            StandIn::Check(number) => device.cm_queue.give_back(number),
            StandIn::Sender(_) => {}
        }
        return Err(Counter::DropRate);
    };
    device.cm_queue.restart();
    Ok((stand_in, probe))
}

/// Whether `av` leads to the stand-in of a probe, and so is for its answer. Notes that it is answered. Any context.
pub(crate) fn take_answer(device: &Device, av: &Av) -> bool {
    match StandIn::answered(av) {
        Some(StandIn::Probe(number)) => device.workqueues.guests.end(&device.link, number),
        Some(StandIn::Check(number)) => device.cm_queue.end(number),
        Some(StandIn::Sender(_)) | None => return false,
    }
    true
}

fn nanos(now: Instant) -> i64 {
    i64::try_from(now.0).unwrap_or(i64::MAX)
}

/// A datagram is dropped for the rate of such ones unless it is admitted.
fn admitted(admitted: bool) -> Result<(), Counter> {
    match admitted {
        true => Ok(()),
        false => Err(Counter::DropRate),
    }
}

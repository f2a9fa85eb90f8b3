// SPDX-License-Identifier: GPL-2.0

//! The selection of the next packet: takes WQEs, starts them when they may start, and sends their
//! packets in order.

use super::retry::{Due, ASK_EVERY};
use super::segment::{self, Marks};
use super::wqe::{admit, SendWqe};
use super::{Before, Cursor, Progress, Requester};
use crate::host::{Fetch, Host, LocalAccess};
use crate::psn::Psn;
use crate::qp::{Context, Slots, Steps};
use crate::time::Instant;
use crate::transmit::Transmit;
use crate::wc::WcStatus;
use crate::wr::{LocalOp, SendOp};

/// Number of READ requests that may be in flight regardless of the number of their response
/// packets, if `max_rd_atomic` allows it. The responses to the second READ reveal that the end of
/// the first response was lost.
const LEAST_READS: u32 = 2;

/// The properties of a train of packets that affect the packets after it.
struct Step {
    /// PSN of the first packet.
    psn: Psn,
    /// Number of packets.
    count: u32,
    /// Number of PSNs that the packets take: `count`, or more for a READ request.
    span: u32,
    /// The train contains the last packet of its WQE.
    ends: bool,
    uses_rd_atomic: bool,
    signaled: bool,
}

impl Step {
    /// Describes the train of `count` packets that starts with packet `packet` of `wqe`.
    #[inline]
    fn of(wqe: &SendWqe, packet: u32, count: u32) -> Self {
        let span = match count {
            1 => wqe.span(packet),
            _ => count,
        };
        Self {
            psn: wqe.first.plus(packet),
            count,
            span,
            ends: packet.wrapping_add(span) >= wqe.packets,
            uses_rd_atomic: wqe.uses_rd_atomic(),
            signaled: wqe.wr.signaled,
        }
    }
}

impl<W: Slots<SendWqe>> Requester<W> {
    /// Stores the next train to send, of `limit` packets at most, in `next`, if one may be sent.
    /// With `draining` no new WQE starts. Each action that sends no packet takes one of `steps`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        next: &mut Option<Transmit>,
        now: Instant,
        limit: u32,
        draining: bool,
        context: &Context,
        steps: &mut Steps,
        host: &mut H,
    ) -> Progress {
        if self.retry.waits() {
            if self.retry.due(now) != Due::Resume {
                return Progress::Idle;
            }
            self.retry.resume(now, &context.settings);
        }
        // A packet takes no step: the host limits the packets of a run.
        while !steps.are_spent() {
            if let Some(progress) = self.step(next, now, limit, draining, context, host) {
                return progress;
            }
            steps.take();
        }
        Progress::Busy
    }

    /// Returns whether all taken requests were sent. Then, if the send queue is empty,
    /// [`Self::poll_transmit`] has nothing to send until a request is posted, a response arrives or
    /// the timer expires.
    #[inline]
    pub(crate) fn rests(&self, context: &Context) -> bool {
        if !context.config.kind.is_reliable() {
            // Sent WQEs complete in the next poll.
            return self.window.len() == 0 && self.fault.is_none();
        }
        if self.window.len() != self.started
            || self.cursor.wqe < self.started
            || self.fault.is_some()
            || self.rereads.may_be_due()
        {
            return false;
        }
        let newest = self.started.checked_sub(1);
        let newest = newest.and_then(|at| self.window.get(at));
        // A local operation may wait for an acknowledgment that no packet has requested yet.
        !newest.is_some_and(SendWqe::is_local)
    }

    /// Makes one step of progress. Returns `None` if the caller shall continue.
    fn step<H: Host>(
        &mut self,
        next: &mut Option<Transmit>,
        now: Instant,
        limit: u32,
        draining: bool,
        context: &Context,
        host: &mut H,
    ) -> Option<Progress> {
        if !context.config.kind.is_reliable() {
            self.finish_sent(host);
        }
        if self.rereads.may_be_due() {
            return self.send_reread(next, now, context, host);
        }
        if self.cursor.wqe < self.started {
            return self.send_started(next, now, limit, draining, context, host);
        }
        if let Some(status) = self.fault {
            if self.started > 0 {
                return Some(Progress::Idle);
            }
            let _ = self.fail_oldest(status, host);
            return Some(Progress::Fatal);
        }
        if draining || !self.look_ahead(context, host) || !self.may_start(context) {
            if !self.must_request_ack(draining, context) || !self.ask_again(now, context) {
                return Some(Progress::Idle);
            }
            return None;
        }
        self.start_next(now, context, host);
        None
    }

    /// Completes sent WQEs of an unreliable QP.
    fn finish_sent<H: Host>(&mut self, host: &mut H) {
        while self.cursor.wqe > 0 {
            self.finish_oldest(WcStatus::Success, host);
        }
    }

    /// Ensures that the window holds the WQE after the started ones. Returns `false` if the queue
    /// has none or the window is full.
    fn look_ahead<H: Host>(&mut self, context: &Context, host: &mut H) -> bool {
        if self.window.len() > self.started {
            return true;
        }
        if self.window.is_full() {
            return false;
        }
        let wqe = match host.take_send() {
            Fetch::Empty => return false,
            Fetch::Wr(wr) => SendWqe::new(wr, admit(&wr, context).err(), context),
            Fetch::Malformed(wr, status) => SendWqe::new(wr, Some(status), context),
        };
        self.window.push(wqe);
        true
    }

    /// Returns whether the WQE after the started ones may start now.
    fn may_start(&self, context: &Context) -> bool {
        let Some(wqe) = self.window.get(self.started) else {
            return false;
        };
        let fenced = wqe.wr.fence && self.reads.requests > 0;
        // Requests in flight may need the memory of the key again until they are finished.
        let waits = matches!(wqe.wr.op, SendOp::Local(LocalOp::Invalidate(_))) && self.started > 0;
        wqe.refused.is_some() || !(fenced || waits || !self.has_room(wqe, 0, context))
    }

    /// Returns whether packet `index` of `wqe` may be sent now. After an RTO, only the oldest
    /// packet may be sent.
    ///
    /// A READ, atomic, ATOMIC WRITE or FLUSH needs room in `max_rd_atomic` and for its response
    /// packets. Other requests need room among the packets in flight, whose limit also grows by the
    /// packets that the responder keeps behind a gap.
    #[inline]
    pub(super) fn has_room(&self, wqe: &SendWqe, index: u32, context: &Context) -> bool {
        if !context.config.kind.is_reliable() || wqe.is_local() {
            return true;
        }
        let psn = if self.cursor.wqe < self.started {
            wqe.first.plus(index)
        } else {
            self.next
        };
        if self.retry.sends_oldest() {
            return psn == self.una;
        }
        let limit = self.retry.limit();
        let reads = self.reads;
        if wqe.uses_rd_atomic() {
            let few = reads.requests < LEAST_READS
                || reads.packets.saturating_add(wqe.span(index)) <= limit.saturating_add(self.kept);
            return few && reads.requests < u32::from(context.settings.max_rd_atomic);
        }
        // A missing packet of a gap counts as in flight already.
        let fills_gap = self.past_gap.is_some() && psn.before(self.sent);
        fills_gap || psn.ahead_of(self.una) < self.most_in_flight()
    }

    /// Returns the number of PSNs that may be in flight when a packet with payload is sent.
    #[inline]
    fn most_in_flight(&self) -> u32 {
        let limit = self.retry.limit().saturating_add(self.kept);
        limit.saturating_add(self.reads.packets)
    }

    /// Starts the WQE after the started ones: checks the memory of a READ or atomic, executes a
    /// local operation, and gives the WQE its PSNs. If the check or the operation fails, or if the
    /// WQE was refused, the WQE fails.
    fn start_next<H: Host>(&mut self, now: Instant, context: &Context, host: &mut H) {
        let offset = self.started;
        let Some(wqe) = self.window.get(offset) else {
            return;
        };
        let prepared = match (wqe.refused, wqe.wr.op) {
            (Some(status), _) => Err(status),
            (None, SendOp::Local(op)) => host.execute_local(wqe.wr.slot, op),
            // The buffer of a READ with one response packet is checked when that packet arrives.
            (None, SendOp::Read(_)) if wqe.packets == 1 => Ok(()),
            (None, SendOp::Read(_) | SendOp::Atomic(..)) => {
                host.check_send(wqe.wr.slot, LocalAccess::Write)
            }
            _ => Ok(()),
        };
        if let Err(status) = prepared {
            return self.stop_at(offset, status, now, context);
        }
        let packets = wqe.packets;
        let first = self.next;
        let read_span = self.retry.read_span();
        if let Some(wqe) = self.window.get_mut(offset) {
            wqe.first = first;
            wqe.read_span = read_span;
        }
        self.next = first.plus(packets);
        self.started = offset.saturating_add(1);
        if packets == 0 {
            self.cursor.wqe = self.started;
            self.finish_acked(host);
        }
    }

    /// Sends the cursor's packet, which belongs to a started WQE, and the packets that follow it in
    /// the same train.
    fn send_started<H: Host>(
        &mut self,
        next: &mut Option<Transmit>,
        now: Instant,
        limit: u32,
        draining: bool,
        context: &Context,
        host: &mut H,
    ) -> Option<Progress> {
        if self.skip_acked() || self.skip_kept() {
            return None;
        }
        let Cursor { wqe: at, packet } = self.cursor;
        let wqe = self.window.get(at)?;
        let probes = core::mem::take(&mut self.probes);
        if !probes && !self.has_room(wqe, packet, context) {
            return Some(Progress::Idle);
        }
        let count = match probes {
            true => 1,
            false => self.train_length(wqe, packet, limit, context),
        };
        let step = Step::of(wqe, packet, count);
        self.before.cursor = self.cursor;
        self.cursor = if step.ends {
            Cursor {
                wqe: at.saturating_add(1),
                packet: 0,
            }
        } else {
            Cursor {
                wqe: at,
                packet: packet.wrapping_add(step.span),
            }
        };
        let marks = if context.config.kind.is_reliable() {
            self.mark(&step, probes, now, draining, context, host)
        } else {
            Marks::default()
        };
        let wqe = self.window.get(at)?;
        *next = segment::build(wqe, packet, count, marks, context);
        next.as_ref().map(|_| Progress::Send)
    }

    /// Returns how many packets of `wqe`, from packet `index` on, may be sent as one train: at most
    /// `limit`, as far as packets may be in flight. Only the last packet of a train may request an
    /// acknowledgment. A packet that was sent before is a train of its own.
    fn train_length(&self, wqe: &SendWqe, index: u32, limit: u32, context: &Context) -> u32 {
        let psn = wqe.first.plus(index);
        if limit <= 1
            || !context.config.kind.is_reliable()
            || wqe.uses_rd_atomic()
            || psn.before(self.sent)
        {
            return 1;
        }
        // The last packet of an RDMA WRITE with immediate data takes a receive WQE, unlike those
        // before it.
        let alone = u32::from(matches!(wqe.wr.op, SendOp::Write(_, Some(_))));
        wqe.packets
            .saturating_sub(alone)
            .saturating_sub(index)
            .min(self.most_in_flight().saturating_sub(psn.ahead_of(self.una)))
            .min(self.retry.ask_every().saturating_sub(self.unasked))
            .clamp(1, limit)
    }

    /// Records that a train is in flight, and decides whether it requests an acknowledgment. With
    /// `probes` it does, unless it is a READ, an atomic, an ATOMIC WRITE or a FLUSH, whose response
    /// serves as well.
    fn mark<H: Host>(
        &mut self,
        step: &Step,
        probes: bool,
        now: Instant,
        draining: bool,
        context: &Context,
        host: &mut H,
    ) -> Marks {
        self.retry.sent(now, &context.settings);
        self.before = Before {
            sent: self.sent,
            asked: self.asked,
            unasked: self.unasked,
            is_reread: false,
            ..self.before
        };
        let again = self.note_sent(step);
        if probes {
            self.unasked = ASK_EVERY;
        }
        let asks = !step.uses_rd_atomic && self.asks(step, again, draining, context, host);
        if asks || step.uses_rd_atomic {
            self.asked = step.psn.plus(step.span);
            // The response to a READ is timed up to its first packet.
            let timed = match step.uses_rd_atomic {
                true => step.psn,
                false => step.psn.plus(step.span.saturating_sub(1)),
            };
            self.retry.await_response(timed, !again, now);
        }
        Marks {
            asks,
            again,
            reserved: self.reserved,
        }
    }

    /// Records the packets in flight. Returns whether this packet was sent before.
    fn note_sent(&mut self, step: &Step) -> bool {
        let past = step.psn.plus(step.span);
        let again = step.psn.before(self.sent);
        if self.sent.before(past) {
            self.sent = past;
        }
        if step.uses_rd_atomic {
            self.reads.requests = self.reads.requests.saturating_add(1);
            self.reads.packets = self.reads.packets.saturating_add(step.span);
        }
        again
    }

    /// Decides whether a packet requests an acknowledgment.
    ///
    /// It does in any of these cases: `ask_every` packets were sent since the last request; it ends
    /// a signaled WQE or one that is sent again; it is the last missing packet of a gap; the
    /// following packets have to wait for the acknowledgment. The last packet of all posted work is
    /// no such case by itself, since nothing waits for its acknowledgment. If no more work is
    /// posted, the timer requests it later.
    fn asks<H: Host>(
        &mut self,
        step: &Step,
        again: bool,
        draining: bool,
        context: &Context,
        host: &mut H,
    ) -> bool {
        self.unasked = self.unasked.saturating_add(step.count);
        let asks = self.unasked >= self.retry.ask_every()
            || (step.ends && (step.signaled || again))
            || self.past_gap == Some(step.psn.plus(step.span))
            || !(self.has_next_packet(draining, context, host)
                || self.may_delay_ack_request(draining, context));
        if asks {
            self.unasked = 0;
        }
        asks
    }

    /// Returns whether all posted requests were sent, the window has room, the timer is enabled and
    /// the QP doesn't drain. Then the timer requests the acknowledgment if nothing more is posted.
    fn may_delay_ack_request(&self, draining: bool, context: &Context) -> bool {
        !draining
            && context.settings.timeout != 0
            && self.fault.is_none()
            && self.cursor.wqe >= self.started
            && self.window.len() == self.started
            && !self.window.is_full()
    }

    /// Returns whether progress depends on the packets in flight, although none of them requested
    /// an acknowledgment.
    fn must_request_ack(&self, draining: bool, context: &Context) -> bool {
        let newest = self.started.checked_sub(1);
        let newest = newest.and_then(|at| self.window.get(at));
        // A local operation also completes only after the requests before it.
        let waits = self.window.len() > self.started || newest.is_some_and(SendWqe::is_local);
        context.config.kind.is_reliable()
            && (draining || waits)
            && self.una != self.sent
            && !self.una.before(self.asked)
    }

    /// Returns whether another packet follows that may be sent at once.
    fn has_next_packet<H: Host>(
        &mut self,
        draining: bool,
        context: &Context,
        host: &mut H,
    ) -> bool {
        if let (true, Some(wqe)) = (
            self.cursor.wqe < self.started,
            self.window.get(self.cursor.wqe),
        ) {
            return wqe.packets > 0 && self.has_room(wqe, self.cursor.packet, context);
        }
        if draining || self.fault.is_some() || !self.look_ahead(context, host) {
            return false;
        }
        let sends = |wqe: &SendWqe| wqe.refused.is_none() && !wqe.is_local();
        self.window.get(self.started).is_some_and(sends) && self.may_start(context)
    }

    /// Moves the cursor past packets that need not be sent: local operations, and requests that
    /// were carried out although a response before them was lost. Returns whether the cursor moved
    /// to another WQE.
    fn skip_acked(&mut self) -> bool {
        let Some(wqe) = self.window.get(self.cursor.wqe) else {
            return false;
        };
        if self.cursor.wqe > 0 && !wqe.uses_rd_atomic() {
            let acked = u32::try_from(self.acked.since(wqe.first)).unwrap_or(0);
            self.cursor.packet = self.cursor.packet.max(acked);
        }
        let done = self.cursor.packet >= wqe.packets;
        if done {
            self.cursor.wqe = self.cursor.wqe.saturating_add(1);
            self.cursor.packet = 0;
            self.probes = false;
        }
        done
    }
}

// SPDX-License-Identifier: GPL-2.0

//! One end of a connection: its rings, and the oracle's state of both directions.

use std::collections::{BTreeSet, VecDeque};

use roce::host::Event;
use roce::ids::Rkey;
use roce::mtu::Mtu;
use roce::psn::Psn;
use roce::qp::{QpKind, QpState, RemoteRights};
use roce::wc::RecvWc;
use roce::wire::packet::NakCode;

use crate::message::Message;
use crate::recv::Receive;

/// An effect of the engine on the receive queue or on memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    TakeRecv(u64),
    ScatterRecv { at: usize, len: usize },
    Write { at: usize, len: usize },
    Atomic { at: usize, original: u64 },
    AtomicWrite { at: usize },
    Flush { at: usize, len: u32 },
    Invalidate(Rkey),
    RecvDone(RecvWc),
}

/// The current attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) mtu: Mtu,
    pub(crate) rights: RemoteRights,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
}

/// The mapping between 24-bit PSNs and extended packet numbers, which don't wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbering(pub(crate) Psn);

impl Numbering {
    pub(crate) fn psn(self, ext: u64) -> Psn {
        self.0.plus((ext & 0xff_ffff) as u32)
    }

    /// Returns the extended number of `psn` that is nearest to `near`.
    pub(crate) fn ext(self, psn: Psn, near: u64) -> Option<u64> {
        near.checked_add_signed(i64::from(psn.since(self.psn(near))))
    }
}

/// The response bytes that the requester must store in the current call.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedStore {
    pub(crate) message: usize,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// The oracle's state of the requests that this QP sends. A number is an extended packet number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tx {
    pub(crate) numbering: Numbering,
    /// One past the last number of the posted messages.
    pub(crate) assigned: u64,
    /// The oldest number that no response has covered.
    pub(crate) una: u64,
    /// The responder has carried out all packets before this number.
    pub(crate) executed_by_peer: u64,
    /// One past the highest number that was sent.
    pub(crate) sent: u64,
    /// One past the number that was sent last, or `una` if that is higher.
    pub(crate) cursor: u64,
    /// Time of the last transmission of each number, except transmissions that may not have
    /// restarted the acknowledgment timer.
    pub(crate) sent_at: Vec<u64>,
    /// Number of times that `una` was sent: since it became the oldest, and at most once before.
    pub(crate) tries: u32,
    /// Number of times that `una` was sent, and was either counted in no retry or in one.
    pub(crate) maybe_tries: u32,
    /// Number of times that `una` was sent since it became the oldest and the faults stopped,
    /// except those after a possible RTO.
    pub(crate) tries_without_faults: u32,
    /// Number of request packets since the last one that requested a response, or since the
    /// requester went back.
    pub(crate) unasked: u32,
    /// A response allows the requester to resend before the timeout.
    pub(crate) nudged: bool,
    /// The requester may have gone back last because of a retransmission timeout (RTO), which
    /// spends no retry.
    pub(crate) may_be_rto: bool,
    /// The requester may skip the packets that were sent before: it has filled a gap, or a packet
    /// behind the oldest was acknowledged after an RTO.
    pub(crate) may_skip: bool,
    /// Number of RNR NAKs with a plausible MSN since `una` became the oldest, at most one for each
    /// time it was sent.
    pub(crate) rnr_naks: u32,
    /// Number of RNR NAKs that arrived between the end of a wait and the next packet, because a
    /// pause delayed that packet.
    pub(crate) rnr_echoes: u32,
    /// End of the wait after an RNR NAK, and the packet that found no receive.
    pub(crate) rnr_until: Option<(u64, u64)>,
    /// `una` may have been sent also for other reasons than a transport retry.
    pub(crate) muddled: bool,
    /// The host dropped packets since `una` became the oldest, or before and has sent none since.
    /// The timer may have expired because no packet left.
    pub(crate) starved: bool,
    /// The refusal in the packet being handled.
    pub(crate) refusal: Option<(NakCode, u64)>,
    /// The number that the packet being handled answers, if that response has a wrong length.
    pub(crate) malformed: Option<u64>,
    /// The number for which an implausible response arrived: a READ response of a wrong length
    /// without an MSN to prove it, or a fatal NAK with an old MSN. Cleared when the number is
    /// acknowledged.
    pub(crate) doubted: Option<u64>,
    /// The highest MSN in a response.
    pub(crate) heard: u32,
    pub(crate) expected: Option<ExpectedStore>,
    /// A NAK reported that the packets before this one are missing. The requester sends only those
    /// again.
    pub(crate) past_gap: Option<u64>,
    /// The later gaps that NAKs reported. The requester may send their packets again.
    pub(crate) later_gaps: Vec<(u64, u64)>,
    /// One past each of the last packets that asked for lost responses, or were sent because the
    /// requester has gone back.
    pub(crate) may_continue: Vec<u64>,
    /// The packet that was sent last asked, or may have asked, for lost responses only.
    pub(crate) was_reread: bool,
    /// In SQD: the number at which sending must stop.
    pub(crate) drain_at: Option<u64>,
}

/// A READ, atomic, ATOMIC WRITE or FLUSH that was carried out and whose response isn't completely
/// sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRead {
    pub(crate) next: u64,
    pub(crate) end: u64,
}

/// A refusal that is due or sent.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) ext: u64,
    pub(crate) codes: Vec<NakCode>,
    pub(crate) sent: bool,
}

/// The NAK that the responder may send for packets that it doesn't accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gap {
    #[default]
    None,
    /// A packet is missing, and this is the newest early packet. One sequence NAK may be sent.
    Seen(u64),
    /// A packet found no receive. One RNR NAK may be sent.
    NotReady,
    /// The NAK was sent. No other may follow until the expected packet arrives, or an early packet
    /// with the cookie requests an acknowledgment.
    Said,
}

/// The oracle's state of the requests that this QP receives. A number is an extended packet number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rx {
    pub(crate) numbering: Numbering,
    pub(crate) epsn: u64,
    pub(crate) msn: u32,
    pub(crate) held: Option<Receive>,
    /// Unreliable connection: more packets of the current message may arrive.
    pub(crate) open: bool,
    /// Number of bytes of the current message that have arrived.
    pub(crate) offset: u32,
    pub(crate) gap: Gap,
    /// The NAK that was due last is an RNR NAK.
    pub(crate) not_ready: bool,
    /// The early packets that the host keeps, and one past the newest early packet with the cookie
    /// while an earlier packet is missing.
    pub(crate) early: BTreeSet<u64>,
    pub(crate) past_seen: Option<u64>,
    /// An early READ or atomic was dropped, so that the peer sends all packets again.
    pub(crate) peer_goes_back: bool,
    /// The last NAK reported the packets before this one as missing.
    pub(crate) past_reported: u64,
    /// The NAK of `gap` may be left out: a kept packet was lost, whose memory isn't resident.
    pub(crate) may_be_silent: bool,
    /// The value that early packets must have, if the peer fills gaps.
    pub(crate) cookie: u16,
    /// Index of the ring in which no receive was found.
    pub(crate) wanted: usize,
    /// Set when `max_dest_rd_atomic`, the limit of remembered answers, was raised: `epsn` at that
    /// time, and the limit before.
    pub(crate) raised: Option<(u64, u8)>,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) reads: VecDeque<PendingRead>,
    /// READ packets whose memory was gone when they were to be answered.
    pub(crate) unreadable: Vec<u64>,
    /// The right to READ was withdrawn. Responses that are still due may be refused.
    pub(crate) read_revoked: bool,
    /// The highest number that requested an ACK or a response, and that no answer has covered yet.
    pub(crate) owes: Option<u64>,
    /// The ends of the parts of READs that were requested again.
    pub(crate) parts: Vec<u64>,
    /// The numbers that an acknowledgment may carry.
    pub(crate) may_ack: Vec<u64>,
    /// One past the last number of the newest request whose answer is remembered.
    pub(crate) recorded: u64,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) kind: QpKind,
    pub(crate) qpn: u32,
    pub(crate) peer_qpn: u32,
    pub(crate) node: usize,
    pub(crate) ring: usize,
    pub(crate) shared: bool,
    /// The connection is unreliable.
    pub(crate) unreliable: bool,
    /// The state that the QP must have.
    pub(crate) state: QpState,
    pub(crate) profile: Profile,
    /// Number of the connection. Packets of an earlier one are lost.
    pub(crate) epoch: u32,
    /// The hosts keep early packets.
    pub(crate) keeps_early: bool,
    pub(crate) messages: Vec<Message>,
    pub(crate) taken: usize,
    pub(crate) retired: usize,
    /// Messages before this index have completed or need no completion.
    pub(crate) completed: usize,
    pub(crate) sq: u32,
    /// Offset of the buffers for READ and atomic results, one per slot.
    pub(crate) results: usize,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    /// Receives that were taken and not released.
    pub(crate) held: Vec<Receive>,
    pub(crate) effects: Vec<Effect>,
    /// Events of the current call.
    pub(crate) events: Vec<Event>,
    /// Number of SQ_DRAINED events since the QP entered SQD, and whether one was requested.
    pub(crate) sq_drained: usize,
    pub(crate) notify: bool,
    /// The first error that the host detected in a call.
    pub(crate) failure: Option<String>,
    /// Number of LAST_WQE_REACHED events since the last reset.
    pub(crate) last_wqe: usize,
    /// Completions no longer fit the completion queue.
    pub(crate) cq_full: bool,
    /// A completion that didn't fit has arrived.
    pub(crate) overflow: bool,
    /// In SQE: the index of the first message after the failed one, and its first packet number.
    pub(crate) failed: Option<(usize, u64)>,
    /// An event will bring the QP back to RTS.
    pub(crate) resumes: bool,
    /// Nothing is sent until this time, after this many drops by the host in a row.
    pub(crate) paused: (u64, u32),
    /// Upper bound of the total duration of consecutive pauses in nanoseconds.
    pub(crate) pause: u64,
    /// A RESET is in progress: slots come back without completions.
    pub(crate) resetting: bool,
}

impl Side {
    pub(crate) fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    /// Returns the index of the taken message in this slot of the send ring.
    pub(crate) fn message_in(&self, slot: u32) -> Option<usize> {
        (self.retired..self.taken).find(|&index| self.messages[index].wr.slot.0 == slot)
    }

    /// Returns the index of the message that has this extended packet number.
    pub(crate) fn message_at(&self, ext: u64) -> Option<usize> {
        let index = self
            .messages
            .partition_point(|message| message.end() <= ext);
        (index < self.messages.len()).then_some(index)
    }

    /// Returns whether the payload of a response to packet `ext` has the length that the request
    /// asked for.
    pub(crate) fn has_length(&self, ext: u64, payload: &[u8]) -> bool {
        let asked = self.message_at(ext).map(|index| &self.messages[index]);
        asked.is_none_or(|message| {
            let segment = ext - message.first;
            !message.is_read()
                || payload.len() as u32 == message.segment_len(segment, self.profile.mtu)
        })
    }

    /// Returns whether the oracle has seen all that a success of the message requires.
    pub(crate) fn finished(&self, index: usize) -> bool {
        let message = &self.messages[index];
        if message.is_local() {
            message.executed
        } else if message.wants_response() {
            message.executed && message.answered
        } else {
            (message.executed || self.unreliable) && message.end() <= self.tx.una
        }
    }

    pub(crate) fn is_xrc(&self) -> bool {
        matches!(self.kind, QpKind::XrcIni | QpKind::XrcTgt)
    }

    pub(crate) fn sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    pub(crate) fn receives(&self) -> bool {
        matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }

    /// Returns whether a completion that didn't fit has just broken the QP, which was in `state`.
    pub(crate) fn breaks_from(&self, state: QpState) -> bool {
        self.cq_full && self.state == QpState::Err && state != QpState::Err
    }

    /// Returns whether all posted messages have ended.
    pub(crate) fn idle(&self) -> bool {
        self.retired == self.messages.len() && (!self.sends() || self.tx.una == self.tx.assigned)
    }

    /// Clears the state of the connection.
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
        (self.taken, self.retired, self.completed) = (0, 0, 0);
        self.tx = Tx::default();
        self.rx = Rx::default();
        self.effects.clear();
        (self.last_wqe, self.cq_full, self.overflow) = (0, false, false);
        (self.failed, self.resumes) = (None, false);
        (self.paused, self.pause) = ((0, 0), 0);
        self.epoch += 1;
        self.state = QpState::Reset;
    }
}

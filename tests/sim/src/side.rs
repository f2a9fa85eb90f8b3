// SPDX-License-Identifier: GPL-2.0

//! One QP's surroundings: its rings, and what the oracle knows of both its directions.

use std::collections::VecDeque;

use roce::host::Event;
use roce::ids::Rkey;
use roce::mtu::Mtu;
use roce::psn::Psn;
use roce::qp::{QpKind, QpState, RemoteRights};
use roce::wc::RecvWc;
use roce::wire::packet::NakCode;

use crate::message::Message;
use crate::recv::Receive;

/// What the engine did to the receive queue or to memory.
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

/// The attributes in force.
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

/// Maps between 24-bit PSNs and extended packet numbers, which never wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbering(pub(crate) Psn);

impl Numbering {
    pub(crate) fn psn(self, ext: u64) -> Psn {
        self.0.plus((ext & 0xff_ffff) as u32)
    }

    /// The extended number of `psn` that is nearest to `near`.
    pub(crate) fn ext(self, psn: Psn, near: u64) -> Option<u64> {
        near.checked_add_signed(i64::from(psn.since(self.psn(near))))
    }
}

/// The response bytes that the requester must store now.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) message: usize,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// What the oracle knows of the requests this QP sends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tx {
    pub(crate) numbering: Numbering,
    /// One past the last number given to a posted message.
    pub(crate) assigned: u64,
    /// The oldest number that no response has covered.
    pub(crate) una: u64,
    /// The responder has carried out everything before this number.
    pub(crate) vouched: u64,
    /// One past the highest number sent.
    pub(crate) sent: u64,
    /// One past the number sent last.
    pub(crate) cursor: u64,
    /// When each number was sent last.
    pub(crate) sent_at: Vec<u64>,
    /// How often `una` was sent since it became the oldest.
    pub(crate) tries: u32,
    /// Of these, how many since the faults stopped.
    pub(crate) fair_tries: u32,
    /// Request packets since the last one that must be answered.
    pub(crate) unasked: u32,
    /// A response allows to go back before the timeout.
    pub(crate) nudged: bool,
    /// RNR NAKs for `una`, one for each time it was sent.
    pub(crate) rnr_naks: u32,
    /// RNR NAKs that came between the end of a wait and the next packet, which a pause put off.
    pub(crate) rnr_echoes: u32,
    /// Until when sending must wait for a receiver, and which packet wasn't received.
    pub(crate) rnr_until: Option<(u64, u64)>,
    /// `una` was also sent for other reasons than a transport retry.
    pub(crate) muddled: bool,
    /// The host dropped packets since `una` became the oldest: the timer may have run out for want of
    /// packets that left.
    pub(crate) starved: bool,
    /// The refusal in the packet being handled.
    pub(crate) refusal: Option<(NakCode, u64)>,
    /// The packet being handled is an answer of a wrong length, to this number.
    pub(crate) malformed: Option<u64>,
    /// An answer of a wrong length came for this number without an MSN to prove it, and the number was not
    /// acknowledged since.
    pub(crate) doubted: Option<u64>,
    /// The highest MSN that came with an answer.
    pub(crate) heard: u32,
    pub(crate) expected: Option<Expected>,
    /// In SQD: the number at which sending must stop.
    pub(crate) drain_at: Option<u64>,
}

/// A READ that was carried out and whose response isn't all sent.
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

/// What the responder may say about packets it does not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gap {
    #[default]
    None,
    /// A packet is missing, and later ones up to this were dropped: one sequence NAK may be sent.
    Seen(u64),
    /// There was no receive: one RNR NAK may be sent.
    NotReady,
    /// It was said; nothing more until the expected packet comes.
    Said,
}

/// What the oracle knows of the requests this QP receives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rx {
    pub(crate) numbering: Numbering,
    pub(crate) epsn: u64,
    pub(crate) msn: u32,
    pub(crate) held: Option<Receive>,
    /// Unreliable: more packets of the current message may come.
    pub(crate) open: bool,
    /// Bytes of the current message that came.
    pub(crate) offset: u32,
    pub(crate) gap: Gap,
    /// The ring in which no receive was found.
    pub(crate) wanted: usize,
    /// When more answers than at first were to be remembered: the next number then, and how many until
    /// then.
    pub(crate) raised: Option<(u64, u8)>,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) reads: VecDeque<PendingRead>,
    /// READ packets whose memory was gone when they were to be answered.
    pub(crate) unreadable: Vec<u64>,
    /// The right to READ was taken away: what is still to be answered may be refused.
    pub(crate) read_revoked: bool,
    /// A request came that asked for an acknowledgement; none that covers it was sent.
    pub(crate) owes: Option<u64>,
    /// The numbers that an acknowledgement may carry.
    pub(crate) may_ack: Vec<u64>,
    /// One past the last number of the newest request whose answer is remembered.
    pub(crate) recorded: u64,
}

/// One QP's surroundings.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) kind: QpKind,
    pub(crate) qpn: u32,
    pub(crate) peer_qpn: u32,
    pub(crate) node: usize,
    pub(crate) ring: usize,
    pub(crate) shared: bool,
    /// An unreliable connection.
    pub(crate) unreliable: bool,
    /// The state that the QP must be in.
    pub(crate) state: QpState,
    pub(crate) profile: Profile,
    /// Counts the connections; packets of an earlier one are lost.
    pub(crate) epoch: u32,
    pub(crate) messages: Vec<Message>,
    pub(crate) taken: usize,
    pub(crate) retired: usize,
    /// Messages before this one have completed or need no completion.
    pub(crate) completed: usize,
    pub(crate) sq: u32,
    /// Where READ and atomic results go: one buffer a slot.
    pub(crate) results: usize,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    /// Receives taken and not released.
    pub(crate) held: Vec<Receive>,
    pub(crate) effects: Vec<Effect>,
    /// Events of the current call.
    pub(crate) events: Vec<Event>,
    /// SQ_DRAINED events since SQD was entered, and whether one was asked for.
    pub(crate) sq_drained: usize,
    pub(crate) notify: bool,
    /// The first thing that the host saw going wrong in a call.
    pub(crate) failure: Option<String>,
    /// LAST_WQE_REACHED events of this life.
    pub(crate) last_wqe: usize,
    /// Completions don't fit any more, and one came.
    pub(crate) cq_full: bool,
    pub(crate) overflow: bool,
    /// In SQE: the first message behind the one that failed, and the number that it would have.
    pub(crate) failed: Option<(usize, u64)>,
    /// RTS will follow.
    pub(crate) resumes: bool,
    /// Nothing is sent until then, after so many drops by the host in a row.
    pub(crate) paused: (u64, u32),
    /// How long pauses that followed one another were at most.
    pub(crate) pause: u64,
    /// A RESET is under way: slots come back without completions.
    pub(crate) resetting: bool,
}

impl Side {
    pub(crate) fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    /// The taken message in this slot of the send ring.
    pub(crate) fn message_in(&self, slot: u32) -> Option<usize> {
        (self.retired..self.taken).find(|&index| self.messages[index].wr.slot.0 == slot)
    }

    /// The message that owns an extended packet number.
    pub(crate) fn message_at(&self, ext: u64) -> Option<usize> {
        let index = self
            .messages
            .partition_point(|message| message.end() <= ext);
        (index < self.messages.len()).then_some(index)
    }

    /// Payload of an answer to packet `ext` has the length that the request asked for.
    pub(crate) fn has_length(&self, ext: u64, payload: &[u8]) -> bool {
        let asked = self.message_at(ext).map(|index| &self.messages[index]);
        asked.is_none_or(|message| {
            let segment = ext - message.first;
            !message.is_read()
                || payload.len() as u32 == message.segment_len(segment, self.profile.mtu)
        })
    }

    /// The responder and the network have told all that a success needs.
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

    /// A completion that didn't fit has just broken the QP, which was in `state`.
    pub(crate) fn breaks_from(&self, state: QpState) -> bool {
        self.cq_full && self.state == QpState::Err && state != QpState::Err
    }

    /// Everything posted has ended.
    pub(crate) fn idle(&self) -> bool {
        self.retired == self.messages.len() && (!self.sends() || self.tx.una == self.tx.assigned)
    }

    /// Forgets the connection.
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

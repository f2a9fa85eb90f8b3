// SPDX-License-Identifier: GPL-2.0

//! The events of the test: acts of the QP's owner, of its host and of the peer. PSNs are relative
//! to those that the QP expects, so that a shorter list of events is still meaningful.

use std::vec::Vec;

use proptest::collection::vec as some;
use proptest::prelude::*;
use proptest::sample::select;

use super::{BASE, RKEY, SEND};
use crate::early::{Direction, MOST_AHEAD};
use crate::ids::Imm;
use crate::psn::Psn;
use crate::qp::QpState;
use crate::transmit::TrainLimits;
use crate::wire::packet::{NakCode, MOST_EXTENSION};
use crate::wr::{AtomicOp, FlushKind, LocalOp, RemoteAddr, SendOp};

/// Largest number of events.
const MOST_EVENTS: usize = 600;
/// Length of the longest message of the QP, in bytes.
const LONGEST: u32 = 40_000;
/// Largest distance of most of the peer's packets that come early.
const NEAR: u32 = 20;
/// Largest payload length on the wire.
const MOST_PAYLOAD: u32 = 4096;

const REMOTE: RemoteAddr = RemoteAddr {
    va: BASE,
    rkey: RKEY,
};

/// An event.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The owner posts a send request.
    Post {
        op: SendOp,
        length: u32,
        signaled: bool,
        fence: bool,
    },
    /// The owner posts this number of receive buffers.
    PostRecvs { count: u32, length: u32 },
    /// The owner calls `modify_qp`. A QP that gets to RESET is connected again.
    Modify(QpState),
    /// The host polls trains. A QP that comes to rest in ERR is reset and connected again.
    Poll {
        trains: u32,
        limits: TrainLimits,
        fate: Fate,
    },
    /// The QP's own buffers are not resident until the next poll.
    PageOut,
    /// This number of nanoseconds passes.
    Time(u64),
    /// The peer sends consecutive packets of its message stream, or correct responses. Those whose
    /// bits are set in `losses` are lost.
    Burst {
        direction: Direction,
        count: u32,
        losses: u64,
    },
    /// The peer sends a request packet.
    Request(Request),
    /// The peer sends a response.
    Response(Response),
}

/// The fate of the last train of a poll. The others leave.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    Leaves,
    /// It doesn't leave the host.
    IsDropped,
    /// The host withdraws it, if it has several packets.
    IsWithdrawn,
    /// The memory of a READ response is not resident.
    IsAbsent,
    /// Its payload can't be read.
    IsDenied,
}

/// The PSN of a packet, relative to the one that the QP expects.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Expected,
    /// For a response: this many PSNs ahead, modulo the number of PSNs in flight.
    Ahead(u32),
    Behind(u32),
    /// For a response: possibly a PSN that the QP has not sent.
    Anywhere(u32),
}

impl Place {
    /// Returns the place of `psn` while `expected` is expected.
    pub(super) fn of(psn: Psn, expected: Psn) -> Self {
        match psn.before(expected) {
            true => Self::Behind(expected.ahead_of(psn)),
            false => Self::Anywhere(psn.ahead_of(expected)),
        }
    }

    /// Returns the PSN of this place while `expected` is expected.
    pub(super) fn psn(self, expected: Psn) -> Psn {
        match self {
            Self::Expected => expected,
            Self::Ahead(ahead) | Self::Anywhere(ahead) => expected.plus(ahead),
            Self::Behind(behind) => expected.minus(behind),
        }
    }
}

/// The cookie of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cookie {
    Right,
    None,
    Other(u16),
}

/// The message sequence number (MSN) of a response.
#[derive(Clone, Copy, Debug)]
pub(super) enum Msn {
    Plausible,
    Any(u32),
}

/// The place of a packet in a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    First,
    Middle,
    Last,
    Only,
}

/// A request packet of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) place: Place,
    pub(super) ask: Ask,
    pub(super) ack_req: bool,
    pub(super) fills_gaps: bool,
    pub(super) cookie: Cookie,
}

/// The operation of a request packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// The packet of the peer's message stream.
    InStream,
    /// A READ of this many cycles of the stream and one packet, if the stream has a whole message
    /// in this place.
    Read(u32),
    /// An atomic, if the stream has a whole message in this place.
    Atomic,
    /// A FLUSH, if the stream has a whole message in this place.
    Flush,
    /// An earlier READ once more, without its first packets.
    ReadAgain { which: usize, skipped: u32 },
    /// A SEND packet that doesn't fit the stream.
    Send(Part, u32),
    /// A WRITE packet that doesn't fit the stream.
    Write(Part, u32),
    /// A READ of memory that the peer may not access.
    ForeignRead,
}

/// A response of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response {
    pub(super) place: Place,
    pub(super) answer: Answer,
    pub(super) msn: Msn,
    pub(super) cookie: Cookie,
}

/// The statement of a response.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The response that the request of this PSN waits for.
    Correct,
    Ack,
    /// A sequence NAK with this gap report.
    Missing(u16),
    /// An RNR NAK with this timer.
    NotReady(u8),
    Refusal(NakCode),
    Atomic,
    /// A READ response with this payload length.
    Read(Part, u32),
}

/// Returns lists of events.
pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    some(event(), 1..MOST_EVENTS)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        16 => post(),
        8 => post_recvs(),
        2 => modify().prop_map(Event::Modify),
        28 => poll(),
        1 => Just(Event::PageOut),
        4 => time().prop_map(Event::Time),
        20 => burst(),
        15 => request().prop_map(Event::Request),
        20 => response().prop_map(Event::Response),
    ]
}

fn post() -> impl Strategy<Value = Event> {
    let flush = FlushKind::new(FlushKind::GLOBAL, 0);
    let op = prop_oneof![
        8 => Just(SendOp::Read(REMOTE)),
        3 => Just(SendOp::Write(REMOTE, None)),
        1 => Just(SendOp::Write(REMOTE, Some(Imm(1)))),
        3 => Just(SEND),
        1 => Just(SendOp::Atomic(REMOTE, AtomicOp::FetchAdd { add: 1 })),
        1 => Just(SendOp::Flush(REMOTE, flush)),
        1 => Just(SendOp::Local(LocalOp::BindMw)),
    ];
    let length = prop_oneof![1 => 0..9u32, 1 => 0..3000u32, 2 => 0..LONGEST];
    let signaled = prop::bool::weighted(0.7);
    let fence = prop::bool::weighted(0.1);
    (op, length, signaled, fence).prop_map(|(op, length, signaled, fence)| Event::Post {
        op,
        length: match op {
            SendOp::Atomic(..) | SendOp::Flush(..) => 8,
            SendOp::Local(_) => 0,
            _ => length,
        },
        signaled,
        fence,
    })
}

/// The SENDs of the peer's stream fit most of the buffers.
fn post_recvs() -> impl Strategy<Value = Event> {
    let length = prop_oneof![1 => 0..LONGEST, 30 => MOST_PAYLOAD..LONGEST];
    (1..24u32, length).prop_map(|(count, length)| Event::PostRecvs { count, length })
}

fn modify() -> impl Strategy<Value = QpState> {
    prop_oneof![
        2 => Just(QpState::Sqd),
        10 => Just(QpState::Rts),
        1 => Just(QpState::Err),
        1 => Just(QpState::Reset),
    ]
}

fn poll() -> impl Strategy<Value = Event> {
    let fate = prop_oneof![
        160 => Just(Fate::Leaves),
        10 => Just(Fate::IsDropped),
        10 => Just(Fate::IsWithdrawn),
        10 => Just(Fate::IsAbsent),
        1 => Just(Fate::IsDenied),
    ];
    (1..40u32, 1..17u32, 1..17u32, fate).prop_map(|(trains, requests, responses, fate)| {
        let limits = TrainLimits {
            requests,
            responses,
        };
        Event::Poll {
            trains,
            limits,
            fate,
        }
    })
}

/// Pauses: short ones, those after which packets are sent again, and those after which the engine
/// drops early packets.
fn time() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..1_000_000u64,
        3 => 1_000_000..100_000_000u64,
        1 => 1_000_000_000..1_100_000_000u64,
    ]
}

fn burst() -> impl Strategy<Value = Event> {
    let direction = select(&[Direction::Request, Direction::Response][..]);
    let losses = (any::<u64>(), any::<u64>()).prop_map(|(one, other)| one & other);
    (direction, 1..64u32, losses).prop_map(|(direction, count, losses)| Event::Burst {
        direction,
        count,
        losses,
    })
}

/// Returns places. The last PSNs `behind` of them lie behind the expected one.
fn place(behind: u32) -> impl Strategy<Value = Place> {
    prop_oneof![
        6 => Just(Place::Expected),
        8 => (0..NEAR).prop_map(Place::Ahead),
        2 => (1..behind).prop_map(Place::Behind),
        1 => (0..MOST_AHEAD + NEAR).prop_map(Place::Anywhere),
    ]
}

fn cookie() -> impl Strategy<Value = Cookie> {
    prop_oneof![
        40 => Just(Cookie::Right),
        4 => Just(Cookie::None),
        1 => (0..=MOST_EXTENSION).prop_map(Cookie::Other),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    select(&[Part::First, Part::Middle, Part::Last, Part::Only][..])
}

fn request() -> impl Strategy<Value = Request> {
    let ask = prop_oneof![
        40 => Just(Ask::InStream),
        20 => (0..8u32).prop_map(Ask::Read),
        5 => Just(Ask::Atomic),
        5 => Just(Ask::Flush),
        20 => (any::<usize>(), any::<u32>())
            .prop_map(|(which, skipped)| Ask::ReadAgain { which, skipped }),
        2 => (part(), 0..MOST_PAYLOAD).prop_map(|(part, length)| Ask::Send(part, length)),
        2 => (part(), 0..MOST_PAYLOAD).prop_map(|(part, length)| Ask::Write(part, length)),
        1 => Just(Ask::ForeignRead),
    ];
    let fills_gaps = prop::bool::weighted(0.9);
    (place(80), ask, any::<bool>(), fills_gaps, cookie()).prop_map(
        |(place, ask, ack_req, fills_gaps, cookie)| Request {
            place,
            ask,
            ack_req,
            fills_gaps,
            cookie,
        },
    )
}

fn response() -> impl Strategy<Value = Response> {
    let refusal = select(
        &[
            NakCode::InvalidRequest,
            NakCode::RemoteAccess,
            NakCode::RemoteOperational,
            NakCode::InvalidRdRequest,
        ][..],
    );
    let answer = prop_oneof![
        60 => Just(Answer::Correct),
        10 => Just(Answer::Ack),
        20 => (0..32u16).prop_map(Answer::Missing),
        3 => (0..32u8).prop_map(Answer::NotReady),
        1 => refusal.prop_map(Answer::Refusal),
        1 => Just(Answer::Atomic),
        4 => (part(), 0..MOST_PAYLOAD).prop_map(|(part, length)| Answer::Read(part, length)),
    ];
    let msn = prop_oneof![
        9 => Just(Msn::Plausible),
        1 => any::<u32>().prop_map(|any| Msn::Any(any & 0xff_ffff)),
    ];
    (place(6), answer, msn, cookie()).prop_map(|(place, answer, msn, cookie)| Response {
        place,
        answer,
        msn,
        cookie,
    })
}

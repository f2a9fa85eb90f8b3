// SPDX-License-Identifier: GPL-2.0

//! A QP whose host keeps early packets of both directions, against a hostile peer that knows the
//! cookies. The peer mixes correct packets with others of any PSN, operation and statement, while
//! the host drops, withdraws and fails trains, and the owner changes the state.
//!
//! Whatever the peer sends, the engine must obey the rules of [`crate::host`]. [`host`] checks them
//! in each call, and [`World::check`] after each event. The data that arrives is not checked.
//!
//! The environment variables `PROPTEST_RNG_SEED` and `PROPTEST_CASES` choose other and more lists
//! of events.

mod event;
mod host;
mod peer;

use std::cell::RefCell;
use std::vec;

use proptest::prelude::*;
use proptest::test_runner::{contextualize_config, RngSeed, TestRunner};

use super::{to, SEND};
use crate::early::Direction;
use crate::host::AccessFault;
use crate::qp::{Attrs, QpKind, QpState, TransmitFault};
use crate::testing::{qp, to_init, to_rtr, to_rts, TestQp, BASE, RKEY};
use crate::time::{Duration, Instant};
use crate::transmit::{Source, TrainLimits, Transmit};
use crate::wc::WcStatus;
use event::{events, Answer, Ask, Cookie, Event, Fate, Msn, Place, Request, Response};
use host::{CheckingHost, Tally};
use peer::{Peer, FIRST_REQUEST, FIRST_RESPONSE};

/// Number of lists of events, unless `PROPTEST_CASES` is set.
const CASES: u32 = 100;
/// Least average of each of [`Tally::figures`] for one list.
const LEAST_AVERAGE: u64 = 2;
/// Maximum number of WQEs that the QP processes at a time.
const WINDOW: usize = 8;
/// Time that passes with each event.
const TICK: Duration = Duration(20_000);
/// Most runs of a QP in ERR until it rests.
const MOST_RUNS: u32 = 300;

/// A QP with its owner, its host and its peer.
struct World {
    qp: TestQp,
    host: CheckingHost,
    peer: Peer,
    now: Instant,
    /// The last train that the QP has polled. The host may still hold it back.
    last: Option<Transmit>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            qp: qp(QpKind::Rc, WINDOW),
            host: CheckingHost::new(),
            peer: Peer::new(),
            now: Instant(0),
            last: None,
        };
        world.connect();
        world
    }

    /// Brings the QP from RESET to RTS.
    fn connect(&mut self) {
        let rts = Attrs {
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..to_rts(QpKind::Rc, FIRST_RESPONSE)
        };
        let rtr = to_rtr(QpKind::Rc, FIRST_REQUEST);
        for attrs in [to_init(QpKind::Rc), rtr, rts] {
            assert!(self.modify(&attrs));
        }
        self.peer = Peer::new();
    }

    /// Calls `modify_qp`. Returns whether it succeeds.
    fn modify(&mut self, attrs: &Attrs) -> bool {
        let host = self.host.begin_call();
        self.qp.modify(self.now, attrs, host).is_ok()
    }

    /// Resets the QP and connects it again.
    fn reset(&mut self) {
        assert!(self.modify(&to(QpState::Reset)));
        self.check();
        self.host.end_connection();
        self.connect();
    }

    fn apply(&mut self, event: &Event) {
        self.pass_time(TICK);
        match *event {
            Event::Post {
                op,
                length,
                signaled,
                fence,
            } => {
                let payload = vec![0; length as usize];
                self.host.mock.post_send_with(op, payload, |wr| {
                    (wr.signaled, wr.fence) = (signaled, fence);
                });
            }
            Event::PostRecvs { count, length } => {
                for _ in 0..count {
                    self.host.mock.post_recv(length);
                }
            }
            Event::Modify(QpState::Reset) => self.reset(),
            // The state may not admit this.
            Event::Modify(state) => {
                self.modify(&to(state));
            }
            Event::Poll {
                trains,
                limits,
                fate,
            } => self.poll(trains, limits, fate),
            Event::PageOut => self.host.mock.absent = true,
            Event::Time(nanoseconds) => self.pass_time(Duration(nanoseconds)),
            Event::Burst {
                direction,
                count,
                losses,
            } => self.burst(direction, count, losses),
            Event::Request(ref request) => self.request(request),
            Event::Response(ref response) => self.respond(response),
        }
        self.check();
    }

    fn pass_time(&mut self, time: Duration) {
        self.now = self.now.after(time);
        if self.qp.poll_timeout().is_some_and(|at| at <= self.now) {
            self.qp.handle_timeout(self.now, self.host.begin_call());
        }
    }

    /// Polls up to `trains` trains. In ERR, ends the connection.
    fn poll(&mut self, trains: u32, limits: TrainLimits, fate: Fate) {
        self.host.mock.absent = false;
        self.qp.begin_run();
        let mut held = None;
        for _ in 0..trains {
            let host = self.host.begin_call();
            let Some(transmit) = self.qp.poll_train(self.now, limits, host) else {
                break;
            };
            self.host.check_source(&transmit);
            if let Some(before) = held.replace(transmit) {
                self.peer.receive(&before);
            }
        }
        self.last = held;
        if let Some(transmit) = held {
            self.meet(&transmit, fate);
        }
        if self.qp.state() == QpState::Err {
            self.flush();
            self.reset();
        }
    }

    /// Lets the last train meet its fate.
    fn meet(&mut self, transmit: &Transmit, fate: Fate) {
        let is_single = transmit.count == 1;
        match fate {
            Fate::IsDropped => self.qp.transmit_dropped(self.now, transmit),
            Fate::IsWithdrawn if !is_single => self.qp.withdraw(transmit),
            Fate::IsAbsent if is_single => self.fail(transmit, AccessFault::Retry),
            Fate::IsDenied if is_single => self.fail(transmit, AccessFault::Denied),
            _ => return self.peer.receive(transmit),
        }
        self.last = None;
    }

    /// Tells the QP that the payload of a packet can't be read.
    fn fail(&mut self, transmit: &Transmit, fault: AccessFault) {
        let fault = match transmit.source {
            Source::Send { .. } if fault != AccessFault::Retry => {
                TransmitFault::Local(WcStatus::LocProtErr)
            }
            Source::Remote { .. } => TransmitFault::Remote(fault),
            _ => return,
        };
        let host = self.host.begin_call();
        self.qp.transmit_failed(self.now, transmit, fault, host);
    }

    /// Polls a QP in ERR until all work requests have completed.
    fn flush(&mut self) {
        for _ in 0..MOST_RUNS {
            let Some(at) = self.qp.poll_timeout() else {
                return self.host.check_flushed();
            };
            self.now = self.now.max(at);
            let host = self.host.begin_call();
            if let Some(transmit) = self.qp.poll_transmit(self.now, host) {
                self.host.check_source(&transmit);
            }
        }
        panic!("{} work requests are left", self.host.mock.sends.len());
    }

    /// Sends the packets of a burst that are not lost.
    fn burst(&mut self, direction: Direction, count: u32, losses: u64) {
        let (first, most) = match direction {
            Direction::Request => (self.qp.expected_psn(), count),
            Direction::Response => {
                let in_flight = self.peer.in_flight(&self.qp);
                (self.qp.oldest_unfinished(), count.min(in_flight))
            }
        };
        for ahead in (0..most).filter(|ahead| losses & 1 << ahead == 0) {
            let psn = first.plus(ahead);
            match direction {
                Direction::Request => self.request(&Request {
                    place: Place::of(psn, self.qp.expected_psn()),
                    ask: Ask::InStream,
                    ack_req: false,
                    fills_gaps: true,
                    cookie: Cookie::Right,
                }),
                Direction::Response => self.respond(&Response {
                    place: Place::of(psn, self.qp.oldest_unfinished()),
                    answer: Answer::Correct,
                    msn: Msn::Plausible,
                    cookie: Cookie::Right,
                }),
            }
        }
    }

    fn request(&mut self, request: &Request) {
        let packet = self.peer.request(&self.qp, request);
        self.host.deliver(&mut self.qp, self.now, packet);
    }

    fn respond(&mut self, response: &Response) {
        let packet = self.peer.response(&self.qp, response);
        self.host.deliver(&mut self.qp, self.now, packet);
    }

    /// Checks what must hold between two calls of the engine.
    fn check(&mut self) {
        let state = self.qp.state();
        if matches!(state, QpState::Err | QpState::Reset) {
            assert!(self.host.keeps_none(), "keeps packets in {state:?}");
        }
        if let Some(last) = self.last.filter(|last| self.qp.may_send(last)) {
            self.host.check_source(&last);
        }
    }

    /// Ends the connection by way of ERR.
    fn end(&mut self) {
        assert!(self.modify(&to(QpState::Err)));
        self.check();
        self.flush();
        self.reset();
    }
}

/// Checks that each figure of all `cases` lists of events is high enough.
fn check_figures(total: &Tally, cases: u32) {
    for (name, figure) in total.figures() {
        let least = u64::from(cases) * LEAST_AVERAGE;
        assert!(figure >= least, "only {figure} {name}, not {least}");
    }
}

#[test]
fn a_hostile_peer_makes_the_engine_break_no_rule() {
    let config = contextualize_config(ProptestConfig {
        cases: CASES,
        rng_seed: RngSeed::Fixed(1),
        max_shrink_iters: 1024,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let (seed, cases) = (config.rng_seed, config.cases);
    let total = RefCell::new(Tally::default());
    let result = TestRunner::new(config).run(&events(), |events| {
        let mut world = World::new();
        for event in &events {
            world.apply(event);
        }
        world.end();
        total.borrow_mut().add(&world.host.tally);
        Ok(())
    });
    if let Err(error) = result {
        panic!("PROPTEST_RNG_SEED={seed}: {error}");
    }
    check_figures(&total.borrow(), cases);
}

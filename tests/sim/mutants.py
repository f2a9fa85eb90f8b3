#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Breaks the engine on purpose, one place at a time, and checks that the simulator or a unit test of
the engine fails.

    mutants.py [pattern]     tries only the mutants whose names contain the pattern

Each mutant replaces one piece of source text in a copy of the engine. A mutant whose text does not
occur exactly once in the source counts as not caught.
"""

import os
import queue
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
SEEDS = 3000
RUN_SECONDS = 240

# Each mutant has a name (the behaviour of the broken engine), a file below rust/roce, a text and its
# replacement. Some have a unit test of the engine, which then runs instead of the simulator: they
# take effect only in cases that the simulator seldom or never makes, such as a forged PSN or MSN,
# more PSNs than a seed uses, or a packet that the host drops at a certain moment.
MUTANTS = [
    ("a PSN precedes itself", "psn.rs",
     "self.since(other) < 0",
     "self.since(other) <= 0"),
    ("PSNs do not wrap", "psn.rs",
     "Self::new(self.0.wrapping_add(n))",
     "Self(self.0.wrapping_add(n))"),
    ("a packet one ahead is taken for a duplicate", "responder/mod.rs",
     "            1.. => {",
     "            2.. => {"),
    ("a gap is not reported", "responder/gap.rs",
     "let is_first = self.gap.order == Order::Unbroken;",
     "let is_first = self.gap.order != Order::Unbroken;"),
    ("a sequence NAK is repeated", "responder/gap.rs",
     "let is_first = self.gap.order == Order::Unbroken;",
     "let is_first = true;"),
    ("a sequence NAK replaces a due acknowledgment", "responder/gap.rs",
     "                due: Some(due),",
     "                due: Some(due).filter(|_| false),",
     "a_packet_ahead_takes_the_place_of_no_acknowledgment"),
    ("a packet executed before a due sequence NAK is not acknowledged", "responder/reply.rs",
     "(false, true) => Some(psn),",
     "(false, true) => due,",
     "a_packet_ahead_takes_the_place_of_no_acknowledgment"),
    ("an acknowledgment before a sequence NAK has the PSN of a READ", "responder/reply.rs",
     "(true, _) => None,",
     "(true, _) => Some(psn),",
     "no_acknowledgment_before_a_nak_is_that_of_a_read"),
    ("an acknowledgment before a sequence NAK covers all executed packets", "responder/reply.rs",
     "                left = Answer::Missing { newest, due: None };\n                (psn, UNLIMITED)",
     "                left = Answer::Missing { newest, due: None };\n                ({ let _ = psn; self.expected.minus(1) }, UNLIMITED)",
     "no_acknowledgment_before_a_nak_is_that_of_a_read"),
    ("a duplicate is not acknowledged before a sequence NAK", "responder/duplicate.rs",
     "            Answer::Missing { .. } => self.acknowledge_first(psn),",
     "            Answer::Missing { .. } => {}",
     "a_duplicate_is_acknowledged_before_a_nak"),
    ("a dropped acknowledgment before a sequence NAK is lost", "responder/reply.rs",
     "            Undo::Answer(Answer::Missing { due: Some(psn), .. }) => self.acknowledge_first(psn),",
     "            Undo::Answer(Answer::Missing { due: Some(_), .. }) => {}",
     "a_packet_ahead_takes_the_place_of_no_acknowledgment"),
    ("a sequence NAK for the next PSN to send acknowledges nothing", "requester/ack.rs",
     "                && self.una != self.sent\n                && !gap_report",
     "                && self.una == packet.bth.psn\n                && !gap_report",
     "a_sequence_nak_for_the_next_packet_acknowledges_all_that_was_sent"),
    ("a held READ response is sent after the right to READ is withdrawn", "qp/mod.rs",
     "            Source::Remote { .. } => self.context.settings.access.read,",
     "            Source::Remote { .. } => true,",
     "a_kept_read_response_needs_the_right_to_read"),
    ("a response completes a request that could not be sent again", "requester/ack.rs",
     "if psn != self.una || self.started == 0 {",
     "if psn != self.una {",
     "a_request_that_fails_when_it_is_sent_again_ends_with_its_fault"),
    ("a forged RNR NAK acknowledges packets", "requester/ack.rs",
     "        if proven {\n            self.vouch(psn, now, context, host);",
     "        if !proven || proven {\n            self.vouch(psn, now, context, host);",
     "a_forged_wait_acknowledges_nothing"),
    ("a duplicate with the PSN of a READ is acknowledged", "responder/duplicate.rs",
     "if position.is_some_and(is_recorded) {",
     "if position.is_some_and(|place| is_recorded(place) && psn == self.expected) {",
     "a_duplicate_with_the_number_of_a_read_is_not_acknowledged"),
    ("a sequence NAK is sent after all missing packets arrived", "responder/reply.rs",
     "Answer::Missing { newest, due } if !newest.before(self.expected) => {",
     "Answer::Missing { newest, due } if newest == newest => {"),
    ("a sequence NAK is forgotten too early", "responder/gap.rs",
     "newest: newest.latest(psn),",
     "newest: newest.earliest(psn),"),
    ("an ACK covers one packet too many", "requester/ack.rs",
     "self.vouch(psn.next(), now",
     "self.vouch(psn.plus(2), now"),
    ("an ACK covers one packet too few", "requester/ack.rs",
     "self.vouch(psn.next(), now",
     "self.vouch(psn, now"),
    ("a message completes before its last packet", "requester/ack.rs",
     "if acked < oldest.packets {",
     "if acked.wrapping_add(1) < oldest.packets {"),
    ("a NAK covers its own packet", "requester/ack.rs",
     "                    self.vouch(psn, now, context, host);\n                    self.fail_at(",
     "                    self.vouch(psn.next(), now, context, host);\n                    self.fail_at("),
    ("a READ response out of order is stored", "requester/ack.rs",
     "        if psn != self.una || self.started == 0 {",
     "        if psn.before(self.una) {"),
    ("a READ response of any length is stored", "requester/ack.rs",
     "fits && packet.payload_len == length",
     "{ let _ = length; fits }",
     "a_hostile_peer_makes_the_engine_break_no_rule"),
    ("an ACK completes a READ", "requester/ack.rs",
     "            if oldest.uses_rd_atomic() {\n                return;",
     "            if oldest.uses_rd_atomic() && oldest.wr.length == 0 {\n                return;"),
    ("one retry too many", "requester/retry.rs",
     "self.spent >= settings.retry_cnt",
     "self.spent > settings.retry_cnt"),
    ("progress does not renew the retries", "requester/retry.rs",
     "        self.spent = 0;\n        self.is_excused = false;\n",
     "        self.is_excused = false;\n"),
    ("one RNR retry too many", "requester/retry.rs",
     "if *spent >= most {",
     "if *spent > most {"),
    ("the RNR wait is cut short", "requester/retry.rs",
     "Timer::Rnr(_, psn) if !psn.before(una)",
     "Timer::Rnr(_, psn) if psn.before(una)"),
    ("the timer runs out early", "requester/retry.rs",
     "4_096u64.wrapping_shl",
     "2_048u64.wrapping_shl"),
    ("a fence lets one READ pass", "requester/send.rs",
     "self.reads.requests > 0",
     "self.reads.requests > 1"),
    ("one READ more than max_rd_atomic", "requester/send.rs",
     "< u32::from(context.settings.max_rd_atomic)",
     "<= u32::from(context.settings.max_rd_atomic)"),
    ("SQD starts new work", "requester/send.rs",
     "if draining || !self.look_ahead(context, host) || !self",
     "if !self.look_ahead(context, host) || !self"),
    ("flushed WQEs that were unsignaled vanish", "requester/mod.rs",
     "wqe.wr.signaled || status != WcStatus::Success",
     "wqe.wr.signaled"),
    ("an invalidation does not wait", "requester/send.rs",
     "LocalOp::Invalidate(_))) && self.started > 0",
     "LocalOp::Invalidate(_))) && self.started > 1"),
    ("a retry count of 7 means no limit", "requester/retry.rs",
     "self.spent >= settings.retry_cnt",
     "settings.retry_cnt < 7 && self.spent >= settings.retry_cnt"),
    ("an RNR retry count of 7 means seven retries", "requester/retry.rs",
     "settings.rnr_retry == RNR_FOREVER",
     "settings.rnr_retry > RNR_FOREVER"),
    ("timeout 0 means the shortest timeout", "requester/retry.rs",
     "            0 => Timer::Off,\n",
     "            0 => Timer::Ack(now.after(ack_timeout(0))),\n"),
    ("an acknowledgment request is delayed although there is no timer", "requester/send.rs",
     "            && context.settings.timeout != 0\n",
     ""),
    ("the sent packets of a failed WQE are not in flight", "requester/mod.rs",
     "        self.started = self.started.min(offset);\n",
     ("        self.started = self.started.min(offset);\n"
         "        if let Some(wqe) = self.window.get(offset) {\n"
         "            self.sent = wqe.first;\n        }\n")),
    ("SQE reuses the PSNs of the failed WQE", "requester/mod.rs",
     "        self.start(self.next);\n",
     "        self.start(self.una);\n"),
    ("a send error breaks the receive queue too", "qp/mod.rs",
     "if side == Side::Requester && !self.context.config.kind.is_reliable() {",
     "if false {"),
    ("SQE does not flush", "qp/mod.rs",
     "State::Sqe => self.backlog = self.requester.flush(host, &mut self.allowance.sends),",
     "State::Sqe => {}"),
    ("SQ_DRAINED without being asked", "qp/mod.rs",
     "                if notify {",
     "                if notify || true {"),
    ("LAST_WQE_REACHED is not raised", "qp/mod.rs",
     "        if self.context.config.has_srq {\n            host",
     "        if self.context.config.has_srq && false {\n            host"),
    ("the top bit of a Q_Key does not select the QP's own Q_Key", "requester/segment.rs",
     "if given.0 & OWN_QKEY == 0 {",
     "if given.0 != 0 {"),
    ("a datagram that is too long is sent", "requester/wqe.rs",
     "u32::from(wr.length <= context.config.port_mtu.bytes())",
     "u32::from(wr.length > 0)"),
    ("datagrams with any queue key are received", "responder/ud.rs",
     "if deth.qkey != own {",
     "if deth.qkey.0 == 0 {"),
    ("QP1 takes datagrams of any length", "responder/ud.rs",
     "        MAD_LEN => Ok(received),",
     "        _ if packet.payload_len <= u32::MAX - MAD_LEN => Ok(received),"),
    ("a datagram is placed at the room for the GRH", "responder/ud.rs",
     "host.scatter_recv(wr.slot, GRH_LEN)",
     "host.scatter_recv(wr.slot, 0)"),
    ("a datagram's length leaves out the GRH", "responder/ud.rs",
     "packet.payload_len.saturating_add(GRH_LEN)",
     "packet.payload_len.max(GRH_LEN)"),
    ("a datagram that does not fit breaks the QP", "responder/ud.rs",
     "            return Err(Refusal::TooLong);\n        }\n        host",
     "            return Err(Refusal::Receive(crate::wc::WcStatus::LocLenErr, crate::wire::packet::NakCode::InvalidRequest));\n        }\n        host"),
    ("a message of UC that does not fit breaks the QP", "responder/execute.rs",
     "        return Err(Refusal::TooLong);\n",
     "        return Err(Refusal::Receive(crate::wc::WcStatus::LocLenErr, NakCode::InvalidRequest));\n"),
    ("SEND with Invalidate invalidates no key", "responder/execute.rs",
     "                        host.invalidate_remote(rkey)?;\n",
     ""),
    ("an ATOMIC WRITE's answer is not repeated", "responder/duplicate.rs",
     "known == Recorded::AtomicWrite(reth)",
     "known != Recorded::AtomicWrite(reth)"),
    ("a FLUSH's answer is not repeated", "responder/duplicate.rs",
     "known == Recorded::Flush(kind, reth)",
     "known != Recorded::Flush(kind, reth)"),
    ("an XRC request does not name its SRQ", "requester/segment.rs",
     "Service::Xrc(Some(wqe.wr.srqn))",
     "Service::Xrc(Some(Default::default()))"),
    ("an XRC target takes receives from a queue of its own", "responder/mod.rs",
     "host.take_xrc_recv(srqn)?",
     "host.take_recv()?"),
    ("an XRC target answers as RC does", "responder/reply.rs",
     "QpKind::XrcTgt => Service::Xrc(None),",
     "QpKind::XrcTgt => Service::Rc,"),
    ("an XRC target looks again for a receive in the wrong SRQ", "responder/mod.rs",
     "self.answer = Answer::NotReady(named_queue(packet));",
     "self.answer = Answer::NotReady(named_queue(packet).map(|_| Srqn::new(0xab_cd01)));"),
    ("the solicited bit is on all packets", "requester/segment.rs",
     "wqe.wr.solicited && solicitable && last",
     "wqe.wr.solicited && solicitable"),
    ("a repeated READ starts at its beginning", "requester/segment.rs",
     "remote.va.wrapping_add(u64::from(offset))",
     "remote.va"),
    ("a segment is one byte short", "requester/wqe.rs",
     "(offset, rest.min(count.saturating_mul(mtu.bytes())))",
     "(offset, rest.min(count.saturating_mul(mtu.bytes()).wrapping_sub(1)))"),
    ("a packet within a train requests an acknowledgment", "train.rs",
     "packet.bth.ack_req &= last;",
     "",
     "trains_have_the_effects_of_their_packets"),
    ("a QP without a timer says that it repeats READs", "qp/attr.rs",
     "self.timeout != 0 && self.retry_cnt != 0",
     "self.retry_cnt != 0",
     "read_requests_say_whether_lost_responses_are_repeated"),
    ("a train goes beyond the next acknowledgment request", "requester/send.rs",
     ".min(self.retry.ask_every().saturating_sub(self.unasked))",
     ".min(self.retry.ask_every())",
     "trains_have_the_effects_of_their_packets"),
    ("a train contains packets that were sent before", "requester/send.rs",
     "|| psn.before(self.sent)",
     "",
     "trains_have_the_effects_of_their_packets"),
    ("a withdrawn train counts towards the next acknowledgment request", "requester/mod.rs",
     "self.unasked = self.before.unasked;",
     "",
     "withdrawn_trains_do_not_count_towards_the_next_acknowledgment_request"),
    ("a train acknowledges its first packet only", "responder/train.rs",
     "packet.bth.psn.plus(psns.saturating_sub(1))",
     "packet.bth.psn",
     "trains_have_the_effects_of_their_packets"),
    ("a train of READ responses finishes one packet", "requester/ack.rs",
     "self.finish_answered(train.count, now, context, host);",
     "self.finish_answered(1, now, context, host);",
     "trains_have_the_effects_of_their_packets"),
    ("a train that can't be carried out as one is lost", "responder/train.rs",
     "let Ok(psns) = self.execute(packet, train.count, context, host) else {\n            return false;",
     "let Ok(psns) = self.execute(packet, train.count, context, host) else {\n            return true;",
     "trains_have_the_effects_of_their_packets"),
    ("a message may be longer than its receive", "responder/execute.rs",
     "if segment.received > wr.length {",
     "if segment.offset > wr.length {"),
    ("access flags are ignored", "responder/execute.rs",
     "    right\n        .then_some(())",
     "    (right || true)\n        .then_some(())"),
    ("a READ's key is not checked", "responder/execute.rs",
     "        reach(&reth, RemoteAccess::Read, host)?;\n",
     ""),
    ("a replayed READ begins a packet late", "responder/duplicate.rs",
     "let offset = next.checked_mul(mtu)?;",
     "let next = next.saturating_add(1);\n        let offset = next.saturating_sub(1).checked_mul(mtu)?;"),
    ("an atomic's answer is not repeated", "responder/duplicate.rs",
     "Recorded::Atomic(old, _) if old == eth",
     "Recorded::Atomic(old, _) if old != eth"),
    ("a duplicate acknowledges unexecuted packets", "responder/duplicate.rs",
     "let latest = self.expected.minus(1);",
     "let latest = self.expected;"),
    ("one answer too few is remembered", "responder/replay.rs",
     "self.oldest.max(self.next.saturating_sub(self.bound(limit)))",
     "self.oldest.max(self.next.saturating_sub(self.bound(limit)).saturating_add(1))"),
    ("a larger store of records forgets its records", "responder/replay.rs",
     "for number in self.oldest..self.next {",
     "for number in self.next..self.next {"),
    ("max_rd_atomic never decreases", "qp/modify.rs",
     "set(&mut settings.max_rd_atomic, attrs.max_rd_atomic);",
     "settings.max_rd_atomic = settings.max_rd_atomic.max(attrs.max_rd_atomic.unwrap_or(0));"),
    ("a memory window is not bound", "requester/send.rs",
     "            (None, SendOp::Local(op)) => host",
     "            (None, SendOp::Local(LocalOp::BindMw)) => Ok(()),\n            (None, SendOp::Local(op)) => host"),
    ("a WRITE's later packets are not checked", "responder/execute.rs",
     "            host.write_remote(reth.rkey, reth.va.wrapping_add(u64::from(segment.offset)))?;",
     ("            let written = host.write_remote(reth.rkey, reth.va.wrapping_add(u64::from(segment.offset)));\n"
         "            if segment.offset == 0 {\n                written?;\n            }")),
    ("a SEND without a receive gets a sequence NAK", "responder/mod.rs",
     "                self.answer = Answer::NotReady(named_queue(packet));",
     "                self.gap.order = Order::Unbroken;\n"
     "                self.answer = Answer::Missing { newest: self.expected.next(), due: None };"),
    ("an unreliable message goes on after a loss", "responder/mod.rs",
     "        if packet.bth.psn != self.expected {",
     "        if packet.bth.psn.before(self.expected) {"),
    ("an unreliable WQE completes before it is sent", "requester/send.rs",
     "while self.cursor.wqe > 0 {",
     "while self.cursor.wqe > 0 || self.cursor.packet > 1 {"),
    ("MSNs count packets", "responder/execute.rs",
     "            None => {\n                self.message = Message::Send {",
     ("            None => {\n"
         "                self.msn = self.msn.wrapping_add(1);\n                self.message = Message::Send {")),
    ("a held receive is lost in ERR", "responder/mod.rs",
     "        self.abandon_held(WcStatus::WrFlushErr, context, host);\n",
     ""),
    ("modify_qp(ERR) doesn't silence a responder that broke", "qp/modify.rs",
     "QpState::Err if self.state.name() == QpState::Err => self.responder.cancel_all(),",
     "QpState::Err if self.state.name() == QpState::Err => {}",
     "sends_nothing_after_modify_to_err"),
    ("RESET does not forget a lost packet", "responder/mod.rs",
     "        self.forget_gap(host);\n        self.answer = Answer::Nothing;\n        self.undo",
     "        self.answer = Answer::Nothing;\n        self.undo"),
    ("a READ's answer carries no MSN", "responder/reply.rs",
     "        msn: replay.msn,",
     "        msn: 0,"),
    ("a NAK carries no MSN", "responder/reply.rs",
     "            syndrome,\n            msn: self.msn,",
     "            syndrome,\n            msn: if matches!(syndrome, Syndrome::Nak(_)) { 0 } else { self.msn },"),
    ("a refused replay carries its request's MSN", "responder/reply.rs",
     "Body::Ack(Aeth { syndrome, msn }), context",
     "Body::Ack(Aeth { syndrome, ..aeth }), context",
     "a_refused_first_answer_is_refused_again"),
    ("acknowledgments give no credit", "responder/reply.rs",
     "    credits: UNLIMITED_CREDITS,",
     "    credits: 0 * UNLIMITED_CREDITS,"),
    ("a response beyond what is in flight is accepted", "requester/ack.rs",
     ">= self.sent.ahead_of(self.una) {",
     ">= self.sent.ahead_of(self.una).saturating_add(3) {"),
    ("a READ response of a wrong length is accepted", "requester/ack.rs",
     "            fits && packet.payload_len == length",
     "            let _ = length;\n            fits"),
    ("an unawaited response without an MSN takes effect", "requester/ack.rs",
     "if !proven && !self.is_awaited(packet, context) {",
     "if !proven && aeth.is_some() && !self.is_awaited(packet, context) {"),
    ("the partition is ignored", "qp/mod.rs",
     "packet.bth.pkey.matches(Pkey::DEFAULT)",
     "packet.bth.pkey.matches(Pkey::DEFAULT) || true"),
    ("the service is ignored", "qp/mod.rs",
     "QpKind::Rc => matches!(packet.service, Service::Rc),",
     "QpKind::Rc => true,"),
    ("a repeated READ may have another key", "responder/duplicate.rs",
     "reth.rkey != original.rkey || !same_place",
     "!same_place"),
    ("a repeated READ may be longer", "responder/duplicate.rs",
     " || end > original.length {",
     " {"),
    ("a repeated READ's memory is not checked", "responder/duplicate.rs",
     "            0 => Ok(()),\n            length => host",
     "            0.. if psn == psn => Ok(()),\n            length => host",
     "memory_that_went_away_refuses_a_replay_only"),
    ("acknowledged packets are sent again", "requester/send.rs",
     "self.cursor.packet = self.cursor.packet.max(acked);",
     "self.cursor.packet = self.cursor.packet.max(acked.min(0));"),
    ("the acknowledgment of a duplicate skips a response", "responder/duplicate.rs",
     "let psn = if skips { psn } else { latest };",
     "let psn = if skips && false { psn } else { latest };"),
    ("the acknowledgment of a duplicate covers no later packet", "responder/duplicate.rs",
     "let psn = if skips { psn } else { latest };",
     "let psn = if skips || true { psn } else { latest };"),
    ("to request an acknowledgment, the requester sends all packets again", "requester/ask.rs",
     "        self.cursor = newest;\n        self.probes = true;\n        self.retry",
     "        let _ = newest;\n        self.rewind();\n        self.retry"),
    ("a packet that is sent again for an acknowledgment requests none", "requester/send.rs",
     "            self.unasked = ASK_EVERY;",
     "            self.unasked = 0;",
     "local_drops_are_sent_again_without_a_retry"),
    ("a packet that the host dropped is taken for sent", "requester/mod.rs",
     "        self.cursor = Cursor { wqe: at, packet };\n        self.probes = true;",
     "        self.probes = true;"),
    ("an atomic that the host dropped stays in flight", "requester/mod.rs",
     "        if wqe.uses_rd_atomic() {\n            self.reads.requests = self.reads.requests.saturating_sub(1);",
     "        if wqe.uses_rd_atomic() && wqe.packets == 0 {\n            self.reads.requests = self.reads.requests.saturating_sub(1);",
     "a_dropped_atomic_is_not_in_flight"),
    ("a response that the host dropped is taken for sent", "responder/reply.rs",
     "            Undo::Answer(answer) if self.answer == Answer::Nothing => self.answer = answer,\n",
     ""),
    ("a READ response that the host dropped is taken for sent", "responder/reply.rs",
     "                self.ring.demand(number, restored);",
     "                let _ = restored;"),
    ("a dropped packet moves the cursor forward", "requester/mod.rs",
     "let is_last = packet < end && packet.saturating_add(span) == end;",
     "let is_last = packet < wqe.packets;",
     "a_dropped_packet_waits_its_turn_after_a_rewind"),
    ("an acknowledged packet that the host dropped is sent again", "requester/mod.rs",
     "if !is_last || psn.before(self.una) {",
     "if !is_last {",
     "an_acknowledged_packet_is_not_taken_back"),
    ("a dropped packet is not in flight although an earlier copy is", "requester/mod.rs",
     "self.sent = self.before.sent;",
     "self.sent = past.minus(1);",
     "a_packet_that_went_out_before_stays_in_flight"),
    ("a dropped response undoes a new request", "responder/reply.rs",
     "_ if (replay.pending, replay.sent) == after => pending,",
     "_ if after == after => pending,",
     "a_dropped_response_does_not_undo_a_new_request"),
    ("a dropped response of a forgotten request is sent again", "responder/replay.rs",
     "(self.oldest..self.next).contains(&number.0)",
     "(0..self.next).contains(&number.0)",
     "a_dropped_response_of_a_forgotten_request_stays_dropped"),
    ("a packet that the host dropped causes no pause", "qp/mod.rs",
     "        self.pause.begin(now);",
     "",
     "local_drops_are_sent_again_without_a_retry"),
    ("a record's age is compared by PSNs", "responder/duplicate.rs",
     "is_some_and(|replay| past < replay.end());",
     "is_some_and(|replay| past > 0 && psn.before(replay.last_psn()));",
     "old_records_do_not_match_new_packets"),
    ("a receive posted before an RNR NAK makes it a sequence NAK", "responder/reply.rs",
     "            _ => SHORTEST_RNR_TIMER,",
     "            _ => return Syndrome::Nak(NakCode::PsnSequence),"),
    ("a silent peer gets one READ response too many", "responder/reply.rs",
     "        if self.unheard >= MOST_UNHEARD && ",
     "        if self.unheard > MOST_UNHEARD && ",
     "a_peer_that_is_not_heard_of_gets_no_more"),
    ("a short timeout is not extended", "requester/retry.rs",
     "    Duration(least.max(most.min(LEAST_TIMEOUT)))",
     "    Duration(least.max(most.min(0)))"),
    ("a fatal NAK with an implausible MSN takes effect at once", "requester/ack.rs",
     "if !self.is_plausible(aeth.msn) {",
     "if !self.is_plausible(aeth.msn) && false {",
     "a_forged_nak_is_challenged_and_refuted"),
    ("an MSN that the peer can't have reached is recorded", "requester/challenge.rs",
     "        if self.is_plausible(msn) {\n            self.msn",
     "        if self.advance(msn) <= MSN_MASK >> 1 {\n            self.msn",
     "a_forged_number_is_not_learnt"),
    ("the limit of MSNs counts only the unacknowledged packets", "requester/challenge.rs",
     "<= self.sent.ahead_of(self.counted)",
     "<= self.sent.ahead_of(self.una)",
     "numbers_are_heard_behind_packets_that_carry_none"),
    ("a challenge is never settled", "requester/challenge.rs",
     "!challenge.psn.before(acked)",
     "challenge.psn.before(acked) || true",
     "a_forged_nak_is_challenged_and_refuted"),
    ("a challenged request fails without the NAK's status", "requester/mod.rs",
     "if let Some(challenge) = self.challenge {",
     "if let Some(challenge) = self.challenge.filter(|_| false) {",
     "an_unrefuted_nak_is_believed_with_the_last_retry"),
    ("a forged RNR NAK spends a retry", "requester/ack.rs",
     "self.retry.spend_rnr(proven,",
     "self.retry.spend_rnr(proven || true,",
     "forged_waits_spend_no_rnr_retry"),
    ("no RNR NAK spends a retry", "requester/ack.rs",
     "if !self.retry.spend_rnr(",
     "if false && !self.retry.spend_rnr("),
    ("progress does not reset the count of forged RNR NAKs", "requester/retry.rs",
     "        self.unproven = 0;\n",
     "",
     "forged_waits_before_progress_do_not_count"),
    ("a challenge requests no acknowledgment", "requester/challenge.rs",
     "        let _ = self.ask_again(now, context);\n",
     "        let _ = (now, context);\n",
     "a_lost_challenge_is_sent_again"),
    ("an RTO spends a retry", "requester/mod.rs",
     "                self.resend_oldest(context, host);\n                Outcome::Continue\n",
     "                return self.go_back(Loss::Unknown, now, context, host);\n",
     "a_lost_tail_is_sent_again_without_a_retry"),
    ("an atomic is sent after an RTO, before the response to the oldest packet", "requester/send.rs",
     "if self.retry.sends_oldest() {",
     "if self.retry.sends_oldest() && false {",
     "only_the_oldest_packet_is_sent_after_an_rto"),
    ("a slow peer halves the limit in flight", "requester/retry.rs",
     "if una == before.sent || una.ahead_of(before.oldest) > 1 {",
     "if una == before.sent {",
     "a_slow_peer_costs_one_packet"),
    ("an RTO does not double the next", "requester/rto.rs",
     "let doublings = self.ended.saturating_add(",
     "let doublings = 0u32.saturating_add(",
     "each_rto_doubles_the_next_until_a_measurement"),
    ("an RTO of READ responses doubles the next after progress", "requester/rto.rs",
     "        self.responses_ended = 0;\n",
     "",
     "progress_after_an_rto_for_responses_ends_the_doubling"),
    ("progress does not renew the excuse of a timeout", "requester/retry.rs",
     "        self.is_excused = false;\n",
     "",
     "a_packet_that_cannot_be_sent_excuses_one_timeout"),
    ("late responses are asked for again at the same interval", "requester/reread.rs",
     "                self.retry.note_late();\n",
     "",
     "early_responses_ask_ever_less_often"),
    ("a packet that cannot be sent excuses each timeout", "requester/ask.rs",
     "(may_send && self.retry.excuse())",
     "may_send",
     "a_packet_that_cannot_be_sent_excuses_one_timeout"),
    ("a response without the cookie is not asked for again", "requester/reread.rs",
     "            false => Kept::Refused,\n",
     "            false => return,\n",
     "a_response_without_the_cookie_is_not_kept"),
    ("the response to a packet that was sent twice is timed", "requester/rto.rs",
     "if fresh && self.timed.is_none() {",
     "if (fresh || true) && self.timed.is_none() {",
     "responses_to_resent_packets_are_not_timed"),
    ("progress after an RTO makes the next RTO short again", "requester/rto.rs",
     "        if let Some((_, since)) = self.timed.filter(",
     "        self.ended = 0;\n        if let Some((_, since)) = self.timed.filter(",
     "an_rto_learns_a_longer_round_trip_time"),
    ("packets are sent again although the peer was slow", "requester/mod.rs",
     "if let Some(cursor) = self.behind_sent() {",
     "if let Some(cursor) = self.behind_sent().filter(|_| false) {",
     "a_slow_peer_costs_one_packet"),
    ("READs in flight are forgotten after a spurious RTO", "requester/mod.rs",
     "let may_skip = self.reads.requests == 0 && ",
     "let may_skip = "),
    ("losses do not shorten READ requests", "requester/retry.rs",
     "let most = (limit.max(self.threshold) >> 1)",
     "let most = ({ let _ = limit; MOST_IN_FLIGHT } >> 1)",
     "losses_shorten_later_read_requests"),
    ("a NAK after an RTO spends a retry", "requester/mod.rs",
     "        self.retry.end_rto(self.una, self.sent, may_skip);\n        self.hinted = true;\n",
     "        self.retry.end_rto(self.una, self.sent, may_skip);\n",
     "naks_after_an_rto_cost_no_retry_before_progress"),
]
MUTANTS += runpy.run_path(str(Path(__file__).with_name("recovery_mutants.py")))["MUTANTS"]


def copy(to):
    """Copies the workspace to a folder, reduced to the engine and the simulator."""
    for part in ("rust/roce", "tests/sim"):
        shutil.copytree(TOP / part, to / part)
    shutil.copy(TOP / "Cargo.lock", to)
    manifest = (TOP / "Cargo.toml").read_text()
    manifest = re.sub(r"^members = .*$", 'members = ["rust/roce", "tests/sim"]', manifest, flags=re.MULTILINE)
    (to / "Cargo.toml").write_text(manifest)


def build(at):
    """Builds the simulator; returns the errors, or None.

    It builds with little optimisation, because most mutants fail within a few seeds.
    """
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(at / "target"), "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
        "CARGO_PROFILE_DEV_DEBUG": "false", "CARGO_INCREMENTAL": "1", "RUSTFLAGS": "--cap-lints warn",
    }
    built = subprocess.run(["cargo", "build", "--quiet", "--package", "roce-sim"], cwd=at, env=environment,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return built.stdout if built.returncode else None


def simulate(at):
    """Runs the simulator; returns a match with the first failing seed and its message, or None."""
    try:
        ran = subprocess.run([str(at / "target/debug/roce-sim"), "--seeds", str(SEEDS)], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, timeout=RUN_SECONDS, check=False)
        printed = ran.stdout
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"").decode()
    return re.search(r"^not ok - simulator: seed (\d+)\n# (.*)$", printed, re.MULTILINE)


def test(at, name):
    """Runs a unit test of the engine; returns whether it builds, and whether it fails or hangs.

    Property tests try the same cases each time, so that a mutant doesn't survive by chance.
    """
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(at / "target"), "CARGO_PROFILE_DEV_DEBUG": "false", "RUSTFLAGS": "--cap-lints warn",
        "PROPTEST_RNG_SEED": "1",
    }
    command = ["cargo", "test", "--quiet", "--package", "roce", "--lib"]
    built = subprocess.run([*command, "--no-run"], cwd=at, env=environment, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, check=False)
    try:
        ran = subprocess.run([*command, "--", name], cwd=at, env=environment, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, timeout=RUN_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return built.returncode == 0, True
    return built.returncode == 0, ran.returncode != 0


def judge(at, mutant):
    """Tries one mutant; returns whether it was caught, and a remark."""
    _, name, old, new, *tests = mutant
    path = at / "rust/roce" / name
    source = path.read_text()
    found = source.count(old)
    if found != 1:
        return False, f"the text to change occurs {found} times in {name}: {old!r}"
    path.write_text(source.replace(old, new))
    try:
        for unit in tests:
            builds, fails = test(at, unit)
            return builds and fails, f"unit test {unit}" if builds else "does not build"
        if errors := build(at):
            return False, "does not build: " + " ".join(errors.split())[:300]
        caught = simulate(at)
    finally:
        path.write_text(source)
    if not caught:
        return False, f"survives {SEEDS} seeds or {RUN_SECONDS} seconds"
    return True, f"seed {caught[1]}: {caught[2][:150]}"


def main():
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutant for mutant in MUTANTS if pattern in mutant[0]]
    workers = max(1, min(len(chosen), os.cpu_count() or 1))
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants.") as scratch, ThreadPoolExecutor(workers) as pool:
        copies = queue.SimpleQueue()

        def prepare(number):
            at = Path(scratch) / str(number)
            copy(at)
            copies.put(at)
            return build(at)

        def attempt(mutant):
            at = copies.get()
            try:
                return judge(at, mutant)
            finally:
                copies.put(at)

        for errors in pool.map(prepare, range(workers)):
            if errors:
                sys.exit(f"the unchanged engine does not build:\n{errors}")
        for mutant, (caught, remark) in zip(chosen, pool.map(attempt, chosen)):
            survivors += not caught
            print(f"{'ok' if caught else 'not ok'} - mutant: {mutant[0]}\n# {remark}", flush=True)
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
// SPDX-License-Identifier: GPL-2.0

//! The oracle of the requester: the packets that it may send, and the completions that the
//! responses allow.

use roce::psn::Psn;
use roce::qp::{QpKind, QpState};
use roce::transmit::{Source, Transmit};
use roce::wc::{SendWc, WcStatus};
use roce::wire::packet::{Body, NakCode, Packet, Service};

use crate::message::{self, LocalFault, Message};
use crate::side::Side;

type Check = Result<(), String>;

/// At least one of this many consecutive packets must request an acknowledgment.
const ASK_EVERY: u32 = 60;

/// Delays of the RNR timer codes in units of 10 µs (IBTA 1.x §9.7.5.2.8).
const RNR_TENS_OF_US: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns the wait in nanoseconds that an RNR NAK with this timer code requests.
pub(crate) fn rnr_delay(code: u8) -> u64 {
    RNR_TENS_OF_US[usize::from(code & 31)] * 10_000
}

/// Returns the number of nanoseconds after which a packet counts as lost: the timeout. For a short
/// timeout, it is as much as IBTA 1.x §9.7.6.1.3 allows, up to 4.2 ms.
pub(crate) fn ack_timeout(exponent: u8) -> u64 {
    let least = 4096u64 << exponent;
    least.max((4 * least).min(4096 << 10))
}

/// Minimum retransmission timeout, in nanoseconds.
const LEAST_RTO: u64 = 1_000_000;

/// Posts a message, and assigns the extended PSNs of its packets.
pub(crate) fn post(side: &mut Side, mut message: Message) {
    message.first = side.tx.assigned;
    message.packets = message::packets(&message.wr, side.profile.mtu);
    side.tx.assigned = message.end();
    side.tx.sent_at.resize(side.tx.assigned as usize, 0);
    side.messages.push(message);
}

/// Checks a request packet that the engine wants to send. The engine may have decided to send it up
/// to `slack` nanoseconds ago.
pub(crate) fn request(side: &mut Side, now: u64, slack: u64, transmit: &Transmit) -> Check {
    let packet = &transmit.packet;
    if !side.sends() {
        return Err(format!("request sent in {:?}", side.state));
    }
    let (ext, index) = locate(side, packet.bth.psn)?;
    let mtu = side.profile.mtu;
    if ext == side.tx.sent {
        cut(&mut side.messages[index], ext, packet, mtu.bytes());
    }
    let end = request_end(side, packet, ext, index, mtu.bytes());
    content(side, transmit, ext, index, end)?;
    match reread(side, ext, index, end) {
        Reread::No => side.tx.was_reread = false,
        Reread::Certain => {
            side.tx.was_reread = true;
            return Ok(());
        }
        Reread::Possible => {
            side.tx.was_reread = true;
            side.tx.may_continue.push(end);
            if (ext..end).contains(&side.tx.una) {
                side.tx.maybe_tries += 1;
                side.tx.rnr_until = side.tx.rnr_until.filter(|(until, _)| now < *until);
            }
            return Ok(());
        }
    }
    let message = &side.messages[index];
    let next = if side.unreliable {
        return once(side, packet, ext, index);
    } else if message.is_read() {
        // A READ request takes the PSNs of all packets of its response.
        message.answer_end(ext)
    } else {
        ext + 1
    };
    let again = ext < side.tx.executed_by_peer && !message.wants_response();
    if again {
        return Err(format!("packet {ext} was sent again, and was acknowledged"));
    }
    check_order(side, now, slack, ext, index, packet.bth.ack_req)?;
    if next > side.tx.sent {
        check_first(side, ext, index)?;
        side.tx.sent = next;
        side.tx.later_gaps.clear();
    }
    side.tx.cursor = next;
    side.tx.may_continue.clear();
    side.tx.past_gap = side.tx.past_gap.filter(|past| ext < *past);
    if side.tx.past_gap.is_some_and(|past| past <= next) {
        side.tx.may_skip = true;
    }
    // A NAK that reports the same gap as an earlier one doesn't restart the timer.
    let fills = side.tx.past_gap.is_some() || !side.tx.later_gaps.is_empty();
    let repeats = fills && transmit.retransmission;
    let again = repeats || (ext == side.tx.una && side.tx.muddled);
    if !side.tx.may_be_rto && !again {
        side.tx.sent_at[ext as usize..next as usize].fill(now);
    }
    if (ext..next).contains(&side.tx.una) {
        side.tx.tries += 1;
        side.tx.tries_without_faults += u32::from(!side.tx.may_be_rto);
        side.tx.rnr_until = None;
        let most = u32::from(side.profile.retry_cnt) + 1;
        if side.tx.tries > most && !side.tx.muddled {
            return Err(format!("packet {ext} was sent more than {most} times"));
        }
    }
    let asks = packet.bth.ack_req || side.messages[index].wants_response();
    side.tx.unasked = if asks { 0 } else { side.tx.unasked + 1 };
    if side.tx.unasked >= ASK_EVERY {
        return Err(format!("{ASK_EVERY} packets asked for no acknowledgment"));
    }
    if side.tx.sent - side.tx.una >= 1 << 23 {
        return Err("more than half of all PSNs in flight".into());
    }
    Ok(())
}

/// Records that the host dropped the packet that was just checked. That packet must be sent next.
pub(crate) fn dropped(side: &mut Side, psn: Psn) {
    let tx = &mut side.tx;
    let Some(ext) = tx.numbering.ext(psn, tx.una) else {
        return;
    };
    if tx.was_reread {
        tx.muddled = true;
        return;
    }
    if ext <= tx.una && tx.una < tx.cursor {
        tx.tries -= 1;
        tx.tries_without_faults -= u32::from(!tx.may_be_rto);
    }
    tx.cursor = ext;
    tx.past_gap = tx.past_gap.filter(|past| ext < *past);
    tx.unasked = 0;
    // The oldest packet may have been sent because of an RTO.
    tx.may_skip &= ext == tx.una;
    tx.muddled = true;
}

/// Checks that a packet of an unreliable connection is sent once only.
fn once(side: &mut Side, packet: &Packet, ext: u64, index: usize) -> Check {
    if ext != side.tx.sent || packet.bth.ack_req {
        return Err(format!(
            "unreliable packet {ext} after {}, AckReq {}",
            side.tx.sent, packet.bth.ack_req
        ));
    }
    check_first(side, ext, index)?;
    let tx = &mut side.tx;
    (tx.sent, tx.una, tx.cursor) = (ext + 1, ext + 1, ext + 1);
    Ok(())
}

/// Checks headers and payload of a packet against its message.
///
/// `end` is one past the last packet of the response to a READ request.
fn content(side: &Side, transmit: &Transmit, ext: u64, index: usize, end: u64) -> Check {
    let packet = &transmit.packet;
    let mtu = side.profile.mtu;
    let message = &side.messages[index];
    let service = match side.kind {
        QpKind::Uc => Service::Uc,
        QpKind::XrcIni => Service::Xrc(Some(message.wr.srqn)),
        _ => Service::Rc,
    };
    let segment = ext - message.first;
    let (body, len) = message.request(segment, end, mtu);
    let carried = if len == 0 {
        matches!(transmit.source, Source::None | Source::Send { .. })
    } else {
        transmit.source
            == Source::Send {
                slot: message.wr.slot,
                offset: segment as u32 * mtu.bytes(),
            }
    };
    let last = segment + 1 == message.packets;
    let right = packet.body == body
        && packet.payload_len == len
        && packet.service == service
        && packet.bth.dest.get() == side.peer_qpn
        && packet.bth.pkey.0 == 0xffff
        && packet.bth.mig_req
        && transmit.retransmission == (ext < side.tx.sent)
        && packet.bth.solicited == (last && message.solicits())
        && carried;
    if !right {
        return Err(format!(
            "segment {segment} of message {index} ({:?}) must be {body:?} with {len} bytes",
            message.wr
        ));
    }
    Ok(())
}

/// Returns one past the last packet of the response to a request.
fn request_end(side: &Side, packet: &Packet, ext: u64, index: usize, mtu: u32) -> u64 {
    let end = side.messages[index].answer_end(ext);
    match packet.body {
        Body::ReadRequest(reth) if may_reread(side, ext) => {
            end.min(ext + u64::from(reth.length.div_ceil(mtu).max(1)))
        }
        _ => end,
    }
}

/// Returns whether the requester may ask for the lost response `ext` only: a later response or an
/// acknowledgment says that the request was carried out.
fn may_reread(side: &Side, ext: u64) -> bool {
    let tx = &side.tx;
    side.keeps_early && (tx.una..tx.executed_by_peer).contains(&ext)
}

/// Whether a request asks for lost responses only, and the requester goes on where it was.
enum Reread {
    No,
    Certain,
    /// The requester may also have gone back.
    Possible,
}

fn reread(side: &mut Side, ext: u64, index: usize, end: u64) -> Reread {
    let message = &side.messages[index];
    if !may_reread(side, ext) || !message.wants_response() {
        return Reread::No;
    }
    let whole = end == message.answer_end(ext);
    side.tx.muddled = true;
    match whole {
        false => Reread::Certain,
        true => Reread::Possible,
    }
}

/// Records the end of a request into which a READ is cut, when the request is sent for the first
/// time.
fn cut(message: &mut Message, ext: u64, packet: &Packet, mtu: u32) {
    if let Body::ReadRequest(reth) = packet.body {
        let end = ext + u64::from(reth.length.div_ceil(mtu).max(1));
        if end < message.end() {
            message.cuts.push(end);
        }
    }
}

fn locate(side: &Side, psn: Psn) -> Result<(u64, usize), String> {
    let tx = &side.tx;
    let ext = tx.numbering.ext(psn, tx.una);
    let ext = ext.filter(|ext| (tx.una..=tx.sent).contains(ext));
    // A READ may be requested again from its start.
    let ext = ext.or_else(|| {
        let index = side.message_at(tx.una)?;
        let first = side.messages[index].first;
        (side.messages[index].is_read() && tx.numbering.psn(first) == psn).then_some(first)
    });
    let ext = ext.ok_or_else(|| {
        format!(
            "request PSN {psn:?} outside the window {:?}..={:?}",
            tx.numbering.psn(tx.una),
            tx.numbering.psn(tx.sent)
        )
    })?;
    match side.message_at(ext) {
        Some(index) if (side.retired..side.taken).contains(&index) => Ok((ext, index)),
        other => Err(format!("request for message {other:?}, which isn't taken")),
    }
}

/// Checks the order: packets are sent in order, or again from the oldest unacknowledged one, if
/// there is a reason.
fn check_order(side: &mut Side, now: u64, slack: u64, ext: u64, index: usize, asks: bool) -> Check {
    let profile = side.profile;
    let tx = &mut side.tx;
    let message = &side.messages[index];
    let restarts =
        ext == tx.una || (message.is_read() && (message.first..message.end()).contains(&tx.una));
    if let Some((until, _)) = tx.rnr_until {
        if now < until {
            return Err(format!(
                "resent {} ns before the RNR timer ran out",
                until - now
            ));
        }
        if !restarts {
            return Err("did not go back to the message that met no receive".into());
        }
        return Ok(());
    }
    let next = tx.cursor.max(tx.una);
    // Requests that were carried out although a response before them was lost need not be sent
    // again.
    let executed = tx.executed_by_peer;
    let skips = |next| {
        let skips = |message: &Message| {
            message.end() <= next || ext <= message.first || !message.wants_response()
        };
        let mut messages = side.messages.iter().skip(side.completed);
        next < ext && ext <= executed && messages.all(skips)
    };
    let skipped = skips(next);
    // The requester may have skipped to the end, and may request an acknowledgment with the newest
    // packet.
    let is_behind = tx.may_skip && !restarts && (ext == tx.sent || (asks && ext + 1 == tx.sent));
    if ext == next || skipped || is_behind {
        return Ok(());
    }
    if tx
        .may_continue
        .iter()
        .any(|after| ext == *after || skips(*after))
    {
        tx.muddled = true;
        // The RTO may have ended instead.
        let rto_ends = (tx.sent_at[ext as usize] + LEAST_RTO).saturating_sub(slack);
        tx.may_be_rto |= ext == tx.una && now >= rto_ends;
        return Ok(());
    }
    let is_last = ext == tx.sent || (asks && ext + 1 == tx.sent);
    let fills = tx.past_gap.is_some() || !tx.later_gaps.is_empty();
    if fills && is_last {
        tx.past_gap = tx.past_gap.filter(|past| ext < *past);
        return Ok(());
    }
    let is_later = |(start, past): &(u64, u64)| (*start..*past).contains(&ext);
    if tx.later_gaps.iter().any(is_later) {
        tx.muddled = true;
        return Ok(());
    }
    // If the newest packet needs only an acknowledgment, it may be sent again to request one.
    let outstanding = side.messages[side.completed..side.taken].iter();
    let newest = outstanding
        .filter(|message| message.packets > 0 && message.first < tx.cursor)
        .filter(|message| message.fault == LocalFault::None)
        .last()
        .map(|message| message.end().min(tx.cursor) - 1);
    let probes = asks && !message.wants_response() && newest == Some(ext);
    if !restarts && !probes {
        return Err(format!(
            "sent packet {ext} after {}, while {} is the oldest unacknowledged",
            tx.cursor, tx.una
        ));
    }
    // The engine may have decided up to `slack` nanoseconds ago to send the packet.
    let due = (tx.sent_at[tx.una as usize] + ack_timeout(profile.timeout)).saturating_sub(slack);
    // SQD, a local error and a local operation wait for acknowledgments. For them, packets that
    // requested none are sent again.
    let ended = tx.drain_at.is_some()
        || side.messages[side.completed..side.taken]
            .iter()
            .any(|message| message.fault != LocalFault::None || message.is_local());
    let early = (profile.timeout == 0 || now < due) && !tx.starved;
    // A retransmission timeout (RTO) may have ended before. It spends no retry.
    let rto_ends = (tx.sent_at[tx.una as usize] + LEAST_RTO).saturating_sub(slack);
    let asked = tx.una + u64::from(tx.unasked) < tx.cursor || tx.may_be_rto;
    let answers = asks || message.wants_response();
    let has_rto = profile.timeout != 0 && ack_timeout(profile.timeout) > LEAST_RTO;
    tx.may_skip = false;
    tx.may_be_rto = has_rto && now >= rto_ends && answers && asked;
    if !tx.nudged && early && !ended && !tx.may_be_rto {
        return Err(format!(
            "went back at {now} ns, the timeout is at {due}, the RTO at {rto_ends}"
        ));
    }
    tx.muddled |= tx.may_be_rto;
    // If no packet in flight requested an acknowledgment, the engine must not go back: it sends
    // only the newest packet again, with the request. This is not a retry.
    let nobody_asked = tx.una + u64::from(tx.unasked) >= tx.cursor;
    if nobody_asked && !probes && !tx.nudged && !tx.starved && !ended {
        return Err(format!(
            "went back to {ext} to ask, while {newest:?} is the newest"
        ));
    }
    tx.muddled |= ended || nobody_asked;
    tx.unasked = 0;
    tx.nudged = false;
    Ok(())
}

/// Checks the conditions for sending a packet for the first time.
fn check_first(side: &Side, ext: u64, index: usize) -> Check {
    let message = &side.messages[index];
    if side.tx.drain_at.is_some_and(|limit| ext >= limit) {
        return Err("a message was begun in SQD".into());
    }
    let early = match message.fault {
        LocalFault::Malformed(_) => true,
        // The buffer of a READ with one response packet is checked when that packet arrives.
        LocalFault::Missing => !message.is_read() || message.packets > 1,
        _ => false,
    };
    if early {
        return Err(format!(
            "message {index} was sent in spite of {:?}",
            message.fault
        ));
    }
    let waiting = side.messages[side.retired..=index]
        .iter()
        .filter(|earlier| earlier.wants_response() && !earlier.answered);
    // Each of the requests into which a READ is cut counts.
    let outstanding: usize = waiting
        .map(|earlier| {
            let cuts = earlier.cuts.iter();
            let open = cuts.filter(|cut| (side.tx.una + 1..=ext).contains(cut));
            open.count() + usize::from(earlier.end() <= ext)
        })
        .sum();
    if ext == message.first && message.wr.fence && outstanding != 0 {
        return Err(format!(
            "fence of message {index} passed {outstanding} READs or atomics"
        ));
    }
    let local = side.messages[side.completed..index]
        .iter()
        .any(|earlier| earlier.is_local() && !earlier.executed);
    if local {
        return Err(format!("message {index} overtook a local operation"));
    }
    if message.wants_response() && outstanding >= usize::from(side.profile.max_rd_atomic) {
        return Err(format!("{} READs and atomics in flight", outstanding + 1));
    }
    Ok(())
}

/// Checks a completion, and updates the expected state of the QP.
pub(crate) fn completion(side: &mut Side, wc: &SendWc) -> Check {
    if side.resetting {
        return Err("completion in RESET".into());
    }
    let index = next_completion(side, wc)?;
    let message = &side.messages[index];
    if wc.opcode != message.opcode() {
        return Err(format!("message {index} is a {:?}", message.opcode()));
    }
    if index >= side.taken {
        return Err(format!("message {index} completed before it was taken"));
    }
    match wc.status {
        WcStatus::Success => {
            if matches!(side.state, QpState::Err | QpState::Sqe) {
                return Err(format!("message {index} succeeded in {:?}", side.state));
            }
            if !side.finished(index) {
                return Err(format!("message {index} completed before it was finished"));
            }
            if wc.byte_len != message.wr.length {
                return Err(format!("message {index} has {} bytes", message.wr.length));
            }
        }
        WcStatus::WrFlushErr => {
            // If the response to a message before the refused one was lost, it does not come again.
            let before = |ext| message.end() <= ext;
            let refused = side.tx.refusal.is_some_and(|(_, ext)| before(ext))
                || side.tx.rnr_until.is_some_and(|(_, ext)| before(ext));
            let stopped = matches!(side.state, QpState::Err | QpState::Sqe);
            if !stopped && !refused {
                return Err(format!("message {index} flushed in {:?}", side.state));
            }
        }
        status => {
            if side.state == QpState::Err && !matches!(message.fault, LocalFault::Malformed(_)) {
                return Err(format!("message {index} failed in ERR"));
            }
            justify(side, index, status)?;
            if side.unreliable {
                side.state = QpState::Sqe;
                side.failed = Some((index + 1, stop(side, index)));
            } else {
                side.state = QpState::Err;
            }
        }
    }
    let status = wc.status;
    side.messages[index].completed = Some(status);
    side.completed = index + 1;
    Ok(())
}

/// Returns one past the last extended PSN of the failed message. A malformed message takes no PSNs.
fn stop(side: &mut Side, index: usize) -> u64 {
    let message = &mut side.messages[index];
    if matches!(message.fault, LocalFault::Malformed(_)) {
        message.packets = 0;
    }
    message.end()
}

/// Renumbers the messages when the QP enters RTS from SQE. Flushed messages take no PSNs, and the
/// PSNs of the posted messages follow those of the message that failed.
pub(crate) fn renumber(side: &mut Side) {
    let Some((from, mut next)) = side.failed.take() else {
        return;
    };
    let retired = side.retired;
    for (index, message) in side.messages.iter_mut().enumerate().skip(from) {
        message.first = next;
        if index < retired {
            message.packets = 0;
        }
        next = message.end();
    }
    let begin = side.messages.get(retired).map_or(next, |first| first.first);
    let tx = &mut side.tx;
    (tx.sent, tx.una, tx.cursor) = (begin, begin, begin);
    tx.assigned = next;
    tx.sent_at.resize(next as usize, 0);
}

/// Finds the message of a completion. The messages before it must have succeeded unsignaled.
fn next_completion(side: &Side, wc: &SendWc) -> Result<usize, String> {
    for (index, message) in side.messages.iter().enumerate().skip(side.completed) {
        if message.wr.wr_id == wc.wr_id {
            return Ok(index);
        }
        if message.wr.signaled || !side.finished(index) {
            return Err(format!("the next completion is message {index}'s"));
        }
    }
    Err("completion of no posted message".into())
}

/// Checks that an error completion has a cause.
fn justify(side: &Side, index: usize, status: WcStatus) -> Check {
    let message = &side.messages[index];
    let tx = &side.tx;
    let local = match message.fault {
        LocalFault::None => false,
        LocalFault::Malformed(cause) | LocalFault::Refused(cause) => cause == status,
        LocalFault::Missing | LocalFault::Late => status == WcStatus::LocProtErr,
    };
    if local {
        return Ok(());
    }
    let span = message.first..message.end();
    let refused = |code| {
        tx.refusal
            .is_some_and(|(got, ext)| got == code && span.contains(&ext))
    };
    let spent = |retries| {
        let limit = u32::from(retries) + 1;
        (tx.tries..=tx.tries + tx.maybe_tries).contains(&limit)
            || (tx.muddled && tx.tries > limit)
            || tx.starved
    };
    let oldest = span.contains(&tx.una);
    let right = match status {
        WcStatus::BadRespErr => {
            let doubted = tx.doubted.is_some_and(|ext| span.contains(&ext));
            tx.malformed.is_some_and(|ext| span.contains(&ext))
                || (doubted && spent(side.profile.retry_cnt))
        }
        WcStatus::RemInvReqErr => refused(NakCode::InvalidRequest),
        WcStatus::RemAccessErr => refused(NakCode::RemoteAccess),
        WcStatus::RemOpErr => refused(NakCode::RemoteOperational),
        WcStatus::RetryExcErr => oldest && spent(side.profile.retry_cnt),
        WcStatus::RnrRetryExcErr => {
            let limit = u32::from(side.profile.rnr_retry) + 1;
            limit < 8
                && (tx.rnr_naks..=tx.rnr_naks + tx.rnr_echoes).contains(&limit)
                && tx.rnr_until.is_some_and(|(_, ext)| span.contains(&ext))
        }
        _ => false,
    };
    if right {
        return Ok(());
    }
    Err(format!(
        "message {index} has no cause for {status:?}: oldest {oldest}, sent {} times, {} RNR NAKs, \
         refusal {:?}",
        tx.tries, tx.rnr_naks, tx.refusal
    ))
}

/// Checks the conditions that must hold after each call.
pub(crate) fn settled(side: &Side) -> Check {
    if side.resetting {
        return Ok(());
    }
    let unfinished = (side.completed..side.retired)
        .find(|&index| side.messages[index].wr.signaled || !side.finished(index));
    if let Some(index) = unfinished {
        return Err(format!("message {index} retired without a completion"));
    }
    if side.completed > side.retired {
        return Err(format!(
            "message {} completed but not retired",
            side.completed - 1
        ));
    }
    if let Some(expected) = &side.tx.expected {
        if side.messages[expected.message].fault == LocalFault::None && side.sends() {
            return Err(format!("response bytes were not stored: {expected:?}"));
        }
    }
    let tx = &side.tx;
    if side.sends() && side.profile.rnr_retry < 7 && tx.rnr_naks > u32::from(side.profile.rnr_retry)
    {
        return Err(format!("{} RNR NAKs and no RNR_RETRY_EXC", tx.rnr_naks));
    }
    if let (true, Some(ext)) = (side.sends(), tx.malformed) {
        return Err(format!(
            "the answer to {ext} has a wrong length and was taken"
        ));
    }
    if let (true, Some((code, ext))) = (side.sends(), tx.refusal) {
        if ext == tx.una {
            return Err(format!("the refusal {code:?} of packet {ext} was ignored"));
        }
    }
    Ok(())
}

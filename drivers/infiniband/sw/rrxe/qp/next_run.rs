// SPDX-License-Identifier: GPL-2.0

//! The time of a QP's next run, if no packet, doorbell or work item causes one earlier.

use kernel::{
    sync::{Arc, ArcBorrow},
    time::{hrtimer::HrTimerPointer, Delta},
};
use roce::{
    qp::QpState,
    time::{Duration, Instant},
};

use crate::qp::{
    effects::{Continuation, RunEffects},
    engine::Core,
    Qp,
};

impl Core {
    /// Returns when the next run has work to do.
    ///
    /// While the tx limit (the limit on packets in flight, `net/tx_limit.rs`) is used up, a run
    /// does not poll the engine for packets. Work that an earlier poll left is then not due, nor is
    /// the end of a pause of the engine: otherwise runs would follow each other until packets have
    /// left. `TxCount::available`, called after the run's last poll, asks for a call of the waker
    /// if it returns `false`. The waker runs the QP, which then polls. A QP that flushes needs no
    /// room in the tx limit.
    fn next_work(&self, qp: ArcBorrow<'_, Qp>, now: Instant) -> Option<Instant> {
        let due = self.engine.poll_timeout();
        let is_due = due.is_some_and(|due| due <= now);
        // A QP in RTR may wait for the tx limit, too: with its last response, after which the peer
        // sends nothing.
        let state = self.engine.state();
        let asks = is_due || state.sends() || state == QpState::Rtr;
        if self.engine.flushes() || !asks || qp.tx_limit.available() {
            return due;
        }
        let due = if is_due { self.engine.deadline() } else { due };
        // `TxCount::available` may become true without a call of the waker, so the timer runs the
        // QP to ask again.
        let retry_at = now.after(milliseconds(qp.tx_limit.retry_ms()));
        Some(due.map_or(retry_at, |due| due.min(retry_at)))
    }

    /// Returns when the next run in the error state has work to do, or polls the receive queue.
    fn next_work_in_error(&mut self, qp: ArcBorrow<'_, Qp>, now: Instant) -> Option<Instant> {
        let Some(position) = self.rq.position() else {
            return self.next_work(qp, now);
        };
        let due = self.engine.poll_timeout();
        Some(due.unwrap_or_else(|| self.error_poll.due(now, position)))
    }

    /// Ensures that the QP runs when its engine has work: by the continuation if the work is due,
    /// else by the timer.
    pub(crate) fn arm(&mut self, qp: ArcBorrow<'_, Qp>, now: Instant, effects: &mut RunEffects) {
        let due = match self.engine.state() {
            QpState::Err => self.next_work_in_error(qp, now),
            _ => self.next_work(qp, now),
        };
        let due = match postponed(qp, now, effects) {
            Some(later) => Some(
                due.filter(|due| *due > now)
                    .map_or(later, |due| due.min(later)),
            ),
            None => due,
        };
        let Some(due) = due else {
            return;
        };
        if due <= now {
            // If the run ended because another CPU sends, the work stays with that CPU.
            if matches!(effects.continuation, Continuation::None) {
                effects.continuation = Continuation::Anywhere;
            }
            return;
        }
        // A timer that fires too early does no harm, and deadlines mostly move to later instants.
        if matches!(&self.timer, Some((at, _)) if *at > now && *at <= due) {
            return;
        }
        self.timer = None;
        let delay = i64::try_from(due.0.saturating_sub(now.0)).unwrap_or(i64::MAX);
        let handle = Arc::from(qp).start(Delta::from_nanos(delay));
        self.timer = Some((due, handle));
    }
}

/// Returns the time at which the QP continues, if it must send from a CPU whose softirqs have used
/// up their time (`limits/softirq_time.rs`). Clears its continuation, so that the timer runs the QP
/// instead. Returns `None` if the QP need not wait.
///
/// Without this pause the softirq would refuse the QP, and the thread that runs it then would ask
/// that CPU again at once.
fn postponed(qp: ArcBorrow<'_, Qp>, now: Instant, effects: &mut RunEffects) -> Option<Instant> {
    let Continuation::On(cpu) = effects.continuation else {
        return None;
    };
    let pause = qp.remaining_pause(cpu)?;
    effects.continuation = Continuation::None;
    Some(now.after(pause))
}

/// Returns a duration of `count` milliseconds.
fn milliseconds(count: u32) -> Duration {
    Duration(u64::from(count).saturating_mul(1_000_000))
}

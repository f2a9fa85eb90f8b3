// SPDX-License-Identifier: GPL-2.0

//! When a QP gets its next turn, if nobody asks for one.

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
    /// When a turn next has something to do.
    ///
    /// Without credit a turn does not poll, so what a poll left undone is not due, nor is the end
    /// of a pause: turns would follow each other until the credit is back. [`TxCount::available`] is asked
    /// after the turn's last poll and, if there is none, has the waker called: that runs
    /// the QP, which then polls. A QP that flushes needs no credit.
    fn next_work(&self, qp: ArcBorrow<'_, Qp>, now: Instant) -> Option<Instant> {
        let due = self.engine.poll_timeout();
        let is_due = due.is_some_and(|due| due <= now);
        // In RTR, too: what is missing may be the last answer, after which the peer sends nothing.
        let state = self.engine.state();
        let asks = is_due || state.sends() || state == QpState::Rtr;
        if self.engine.flushes() || !asks || qp.tx_limit.available() {
            return due;
        }
        let due = if is_due { self.engine.deadline() } else { due };
        // TxCount may be available some time without a call of the waker.
        let asks_again = now.after(milliseconds(qp.tx_limit.patience()));
        Some(due.map_or(asks_again, |due| due.min(asks_again)))
    }

    /// When a turn next has something to do, or looks for receives.
    fn next_work_in_error(&mut self, qp: ArcBorrow<'_, Qp>, now: Instant) -> Option<Instant> {
        let Some(position) = self.rq.position() else {
            return self.next_work(qp, now);
        };
        let due = self.engine.poll_timeout();
        Some(due.unwrap_or_else(|| self.error_poll.due(now, position)))
    }

    /// Sees to it that the QP runs when the engine next wants it.
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
            // If the turn ended because another CPU sends, the work stays with that CPU.
            if matches!(effects.continuation, Continuation::None) {
                effects.continuation = Continuation::Anywhere;
            }
            return;
        }
        // A timer that fires too early does no harm, and deadlines mostly move away.
        if matches!(&self.timer, Some((at, _)) if *at > now && *at <= due) {
            return;
        }
        self.timer = None;
        let delay = i64::try_from(due.0.saturating_sub(now.0)).unwrap_or(i64::MAX);
        let handle = Arc::from(qp).start(Delta::from_nanos(delay));
        self.timer = Some((due, handle));
    }
}

/// When a QP goes on that must send from a CPU whose softirqs have spent their time (`softirq_time.rs`). They would refuse the
/// QP, and the thread that runs it then would ask that CPU again, without a pause. `None` if it need not wait; else the QP is
/// left to its timer.
fn postponed(qp: ArcBorrow<'_, Qp>, now: Instant, effects: &mut RunEffects) -> Option<Instant> {
    let Continuation::On(cpu) = effects.continuation else {
        return None;
    };
    let pause = qp.pause_of(cpu)?;
    effects.continuation = Continuation::None;
    Some(now.after(pause))
}

fn milliseconds(count: u32) -> Duration {
    Duration(u64::from(count).saturating_mul(1_000_000))
}

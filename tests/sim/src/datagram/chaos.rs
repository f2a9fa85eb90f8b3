// SPDX-License-Identifier: GPL-2.0

//! Setup and teardown of datagram QPs, and disturbances while traffic flows. An end is a QP with
//! its host.

use roce::host::Event as AsyncEvent;
use roce::ids::Qkey;
use roce::psn::Psn;
use roce::qp::{Attrs, QpKind, QpState};

use super::{Event, World};
use crate::world::Check;

fn to(state: QpState) -> Attrs {
    Attrs {
        state: Some(state),
        ..Attrs::default()
    }
}

impl World {
    /// Brings a QP from RESET to RTS.
    pub(super) fn connect(&mut self, end: usize) -> Check {
        self.stats.connections += 1;
        let side = &mut self.ends[end].side;
        side.qkey = self.swarm.qkey(&mut self.rng);
        side.psn = if self.rng.chance(700) {
            Psn::new(0u32.wrapping_sub(self.rng.below(30) as u32))
        } else {
            Psn::new(self.rng.next() as u32)
        };
        let (qkey, psn) = (Qkey(side.qkey), side.psn);
        let init = Attrs {
            pkey_index: Some(0),
            port: (side.kind != QpKind::Gsi).then_some(1),
            qkey: Some(qkey),
            ..to(QpState::Init)
        };
        self.modify(end, &init)?;
        self.modify(end, &to(QpState::Rtr))?;
        let rts = Attrs {
            sq_psn: Some(psn),
            ..to(QpState::Rts)
        };
        self.modify(end, &rts)
    }

    /// Calls `modify_qp`, which must succeed.
    fn modify(&mut self, end: usize, attrs: &Attrs) -> Check {
        self.trace.line(self.now, || {
            format!("end {end}   modify to {:?}", attrs.state)
        });
        if let Some(state) = attrs.state {
            self.ends[end].side.state = state;
        }
        match self.call(end, &[], |qp, now, host| qp.modify(now, attrs, host)) {
            Ok(()) => self.settle(end, &[]),
            Err(why) => Err(format!("end {end}: modify refused: {why:?}")),
        }
    }

    pub(super) fn chaos(&mut self, end: usize) -> Check {
        let state = self.ends[end].side.state;
        if self.faults_stopped || state != QpState::Rts {
            return Ok(());
        }
        match self.rng.below(5) {
            0 => self.break_down(end),
            1 => {
                self.reset(end)?;
                self.connect(end)
            }
            2 | 3 => self.rest(end),
            _ => {
                let qkey = self.swarm.qkey(&mut self.rng);
                let attrs = Attrs {
                    qkey: Some(Qkey(qkey)),
                    ..to(QpState::Rts)
                };
                self.ends[end].side.qkey = qkey;
                self.modify(end, &attrs)
            }
        }
    }

    /// Enters SQD for a while. Messages that are posted meanwhile must wait.
    fn rest(&mut self, end: usize) -> Check {
        let notify = self.rng.chance(500);
        let attrs = Attrs {
            sqd_async_notify: Some(notify),
            ..to(QpState::Sqd)
        };
        self.ends[end].side.events.clear();
        self.modify(end, &attrs)?;
        let drained = [AsyncEvent::SqDrained];
        let expected = if notify { &drained[..] } else { &[] };
        if self.ends[end].side.events != expected {
            return Err(format!(
                "end {end}: SQD raised {:?}",
                self.ends[end].side.events
            ));
        }
        self.plan_restore(end);
        self.turn(end)
    }

    pub(super) fn plan_restore(&mut self, end: usize) {
        if std::mem::replace(&mut self.ends[end].side.restore_due, true) {
            return;
        }
        let wait = self.rng.range(1, 20 * self.swarm.pace);
        let epoch = self.ends[end].side.epoch;
        self.agenda.at(self.now + wait, Event::Restore(end, epoch));
    }

    /// Returns to RTS: from SQD and SQE at once, from ERR through RESET.
    pub(super) fn restore(&mut self, end: usize, epoch: u32) -> Check {
        let side = &mut self.ends[end].side;
        if side.epoch != epoch {
            return Ok(());
        }
        side.restore_due = false;
        match side.state {
            QpState::Sqd | QpState::Sqe => {
                let before = side.messages.len() - side.taken;
                let flushed = side.taken - side.retired;
                if side.state == QpState::Sqe && flushed != 0 {
                    return Err(format!("end {end}: {flushed} in flight in SQE"));
                }
                self.modify(end, &to(QpState::Rts))?;
                let side = &self.ends[end].side;
                if side.messages.len() - side.taken != before {
                    return Err(format!("end {end}: the transition to RTS took messages"));
                }
                self.turn(end)
            }
            QpState::Err => {
                self.reset(end)?;
                self.connect(end)
            }
            _ => Ok(()),
        }
    }

    /// Enters ERR: all posted messages are flushed, and so are the receives of the QP's own queue.
    pub(super) fn break_down(&mut self, end: usize) -> Check {
        self.modify(end, &to(QpState::Err))?;
        self.turn(end)?;
        let side = &self.ends[end].side;
        let left = self.rings[side.ring].posted.len();
        if !side.shared && (left != 0 || !side.held.is_empty()) {
            return Err(format!("end {end}: receives left, {left} in the ring"));
        }
        Ok(())
    }

    /// Enters RESET: nothing completes, and no state remains.
    pub(super) fn reset(&mut self, end: usize) -> Check {
        self.stats.resets += 1;
        self.ends[end].side.resetting = true;
        // A receive that the QP held is given back without a completion.
        self.ends[end].side.holds = None;
        self.modify(end, &to(QpState::Reset))?;
        let side = &mut self.ends[end].side;
        if side.retired != side.taken || !side.held.is_empty() {
            return Err(format!("end {end}: RESET kept {:?}", side.held));
        }
        side.resetting = false;
        side.clear();
        if !side.shared {
            self.rings[side.ring].clear();
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Setup and teardown of connected QPs, and disturbances while traffic flows.

use roce::ids::Qpn;
use roce::psn::Psn;
use roce::qp::{Attrs, ModifyError, QpKind, QpState, RemoteRights, Replay};
use roce::time::Instant;

use crate::agenda::Event;
use crate::memory::Region;
use crate::requester;
use crate::side::{Numbering, Profile};
use crate::swarm::{Chaos, Swarm};
use crate::workload::GRANTS;
use crate::world::{Check, World, REPLAYS};

/// Index of the revocable region of a node: its key and rights change while traffic flows.
const REVOCABLE: usize = 3;

const ALL_RIGHTS: RemoteRights = RemoteRights {
    write: true,
    read: true,
    atomic: true,
    flush_global: true,
    flush_persistent: true,
};

/// Returns the attributes with which connections start.
pub(crate) fn profile(swarm: &Swarm) -> Profile {
    Profile {
        mtu: swarm.mtu,
        rights: ALL_RIGHTS,
        timeout: swarm.timeout,
        retry_cnt: swarm.retry_cnt,
        rnr_retry: swarm.rnr_retry,
        min_rnr_timer: swarm.min_rnr_timer,
        max_rd_atomic: swarm.rd_atomic,
        max_dest_rd_atomic: swarm.rd_atomic,
    }
}

pub(crate) fn to(state: QpState) -> Attrs {
    Attrs {
        state: Some(state),
        ..Attrs::default()
    }
}

impl World {
    /// Brings both ends of a pair from RESET to RTR, and schedules their transitions to RTS.
    pub(crate) fn connect(&mut self, pair: usize) -> Check {
        self.stats.connections += 1;
        let ends = [2 * pair, 2 * pair + 1];
        let epoch = ends.map(|end| self.ends[end].side.epoch).into_iter().max();
        let psns = ends.map(|_| self.first_psn());
        let mut profile = profile(&self.swarm);
        if self.rng.chance(20) {
            profile.max_dest_rd_atomic = 0;
        }
        for (i, end) in ends.into_iter().enumerate() {
            let this = &mut self.ends[end];
            if this.qp.is_none() {
                this.create(self.swarm.window, self.swarm.keeps_early);
            }
            this.kinds.clear();
            this.side.profile = profile;
            this.side.epoch = epoch.unwrap_or(0) + 1;
            this.side.tx.numbering = Numbering(psns[i]);
            this.side.rx.numbering = Numbering(psns[1 - i]);
            let peer = this.side.peer_qpn;
            self.modify(end, &init(profile))?;
            let kind = self.ends[end].side.kind;
            self.modify(end, &rtr(profile, kind, peer, psns[1 - i]))?;
        }
        for end in ends {
            let epoch = self.ends[end].side.epoch;
            let delay = if self.rng.chance(200) {
                self.rng.below(2 * self.swarm.ack_timeout())
            } else {
                0
            };
            self.agenda.at(self.now + delay, Event::Ready(end, epoch));
        }
        Ok(())
    }

    /// Draws a first PSN. In seeds with `near_wrap`, the PSNs soon wrap from it.
    fn first_psn(&mut self) -> Psn {
        if self.swarm.near_wrap {
            Psn::new(0u32.wrapping_sub(self.rng.below(120) as u32))
        } else {
            Psn::new(self.rng.next() as u32)
        }
    }

    /// Brings an end from RTR to RTS, if the connection `epoch` still exists.
    pub(crate) fn ready(&mut self, end: usize, epoch: u32) -> Check {
        let side = &self.ends[end].side;
        if side.epoch != epoch || side.state != QpState::Rtr {
            return Ok(());
        }
        let (profile, psn) = (side.profile, side.tx.numbering.psn(0));
        let kind = side.kind;
        self.modify(end, &rts(profile, kind, psn))?;
        self.turn(end)
    }

    /// Calls `modify_qp`, which must succeed.
    pub(crate) fn modify(&mut self, end: usize, attrs: &Attrs) -> Check {
        self.trace.line(self.now, || {
            format!("end {end}   modify to {:?}", attrs.state)
        });
        if let Some(state) = attrs.state {
            let side = &mut self.ends[end].side;
            if side.state == QpState::Err && state == QpState::Err {
                // The owner's transition to ERR cancels the responses to the peer's requests.
                side.rx.refusal = None;
                side.rx.reads.clear();
            }
            side.state = state;
        }
        let before = self.ends[end].side.completed;
        let room = attrs.max_dest_rd_atomic.map(usize::from);
        let modified = self.call(end, &[], |qp, now, host| {
            qp.enlarge_replays(vec![Replay::default(); room.unwrap_or(0)]);
            qp.modify(now, attrs, host)
        });
        match modified {
            Some(Err(why)) => Err(format!("end {end}: modify refused: {why:?}")),
            _ => self.settle_quietly(end, before),
        }
    }

    pub(crate) fn plan_recovery(&mut self, pair: usize) {
        if !self.recovering[pair] {
            self.recovering[pair] = true;
            let wait = self.rng.below(6 * self.swarm.ack_timeout());
            self.agenda.at(self.now + wait, Event::Recover(pair));
        }
    }

    /// Resets both ends and connects them anew. Does nothing once the faults have stopped.
    pub(crate) fn recover(&mut self, pair: usize) -> Check {
        self.recovering[pair] = false;
        if self.deadline.is_some() {
            return Ok(());
        }
        for end in [2 * pair, 2 * pair + 1] {
            if self.ends[end].qp.is_some() && self.ends[end].side.state != QpState::Reset {
                self.reset(end)?;
            }
        }
        self.connect(pair)
    }

    /// Enters RESET: nothing completes, and no state remains.
    pub(crate) fn reset(&mut self, end: usize) -> Check {
        self.stats.resets += 1;
        self.note_wraps(end);
        self.ends[end].side.resetting = true;
        self.modify(end, &to(QpState::Reset))?;
        let side = &self.ends[end].side;
        if side.retired != side.taken {
            return Err(format!(
                "end {end}: RESET kept {} WQEs",
                side.taken - side.retired
            ));
        }
        if !side.held.is_empty() {
            return Err(format!("end {end}: RESET kept a receive"));
        }
        self.forget(end);
        let polled = self.call(end, &[], |qp, now, host| {
            (qp.poll_transmit(now, host), qp.poll_timeout())
        });
        match polled {
            Some((None, None)) => self.settle_quietly(end, 0),
            other => Err(format!("end {end}: in RESET there is {other:?} to do")),
        }
    }

    fn forget(&mut self, end: usize) {
        let this = &mut self.ends[end];
        this.kinds.clear();
        this.side.clear();
        this.side.resetting = false;
        if !this.side.shared {
            self.rings[this.side.ring].clear();
        }
    }

    fn note_wraps(&mut self, end: usize) {
        let tx = &self.ends[end].side.tx;
        let last = u64::from(tx.numbering.psn(0).get()) + tx.sent;
        self.stats.wraps += u64::from(last > 1 << 24);
    }

    pub(crate) fn chaos(&mut self, chaos: Chaos) -> Check {
        if self.deadline.is_some() {
            return Ok(());
        }
        let end = self.rng.below(self.ends.len() as u64) as usize;
        self.lossy = true;
        self.trace
            .line(self.now, || format!("end {end} chaos {chaos:?}"));
        let (alive, state) = (self.ends[end].qp.is_some(), self.ends[end].side.state);
        match chaos {
            Chaos::Error if alive && state != QpState::Reset => {
                self.modify(end, &to(QpState::Err))?;
                self.soon(end)
            }
            Chaos::Reset if alive => {
                self.reset(end)?;
                self.plan_recovery(end / 2);
                Ok(())
            }
            Chaos::Destroy if alive => {
                self.destroy(end);
                self.plan_recovery(end / 2);
                Ok(())
            }
            Chaos::Drain if alive && state == QpState::Rts => self.drain(end),
            Chaos::Revoke => {
                self.revoke(end % 2);
                Ok(())
            }
            Chaos::Reregister => {
                self.reregister(end % 2);
                Ok(())
            }
            Chaos::Modify if alive && state == QpState::Rts => self.change(end),
            Chaos::BadModify if alive => self.bad_modify(end),
            Chaos::Blackhole => {
                self.blackhole = Some(end % 2);
                let until = self.now + self.rng.below(24 * self.swarm.ack_timeout());
                self.faults_until = self.faults_until.max(until);
                self.agenda.at(until, Event::BlackholeEnds);
                Ok(())
            }
            Chaos::Overflow => {
                for end in self.ends.iter_mut().skip(end % 2).step_by(2) {
                    end.side.cq_full = true;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn destroy(&mut self, end: usize) {
        self.note_wraps(end);
        let this = &mut self.ends[end];
        this.qp = None;
        for receive in this.side.held.drain(..) {
            self.rings[receive.ring].free.push(receive.slot);
        }
        self.forget(end);
    }

    fn drain(&mut self, end: usize) -> Check {
        let notify = self.rng.chance(500);
        let mut attrs = to(QpState::Sqd);
        if notify || self.rng.chance(500) {
            attrs.sqd_async_notify = Some(notify);
        }
        let side = &mut self.ends[end].side;
        (side.sq_drained, side.notify) = (0, notify);
        side.tx.drain_at = Some(match side.tx.sent.checked_sub(1) {
            Some(last) => side
                .message_at(last)
                .map_or(0, |index| side.messages[index].end()),
            None => 0,
        });
        let epoch = side.epoch;
        self.modify(end, &attrs)?;
        let wait = self.rng.range(1, self.swarm.ack_timeout());
        self.agenda.at(self.now + wait, Event::Undrain(end, epoch));
        self.soon(end)
    }

    /// Returns to RTS once the send queue has drained.
    pub(crate) fn undrain(&mut self, end: usize, epoch: u32) -> Check {
        let side = &self.ends[end].side;
        if side.epoch != epoch || side.state != QpState::Sqd {
            return Ok(());
        }
        let Some(qp) = &self.ends[end].qp else {
            return Ok(());
        };
        let back = to(QpState::Rts);
        if qp.attrs().sq_draining {
            let again = self.now + self.swarm.ack_timeout() / 2;
            self.agenda.at(again, Event::Undrain(end, epoch));
            return match self.call(end, &[], |qp, now, host| qp.modify(now, &back, host)) {
                Some(Err(ModifyError::Draining)) => Ok(()),
                other => Err(format!("end {end}: SQD left while draining: {other:?}")),
            };
        }
        if side.tx.una != side.tx.sent {
            return Err(format!("end {end}: drained with packets in flight"));
        }
        if side.sq_drained != usize::from(side.notify) {
            return Err(format!("end {end}: {} SQ_DRAINED events", side.sq_drained));
        }
        self.tune(end)?;
        self.ends[end].side.tx.drain_at = None;
        self.modify(end, &back)?;
        self.turn(end)
    }

    /// Returns to RTS after a send error. All posted messages must be flushed by now. The messages
    /// that this function posts before the transition are carried out in RTS.
    pub(crate) fn resume(&mut self, end: usize, epoch: u32) -> Check {
        let side = &self.ends[end].side;
        if side.epoch != epoch || side.state != QpState::Sqe {
            return Ok(());
        }
        if side.retired != side.messages.len() {
            return Err(format!("end {end}: messages are left in SQE"));
        }
        for _ in 0..self.rng.below(3) {
            self.post(end);
        }
        self.ends[end].side.resumes = false;
        requester::renumber(&mut self.ends[end].side);
        self.modify(end, &to(QpState::Rts))?;
        self.turn(end)
    }

    /// Deregisters the revocable region and registers another.
    fn revoke(&mut self, node: usize) {
        let key = self.rng.next() as u32 & !(1 << 31);
        let memory = &mut self.nodes[node];
        let old = &mut memory.regions[REVOCABLE];
        let new = Region {
            key,
            live: true,
            ..old.clone()
        };
        old.live = false;
        memory.regions[REVOCABLE] = new;
    }

    /// Changes the rights of the revocable region, and backs it with its own memory or with that of
    /// the first region.
    fn reregister(&mut self, node: usize) {
        let home = self.rng.pick(&[0, REVOCABLE]);
        let at = self.nodes[node].regions[home].start;
        let grant = self.rng.pick(&GRANTS);
        let region = &mut self.nodes[node].regions[REVOCABLE];
        (region.at, region.grant) = (at, grant);
    }

    /// Changes attributes that may change in SQD: raises `max_dest_rd_atomic`, and draws
    /// `retry_cnt` and a `max_rd_atomic` that the peer allows.
    fn tune(&mut self, end: usize) -> Check {
        let served = self.ends[end ^ 1].side.profile.max_dest_rd_atomic;
        let side = &mut self.ends[end].side;
        if side.kind != QpKind::Rc || served == 0 || self.rng.chance(200) {
            return Ok(());
        }
        let mut attrs = to(QpState::Sqd);
        let reads = self.rng.range(1, served.into()) as u8;
        attrs.max_rd_atomic = Some(reads);
        side.profile.max_rd_atomic = reads;
        let before = side.profile.max_dest_rd_atomic;
        if side.rx.raised.is_none() {
            let more = self.rng.range(before.into(), REPLAYS) as u8;
            attrs.max_dest_rd_atomic = Some(more);
            side.rx.raised = Some((side.rx.epsn, before));
            side.profile.max_dest_rd_atomic = more;
        }
        let retries = self.rng.range(1, 7) as u8;
        attrs.retry_cnt = Some(retries);
        side.profile.retry_cnt = retries;
        self.modify(end, &attrs)
    }

    /// Changes the attributes that may change in RTS.
    fn change(&mut self, end: usize) -> Check {
        let mut attrs = to(QpState::Rts);
        if serves(self.ends[end].side.kind) {
            let timer = self.rng.range(1, 12) as u8;
            attrs.min_rnr_timer = Some(timer);
            self.ends[end].side.profile.min_rnr_timer = timer;
        }
        if self.rng.chance(300) {
            let rights = RemoteRights {
                write: self.rng.chance(700),
                read: self.rng.chance(700),
                atomic: self.rng.chance(700),
                flush_global: self.rng.chance(700),
                flush_persistent: self.rng.chance(700),
            };
            attrs.access = Some(rights);
            let side = &mut self.ends[end].side;
            side.profile.rights = rights;
            side.rx.read_revoked |= !rights.read;
        }
        self.modify(end, &attrs)
    }

    /// Makes a call of `modify_qp` that must fail and change nothing.
    fn bad_modify(&mut self, end: usize) -> Check {
        let mut missing = to(QpState::Rtr);
        missing.rq_psn = Some(Psn::new(7));
        let mut beyond = to(QpState::Rts);
        beyond.timeout = Some(32);
        let mut alternate = to(QpState::Err);
        alternate.alt_path = true;
        let mut stale = to(QpState::Err);
        stale.cur_state = Some(QpState::Sqe);
        let bad = self
            .rng
            .pick(&[missing, beyond, alternate, stale, to(QpState::Sqe)]);
        let before = self.ends[end].side.completed;
        let changed = self.call(end, &[], |qp, now, host| {
            let attrs = qp.attrs();
            let result = qp.modify(now, &bad, host);
            result.is_ok() || qp.attrs() != attrs
        });
        if changed == Some(true) {
            return Err(format!("end {end}: a bad modify had an effect: {bad:?}"));
        }
        self.settle_quietly(end, before)
    }

    /// Checks the end of a seed: the remaining state after all has drained, and then ERR and RESET.
    pub(crate) fn finale(&mut self) -> Check {
        for end in 0..self.ends.len() {
            self.examine(end)?;
        }
        self.verify_memory()?;
        for end in 0..self.ends.len() {
            if self.ends[end].qp.is_none() || self.ends[end].side.state == QpState::Reset {
                continue;
            }
            if self.rng.chance(500) {
                self.flush_all(end)?;
            }
            self.reset(end)?;
        }
        self.verify_memory()
    }

    fn verify_memory(&self) -> Check {
        for (index, node) in self.nodes.iter().enumerate() {
            node.verify_all()
                .map_err(|why| format!("node {index}: {why}"))?;
        }
        Ok(())
    }

    fn examine(&mut self, end: usize) -> Check {
        let this = &self.ends[end];
        let Some(qp) = &this.qp else {
            return Ok(());
        };
        let side = &this.side;
        let name = |what: String| Err(format!("end {end}: {what}"));
        let has_early = side.rx.past_seen.is_some();
        let paused = |due: Instant| due.0 <= side.paused.0 || has_early;
        if side.sends() && side.idle() && !qp.poll_timeout().is_none_or(paused) {
            return name(format!("idle, yet a timer at {:?}", qp.poll_timeout()));
        }
        let attrs = qp.attrs();
        let psns = (
            side.tx.numbering.psn(side.tx.assigned),
            side.rx.numbering.psn(side.rx.epsn),
        );
        if side.state == QpState::Rts && side.idle() && (attrs.sq_psn, attrs.rq_psn) != psns {
            return name(format!("query says {attrs:?}, PSNs are {psns:?}"));
        }
        let held = usize::from(side.rx.held.is_some());
        if side.held.len() != held {
            return name(format!("holds {} receives", side.held.len()));
        }
        Ok(())
    }

    /// Checks that all messages are flushed in ERR, including those posted later.
    fn flush_all(&mut self, end: usize) -> Check {
        if self.ends[end].side.state != QpState::Err {
            self.modify(end, &to(QpState::Err))?;
        }
        self.turns(end)?;
        self.ends[end].to_post = 3;
        for _ in 0..3 {
            self.post(end);
        }
        self.turns(end)?;
        let side = &self.ends[end].side;
        let left = side.messages.len() - side.completed;
        let receives = self.rings[side.ring].posted.len();
        if left != 0 || side.retired != side.messages.len() {
            return Err(format!("end {end}: {left} messages not flushed"));
        }
        if !side.shared && (receives != 0 || !side.held.is_empty()) {
            return Err(format!("end {end}: {receives} receives not flushed"));
        }
        Ok(())
    }

    /// Runs the engine often enough that it can flush all messages.
    fn turns(&mut self, end: usize) -> Check {
        for _ in 0..16 {
            self.turn(end)?;
        }
        Ok(())
    }
}

fn init(profile: Profile) -> Attrs {
    Attrs {
        access: Some(profile.rights),
        pkey_index: Some(0),
        port: Some(1),
        ..to(QpState::Init)
    }
}

/// Returns whether a QP of this kind carries out requests and answers them.
fn serves(kind: QpKind) -> bool {
    matches!(kind, QpKind::Rc | QpKind::XrcTgt)
}

fn rtr(profile: Profile, kind: QpKind, peer: u32, psn: Psn) -> Attrs {
    let plain = Attrs {
        av: true,
        path_mtu: Some(profile.mtu),
        dest_qpn: Some(Qpn::new(peer)),
        rq_psn: Some(psn),
        ..to(QpState::Rtr)
    };
    if !serves(kind) {
        return plain;
    }
    Attrs {
        max_dest_rd_atomic: Some(profile.max_dest_rd_atomic),
        min_rnr_timer: Some(profile.min_rnr_timer),
        ..plain
    }
}

fn rts(profile: Profile, kind: QpKind, psn: Psn) -> Attrs {
    let plain = Attrs {
        sq_psn: Some(psn),
        timeout: kind.is_reliable().then_some(profile.timeout),
        ..to(QpState::Rts)
    };
    if !matches!(kind, QpKind::Rc | QpKind::XrcIni) {
        return plain;
    }
    Attrs {
        retry_cnt: Some(profile.retry_cnt),
        rnr_retry: Some(profile.rnr_retry),
        max_rd_atomic: Some(profile.max_rd_atomic),
        ..plain
    }
}

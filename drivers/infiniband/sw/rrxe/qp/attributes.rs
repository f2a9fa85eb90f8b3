// SPDX-License-Identifier: GPL-2.0

//! `modify_qp` and `query_qp`. Both wait for the turn lock (`qp/turn.rs`).

use kernel::{prelude::*, sync::Arc};
use rdma::{
    support::sync::bottom_halves_off,
    verbs::qp::{QpModify, QpQuery},
};
use roce::{
    qp::{Attrs, QpState},
    responder::Replay,
};

use super::{admin::QpLoad, run_budget::RunBudget, Qp};
use crate::{
    limits,
    qp::{
        arrivals::Arrivals,
        effects::RunEffects,
        engine::{new_replays, Core},
        error_poll::ErrorPoll,
        train::Trains,
        turn::RunRequest,
    },
};

/// Maximum number of runs of the engine that [`Qp::with_core`] makes in a row, before it defers
/// further work ([`Qp::defer`]).
const QUERY_RUNS: u32 = 8;

impl Qp {
    /// Executes `modify_qp`: applies all attributes or none. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a change that the engine or the limits forbid, for a source that is no address
    /// of the link, and if the QP is destroyed. `ENOMEM`.
    pub(crate) fn modify(this: &Arc<Self>, change: &QpModify) -> Result {
        this.check_limits(&change.attrs)?;
        let foreign = |av| !this.device.link.has_source(av);
        if change.av.as_ref().is_some_and(foreign) {
            return Err(EINVAL);
        }
        // Allocated without the turn lock, because this may sleep.
        let replays = new_replays(change.attrs.max_dest_rd_atomic.unwrap_or(0))?;
        let modified = {
            // Bottom halves stay off until `conclude` has reported the effects: a thread that was
            // preempted before would delay notifications of the QP's consumers.
            let _off = bottom_halves_off();
            let mut effects = RunEffects::default();
            let modified = this.modify_engine(change, replays, &mut effects);
            this.conclude(&effects);
            modified
        };
        if modified == Ok(true) {
            this.unbind_windows();
        }
        Self::advance(this.as_arc_borrow());
        modified.map(|_| ())
    }

    /// Calls `body` with the turn lock held. Then runs the engine, if other callers left run
    /// requests meanwhile. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP is destroyed.
    pub(super) fn with_core<R>(this: &Arc<Self>, body: impl FnOnce(&mut Core) -> R) -> Result<R> {
        // Bottom halves stay off until the effects of all runs are reported: a thread that was
        // preempted before would delay notifications and run requests of others.
        let _off = bottom_halves_off();
        let mut turn = this.turn.wait();
        let result = Option::as_mut(&mut turn).map(|core| body(core));
        let held = this.turn.keep_if_wanted(turn);
        if held.is_some() {
            let mut budget = RunBudget::new(QUERY_RUNS);
            let this = this.as_arc_borrow();
            let arrivals = &mut Arrivals::of(&this.inbox);
            let request = RunRequest::All;
            if let Some(peer) = Self::run_engine(this, held, request, arrivals, &mut budget) {
                Self::defer(peer.as_arc_borrow());
            }
        }
        result.ok_or(EINVAL)
    }

    /// Checks the path MTU and the numbers of outstanding READs and atomics.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the path MTU exceeds the port's, or a number exceeds [`limits::MAX_RD_ATOMIC`].
    fn check_limits(&self, attrs: &Attrs) -> Result {
        let too_wide = attrs
            .path_mtu
            .is_some_and(|mtu| mtu > self.device.active_mtu());
        let reads = attrs
            .max_rd_atomic
            .max(attrs.max_dest_rd_atomic)
            .unwrap_or(0);
        if too_wide || u32::from(reads) > limits::MAX_RD_ATOMIC {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Applies a change with the turn lock held. `replays` is storage for the records by which the
    /// QP answers repeated requests. Returns whether memory windows of the QP are to be unbound.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a change that the engine refuses, and if the QP is destroyed.
    fn modify_engine(
        &self,
        change: &QpModify,
        replays: KVVec<Replay>,
        effects: &mut RunEffects,
    ) -> Result<bool> {
        // Freed after the turn lock is dropped.
        let unused;
        let mut turn = self.turn.wait();
        let core = Option::as_mut(&mut turn).ok_or(EINVAL)?;
        unused = core.engine.enlarge_replays(replays);
        let now = self.now();
        core.engine
            .check_modify(&change.attrs)
            .map_err(|_| EINVAL)?;
        // In RESET and ERR the owner may use its memory for something else, so receivers must not
        // read trains there any more (`qp/train_source.rs`). Completions in error end the session,
        // too, but RESET completes no work request, and ERR may have none to complete. A change
        // that is refused does not end the session: its trains would be lost.
        if matches!(change.attrs.state, Some(QpState::Reset | QpState::Err)) {
            self.train_source.end_session();
        }
        let could_read = core.engine.attrs().settings.access.read;
        core.with_engine(self, None, effects, |engine, host| {
            engine.modify(now, &change.attrs, host)
        })
        .map_err(|_| EINVAL)?;
        // A peer that may no longer READ receives no responses that are on the way.
        if could_read && !core.engine.attrs().settings.access.read {
            self.train_source.end_session();
        }
        let state = core.engine.state();
        self.cache_state(state);
        core.error_poll = ErrorPoll::new();
        let mut unbinds = false;
        if state == QpState::Reset {
            unbinds = core.sq.binds();
            core.sq.reset();
            core.rq.reset();
            core.peer.forget();
            self.filter.set(None);
            core.parked.clear();
            core.trains = Trains::default();
            // Receivers on several CPUs may have exceeded the inbox's limit by a packet each. They
            // push further packets meanwhile. A run drops these, because the QP is in RESET.
            for _ in 0..2 * limits::INBOX {
                if self.inbox.pop().is_none() {
                    break;
                }
            }
        }
        if let Some(av) = change.av {
            let remote = core.engine.attrs().settings.dest_qpn;
            core.peer.connect(&self.device, av, self.qpn, remote);
            self.filter.set(core.peer.admission());
        }
        drop(turn);
        drop(unused);
        Ok(unbinds)
    }

    /// Returns the state and the attributes. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP is destroyed.
    pub(crate) fn query(this: &Arc<Self>) -> Result<QpQuery> {
        Self::with_core(this, |core| this.query_result(core))
    }

    /// Returns the state, the attributes and the lengths of the queues, all as of one instant.
    /// Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the QP is destroyed.
    pub(crate) fn query_with_load(this: &Arc<Self>) -> Result<(QpQuery, QpLoad)> {
        Self::with_core(this, |core| (this.query_result(core), this.load(core)))
    }

    /// Returns the state and the attributes.
    fn query_result(&self, core: &Core) -> QpQuery {
        QpQuery {
            attrs: core.engine.attrs(),
            av: core.peer.av(),
            cap: self.cap,
            signal_all: self.signal_all,
        }
    }
}

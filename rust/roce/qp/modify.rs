// SPDX-License-Identifier: GPL-2.0

//! `modify_qp`: checks everything, then changes all or nothing.

use super::attr::{Attrs, ModifyError, QpState};
use super::state::{rule, AttrSet, Drain, State};
use super::{Qp, Replay, SendWqe, Slots};
use crate::host::Host;
use crate::psn::Psn;
use crate::time::Instant;

impl<W: Slots<SendWqe>, R: Slots<Replay>> Qp<W, R> {
    /// Returns the state to which [`modify`](Self::modify) with `attrs` leads. Changes nothing.
    ///
    /// # Errors
    ///
    /// Returns any [`ModifyError`].
    pub fn check_modify(&self, attrs: &Attrs) -> Result<QpState, ModifyError> {
        let from = self.state.name();
        let to = attrs.state.unwrap_or(from);
        let given = AttrSet::given(attrs);
        if given.intersects(AttrSet::UNSUPPORTED) {
            return Err(ModifyError::Unsupported);
        }
        if attrs.cur_state.is_some_and(|assumed| assumed != from) {
            return Err(ModifyError::CurState);
        }
        let rule = rule(from, to, self.context.config.kind).ok_or(ModifyError::Transition)?;
        if !rule.is_met_by(given) {
            return Err(ModifyError::Missing);
        }
        if !rule.admits(given) {
            return Err(ModifyError::Forbidden);
        }
        // Until the queue has drained, only RESET and ERR are allowed.
        let draining = matches!(self.state, State::Sqd(Drain::Draining { .. }));
        if draining && matches!(to, QpState::Rts | QpState::Sqd) {
            return Err(ModifyError::Draining);
        }
        if self.in_range(attrs) {
            Ok(to)
        } else {
            Err(ModifyError::Range)
        }
    }

    /// Returns whether all given values are in range.
    fn in_range(&self, attrs: &Attrs) -> bool {
        let at_most = |value: Option<u8>, limit: u8| value.is_none_or(|value| value <= limit);
        let replays = attrs
            .max_dest_rd_atomic
            .is_none_or(|count| usize::from(count) <= self.responder.capacity());
        attrs.pkey_index.is_none_or(|index| index == 0)
            && attrs.port.is_none_or(|port| port == 1)
            && at_most(attrs.timeout, 31)
            && at_most(attrs.retry_cnt, 7)
            && at_most(attrs.rnr_retry, 7)
            && at_most(attrs.min_rnr_timer, 31)
            && replays
    }

    /// Applies attributes that [`Self::check_modify`] has accepted.
    pub(super) fn apply_modify<H: Host>(
        &mut self,
        now: Instant,
        attrs: &Attrs,
        to: QpState,
        host: &mut H,
    ) {
        self.set_attributes(attrs);
        let from = self.state.name();
        match to {
            QpState::Reset => self.enter_reset(host),
            QpState::Init => self.state = State::Init,
            QpState::Rtr => {
                self.responder.start(attrs.rq_psn.unwrap_or(Psn::new(0)));
                self.state = State::Rtr { established: false };
            }
            QpState::Rts => {
                match from {
                    QpState::Rtr => self.requester.start(attrs.sq_psn.unwrap_or(Psn::new(0))),
                    QpState::Sqd => self.requester.undrain(&self.context),
                    QpState::Sqe => self.requester.resume(host),
                    _ => {}
                }
                let offers = self.context.offers_to_fill_gaps();
                self.requester.offer_to_fill_gaps(offers);
                self.state = State::Rts;
            }
            QpState::Sqd if from == QpState::Sqd => {}
            QpState::Sqd => {
                let notify = attrs.sqd_async_notify.unwrap_or(false);
                self.state = State::Sqd(Drain::Draining { notify });
                self.requester.drain(now, &self.context);
                self.check_drained(host);
            }
            // Only a send error leads to SQE; the table has no transition to it.
            QpState::Sqe => {}
            // The owner's transition to ERR ends the peer's access: the responder sends no more.
            QpState::Err if self.state.name() == QpState::Err => self.responder.cancel_all(),
            QpState::Err => self.enter_err(host),
        }
    }

    /// Copies the given attributes to the settings of the QP.
    fn set_attributes(&mut self, attrs: &Attrs) {
        fn set<T>(current: &mut T, given: Option<T>) {
            if let Some(value) = given {
                *current = value;
            }
        }
        let settings = &mut self.context.settings;
        set(&mut settings.access, attrs.access);
        set(&mut settings.pkey_index, attrs.pkey_index);
        set(&mut settings.port, attrs.port);
        set(&mut settings.qkey, attrs.qkey);
        set(&mut settings.path_mtu, attrs.path_mtu);
        set(&mut settings.timeout, attrs.timeout);
        set(&mut settings.retry_cnt, attrs.retry_cnt);
        set(&mut settings.rnr_retry, attrs.rnr_retry);
        set(&mut settings.max_rd_atomic, attrs.max_rd_atomic);
        set(&mut settings.max_dest_rd_atomic, attrs.max_dest_rd_atomic);
        set(&mut settings.min_rnr_timer, attrs.min_rnr_timer);
        set(&mut settings.dest_qpn, attrs.dest_qpn);
    }

    /// Enters RESET: clears the state of both sides and resets all attributes.
    fn enter_reset<H: Host>(&mut self, host: &mut H) {
        self.requester.reset(host);
        self.responder.reset(host);
        self.context.settings = super::Settings::default();
        self.state = State::Reset;
        self.backlog = false;
        self.pause = super::Pause::default();
    }
}

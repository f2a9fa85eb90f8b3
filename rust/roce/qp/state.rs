// SPDX-License-Identifier: GPL-2.0

//! The states of a QP, and the table of the transitions that `modify_qp` may make. For each
//! transition the table lists the required and the allowed attributes (IBTA 1.x §10.3.1,
//! §11.2.5.2; `ib_modify_qp_is_ok()`).

use super::attr::{Attrs, QpKind, QpState};

/// A state, with the data that exists only in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Reset,
    Init,
    Rtr {
        /// A request has been carried out.
        established: bool,
    },
    Rts,
    Sqd(Drain),
    Sqe,
    Err,
}

/// Progress of SQD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Started work requests aren't finished.
    Draining {
        /// The consumer requested an event at the end (`IB_QP_EN_SQD_ASYNC_NOTIFY`).
        notify: bool,
    },
    /// All started work requests are finished.
    Drained,
}

impl State {
    /// Returns the state as `query_qp` reports it.
    pub(super) fn name(self) -> QpState {
        match self {
            Self::Reset => QpState::Reset,
            Self::Init => QpState::Init,
            Self::Rtr { .. } => QpState::Rtr,
            Self::Rts => QpState::Rts,
            Self::Sqd(_) => QpState::Sqd,
            Self::Sqe => QpState::Sqe,
            Self::Err => QpState::Err,
        }
    }

    /// See [`QpState::sends`].
    pub(super) fn sends(self) -> bool {
        self.name().sends()
    }

    /// Returns whether requests of peers are carried out.
    pub(super) fn receives(self) -> bool {
        matches!(
            self,
            Self::Rtr { .. } | Self::Rts | Self::Sqd(_) | Self::Sqe
        )
    }
}

/// A set of attributes. The bits are those of `enum ib_qp_attr_mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttrSet(u32);

impl AttrSet {
    const NONE: Self = Self(0);
    const STATE: Self = Self(1 << 0);
    pub(super) const CUR_STATE: Self = Self(1 << 1);
    const SQD_NOTIFY: Self = Self(1 << 2);
    const ACCESS: Self = Self(1 << 3);
    const PKEY_INDEX: Self = Self(1 << 4);
    const PORT: Self = Self(1 << 5);
    const QKEY: Self = Self(1 << 6);
    const AV: Self = Self(1 << 7);
    const PATH_MTU: Self = Self(1 << 8);
    const TIMEOUT: Self = Self(1 << 9);
    const RETRY_CNT: Self = Self(1 << 10);
    const RNR_RETRY: Self = Self(1 << 11);
    const RQ_PSN: Self = Self(1 << 12);
    const MAX_RD_ATOMIC: Self = Self(1 << 13);
    const ALT_PATH: Self = Self(1 << 14);
    const MIN_RNR_TIMER: Self = Self(1 << 15);
    const SQ_PSN: Self = Self(1 << 16);
    const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    const PATH_MIG_STATE: Self = Self(1 << 18);
    const CAP: Self = Self(1 << 19);
    const DEST_QPN: Self = Self(1 << 20);
    const RATE_LIMIT: Self = Self(1 << 25);

    /// Attributes that the QP refuses in every transition, even where the table allows them.
    pub(super) const UNSUPPORTED: Self = Self::ALT_PATH.union(Self::CAP).union(Self::RATE_LIMIT);

    /// Returns the union of two sets.
    const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether every attribute of `self` is in `other`.
    pub(super) const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns whether some attribute is in both sets.
    pub(super) const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the attributes that one call of `modify_qp` gives.
    pub(super) fn given(attrs: &Attrs) -> Self {
        [
            (attrs.state.is_some(), Self::STATE),
            (attrs.cur_state.is_some(), Self::CUR_STATE),
            (attrs.sqd_async_notify.is_some(), Self::SQD_NOTIFY),
            (attrs.access.is_some(), Self::ACCESS),
            (attrs.pkey_index.is_some(), Self::PKEY_INDEX),
            (attrs.port.is_some(), Self::PORT),
            (attrs.qkey.is_some(), Self::QKEY),
            (attrs.av, Self::AV),
            (attrs.path_mtu.is_some(), Self::PATH_MTU),
            (attrs.timeout.is_some(), Self::TIMEOUT),
            (attrs.retry_cnt.is_some(), Self::RETRY_CNT),
            (attrs.rnr_retry.is_some(), Self::RNR_RETRY),
            (attrs.rq_psn.is_some(), Self::RQ_PSN),
            (attrs.max_rd_atomic.is_some(), Self::MAX_RD_ATOMIC),
            (attrs.alt_path, Self::ALT_PATH),
            (attrs.min_rnr_timer.is_some(), Self::MIN_RNR_TIMER),
            (attrs.sq_psn.is_some(), Self::SQ_PSN),
            (attrs.max_dest_rd_atomic.is_some(), Self::MAX_DEST_RD_ATOMIC),
            (attrs.path_mig_state, Self::PATH_MIG_STATE),
            (attrs.cap, Self::CAP),
            (attrs.dest_qpn.is_some(), Self::DEST_QPN),
            (attrs.rate_limit, Self::RATE_LIMIT),
        ]
        .into_iter()
        .filter(|(given, _)| *given)
        .fold(Self::NONE, |set, (_, attr)| set.union(attr))
    }
}

/// The attributes that a transition requires, and those that it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    required: AttrSet,
    optional: AttrSet,
}

impl Rule {
    const NONE: Self = Self::new(AttrSet::NONE, AttrSet::NONE);

    const fn new(required: AttrSet, optional: AttrSet) -> Self {
        Self { required, optional }
    }

    /// Returns whether `given` has all attributes that the transition requires.
    pub(super) const fn is_met_by(self, given: AttrSet) -> bool {
        self.required.within(given)
    }

    /// Returns whether the transition allows all attributes in `given`.
    pub(super) const fn admits(self, given: AttrSet) -> bool {
        given.within(self.required.union(self.optional).union(AttrSet::STATE))
    }
}

/// Returns the union of several sets.
const fn all(attrs: &[AttrSet]) -> AttrSet {
    match attrs {
        [] => AttrSet::NONE,
        [first, rest @ ..] => first.union(all(rest)),
    }
}

/// Number of kinds of QP: RC, UC, UD, GSI, XRC initiator, XRC target and raw packet, in this order.
const KINDS: usize = 7;

/// One transition: its start, its end, and a rule for each kind of QP.
type Row = (QpState, QpState, [Rule; KINDS]);

/// For each kind of QP, no attribute.
const NOTHING: [AttrSet; KINDS] = [AttrSet::NONE; KINDS];
/// For each kind of QP, a transition that neither requires nor allows any attribute but the state.
const PLAIN: [Rule; KINDS] = [Rule::NONE; KINDS];

/// Attributes that RTR → RTS, RTS → RTS and SQD → RTS allow.
const RTS_OPTIONAL: [AttrSet; KINDS] = {
    use AttrSet as A;
    let connected = all(&[A::CUR_STATE, A::ACCESS, A::ALT_PATH, A::PATH_MIG_STATE]);
    let datagram = all(&[A::CUR_STATE, A::QKEY]);
    [
        connected.union(A::MIN_RNR_TIMER),
        connected,
        datagram,
        datagram,
        connected,
        connected.union(A::MIN_RNR_TIMER),
        A::NONE,
    ]
};

/// For each kind of QP, a transition that requires no attribute.
const fn optional(sets: [AttrSet; KINDS]) -> [Rule; KINDS] {
    with_optional(NOTHING, sets)
}

/// Combines the required and the optional attributes of each kind of QP into a rule.
const fn with_optional(required: [AttrSet; KINDS], optional: [AttrSet; KINDS]) -> [Rule; KINDS] {
    let [rc, uc, ud, gsi, ini, tgt, raw] = required;
    let [rc_opt, uc_opt, ud_opt, gsi_opt, ini_opt, tgt_opt, raw_opt] = optional;
    [
        Rule::new(rc, rc_opt),
        Rule::new(uc, uc_opt),
        Rule::new(ud, ud_opt),
        Rule::new(gsi, gsi_opt),
        Rule::new(ini, ini_opt),
        Rule::new(tgt, tgt_opt),
        Rule::new(raw, raw_opt),
    ]
}

/// All legal transitions. A state without a transition to itself can't be modified in place.
const TRANSITIONS: [Row; 22] = {
    use AttrSet as A;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

    let init_connected = all(&[A::PKEY_INDEX, A::PORT, A::ACCESS]);
    let init_gsi = all(&[A::PKEY_INDEX, A::QKEY]);
    let init = [
        init_connected,
        init_connected,
        init_gsi.union(A::PORT),
        init_gsi,
        init_connected,
        init_connected,
        A::PORT,
    ];
    let [rc, uc, ud, gsi, ini, tgt, _] = init;
    let init_again = [rc, uc, ud, gsi, ini, tgt, A::NONE];
    let rtr_uc = all(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]);
    let rtr_rc = all(&[rtr_uc, A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]);
    let rtr_connected = all(&[A::ALT_PATH, A::ACCESS, A::PKEY_INDEX]);
    let rts_rc = all(&[
        A::TIMEOUT,
        A::RETRY_CNT,
        A::RNR_RETRY,
        A::SQ_PSN,
        A::MAX_RD_ATOMIC,
    ]);
    let sqd_uc = all(&[
        A::AV,
        A::ALT_PATH,
        A::ACCESS,
        A::PKEY_INDEX,
        A::PATH_MIG_STATE,
    ]);
    let sqd_rc = all(&[
        sqd_uc,
        A::PORT,
        A::TIMEOUT,
        A::RETRY_CNT,
        A::RNR_RETRY,
        A::MAX_RD_ATOMIC,
        A::MAX_DEST_RD_ATOMIC,
        A::MIN_RNR_TIMER,
    ]);
    let sqd_ini = all(&[
        sqd_uc,
        A::PORT,
        A::TIMEOUT,
        A::RETRY_CNT,
        A::RNR_RETRY,
        A::MAX_RD_ATOMIC,
    ]);
    let sqd_tgt = all(&[
        sqd_uc,
        A::PORT,
        A::TIMEOUT,
        A::MAX_DEST_RD_ATOMIC,
        A::MIN_RNR_TIMER,
    ]);
    let sqe_datagram = all(&[A::CUR_STATE, A::QKEY]);
    let notify = A::SQD_NOTIFY;
    let sqd = [notify, notify, notify, notify, notify, notify, A::NONE];
    let sqe = [
        A::NONE,
        all(&[A::CUR_STATE, A::ACCESS]),
        sqe_datagram,
        sqe_datagram,
        A::NONE,
        A::NONE,
        A::NONE,
    ];
    [
        (Reset, Reset, PLAIN),
        (Reset, Init, with_optional(init, NOTHING)),
        (Init, Reset, PLAIN),
        (Init, Err, PLAIN),
        (Init, Init, optional(init_again)),
        (
            Init,
            Rtr,
            with_optional(
                [rtr_rc, rtr_uc, A::NONE, A::NONE, rtr_uc, rtr_rc, A::NONE],
                [
                    rtr_connected,
                    rtr_connected,
                    init_gsi,
                    init_gsi,
                    rtr_connected,
                    rtr_connected,
                    A::NONE,
                ],
            ),
        ),
        (Rtr, Reset, PLAIN),
        (Rtr, Err, PLAIN),
        (
            Rtr,
            Rts,
            with_optional(
                [
                    rts_rc,
                    A::SQ_PSN,
                    A::SQ_PSN,
                    A::SQ_PSN,
                    rts_rc,
                    A::TIMEOUT.union(A::SQ_PSN),
                    A::NONE,
                ],
                RTS_OPTIONAL,
            ),
        ),
        (Rts, Reset, PLAIN),
        (Rts, Err, PLAIN),
        (Rts, Rts, optional(RTS_OPTIONAL)),
        (Rts, Sqd, optional(sqd)),
        (Sqd, Reset, PLAIN),
        (Sqd, Err, PLAIN),
        (Sqd, Rts, optional(RTS_OPTIONAL)),
        (
            Sqd,
            Sqd,
            optional([
                sqd_rc,
                sqd_uc,
                init_gsi,
                init_gsi,
                sqd_ini,
                sqd_tgt,
                A::NONE,
            ]),
        ),
        (Sqe, Reset, PLAIN),
        (Sqe, Err, PLAIN),
        (Sqe, Rts, optional(sqe)),
        (Err, Reset, PLAIN),
        (Err, Err, PLAIN),
    ]
};

/// Returns the rule of a transition, or `None` if there is no such transition.
pub(super) fn rule(from: QpState, to: QpState, kind: QpKind) -> Option<Rule> {
    let (_, _, [rc, uc, ud, gsi, ini, tgt, raw]) = TRANSITIONS
        .iter()
        .find(|(row_from, row_to, _)| *row_from == from && *row_to == to)?;
    Some(match kind {
        QpKind::Rc => *rc,
        QpKind::Uc => *uc,
        QpKind::Ud => *ud,
        QpKind::Gsi => *gsi,
        QpKind::XrcIni => *ini,
        QpKind::XrcTgt => *tgt,
        QpKind::RawPacket => *raw,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::string::String;

    /// Required/allowed attributes for RC, UC, UD, GSI, XRC initiator, XRC target and raw packet,
    /// in hexadecimal, as in `qp_state_table` of Linux 7.3.4. `ib_modify_qp_is_ok()` also accepts
    /// `IB_QP_STATE` and `IB_QP_RATE_LIMIT` in every transition.
    const SNAPSHOT: &str = "\
Reset Reset 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Reset Init 38/0 38/0 70/0 50/0 38/0 38/0 20/0
Init Reset 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Init Init 0/38 0/38 0/70 0/50 0/38 0/38 0/0
Init Rtr 129180/4018 101180/4018 0/50 0/50 101180/4018 129180/4018 0/0
Init Err 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Rtr Reset 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Rtr Rts 12e00/4c00a 10000/4400a 10000/42 10000/42 12e00/4400a 10200/4c00a 0/0
Rtr Err 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Rts Reset 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Rts Rts 0/4c00a 0/4400a 0/42 0/42 0/4400a 0/4c00a 0/0
Rts Sqd 0/4 0/4 0/4 0/4 0/4 0/4 0/0
Rts Err 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Sqd Reset 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Sqd Rts 0/4c00a 0/4400a 0/42 0/42 0/4400a 0/4c00a 0/0
Sqd Sqd 0/6eeb8 0/44098 0/50 0/50 0/46eb8 0/6c2b8 0/0
Sqd Err 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Sqe Reset 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Sqe Rts 0/0 0/a 0/42 0/42 0/0 0/0 0/0
Sqe Err 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Err Reset 0/0 0/0 0/0 0/0 0/0 0/0 0/0
Err Err 0/0 0/0 0/0 0/0 0/0 0/0 0/0
";

    #[test]
    fn the_whole_table_is_as_the_kernel_has_it() {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
        let kinds = [
            QpKind::Rc,
            QpKind::Uc,
            QpKind::Ud,
            QpKind::Gsi,
            QpKind::XrcIni,
            QpKind::XrcTgt,
            QpKind::RawPacket,
        ];
        let mut table = String::new();
        for (from, to) in states.into_iter().flat_map(|a| states.map(|b| (a, b))) {
            if rule(from, to, QpKind::Rc).is_none() {
                continue;
            }
            write!(table, "{from:?} {to:?}").unwrap();
            for kind in kinds {
                let rule = rule(from, to, kind).unwrap();
                write!(table, " {:x}/{:x}", rule.required.0, rule.optional.0).unwrap();
            }
            table.push('\n');
        }
        assert_eq!(table, SNAPSHOT);
    }
}

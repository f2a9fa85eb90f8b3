// SPDX-License-Identifier: GPL-2.0

//! Flow steering: rules that deliver copies of frames to raw packet QPs.
//!
//! The rules of a device are in a table, in the order in which frames are matched against them
//! ([`roce::steering`]). While there are rules, a packet handler examines the frames that the
//! network device receives and sends. The host's network stack gets its packets as without rules. A
//! frame that a raw packet QP sends is also matched against the rules of the device's other QPs, as
//! within an adapter, and is sent in any case.
//!
//! # Context
//!
//! Frames arrive in softirq, or in the context of their sender with bottom halves disabled. The
//! sender may hold a lock, such as the turn lock of a raw packet QP (`qp/turn.rs`). So a frame is
//! only queued at the receiving QP, whose run is deferred to a thread or to the poller of its
//! doorbell page (`doorbells.rs`).
//!
//! The time for copies is charged to no process. A QP gets one copy of a frame, however many of its
//! rules match, and none while its queue is full. Copies for QPs beyond the first [`ALWAYS`] are
//! made only while the CPU is not in debt ([`crate::limits::softirq_time`]). A large (GSO) packet
//! that a QP receives is segmented first.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc, Mutex,
    },
};
use rdma::{
    net::{
        netdev::{Kind, Netdev},
        skb::{Discard, RxFrame, TappedFrame, TxFrame},
        tap::{FrameObserver, Tap},
    },
    support::{error::unsupported, read_section::ReadSections, table::Table},
};
use roce::steering::{Direction, Frame, Numbers, Rule, Verdict, Walk, HEADERS_MAX};

use crate::{
    limits::{self, accounts::PayerClaim},
    qp::Qp,
};

/// Number of QPs that get copies of a frame regardless of the time that this takes. The time for
/// copies to further QPs counts as softirq time of the CPU. While the CPU is in debt, further QPs
/// lose the frame.
const ALWAYS: u32 = 8;

/// A flow steering rule and its QP.
pub(crate) struct Flow {
    /// Rule.
    rule: Rule,
    /// Index of the rule in the table.
    index: u32,
    /// QP that receives the frames.
    qp: Arc<Qp>,
    /// Number of the QP among the QPs that have rules.
    number: u32,
    /// Claim on the payer's limit of rules; `None` for a QP of the kernel.
    _claim: Option<PayerClaim>,
}

/// The flow steering rules of a device.
#[pin_data]
pub(crate) struct Flows {
    /// Table of the rules.
    #[pin]
    rules: Table<Flow>,
    /// Number of rules.
    count: Atomic<u32>,
    /// Packet handler of the network device.
    #[pin]
    port: Mutex<Port>,
}

/// The source of frames for the rules.
enum Port {
    /// There are no rules, and no packet handler is registered.
    Idle,
    /// A packet handler is registered, for this number of rules.
    Tapped { rules: u32, _tap: Tap<Flows> },
    /// The network device is gone. There may still be rules.
    Gone,
}

impl Port {
    /// Counts one more rule of `flows`, and registers the packet handler for the first one.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the network device is gone, and those of [`Tap::new`].
    fn acquire(&mut self, netdev: Netdev, flows: &Arc<Flows>) -> Result {
        match self {
            Self::Gone => return Err(ENODEV),
            Self::Tapped { rules, .. } => *rules = rules.saturating_add(1),
            Self::Idle => {
                let tap = Tap::new(netdev, flows.clone())?;
                *self = Self::Tapped {
                    rules: 1,
                    _tap: tap,
                };
            }
        }
        Ok(())
    }
}

impl Flows {
    /// Creates an empty set of rules. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(readers: &Arc<ReadSections>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                rules <- Table::new(limits::MAX_FLOWS, readers),
                count: Atomic::new(0),
                port <- new_mutex!(Port::Idle, "rrxe_flows"),
            }),
            GFP_KERNEL,
        )
    }

    /// Unregisters the packet handler for good, because the network device goes away. Process
    /// context, with or without the RTNL lock held; sleeps.
    pub(crate) fn close(&self) {
        *self.port.lock() = Port::Gone;
    }

    /// Returns the number of `qp` among the QPs that have rules: the number in its other rules, or
    /// a free one. The caller holds the lock of `port`, so that no other QP gets the same number.
    fn number_of(&self, qp: &Qp) -> Option<u32> {
        let (mut own, mut others) = (None, Numbers::default());
        self.rules.for_each(|_, flow| {
            others.insert(flow.number);
            if core::ptr::eq(qp, &*flow.qp) {
                own = Some(flow.number);
            }
        });
        own.or_else(|| others.first_free())
    }

    /// Counts one rule less, and unregisters the packet handler after the last one.
    fn release(&self) {
        let mut port = self.port.lock();
        if let Port::Tapped { rules, .. } = &mut *port {
            *rules = rules.saturating_sub(1);
            if *rules == 0 {
                *port = Port::Idle;
            }
        }
    }

    /// Returns whether there are no rules. Any context.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(ordering::Relaxed) == 0
    }

    /// Calls `deliver` once for each QP that receives the frame, until `deliver` returns `false`.
    fn walk(
        &self,
        frame: &Frame,
        direction: Direction,
        sender: Option<&Qp>,
        mut deliver: impl FnMut(&Arc<Qp>) -> bool,
    ) {
        let (mut walk, mut served) = (Walk::new(frame, direction), Numbers::default());
        self.rules.for_each_while(|_, flow| {
            let is_own = sender.is_some_and(|sender| core::ptr::eq(sender, &*flow.qp));
            match walk.visit(&flow.rule, is_own) {
                Verdict::Take => !served.insert(flow.number) || deliver(&flow.qp),
                Verdict::Pass => true,
                Verdict::End => false,
            }
        });
    }

    /// Delivers copies of a packet to the QPs whose rules match. `segment` returns the frames of
    /// the packet as they are on the wire. It is called only if a QP receives them. The packet's
    /// headers `frame` are matched against the rules once for all of these frames, even if they
    /// are fragments of a large datagram.
    fn deliver_copies(
        &self,
        frame: &Frame,
        direction: Direction,
        sender: Option<&Qp>,
        segment: impl FnOnce() -> KVec<RxFrame>,
    ) {
        let (mut segment, mut frames, mut unconditional) = (Some(segment), KVec::new(), ALWAYS);
        self.walk(frame, direction, sender, |qp| {
            if let Some(segment) = segment.take() {
                frames = segment();
            }
            let deliver = || Qp::receive_frames(qp.as_arc_borrow(), &frames);
            if let Some(left) = unconditional.checked_sub(1) {
                unconditional = left;
                deliver();
                return true;
            }
            let delivered = qp.device.workqueues.softirq_time.spend(deliver);
            if !delivered {
                qp.net.drops.count(Discard::Overflow);
            }
            delivered
        });
    }

    /// Delivers copies of a frame to QPs of the device other than `sender`, which sends the frame.
    /// Must be called with bottom halves disabled.
    pub(crate) fn loop_back(&self, sender: &Qp, sent: &TxFrame) {
        let headers = sent.linear();
        let headers = headers.get(..HEADERS_MAX).unwrap_or(headers);
        let Some(frame) = Frame::parse(headers, None) else {
            return;
        };
        self.deliver_copies(&frame, Direction::Looped, Some(sender), || {
            let mut frames = KVec::new();
            if let Some(copy) = RxFrame::copy_of(sent) {
                push(&mut frames, copy);
            }
            frames
        });
    }
}

/// Adds a frame to the list. Without memory the frame is dropped.
fn push(frames: &mut KVec<RxFrame>, frame: RxFrame) {
    let _ = frames.push(frame, GFP_ATOMIC);
}

impl FrameObserver for Flows {
    fn observe_frame(&self, tapped: &TappedFrame<'_>) {
        if tapped.is_looped() {
            return;
        }
        let mut room = [0; HEADERS_MAX];
        let Some(frame) = Frame::parse(tapped.headers(&mut room), tapped.tag()) else {
            return;
        };
        let direction = match tapped.is_outgoing() {
            true => Direction::Sent,
            false => Direction::Received,
        };
        self.deliver_copies(&frame, direction, None, || {
            let mut frames = KVec::new();
            tapped.for_each_frame(|frame| push(&mut frames, frame));
            frames
        });
    }
}

/// Makes `qp` receive the frames that `rule` matches. Process context; sleeps.
///
/// # Errors
///
/// `EINVAL` unless `qp` is a raw packet QP; `ENOMEM`, also if the limit on rules of the device, the
/// user or the memory cgroup is reached; `ENODEV` if the network device is gone; `EOPNOTSUPP`
/// unless the network device is an Ethernet or loopback device.
pub(crate) fn create(qp: &Arc<Qp>, rule: Rule) -> Result<Arc<Flow>> {
    let link = &qp.device.link;
    if !qp.receives_frames() {
        return Err(EINVAL);
    }
    let netdev = link.netdev().ok_or(ENODEV)?;
    if !matches!(netdev.kind(), Kind::Ethernet | Kind::Loopback) {
        return Err(unsupported());
    }
    let claim = qp.payer().map(|payer| payer.claim_flow()).transpose()?;
    let flows = &link.flows;
    let reservation = flows.rules.reserve(rule.indices())?;
    let mut port = flows.port.lock();
    let number = flows.number_of(qp).ok_or(ENOMEM)?;
    let flow = Arc::new(
        Flow {
            rule,
            index: reservation.id(),
            qp: qp.clone(),
            number,
            _claim: claim,
        },
        GFP_KERNEL_ACCOUNT,
    )?;
    port.acquire(netdev, flows)?;
    flows.count.fetch_add(1, ordering::Relaxed);
    reservation.publish(flow.clone());
    Ok(flow)
}

/// Removes the rule of [`create`]. After the return, this rule delivers no more frames. Process
/// context; sleeps.
pub(crate) fn destroy(flow: &Flow) {
    let flows = &flow.qp.device.link.flows;
    drop(flows.rules.remove(flow.index));
    flows.count.fetch_add(u32::MAX, ordering::Relaxed);
    flows.release();
}

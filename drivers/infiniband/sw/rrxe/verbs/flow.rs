// SPDX-License-Identifier: GPL-2.0

//! Flow steering: raw packet QPs get copies of the frames that pass the network device, by rules.
//!
//! The rules of a device lie in a table in the order in which frames meet them ([`roce::steering`]).
//! While there are any, a packet handler looks at what the network device receives and sends; the host's
//! own stack gets its packets all the same. What a raw packet QP sends meets the rules of the device's
//! other QPs as well, as within an adapter, and leaves all the same.
//!
//! # Context
//!
//! Frames come in softirq, or from whoever sends them, with bottom halves disabled and perhaps under a lock of the sender's,
//! such as the turn of a raw packet QP. So they are only put in the queue of the QP that gets them, whose turn is left to a
//! thread or to the watcher of its doorbells.
//!
//! Nobody is charged for the time of copies. A QP gets one copy of a frame, however many of its rules the frame fits, and
//! none while its queue is full; and copies for more than [`ALWAYS`] QPs are made only while softirqs have time. A large
//! packet that any QP gets is taken apart first.

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
use roce::steering::{Frame, Numbers, Rule, Verdict, Walk, Way, HEADERS_MAX};

use crate::{
    limits::{self, accounts::PayerClaim},
    qp::Qp,
};

/// QPs that get copies of what passes at once whatever time this takes. The time for copies to further QPs counts in the
/// CPU's account for softirqs, and while that is overdrawn what passes is lost to these.
const ALWAYS: u32 = 8;

/// A rule and whose it is.
pub(crate) struct Flow {
    rule: Rule,
    place: u32,
    qp: Arc<Qp>,
    /// That of the QP, among the QPs that have rules.
    number: u32,
    _claim: Option<PayerClaim>,
}

/// The rules of a device.
#[pin_data]
pub(crate) struct Flows {
    #[pin]
    rules: Table<Flow>,
    /// How many there are.
    count: Atomic<u32>,
    #[pin]
    port: Mutex<Port>,
}

/// Where frames come from.
enum Port {
    /// No rule needs any.
    Idle,
    /// They are looked at for so many rules.
    Tapped { rules: u32, _tap: Tap<Flows> },
    /// The network device is gone; there may still be rules.
    Gone,
}

impl Port {
    /// Has frames looked at for one more rule of `flows`.
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
    /// No rules yet. Process context.
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

    /// The network device goes away: no frames any more. Process context, perhaps under RTNL; sleeps.
    pub(crate) fn close(&self) {
        *self.port.lock() = Port::Gone;
    }

    /// The number of `qp` among the QPs that have rules: that of its other rules, or a free one. Under the lock of `port`,
    /// so that no other QP gets the same.
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

    /// There is one rule less.
    fn release(&self) {
        let mut port = self.port.lock();
        if let Port::Tapped { rules, .. } = &mut *port {
            *rules = rules.saturating_sub(1);
            if *rules == 0 {
                *port = Port::Idle;
            }
        }
    }

    /// Whether there are no rules. Any context.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(ordering::Relaxed) == 0
    }

    /// Calls `give` once for each QP that gets a frame, until it says `false`.
    fn walk(
        &self,
        frame: &Frame,
        way: Way,
        sender: Option<&Qp>,
        mut give: impl FnMut(&Arc<Qp>) -> bool,
    ) {
        let (mut walk, mut served) = (Walk::new(frame, way), Numbers::default());
        self.rules.for_each_while(|_, flow| {
            let is_own = sender.is_some_and(|sender| core::ptr::eq(sender, &*flow.qp));
            match walk.visit(&flow.rule, is_own) {
                Verdict::Take => !served.insert(flow.number) || give(&flow.qp),
                Verdict::Pass => true,
                Verdict::End => false,
            }
        });
    }

    /// Hands copies to the QPs that get what passes: of the frames that it is on the wire, which `take_apart` makes if any QP
    /// gets them. The headers `frame` of what passes decide for all of them, also where these are fragments of a large datagram.
    fn hand_out(
        &self,
        frame: &Frame,
        way: Way,
        sender: Option<&Qp>,
        take_apart: impl FnOnce() -> KVec<RxFrame>,
    ) {
        let (mut take_apart, mut whole, mut rest) = (Some(take_apart), KVec::new(), ALWAYS);
        self.walk(frame, way, sender, |qp| {
            if let Some(take_apart) = take_apart.take() {
                whole = take_apart();
            }
            let give = || Qp::receive_frames(qp.as_arc_borrow(), &whole);
            if let Some(less) = rest.checked_sub(1) {
                rest = less;
                give();
                return true;
            }
            let given = qp.device.workqueues.softirq_time.spend(give);
            if !given {
                qp.net.drops.count(Discard::Overflow);
            }
            given
        });
    }

    /// `sender` sends a frame: the other QPs of the device may get it. Bottom halves
    /// disabled.
    pub(crate) fn loop_back(&self, sender: &Qp, sent: &TxFrame) {
        let headers = sent.linear();
        let headers = headers.get(..HEADERS_MAX).unwrap_or(headers);
        let Some(frame) = Frame::parse(headers, None) else {
            return;
        };
        self.hand_out(&frame, Way::Looped, Some(sender), || {
            let mut whole = KVec::new();
            if let Some(copy) = RxFrame::copy_of(sent) {
                push(&mut whole, copy);
            }
            whole
        });
    }
}

/// Without memory the frame is lost.
fn push(whole: &mut KVec<RxFrame>, frame: RxFrame) {
    let _ = whole.push(frame, GFP_ATOMIC);
}

impl FrameObserver for Flows {
    fn passes(&self, tapped: &TappedFrame<'_>) {
        if tapped.is_looped() {
            return;
        }
        let mut room = [0; HEADERS_MAX];
        let Some(frame) = Frame::parse(tapped.headers(&mut room), tapped.tag()) else {
            return;
        };
        let way = match tapped.is_outgoing() {
            true => Way::Sent,
            false => Way::Received,
        };
        self.hand_out(&frame, way, None, || {
            let mut whole = KVec::new();
            tapped.for_each_frame(|frame| push(&mut whole, frame));
            whole
        });
    }
}

/// Lets `qp` receive the frames that `rule` is about. Process context; sleeps.
///
/// # Errors
///
/// `EINVAL` unless it is a raw packet QP; `ENOMEM`, also for more rules of a device, a user or a memory cgroup than
/// the limits; `ENODEV` when the network device is gone; `EOPNOTSUPP` if it has no link layer.
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
    let place = flows.rules.reserve(rule.places())?;
    let mut port = flows.port.lock();
    let number = flows.number_of(qp).ok_or(ENOMEM)?;
    let flow = Arc::new(
        Flow {
            rule,
            place: place.id(),
            qp: qp.clone(),
            number,
            _claim: claim,
        },
        GFP_KERNEL_ACCOUNT,
    )?;
    port.acquire(netdev, flows)?;
    flows.count.fetch_add(1, ordering::Relaxed);
    place.publish(flow.clone());
    Ok(flow)
}

/// Undoes [`create`]: after the return no frame is handed out by this rule. Process context; sleeps.
pub(crate) fn destroy(flow: &Flow) {
    let flows = &flow.qp.device.link.flows;
    drop(flows.rules.remove(flow.place));
    flows.count.fetch_add(u32::MAX, ordering::Relaxed);
    flows.release();
}

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
//! Frames come in softirq, or under the turn of the QP that sends them. So they are only put in the queue
//! of the QP that gets them, whose turn is left to a thread or to the watcher of its doorbells.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc, Mutex,
    },
};
use rdma::{
    error::unsupported,
    net::{
        netdev::{Kind, Netdev},
        skb::{RxFrame, TappedFrame, TxFrame},
        tap::{Onlooker, Tap},
    },
    section::Sections,
    table::Table,
};
use roce::steering::{Frame, Rule, Verdict, Walk, Way, HEADERS_MAX};

use crate::{accounts::PayerClaim, limits, qp::Qp};

/// A rule and whose it is.
pub(crate) struct Flow {
    rule: Rule,
    place: u32,
    qp: Arc<Qp>,
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

impl Flows {
    /// No rules yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(readers: &Arc<Sections>) -> Result<Arc<Self>> {
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

    /// Has frames looked at for one more rule.
    fn acquire(self: &Arc<Self>, netdev: Netdev) -> Result {
        let mut port = self.port.lock();
        match &mut *port {
            Port::Gone => return Err(ENODEV),
            Port::Tapped { rules, .. } => *rules = rules.saturating_add(1),
            Port::Idle => {
                let tap = Tap::new(netdev, self.clone())?;
                *port = Port::Tapped {
                    rules: 1,
                    _tap: tap,
                };
            }
        }
        Ok(())
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

    /// Calls `give` for each QP that gets a frame, until it says `false`.
    fn walk(
        &self,
        frame: &Frame,
        way: Way,
        sender: Option<&Qp>,
        mut give: impl FnMut(&Arc<Qp>) -> bool,
    ) {
        let mut walk = Walk::new(frame, way);
        self.rules.for_each_while(|_, flow| {
            let is_own = sender.is_some_and(|sender| core::ptr::eq(sender, &*flow.qp));
            match walk.visit(&flow.rule, is_own) {
                Verdict::Take => give(&flow.qp),
                Verdict::Pass => true,
                Verdict::End => false,
            }
        });
    }

    /// Whether any QP gets a frame.
    fn is_wanted(&self, frame: &Frame, way: Way, sender: Option<&Qp>) -> bool {
        let mut wanted = false;
        self.walk(frame, way, sender, |_| {
            wanted = true;
            false
        });
        wanted
    }

    /// Hands copies of a frame to the QPs that get it.
    fn hand_out(&self, frame: &Frame, way: Way, sender: Option<&Qp>, whole: &RxFrame) {
        self.walk(frame, way, sender, |qp| {
            // For want of memory it is lost to this one.
            if let Some(copy) = whole.try_clone() {
                Qp::receive_frame(qp.as_arc_borrow(), copy);
            }
            true
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
        if !self.is_wanted(&frame, Way::Looped, Some(sender)) {
            return;
        }
        if let Some(whole) = RxFrame::copy_of(sent) {
            self.hand_out(&frame, Way::Looped, Some(sender), &whole);
        }
    }
}

impl Onlooker for Flows {
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
        if self.is_wanted(&frame, way, None) {
            tapped.for_each_frame(|whole| self.hand_out(&frame, way, None, &whole));
        }
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
    let flow = Arc::new(
        Flow {
            rule,
            place: place.id(),
            qp: qp.clone(),
            _claim: claim,
        },
        GFP_KERNEL_ACCOUNT,
    )?;
    flows.acquire(netdev)?;
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

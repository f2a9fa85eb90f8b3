// SPDX-License-Identifier: GPL-2.0

//! How a QP gets the packets and frames that came for it.

use kernel::sync::ArcBorrow;
use rdma::net::skb::{Discard, Endpoints, Ingress, RxFrame, RxSkb};
use roce::{ids::Qpn, responder::check_management, wire::packet::Packet};

use crate::{
    device::stats,
    net::rx::RxPacket,
    qp::{arrivals::Arrivals, Qp},
};

impl Qp {
    /// Refuses the packet of a stranger, and what is no management datagram for QP1, and counts it; `sender` as for
    /// [`Peer::check`](crate::qp::peer::Peer::check). Returns whether the packet is admitted. Any context up to softirq.
    #[inline]
    pub(crate) fn admit(
        &self,
        packet: &Packet,
        endpoints: &Endpoints,
        ingress: Ingress,
        sender: Option<u32>,
    ) -> bool {
        let link = &self.device.link;
        let mut checked = self.filter.check(link, endpoints, ingress, sender);
        // Users' QPs can send anything to QP1 but its queue key, unless they have CAP_NET_RAW.
        if self.qpn == Qpn::GSI {
            checked = checked.and_then(|()| check_management(packet).map_err(stats::drop_counter));
        }
        let Err(why) = checked else {
            return true;
        };
        self.device.counters.add(why, 1);
        self.trace_drop(packet.bth.psn, why);
        false
    }

    /// A packet for this QP came; its ICRC is right. It is taken: in by a turn here, if softirqs have time for a process's
    /// QP, else later. Softirq.
    pub(crate) fn receive(this: ArcBorrow<'_, Self>, packet: RxPacket) {
        let mut packet = Some(packet);
        let mut arrivals = Arrivals::with(&this.inbox, &mut packet);
        if this.kernel_queue.is_some() {
            return Self::advance_with(this, &mut arrivals);
        }
        this.workqueues
            .softirq_time
            .spend(|| Self::advance_with(this, &mut arrivals));
        if let Some(packet) = packet {
            Self::receive_later(this, packet.into_skb());
        }
    }

    /// A packet for this QP came; its ICRC is right. It is taken in later, by a thread: what QPs have to do is too much for
    /// a softirq, or may be, since the packet is for many. Softirq.
    pub(crate) fn receive_later(this: ArcBorrow<'_, Self>, skb: RxSkb) {
        match this.inbox.push(skb) {
            Ok(()) => Self::leave(this),
            Err(skb) => this.net.drops.discard(skb, Discard::Overflow),
        }
    }

    /// Frames for this QP came. It gets copies, and takes them in later: this may be under another QP's turn. What there is
    /// no room or memory for is lost to this QP. Any context up to softirq.
    pub(crate) fn receive_frames(this: ArcBorrow<'_, Self>, frames: &[RxFrame]) {
        let Some(queue) = this.frames() else {
            return;
        };
        let mut any = false;
        for frame in frames {
            match queue.push_copy(frame) {
                Ok(()) => any = true,
                Err(_) => this.net.drops.count(Discard::Overflow),
            }
        }
        if any {
            Self::leave(this);
        }
    }
}

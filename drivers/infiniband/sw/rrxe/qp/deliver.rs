// SPDX-License-Identifier: GPL-2.0

//! Delivery of received packets and frames to a QP.

use kernel::sync::ArcBorrow;
use rdma::net::skb::{Discard, Endpoints, Ingress, RxFrame, RxSkb};
use roce::{ids::Qpn, responder::check_management, wire::packet::Packet};

use crate::{
    device::stats,
    net::rx::RxPacket,
    qp::{arrivals::Arrivals, Qp},
};

impl Qp {
    /// Checks a packet before the QP receives it. Refuses packets that the QP's filter refuses
    /// (`qp/filter.rs`), and packets to QP1 that are not management datagrams, and counts them.
    /// `sender` is the number of the sending QP, if that is a QP of this host. Returns whether the
    /// packet is admitted. Any context up to softirq.
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
        // The QP of a user without CAP_NET_RAW cannot send with the Q_Key of QP1, but it can send
        // any other packet to QP1.
        if self.qpn == Qpn::GSI {
            checked = checked.and_then(|()| check_management(packet).map_err(stats::drop_counter));
        }
        let Err(reason) = checked else {
            return true;
        };
        self.device.counters.add(reason, 1);
        self.trace_drop(packet.bth.psn, reason);
        false
    }

    /// Receives a packet whose ICRC is right. The packet is taken in by a run in this context if
    /// softirqs of this CPU have time left for QPs of processes, else by a later run in a thread (a
    /// deferred run). QPs of kernel consumers run in this context always. The packet is taken from
    /// its place. Softirq.
    pub(crate) fn receive(this: ArcBorrow<'_, Self>, packet: &mut Option<RxPacket>) {
        let mut arrivals = Arrivals::with(&this.inbox, packet);
        if this.kernel_queue.is_some() {
            return Self::advance_with(this, &mut arrivals);
        }
        this.workqueues
            .softirq_time
            .spend(|| Self::advance_with(this, &mut arrivals));
        if packet.is_some() {
            this.keep(packet);
            Self::defer(this);
        }
    }

    /// Receives a packet whose ICRC is right, or which never left this host. A later run takes it
    /// in: a deferred run, or one in softirq for a QP of a kernel consumer. Used for packets that
    /// several QPs receive: runs in the caller's context would take too long. If the inbox is full,
    /// the packet is dropped and counted. Any context up to softirq.
    pub(crate) fn receive_later(this: ArcBorrow<'_, Self>, skb: RxSkb) {
        match this.inbox.push(skb) {
            Ok(()) => Self::defer(this),
            Err(skb) => this.net.drops.discard(skb, Discard::Overflow),
        }
    }

    /// Takes a packet or a burst from its place, and puts it into the inbox. If there is no room,
    /// it is dropped and counted.
    #[cold]
    #[inline(never)]
    pub(super) fn keep(&self, place: &mut Option<RxPacket>) {
        if let Some(packet) = place.take() {
            if let Err(skb) = self.inbox.push(packet.skb) {
                self.net.drops.discard(skb, Discard::Overflow);
            }
        }
    }

    /// Receives copies of frames. The copies are taken in by a deferred run, because the caller may
    /// hold the turn lock (`qp/turn.rs`) of another QP. A frame is lost for this QP if there is no
    /// room or no memory for its copy. Any context up to softirq.
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
            Self::defer(this);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Creation of a QP: its parts are created one by one, and the QP is published last.

use kernel::{
    new_work,
    prelude::*,
    sync::{atomic::Atomic, Arc},
    time::{hrtimer::HrTimer, Instant},
};
use rdma::{
    abi::{
        mmap::MmapEntries,
        replies::{QpReply, RingReply},
        ring::Ring,
    },
    net::{
        skb::{Backlog, FrameQueue, PayerBacklogs, SkbQueue},
        tx_cpu::TxCpu,
        tx_limit::{Beyond, TxLimit, TxLimits},
    },
    support::{
        error::unsupported,
        table::{LastLookup, Reservation},
    },
    verbs::qp::{QpCap, QpCreated, QpInit},
};
use roce::{
    ids::Qpn,
    qp::{Config, QpKind, SendWqe},
};

use super::{Qp, Waker};
use crate::{
    device::Device,
    doorbells::Doorbell,
    gsi::Gsi,
    limits::{
        self,
        accounts::{ObjectClaim, Payer, Threads},
        thread_permit::ThreadPermit,
    },
    net::netns::NetContext,
    provider::Rrxe,
    qp::{
        cached_state::CachedState,
        capacity::{grant, new_kernel_queue, new_ring},
        early::KeptPackets,
        engine::{new_replays, Core, Engine},
        error_poll::ErrorPoll,
        filter::Filter,
        flags::QpFlags,
        kernel_queue::KernelQueue,
        parked::Parked,
        peer::Peer,
        recv_queue::RecvQueue,
        recv_ring::RecvRing,
        send_queue::SendQueue,
        train_source::TrainSource,
        turn::Turn,
        wqe::Owner,
    },
    verbs::{context::Context, pd::Pd},
};

impl Qp {
    /// Creates a QP in RESET (`create_qp`), and publishes it in the table of QPs. `context` is that
    /// of the process that creates the QP. It is `None` for a kernel consumer, and for an XRC
    /// target of a process ([`payer`]).
    ///
    /// # Context
    ///
    /// Process context. Sleeps.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a GSI QP of a process, `EINVAL` for capacities beyond the limits, `ENOMEM`,
    /// `EIO` if the context is going away.
    pub(crate) fn create(
        device: &Arc<Device>,
        init: QpInit<Rrxe>,
        context: Option<&Arc<Context>>,
    ) -> Result<QpCreated<Self>> {
        let mmap_entries = context.map(|context| context.mmap_entries());
        if init.kind == QpKind::Gsi && mmap_entries.is_some() {
            return Err(unsupported());
        }
        let cap = grant(&init.cap)?;
        let claim = device.qps.claim()?;
        let rings = Rings::new(&init, &cap, mmap_entries)?;
        let doorbells = context.and_then(|context| context.doorbells());
        let slot = doorbells.and_then(|doorbells| doorbells.reserve());
        let reply = rings.reply(slot.as_ref().map(|slot| slot.id()));
        let doorbell = doorbells
            .zip(slot.as_ref())
            .map(|(doorbells, slot)| Doorbell::new(doorbells, slot.id(), &rings.send));
        let kernel_queue = match mmap_entries {
            None => rings.kernel_queue(init.kind)?,
            Some(_) => None,
        };
        let owner = match mmap_entries {
            None => Owner::Kernel,
            Some(_) => Owner::User,
        };
        let pd = domain(&init)?;
        let net = device.link.context().clone();
        let backlog = net.backlog.clone();
        let tx_limits = net.tx_limits.clone();
        let payer = payer(device, init.kind, context)?;
        let backlogs = payer
            .as_ref()
            .map_or_else(PayerBacklogs::default, |payer| payer.backlogs());
        let frames = frames(init.kind, &backlog, &backlogs)?;
        let table = net.clone();
        let (qpn, reservation) = reserve(&table, init.kind)?;
        let waker = Waker {
            net: net.clone(),
            qpn,
            index: reservation.id(),
        };
        let index = reservation.id();
        let cap = rings.cap;
        let object = ObjectClaim::new(payer.as_ref())?;
        let deferred_permit = ThreadPermit::new(Threads::Deferred, payer)?;
        if init.kind == QpKind::Gsi {
            init.recv_cq.iter().for_each(|cq| cq.serve_gsi());
        }
        let core = new_core(device, &init, qpn, rings, owner, pd.clone())?;
        let qp = Arc::pin_init(
            try_pin_init!(Self {
                qpn,
                index,
                device: device.clone(),
                _claim: claim,
                _object: object,
                net,
                pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                tx_limit: tx_limit(init.kind, waker, &tx_limits)?,
                inbox <- SkbQueue::new(limits::INBOX, backlog, backlogs),
                train_source <- TrainSource::new(),
                filter: Filter::new(init.kind),
                handle: init.upcall.handle(),
                upcall: init.upcall,
                kernel_queue,
                cached_state: CachedState::new(),
                flags: QpFlags::new(frames.is_some()),
                frames,
                workqueues: device.workqueues.clone(),
                doorbell,
                cap,
                signal_all: init.signal_all,
                blocks_loopback: init.block_loopback,
                epoch: Instant::now(),
                turn <- Turn::new(Some(core)),
                timer <- HrTimer::new(),
                work <- new_work!("Qp::work"),
                hop <- new_work!("Qp::hop"),
                hops: Atomic::new(0),
                deferred <- new_work!("Qp::deferred"),
                fault <- new_work!("Qp::fault"),
                deferred_permit <- deferred_permit,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        qp.add_to_cqs()?;
        reservation.publish(qp.clone());
        if let Some(slot) = slot {
            slot.publish(qp.clone());
        }
        // Checked after the QP is in the lists of its CQs and in the table of QPs. If a CQ
        // overflows meanwhile, either this check sees the overflow, or the CQ finds the QP.
        if qp.cqs().any(|cq| cq.is_overflowed()) {
            Self::set_error(qp.as_arc_borrow());
        }
        Ok(QpCreated {
            qp,
            qpn,
            cap,
            reply,
        })
    }
}

impl Qp {
    /// Adds the QP to the lists of its CQs, before packets find it. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. In that case the QP is in no list.
    fn add_to_cqs(&self) -> Result {
        for cq in self.cqs() {
            if let Err(error) = cq.add_qp(self.qpn, self.index) {
                self.remove_from_cqs();
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Rings of a QP.
struct Rings {
    /// Send ring.
    send: Ring,
    /// Receive ring. `None` if the QP has no receive queue of its own.
    recv: Option<Ring>,
    /// Capacities of the rings.
    cap: QpCap,
}

impl Rings {
    /// Creates rings of at least the capacities `cap`. `mmap_entries` lets the process map the
    /// rings. It is `None` if no process maps them.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EIO` if the process's context is going away.
    fn new(
        init: &QpInit<Rrxe>,
        cap: &QpCap,
        mmap_entries: Option<&Arc<MmapEntries>>,
    ) -> Result<Self> {
        let size = SendQueue::element_size(cap.max_send_sge, cap.max_inline);
        let send = new_ring(mmap_entries, size, cap.max_send_wr)?;
        let recv = if init.srq.is_none() && init.kind.has_receives() {
            let size = RecvRing::element_size(cap.max_recv_sge);
            Some(new_ring(mmap_entries, size, cap.max_recv_wr)?)
        } else {
            None
        };
        let cap = QpCap {
            max_send_wr: send.capacity(),
            max_recv_wr: recv.as_ref().map_or(0, Ring::capacity),
            max_recv_sge: recv.as_ref().map_or(0, |_| cap.max_recv_sge),
            ..*cap
        };
        Ok(Self { send, recv, cap })
    }

    /// Returns the rings' mmap offsets and the QP's `slot` of the doorbell page (`doorbells.rs`),
    /// for the response to the process (`struct ib_udata`).
    fn reply(&self, slot: Option<u32>) -> QpReply {
        QpReply {
            slot,
            rq: self
                .recv
                .as_ref()
                .map_or_else(RingReply::default, Ring::mmap_reply),
            sq: self.send.mmap_reply(),
        }
    }

    /// Creates the kernel queue of a kernel consumer's QP. An XRC target has none, because its
    /// creator posts nothing to it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn kernel_queue(&self, kind: QpKind) -> Result<Option<Pin<KBox<KernelQueue>>>> {
        match kind {
            QpKind::XrcTgt => Ok(None),
            _ => new_kernel_queue(&self.send, self.recv.as_ref(), &self.cap).map(Some),
        }
    }
}

/// Returns the payer, whose accounts count the QP's threads and waiting packets. `None` for a
/// kernel consumer.
///
/// ib_core creates XRC targets without the user's context (`ib_create_qp_user()`, verbs.c), but the
/// calling process requested them. So the calling process pays: no kernel consumer creates XRC
/// targets.
///
/// # Errors
///
/// `ENOMEM`.
fn payer(
    device: &Device,
    kind: QpKind,
    context: Option<&Arc<Context>>,
) -> Result<Option<Arc<Payer>>> {
    Ok(match (context, kind) {
        (Some(context), _) => Some(context.payer().clone()),
        (None, QpKind::XrcTgt) => {
            let payer = Payer::current(&device.workqueues.accounts)?;
            Some(Arc::new(payer, GFP_KERNEL_ACCOUNT)?)
        }
        (None, _) => None,
    })
}

/// Creates the limit on packets in flight for a QP of this kind, and adds it to `all`, the tx
/// limits of the module.
///
/// # Errors
///
/// `ENOMEM`.
fn tx_limit(kind: QpKind, waker: Waker, all: &Arc<TxLimits>) -> Result<TxLimit> {
    // Packets to one destination may stay in a queue of this host forever. If a GSI QP waited for
    // them, or dropped further packets, this destination would stop all connection management of
    // the device. It would also stop the removal of the device, which waits for each send of
    // `ib_mad` to complete (`ib_unregister_mad_agent()`, mad.c).
    let (limit, beyond) = match kind {
        QpKind::Gsi => (limits::GSI_PACKETS_IN_FLIGHT, Beyond::SendsAfter(0)),
        // Packets to one destination that stay in a queue must not stop the QP's packets to other
        // destinations.
        QpKind::Ud | QpKind::RawPacket => {
            let after = Beyond::SendsAfter(limits::DATAGRAM_AGE_LIMIT_MS);
            (limits::PACKETS_IN_FLIGHT, after)
        }
        _ => (limits::PACKETS_IN_FLIGHT, Beyond::Waits),
    };
    TxLimit::new(limit, beyond, waker, all)
}

/// Returns the QP's protection domain. The domain of an XRC target is that of its XRC domain.
///
/// # Errors
///
/// `EINVAL` if there is neither a protection domain nor an XRC domain.
fn domain(init: &QpInit<Rrxe>) -> Result<Arc<Pd>> {
    match (&init.pd, &init.xrcd) {
        (Some(pd), _) => Ok(pd.clone()),
        (None, Some(xrcd)) => Ok(xrcd.pd().clone()),
        (None, None) => Err(EINVAL),
    }
}

/// Creates the queue of received frames of a raw packet QP. Returns `None` for other QPs.
///
/// # Errors
///
/// `ENOMEM`.
fn frames(
    kind: QpKind,
    backlog: &Arc<Backlog>,
    backlogs: &PayerBacklogs,
) -> Result<Option<Pin<KBox<FrameQueue>>>> {
    if kind != QpKind::RawPacket {
        return Ok(None);
    }
    let queue = FrameQueue::new(limits::FRAMES, backlog.clone(), backlogs.clone());
    Ok(Some(KBox::pin_init(queue, GFP_KERNEL_ACCOUNT)?))
}

/// Reserves a QP number and an index in the namespace's table of QPs. The index equals the number,
/// except for GSI QPs.
///
/// # Errors
///
/// `ENOMEM`, also if the table is full.
fn reserve(net: &NetContext, kind: QpKind) -> Result<(Qpn, Reservation<'_, Qp>)> {
    if kind == QpKind::Gsi {
        let reservation = net.qps(Qpn::GSI).reserve(0..=limits::MAX_QP)?;
        return Ok((Qpn::GSI, reservation));
    }
    let reservation = net
        .qps(Qpn::default())
        .reserve_random(limits::QPN_RANGE, limits::QPN_SCATTER)?;
    Ok((Qpn::new(reservation.id()), reservation))
}

/// Creates the state that the turn lock protects.
///
/// # Errors
///
/// `ENOMEM`.
fn new_core(
    device: &Device,
    init: &QpInit<Rrxe>,
    qpn: Qpn,
    rings: Rings,
    owner: Owner,
    pd: Arc<Pd>,
) -> Result<KBox<Core>> {
    let Rings { send, recv, cap } = rings;
    let config = Config {
        kind: init.kind,
        qpn,
        has_srq: init.srq.is_some(),
        port_mtu: device.active_mtu(),
        fills_gaps: device.link.options().fills_gaps,
    };
    let sq = SendQueue::new(
        init.kind,
        send,
        cap.max_send_sge,
        cap.max_inline,
        init.signal_all,
        owner,
    )?;
    let rq = match (recv, &init.srq, &init.xrcd) {
        (Some(ring), ..) => RecvQueue::own(RecvRing::new(ring), cap.max_recv_sge)?,
        (None, Some(srq), _) => RecvQueue::shared(srq.clone())?,
        (None, None, Some(xrcd)) => RecvQueue::of_domain(xrcd.clone())?,
        (None, None, None) => RecvQueue::nothing()?,
    };
    let gsi = match init.kind {
        QpKind::Gsi => Some(KBox::new(Gsi::new()?, GFP_KERNEL)?),
        _ => None,
    };
    // The core is initialized in place, because it takes too much of the kernel stack.
    let window = new_window(sq.window())?;
    let replays = new_replays(0)?;
    let core = init!(Core {
        engine: Engine::new(config, window, replays),
        sq,
        rq,
        pd,
        peer: Peer::new(init.kind),
        timer: None,
        own_region: LastLookup::new(),
        peer_region: LastLookup::new(),
        local_qp: LastLookup::new(),
        trains: Default::default(),
        early: KeptPackets::default(),
        parked: Parked::default(),
        error_poll: ErrorPoll::new(),
        closed: false,
        postponed_runs: 0,
        tx_cpu: TxCpu::new(),
        counters: device.counters.clone(),
        gsi,
    });
    KBox::init(core, GFP_KERNEL_ACCOUNT)
}

/// Creates storage for the `count` send WQEs that an engine takes at a time. Process context.
///
/// # Errors
///
/// `ENOMEM`.
fn new_window(count: u32) -> Result<KVVec<SendWqe>> {
    Ok(KVVec::from_elem(
        SendWqe::default(),
        count as usize,
        GFP_KERNEL_ACCOUNT,
    )?)
}

// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues (SRQs).
//!
//! Several QPs take WQEs from an SRQ at the same time, each with its own turn lock (`qp/turn.rs`)
//! held. So an SRQ has a lock of its own. Under this lock, only the lock of kernel consumers that
//! post is taken. A QP copies the WQE that it takes to memory of its own ([`HeldSges`]).
//! Taking a WQE may trigger an event. [`Srq::notify`] raises the event later, outside all locks.

use core::mem::take;

use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use rdma::{
    abi::{mmap::MmapEntries, post::RecvList, replies::SrqReply, ring::Ring},
    new_bh_spinlock,
    support::{error::unsupported, sync::BhSpinLock},
    verbs::{
        srq::{SrqAttr, SrqCreated, SrqInit, SrqModify, XrcInit},
        udata::RingChange,
        upcall::SrqUpcall,
    },
};
use roce::{host::Fetch, wr::RecvWr};

use crate::{
    device::Device,
    limits::{self, accounts::ObjectClaim},
    provider::Rrxe,
    qp::{
        kernel_queue::KernelRecvQueue,
        recv_ring::{HeldSges, RecvRing},
    },
    verbs::{
        cq::Cq,
        pd::{Pd, PdId},
        xrcd::Xrcd,
    },
};

/// Maximum number of WQEs that are posted during a resize and still move to the new ring. The
/// provider library lets no thread of the process post during a resize.
const LATE_POSTS: u32 = 256;

/// A shared receive queue.
#[pin_data]
pub(crate) struct Srq {
    /// Claim on the object limit of the payer.
    object: ObjectClaim,
    /// SRQ number.
    number: u32,
    /// Maximum number of SGEs of a WQE.
    max_sge: u32,
    /// Device of the queue.
    device: Arc<Device>,
    /// Protection domain of the posted SGEs.
    pd: Arc<Pd>,
    /// XRC domain whose target QPs take WQEs from the queue, and CQ of their completions. `None`
    /// for an ordinary SRQ.
    xrc: Option<XrcInit<Rrxe>>,
    /// Callbacks of ib_core for the events of the queue.
    upcall: SrqUpcall,
    /// Posting side of a queue of the kernel; `None` for a process's queue.
    kernel_queue: Option<Pin<KBox<KernelRecvQueue>>>,
    /// Mutex that admits one change of capacity or limit at a time.
    #[pin]
    change: Mutex<()>,
    /// State of the queue.
    #[pin]
    state: BhSpinLock<State>,
}

/// The mutable state of an SRQ.
struct State {
    /// Ring; `None` once the queue is destroyed.
    ring: Option<RecvRing>,
    /// Armed limit: an event is due when fewer WQEs than this are left. Zero if no limit is armed.
    limit: u32,
    /// Whether the process has written an invalid index to the ring. Then the queue is in error.
    broken: bool,
    /// Whether the event `IB_EVENT_SRQ_LIMIT_REACHED` is due.
    limit_due: bool,
    /// Whether the event `IB_EVENT_SRQ_ERR` is due.
    error_due: bool,
}

impl State {
    /// Arms the limit, and returns whether its event is due. If fewer WQEs are posted already, the
    /// event is due at once. It could not become due later if no WQE were left to be taken.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the ring holds an invalid index, or the queue is destroyed.
    fn arm(&mut self, limit: u32) -> Result<bool> {
        let posted = self.ring.as_ref().and_then(RecvRing::posted);
        let posted = posted.ok_or(EINVAL)?;
        self.limit = limit;
        Ok(self.check_limit(posted))
    }

    /// Compares the number of WQEs that are left with the limit. Returns whether the event is due:
    /// once for each time that the limit was armed (IBTA 1.x §10.2.9.4).
    fn check_limit(&mut self, left: u32) -> bool {
        let reached = left < self.limit;
        if reached {
            self.limit = 0;
            self.limit_due = true;
        }
        reached
    }

    /// Sets the queue to the error state for good, because the process has written an invalid index
    /// to the ring.
    fn fail(&mut self) {
        self.broken = true;
        self.error_due = true;
    }
}

/// The result of taking a WQE.
pub(crate) struct Taken {
    /// WQE, if one was posted.
    pub(crate) wr: Fetch<RecvWr>,
    /// Whether the caller must call [`Srq::notify`].
    pub(crate) notify: bool,
    /// Whether the queue is in error or destroyed. A QP that needs a WQE of it then enters the
    /// error state, too.
    pub(crate) broken: bool,
}

impl Srq {
    /// Creates a queue that the process of `mmap_entries`, or a kernel consumer if that is `None`,
    /// fills. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the number of WQEs is zero or more than [`limits::MAX_SRQ_WR`], or the number of
    /// SGEs is more than [`limits::MAX_SRQ_SGE`]; `ENOMEM`.
    pub(crate) fn create(
        pd: &Arc<Pd>,
        init: SrqInit,
        xrc: Option<XrcInit<Rrxe>>,
        mmap_entries: Option<&Arc<MmapEntries>>,
    ) -> Result<SrqCreated<Self>> {
        check_capacity(init.max_wr)?;
        if init.max_sge > limits::MAX_SRQ_SGE {
            return Err(EINVAL);
        }
        let object = pd.claim_object()?;
        let max_sge = init.max_sge.max(1);
        let size = RecvRing::element_size(max_sge);
        let (ring, kernel_queue) = match mmap_entries {
            Some(mmap_entries) => (Ring::new(mmap_entries, size, init.max_wr)?, None),
            None => {
                let ring = Ring::unmapped(size, init.max_wr)?;
                let kernel_queue = KernelRecvQueue::new(&ring, max_sge)?;
                (ring, Some(kernel_queue))
            }
        };
        let (max_wr, reply) = (ring.capacity(), ring.mmap_reply());
        let device = pd.device().clone();
        let table = device.clone();
        let reservation = table
            .srqs
            .reserve_random(limits::SRQN_RANGE, limits::QPN_SCATTER)?;
        let number = reservation.id();
        let srq = Arc::pin_init(
            pin_init!(Self {
                object,
                number,
                max_sge,
                device,
                pd: pd.clone(),
                xrc,
                upcall: init.upcall,
                kernel_queue,
                change <- new_mutex!((), "rrxe_srq_change"),
                state <- new_bh_spinlock!(State {
                    ring: Some(RecvRing::new(ring)),
                    limit: 0,
                    broken: false,
                    limit_due: false,
                    error_due: false,
                }, "rrxe_srq"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        reservation.publish(srq.clone());
        Ok(SrqCreated {
            srq,
            max_wr,
            max_sge,
            reply: SrqReply {
                ring: reply,
                number,
            },
        })
    }

    /// Returns the maximum number of SGEs of a WQE.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns the XRC domain to which the queue belongs.
    pub(crate) fn xrcd(&self) -> Option<&Xrcd> {
        self.xrc.as_ref().map(|xrc| &*xrc.xrcd)
    }

    /// Returns the CQ of the completions, if the queue belongs to an XRC domain.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|xrc| &xrc.cq)
    }

    /// Returns the protection domain of the posted SGEs.
    pub(crate) fn pd(&self) -> PdId {
        self.pd.id()
    }

    /// Returns whether the queue was not destroyed yet. Any context up to softirq.
    pub(crate) fn is_in_service(&self) -> bool {
        self.state.lock().ring.is_some()
    }

    /// Takes the next posted WQE. Its SGEs are copied to `held`. Any context up to softirq.
    pub(crate) fn take(&self, held: &mut HeldSges) -> Taken {
        let nothing = |notify, broken| Taken {
            wr: Fetch::Empty,
            notify,
            broken,
        };
        let mut state = self.state.lock();
        if state.broken {
            return nothing(false, true);
        }
        let Some(ring) = &mut state.ring else {
            return nothing(false, true);
        };
        match ring.posted() {
            None => {
                state.fail();
                nothing(true, true)
            }
            Some(0) => nothing(false, false),
            Some(posted) => {
                let wr = ring.take_first(held);
                Taken {
                    wr,
                    notify: state.check_limit(posted.wrapping_sub(1)),
                    broken: false,
                }
            }
        }
    }

    /// Raises the due events. Any context up to softirq, outside all locks.
    pub(crate) fn notify(&self) {
        let (limit, error) = {
            let mut state = self.state.lock();
            (take(&mut state.limit_due), take(&mut state.error_due))
        };
        let claim = || self.object.payer()?.claim_unread_async_events().ok();
        if limit {
            self.upcall.limit_reached(claim);
        }
        if error {
            self.upcall.failed(claim);
        }
    }

    /// Posts receives of a kernel consumer. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the queue is a process's; those of [`KernelRecvQueue::post`].
    pub(crate) fn post_recv(&self, requests: &mut RecvList<'_>) -> Result {
        let kernel_queue = self.kernel_queue.as_ref().ok_or(EINVAL)?;
        kernel_queue.post(requests, || true)
    }

    /// Sets capacity and limit: both, or on error neither. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the capacity is zero, more than [`limits::MAX_SRQ_WR`], less than the number of
    /// posted WQEs or less than the limit; if the limit is more than the capacity; if the queue is
    /// in error. `EBUSY` if the owner posts more than [`LATE_POSTS`] WQEs meanwhile, or withdraws
    /// WQEs that were taken. `EOPNOTSUPP`, `ENOMEM`, `EFAULT` as for [`Self::new_ring`].
    pub(crate) fn modify(&self, modify: &SrqModify, call: Option<&RingChange<'_, Rrxe>>) -> Result {
        // Before the lock, because this writes the location of the ring to the process's memory.
        // The process can delay the page fault of that memory for any time.
        let ring = match modify.max_wr {
            Some(max_wr) => Some(self.new_ring(max_wr, call)?),
            None => None,
        };
        let _changing = self.change.lock();
        let current = self.query()?;
        let max_wr = modify.max_wr.unwrap_or(current.max_wr);
        if modify.limit.unwrap_or(current.limit) > max_wr {
            return Err(EINVAL);
        }
        let reached = match (ring, modify.limit) {
            (Some(ring), limit) => self.resize(ring, limit)?,
            (None, Some(limit)) => self.state.lock().arm(limit)?,
            (None, None) => false,
        };
        if reached {
            self.notify();
        }
        Ok(())
    }

    /// Moves the posted WQEs to a ring of another size, and arms the limit. Returns whether an
    /// event is due. The caller holds [`Self::change`].
    ///
    /// Most WQEs are copied without the queue's lock, while QPs continue to take WQEs.
    fn resize(&self, ring: Ring, limit: Option<u32>) -> Result<bool> {
        let shared = ring.share();
        let posted = match &self.state.lock().ring {
            Some(ring) => ring.snapshot(),
            None => return Err(EINVAL),
        };
        let mut next = RecvRing::with_copy(ring, &posted)?;
        let (old, reached) = {
            let mut state = self.state.lock();
            let old = state.ring.as_ref().ok_or(EINVAL)?;
            let mut succeed = || next.succeed(old, &posted, LATE_POSTS);
            match &self.kernel_queue {
                Some(kernel_queue) => kernel_queue.move_to(shared, succeed)?,
                None => succeed()?,
            }
            let reached = match limit {
                // This fails only for an old ring with an invalid index, which only a process can
                // have. Then nothing has changed. A kernel consumer posts to the new ring already,
                // but this never fails for it.
                Some(limit) => state.arm(limit)?,
                None => false,
            };
            (state.ring.replace(next), reached)
        };
        // Outside the lock, because this withdraws the ring's mapping.
        drop(old);
        Ok(reached)
    }

    /// Creates a ring of `max_wr` WQEs, and tells the process of `call` where it is. For a queue of
    /// the kernel, `call` is `None`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `max_wr` is zero or more than [`limits::MAX_SRQ_WR`]; `EOPNOTSUPP` if `call`
    /// doesn't fit the queue's owner; `ENOMEM`, `EFAULT`.
    fn new_ring(&self, max_wr: u32, call: Option<&RingChange<'_, Rrxe>>) -> Result<Ring> {
        check_capacity(max_wr)?;
        let size = RecvRing::element_size(self.max_sge);
        match (call, &self.kernel_queue) {
            (Some(call), None) => {
                let ring = Ring::new(call.mmap_entries(), size, max_wr)?;
                call.announce(ring.mmap_reply())?;
                Ok(ring)
            }
            (None, Some(_)) => Ring::unmapped(size, max_wr),
            _ => Err(unsupported()),
        }
    }

    /// Returns the number of posted WQEs that were not taken yet. Process context.
    pub(crate) fn posted(&self) -> u32 {
        let state = self.state.lock();
        state.ring.as_ref().and_then(RecvRing::posted).unwrap_or(0)
    }

    /// Returns the capacities and the armed limit. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the queue is in error or destroyed.
    pub(crate) fn query(&self) -> Result<SrqAttr> {
        let state = self.state.lock();
        match &state.ring {
            Some(ring) if !state.broken => Ok(SrqAttr {
                max_wr: ring.capacity(),
                max_sge: self.max_sge,
                limit: state.limit,
            }),
            _ => Err(EINVAL),
        }
    }

    /// Destroys the queue. Process context.
    ///
    /// ib_core destroys no queue with which an existing QP was created. An XRC target QP may have
    /// taken a WQE. After this call, the QP writes nothing to that WQE's memory, except the rest of
    /// a packet that it copies during the call.
    pub(crate) fn destroy(&self) {
        drop(self.device.srqs.remove(self.number));
        let ring = self.state.lock().ring.take();
        // Outside the lock, because this withdraws the ring's mapping.
        drop(ring);
    }
}

/// Checks that an SRQ may have `max_wr` WQEs.
///
/// # Errors
///
/// `EINVAL` if it may not.
fn check_capacity(max_wr: u32) -> Result {
    if max_wr == 0 || max_wr > limits::MAX_SRQ_WR {
        return Err(EINVAL);
    }
    Ok(())
}

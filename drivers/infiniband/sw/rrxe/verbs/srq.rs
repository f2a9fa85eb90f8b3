// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! Any number of QPs take from one at a time, each under its own turn; so a queue has a lock of its
//! own, under which only that of the kernel's posters is taken. What a QP has taken it keeps itself. The events that taking
//! brings about are raised later, outside all locks, by [`Srq::notify`].

use core::mem::take;

use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use rdma::{
    abi::{mmap::Mappings, post::RecvList, ring::Ring},
    new_bh_spinlock,
    support::{error::unsupported, sync::BhSpinLock},
    verbs::{
        srq::{SrqAttr, SrqCreated, SrqInit, SrqModify, SrqReply, XrcInit},
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
        recv_ring::{Held, RecvRing},
    },
    verbs::{
        cq::Cq,
        pd::{Pd, PdId},
        xrcd::Xrcd,
    },
};

/// WQEs that may be posted while a queue is resized. A library keeps its posters out meanwhile.
const LATE_POSTS: u32 = 256;

/// A shared receive queue.
#[pin_data]
pub(crate) struct Srq {
    object: ObjectClaim,
    number: u32,
    max_sge: u32,
    device: Arc<Device>,
    pd: Arc<Pd>,
    /// The XRC domain whose targets take from it, and where completions of that go.
    xrc: Option<XrcInit<Rrxe>>,
    upcall: SrqUpcall,
    /// How the kernel posts, if it is the kernel's.
    kernel_queue: Option<Pin<KBox<KernelRecvQueue>>>,
    /// One change at a time.
    #[pin]
    change: Mutex<()>,
    #[pin]
    state: BhSpinLock<State>,
}

struct State {
    /// `None` once destroyed.
    ring: Option<RecvRing>,
    /// An event is due when fewer WQEs than this are left; zero for never.
    limit: u32,
    /// The ring makes no sense any more.
    broken: bool,
    /// To be raised: the event of the limit, …
    limit_due: bool,
    /// … and that of the error.
    error_due: bool,
}

impl State {
    /// Arms the limit. If fewer WQEs are there already, its event is due at once: it could not come
    /// later when none are left to be taken. Returns whether it is.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the queue is in error.
    fn arm(&mut self, limit: u32) -> Result<bool> {
        let posted = self.ring.as_ref().and_then(RecvRing::posted);
        let posted = posted.ok_or(EINVAL)?;
        self.limit = limit;
        Ok(self.check_limit(posted))
    }

    /// Takes note of how many WQEs are left. Returns whether an event is due: one for each time that
    /// the limit was set (IBTA 1.x §10.2.9.4).
    fn check_limit(&mut self, left: u32) -> bool {
        let reached = left < self.limit;
        if reached {
            self.limit = 0;
            self.limit_due = true;
        }
        reached
    }

    /// The process left an index in the ring that is none. The queue is out of use for good.
    fn fail(&mut self) {
        self.broken = true;
        self.error_due = true;
    }
}

/// What came of taking a WQE.
pub(crate) struct Taken {
    pub(crate) wr: Fetch<RecvWr>,
    /// [`Srq::notify`] is to be called.
    pub(crate) notify: bool,
    /// The queue is in error, and so is who needs it.
    pub(crate) broken: bool,
}

impl Srq {
    /// Makes a queue that the process of `mappings`, or the kernel, fills. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for capacities of zero WQEs or beyond the limits, `ENOMEM`.
    pub(crate) fn create(
        pd: &Arc<Pd>,
        init: SrqInit,
        xrc: Option<XrcInit<Rrxe>>,
        mappings: Option<&Arc<Mappings>>,
    ) -> Result<SrqCreated<Self>> {
        check_capacity(init.max_wr)?;
        if init.max_sge > limits::MAX_SRQ_SGE {
            return Err(EINVAL);
        }
        let object = pd.claim_object()?;
        let max_sge = init.max_sge.max(1);
        let size = RecvRing::element_size(max_sge);
        let (ring, kernel_queue) = match mappings {
            Some(mappings) => (Ring::new(mappings, size, init.max_wr)?, None),
            None => {
                let ring = Ring::unmapped(size, init.max_wr)?;
                let kernel_queue = KernelRecvQueue::new(&ring, max_sge)?;
                (ring, Some(kernel_queue))
            }
        };
        let (max_wr, reply) = (ring.capacity(), ring.mmap_reply());
        let device = pd.device().clone();
        let table = device.clone();
        let place = table
            .srqs
            .reserve_random(limits::SRQN_RANGE, limits::QPN_SCATTER)?;
        let number = place.id();
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
        place.publish(srq.clone());
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

    /// SGEs of a WQE.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The XRC domain to which it belongs.
    pub(crate) fn xrcd(&self) -> Option<&Xrcd> {
        self.xrc.as_ref().map(|xrc| &*xrc.xrcd)
    }

    /// Where completions go if it belongs to an XRC domain.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|xrc| &xrc.cq)
    }

    /// The protection domain of what is posted.
    pub(crate) fn pd(&self) -> PdId {
        self.pd.id()
    }

    /// Whether it was not destroyed yet. Any context.
    pub(crate) fn is_in_service(&self) -> bool {
        self.state.lock().ring.is_some()
    }

    /// Takes the next posted WQE. Any context.
    pub(crate) fn take(&self, held: &mut Held) -> Taken {
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

    /// Raises the events that are due. Any context, outside all locks.
    pub(crate) fn notify(&self) {
        let (limit, error) = {
            let mut state = self.state.lock();
            (take(&mut state.limit_due), take(&mut state.error_due))
        };
        let claim = || self.object.payer()?.claim_async_events().ok();
        if limit {
            self.upcall.limit_reached(claim);
        }
        if error {
            self.upcall.failed(claim);
        }
    }

    /// Posts receives of the kernel. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is a process's; those of [`KernelRecvQueue::post`].
    pub(crate) fn post_recv(&self, requests: &mut RecvList<'_>) -> Result {
        let kernel_queue = self.kernel_queue.as_ref().ok_or(EINVAL)?;
        kernel_queue.post(requests, || true)
    }

    /// Sets capacity and limit: both, or on error neither. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a capacity of zero, beyond the limits, below what is posted or below the limit
    /// that is set; for a limit beyond the capacity; when the queue is in error. `ENOMEM`, `EFAULT`.
    /// `EBUSY` when its owner goes on posting.
    pub(crate) fn modify(&self, modify: &SrqModify, call: Option<&RingChange<'_, Rrxe>>) -> Result {
        // Before the lock: the process is told of the ring, and may take as long as it likes to have that memory.
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

    /// Moves what is posted to a ring of another size, under [`Self::change`], and arms the limit. Returns whether
    /// an event is due.
    ///
    /// Most of it is copied without the lock, while QPs go on taking.
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
                // A ring that the poster has left is the kernel's, which nobody breaks.
                Some(limit) => state.arm(limit)?,
                None => false,
            };
            (state.ring.replace(next), reached)
        };
        // Outside the lock: this withdraws its mapping.
        drop(old);
        Ok(reached)
    }

    /// A ring for as many WQEs: one that the process of `call` is told of, or the kernel's.
    fn new_ring(&self, max_wr: u32, call: Option<&RingChange<'_, Rrxe>>) -> Result<Ring> {
        check_capacity(max_wr)?;
        let size = RecvRing::element_size(self.max_sge);
        match (call, &self.kernel_queue) {
            (Some(call), None) => {
                let ring = Ring::new(call.mappings(), size, max_wr)?;
                call.announce(ring.mmap_reply())?;
                Ok(ring)
            }
            (None, Some(_)) => Ring::unmapped(size, max_wr),
            _ => Err(unsupported()),
        }
    }

    /// WQEs posted and not yet taken. Process context.
    pub(crate) fn posted(&self) -> u32 {
        let state = self.state.lock();
        state.ring.as_ref().and_then(RecvRing::posted).unwrap_or(0)
    }

    /// Capacities and the limit. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the queue is in error.
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

    /// Takes the queue out of service. Process context.
    ///
    /// ib_core destroys no queue with which a QP was made. An XRC target may have taken a WQE. It writes nothing to that WQE
    /// afterwards; only a packet that it copies during this call may land after it.
    pub(crate) fn destroy(&self) {
        drop(self.device.srqs.remove(self.number));
        let ring = self.state.lock().ring.take();
        // Outside the lock: this withdraws its mapping.
        drop(ring);
    }
}

fn check_capacity(max_wr: u32) -> Result {
    if max_wr == 0 || max_wr > limits::MAX_SRQ_WR {
        return Err(EINVAL);
    }
    Ok(())
}

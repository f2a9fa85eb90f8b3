// SPDX-License-Identifier: GPL-2.0

//! Kernel queues: the producer side of the rings of a kernel consumer's QP. For a process, the
//! provider library (librxe or librrxe) is the producer.
//!
//! Work requests are written into the rings from which the QP takes them. The two locks exclude
//! posters from one another. They do not exclude the QP.

use kernel::prelude::*;
use rdma::{
    abi::{
        post::{RecvList, SendList, WqeRoom},
        ring::Ring,
    },
    new_irq_spinlock,
    support::sync::IrqSpinLock,
};
use roce::qp::QpState;

use crate::{provider::Rrxe, qp::cached_state::CachedState};

/// Producers of the rings of a kernel consumer's QP.
#[pin_data]
pub(crate) struct KernelQueue {
    /// Producer of the send ring.
    #[pin]
    send: IrqSpinLock<Producer>,
    /// Producer of the receive ring. `None` if the QP has no receive queue of its own.
    recv: Option<Pin<KBox<KernelRecvQueue>>>,
}

/// Producer of a receive ring, of a QP or of a shared receive queue.
#[pin_data]
pub(crate) struct KernelRecvQueue {
    /// Ring and next slot. Posters take the lock with interrupts disabled.
    #[pin]
    producer: IrqSpinLock<Producer>,
}

impl KernelRecvQueue {
    /// Creates the producer of `ring`, whose WQEs have up to `max_sge` SGEs. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(ring: &Ring, max_sge: u32) -> Result<Pin<KBox<Self>>> {
        let room = WqeRoom {
            max_sge,
            max_inline: 0,
        };
        let producer = Producer::new(ring, room);
        KBox::pin_init(
            pin_init!(Self {
                producer <- new_irq_spinlock!(producer, "rrxe_post_recv"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Replaces the ring by `ring`, after `prepare` has copied the posted WQEs to it. Posters wait
    /// meanwhile. Any context.
    ///
    /// # Errors
    ///
    /// The error of `prepare`. In that case nothing has changed.
    pub(crate) fn move_to(&self, ring: Ring, prepare: impl FnOnce() -> Result) -> Result {
        let mut producer = self.producer.lock();
        prepare()?;
        producer.next = ring.producer();
        // This does not free the old ring: the shared receive queue still holds a reference to it.
        producer.ring = ring;
        Ok(())
    }

    /// Posts receive work requests, as long as `admits` returns `true`. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `admits` returns `false` or a request is invalid, `ENOMEM` if the queue is full.
    pub(crate) fn post(&self, requests: &mut RecvList<'_>, admits: impl Fn() -> bool) -> Result {
        let mut producer = self.producer.lock();
        for request in requests {
            if !admits() {
                return Err(EINVAL);
            }
            producer.push(|ring, slot, room| request.write(ring, slot, room))?;
        }
        Ok(())
    }
}

/// Producer of one ring.
struct Producer {
    /// The ring, shared with the QP.
    ring: Ring,
    /// Number of SGEs and bytes of inline payload that a WQE has room for.
    room: WqeRoom,
    /// Next slot to write.
    next: u32,
}

impl Producer {
    /// Creates the producer of an empty ring.
    fn new(ring: &Ring, room: WqeRoom) -> Self {
        Self {
            ring: ring.share(),
            room,
            next: 0,
        }
    }

    /// Has `write` fill the next slot, and passes the slot to the QP.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the ring is full, and the error of `write`.
    fn push(&mut self, write: impl FnOnce(&Ring, u32, &WqeRoom) -> Result) -> Result {
        let after = self.ring.next(self.next);
        if after == self.ring.consumer() {
            return Err(ENOMEM);
        }
        write(&self.ring, self.next, &self.room)?;
        self.next = after;
        self.ring.publish_producer(after);
        Ok(())
    }
}

impl KernelQueue {
    /// Creates the kernel queue from the send ring `send` and from `recv`, the producer of the
    /// receive ring, if there is one. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        send: &Ring,
        room: WqeRoom,
        recv: Option<Pin<KBox<KernelRecvQueue>>>,
    ) -> Result<Pin<KBox<Self>>> {
        let send = Producer::new(send, room);
        KBox::pin_init(
            pin_init!(Self {
                send <- new_irq_spinlock!(send, "rrxe_post_send"),
                recv,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Posts send work requests. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` before RTS (IBTA 1.x §10.8.3.1) and for invalid requests, `ENOMEM` if the queue is
    /// full.
    pub(crate) fn post_send(
        &self,
        state: &CachedState,
        requests: &mut SendList<'_, Rrxe>,
    ) -> Result {
        let early = !state.takes_sends();
        let mut producer = self.send.lock();
        for request in requests {
            if early {
                return Err(EINVAL);
            }
            producer.push(|ring, slot, room| request.write(ring, slot, room))?;
        }
        Ok(())
    }

    /// Posts receive work requests. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` in RESET (IBTA 1.x §10.8.3.2) and if the QP has no receive queue of its own, and
    /// the errors of [`KernelRecvQueue::post`].
    pub(crate) fn post_recv(&self, state: &CachedState, requests: &mut RecvList<'_>) -> Result {
        // The list's position tells the caller which request failed: here the first one.
        let Some(recv) = &self.recv else {
            let _ = requests.next();
            return Err(EINVAL);
        };
        recv.post(requests, || !state.is(QpState::Reset))
    }
}

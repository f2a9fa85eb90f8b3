// SPDX-License-Identifier: GPL-2.0

//! The posting side of a QP of the kernel: what librxe is for a process.
//!
//! Requests are written into the rings where the QP finds them; the two locks exclude posters from one
//! another, not from the QP.

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

/// Rings of the kernel and their producers' places.
#[pin_data]
pub(crate) struct KernelQueue {
    #[pin]
    send: IrqSpinLock<Producer>,
    /// None where receives come from a shared receive queue.
    recv: Option<Pin<KBox<KernelRecvQueue>>>,
}

/// Posts receives to a ring.
#[pin_data]
pub(crate) struct KernelRecvQueue {
    #[pin]
    producer: IrqSpinLock<Producer>,
}

impl KernelRecvQueue {
    /// For WQEs of at most `max_sge` SGEs. Process context.
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

    /// Goes on with `ring`, which `prepare` fills with what is posted; nobody posts meanwhile. Any context.
    ///
    /// # Errors
    ///
    /// Those of `prepare`; then nothing has changed.
    pub(crate) fn move_to(&self, ring: Ring, prepare: impl FnOnce() -> Result) -> Result {
        let mut producer = self.producer.lock();
        prepare()?;
        producer.next = ring.producer();
        // Not the last that holds the old one.
        producer.ring = ring;
        Ok(())
    }

    /// Posts receives, while `admits` says that they may be. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they may not, and for requests that make no sense, `ENOMEM` when the queue is full.
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

/// The producer of one ring.
struct Producer {
    ring: Ring,
    room: WqeRoom,
    /// The next slot to write.
    next: u32,
}

impl Producer {
    fn new(ring: &Ring, room: WqeRoom) -> Self {
        Self {
            ring: ring.share(),
            room,
            next: 0,
        }
    }

    /// Has `write` fill the next slot, and hands it over.
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
    /// The posting side of a send ring and perhaps of a receive ring. Process context.
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

    /// Posts sends. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` before RTS (IBTA 1.x §10.8.3.1) and for requests that make no sense, `ENOMEM` when the queue
    /// is full.
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

    /// Posts receives. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` in RESET (IBTA 1.x §10.8.3.2) and where receives are shared; those of [`KernelRecvQueue::post`].
    pub(crate) fn post_recv(&self, state: &CachedState, requests: &mut RecvList<'_>) -> Result {
        // The request that can't be posted is the first.
        let Some(recv) = &self.recv else {
            let _ = requests.next();
            return Err(EINVAL);
        };
        recv.post(requests, || !state.is(QpState::Reset))
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The posting side of a QP of the kernel: what librxe is for a process.
//!
//! Requests are written into the rings where the QP finds them; the two locks exclude posters from one
//! another, not from the QP.

use kernel::{
    prelude::*,
    sync::atomic::{ordering, Atomic},
};
use rdma::{
    new_irq_spinlock,
    post::{RecvList, SendList, WqeRoom},
    ring::Ring,
    sync::IrqSpinLock,
};
use roce::qp::QpState;

use crate::provider::Rrxe;

/// Rings of the kernel and their producers' places.
#[pin_data]
pub(crate) struct Poster {
    /// The QP's state when it was last looked at, by its discriminant.
    state: Atomic<u32>,
    #[pin]
    send: IrqSpinLock<Producer>,
    #[pin]
    recv: IrqSpinLock<Producer>,
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

impl Poster {
    /// The posting side of the two rings. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(send: (&Ring, WqeRoom), recv: (&Ring, WqeRoom)) -> Result<Pin<KBox<Self>>> {
        let (send, recv) = (Producer::new(send.0, send.1), Producer::new(recv.0, recv.1));
        KBox::pin_init(
            pin_init!(Self {
                state: Atomic::new(QpState::Reset as u32),
                send <- new_irq_spinlock!(send, "rrxe_post_send"),
                recv <- new_irq_spinlock!(recv, "rrxe_post_recv"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Notes the state that the QP is in now.
    pub(crate) fn note_state(&self, state: QpState) {
        self.state.store(state as u32, ordering::Relaxed);
    }

    fn is_in(&self, state: QpState) -> bool {
        self.state.load(ordering::Relaxed) == state as u32
    }

    /// Posts sends. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` before RTS (IBTA 1.x §10.8.3.1) and for requests that make no sense, `ENOMEM` when the queue
    /// is full.
    pub(crate) fn post_send(&self, requests: &mut SendList<'_, Rrxe>) -> Result {
        let early = [QpState::Reset, QpState::Init, QpState::Rtr]
            .into_iter()
            .any(|state| self.is_in(state));
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
    /// `EINVAL` in RESET (IBTA 1.x §10.8.3.2) and for requests that make no sense, `ENOMEM` when the queue
    /// is full.
    pub(crate) fn post_recv(&self, requests: &mut RecvList<'_>) -> Result {
        let mut producer = self.recv.lock();
        for request in requests {
            if self.is_in(QpState::Reset) {
                return Err(EINVAL);
            }
            producer.push(|ring, slot, room| request.write(ring, slot, room))?;
        }
        Ok(())
    }

    /// Receives posted now are flushed, not filled.
    pub(crate) fn flushes(&self) -> bool {
        self.is_in(QpState::Err)
    }
}

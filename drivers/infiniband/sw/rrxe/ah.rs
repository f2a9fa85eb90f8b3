// SPDX-License-Identifier: GPL-2.0

//! Address handles.

use kernel::{alloc::Flags, prelude::*, sync::Arc};
use rdma::{av::Av, new_bh_spinlock, sync::BhSpinLock};

use crate::{device::Device, limits, pd::Pd};

/// An address handle: where datagrams go.
#[pin_data]
pub(crate) struct Ah {
    device: Arc<Device>,
    /// The process's name for it; zero for the kernel's, which are named by reference.
    number: u32,
    #[pin]
    av: BhSpinLock<Av>,
}

impl Ah {
    /// Makes an address handle. The kernel's in any context, a process's in process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EBUSY` when a device has too many.
    pub(crate) fn create(pd: &Pd, av: Av, user: bool) -> Result<Arc<Self>> {
        if !user {
            return Self::build(pd.device(), 0, av, GFP_ATOMIC);
        }
        let device = pd.device();
        let place = device.ahs.reserve(1..=limits::MAX_AH)?;
        let ah = Self::build(device, place.id(), av, GFP_KERNEL_ACCOUNT)?;
        place.publish(ah.clone());
        Ok(ah)
    }

    fn build(device: &Arc<Device>, number: u32, av: Av, flags: Flags) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                number,
                av <- new_bh_spinlock!(av, "rrxe_ah"),
            }),
            flags,
        )
    }

    /// The name that processes use in work requests.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Replaces the address.
    pub(crate) fn modify(&self, av: Av) {
        *self.av.lock() = av;
    }

    /// The address.
    pub(crate) fn av(&self) -> Av {
        *self.av.lock()
    }

    /// Takes the name away. Process context for a process's, any context for the kernel's.
    pub(crate) fn destroy(&self) {
        if self.number != 0 {
            drop(self.device.ahs.remove(self.number));
        }
    }
}

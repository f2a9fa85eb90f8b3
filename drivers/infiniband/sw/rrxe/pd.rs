// SPDX-License-Identifier: GPL-2.0

//! Protection domains: what may be used together.

use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc,
    },
};

use crate::device::Device;

/// The identity of a protection domain; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdId(u64);

static NEXT: Atomic<u64> = Atomic::new(1);

/// A protection domain.
pub(crate) struct Pd {
    id: PdId,
    device: Arc<Device>,
}

impl Pd {
    /// Makes a protection domain. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn create(device: &Arc<Device>) -> Result<Arc<Self>> {
        let id = PdId(NEXT.fetch_add(1, ordering::Relaxed));
        let pd = Self {
            id,
            device: device.clone(),
        };
        Ok(Arc::new(pd, GFP_KERNEL_ACCOUNT)?)
    }

    /// Its identity.
    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// Its device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Device memory, within the quota of its device.

use kernel::{prelude::*, sync::Arc};
use rdma::{
    dm::{DeviceMemory, DmInit},
    quota::Claim,
};

use crate::device::Device;

/// Device memory.
pub(crate) struct Dm {
    memory: DeviceMemory,
    _claim: Claim,
}

impl Dm {
    /// Allocates it. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if the device's quota doesn't allow it, and those of [`DeviceMemory::new`].
    pub(crate) fn alloc(device: &Device, init: &DmInit<'_>) -> Result<Arc<Self>> {
        let size = u32::try_from(init.size()).map_err(|_| ENOMEM)?;
        let dm = Self {
            _claim: device.dm.claim_many(size)?,
            memory: DeviceMemory::new(init)?,
        };
        Ok(Arc::new(dm, GFP_KERNEL_ACCOUNT)?)
    }

    /// The memory itself.
    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Device memory, within the quotas of its device, its user and its memory cgroup.

use kernel::{prelude::*, sync::Arc};
use rdma::{
    memory::dm::{DeviceMemory, DmInit},
    support::quota::Claim,
};

use crate::{
    device::Device,
    limits::accounts::{Payer, PayerClaim},
    verbs::context::Context,
};

/// Device memory.
pub(crate) struct Dm {
    memory: DeviceMemory,
    _claim: Claim,
    _payer_claim: PayerClaim,
    /// Keeps the accounts that the claim counts for.
    _payer: Arc<Payer>,
}

impl Dm {
    /// Allocates it for the process of `context`. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if a quota doesn't allow it, and those of [`DeviceMemory::new`].
    pub(crate) fn alloc(
        device: &Device,
        context: &Context,
        init: &DmInit<'_>,
    ) -> Result<Arc<Self>> {
        let size = u32::try_from(init.size()).map_err(|_| ENOMEM)?;
        let payer = context.payer();
        let dm = Self {
            _payer_claim: payer.claim_device_memory(size)?,
            _payer: payer.clone(),
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

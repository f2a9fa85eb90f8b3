// SPDX-License-Identifier: GPL-2.0

//! Device memory (`ibv_alloc_dm()`), charged to the quotas of its device, its user and its memory
//! cgroup.

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

/// A piece of device memory.
pub(crate) struct Dm {
    /// Memory of the piece.
    memory: DeviceMemory,
    /// Claim on the device's quota.
    _claim: Claim,
    /// Claim on the quotas of the user and the memory cgroup.
    _payer_claim: PayerClaim,
    /// Keeps the accounts to which `_payer_claim` is charged.
    _payer: Arc<Payer>,
}

impl Dm {
    /// Allocates a piece of device memory for the process of `context`. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if a quota is exhausted, and those of [`DeviceMemory::new`].
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

    /// Returns the memory of the piece.
    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}

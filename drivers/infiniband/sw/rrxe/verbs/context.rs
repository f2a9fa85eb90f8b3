// SPDX-License-Identifier: GPL-2.0

//! User contexts (`ib_ucontext`): the driver's state for one open of a device by a process.

use kernel::{prelude::*, sync::Arc};
use rdma::{
    abi::{features::Arming, mmap::MmapEntries},
    verbs::ucontext::{ContextCreated, ContextInit},
};

use crate::{device::Device, doorbells::Doorbells, limits::accounts::Payer};

/// The user context of a process.
pub(crate) struct Context {
    /// Memory that the process may map.
    mmap_entries: Arc<MmapEntries>,
    /// Doorbell page, if the process's library uses one.
    doorbells: Option<Arc<Doorbells>>,
    /// Method by which the process's library arms CQs.
    arming: Arming,
    /// Accounts of the process that opened the device.
    payer: Arc<Payer>,
}

impl Context {
    /// Creates a context with the features that the process's library requested. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EIO` if the device is going away.
    pub(crate) fn create(
        device: &Arc<Device>,
        init: ContextInit<'_>,
    ) -> Result<ContextCreated<Self>> {
        let payer = Payer::current(&device.workqueues.accounts)?;
        let payer = Arc::new(payer, GFP_KERNEL_ACCOUNT)?;
        let doorbells = match init.requested.doorbells {
            true => Some(Doorbells::new(device, init.mmap_entries, &payer)?),
            false => None,
        };
        let reply = doorbells.as_ref().map(|doorbells| doorbells.mmap_reply());
        let context = Self {
            mmap_entries: init.mmap_entries.clone(),
            doorbells,
            arming: init.requested.arming,
            payer,
        };
        Ok(ContextCreated {
            arming: context.arming,
            context: Arc::new(context, GFP_KERNEL_ACCOUNT)?,
            doorbells: reply,
        })
    }

    /// Closes the context, after its objects were destroyed. Process context.
    pub(crate) fn close(&self) {
        if let Some(doorbells) = &self.doorbells {
            doorbells.close();
        }
    }

    /// Returns the memory that the process may map.
    pub(crate) fn mmap_entries(&self) -> &Arc<MmapEntries> {
        &self.mmap_entries
    }

    /// Returns the doorbell page, if the process's library uses one.
    pub(crate) fn doorbells(&self) -> Option<&Arc<Doorbells>> {
        self.doorbells.as_ref()
    }

    /// Returns the payer of the context's doorbell page and objects.
    pub(crate) fn payer(&self) -> &Arc<Payer> {
        &self.payer
    }

    /// Returns the method by which the process's library arms CQs.
    pub(crate) fn arming(&self) -> Arming {
        self.arming
    }

    /// Processes the work requests that the process has posted so far, as [`Doorbells::settle`]
    /// does. Process context; sleeps.
    ///
    /// # Errors
    ///
    /// Those of `goes_on`.
    pub(crate) fn settle(&self, goes_on: impl Fn() -> Result) -> Result {
        match &self.doorbells {
            Some(doorbells) => doorbells.settle(goes_on),
            None => Ok(()),
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! NetContexts of processes: what a process has of a device that it opened.

use kernel::{prelude::*, sync::Arc};
use rdma::{
    abi::mmap::Mappings,
    verbs::ucontext::{Arming, ContextCreated, ContextInit},
};

use crate::{device::Device, doorbells::Doorbells, limits::accounts::Payer};

/// A process's context.
pub(crate) struct Context {
    mappings: Arc<Mappings>,
    doorbells: Option<Arc<Doorbells>>,
    arming: Arming,
    payer: Arc<Payer>,
}

impl Context {
    /// Makes a context, with what the process's library wants. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EIO` if the device is going away.
    pub(crate) fn create(
        device: &Arc<Device>,
        init: ContextInit<'_>,
    ) -> Result<ContextCreated<Self>> {
        let payer = Payer::current(&device.workqueues.accounts)?;
        let payer = Arc::new(payer, GFP_KERNEL_ACCOUNT)?;
        let doorbells = match init.wanted.doorbells {
            true => Some(Doorbells::new(device, init.mappings, &payer)?),
            false => None,
        };
        let reply = doorbells.as_ref().map(|doorbells| doorbells.mmap_reply());
        let context = Self {
            mappings: init.mappings.clone(),
            doorbells,
            arming: init.wanted.arming,
            payer,
        };
        Ok(ContextCreated {
            arming: context.arming,
            context: Arc::new(context, GFP_KERNEL_ACCOUNT)?,
            doorbells: reply,
        })
    }

    /// The process is through with it; its objects are gone. Process context.
    pub(crate) fn close(&self) {
        if let Some(doorbells) = &self.doorbells {
            doorbells.close();
        }
    }

    /// What the process may map.
    pub(crate) fn mappings(&self) -> &Arc<Mappings> {
        &self.mappings
    }

    /// Its doorbells, if it has them.
    pub(crate) fn doorbells(&self) -> Option<&Arc<Doorbells>> {
        self.doorbells.as_ref()
    }

    /// The payer of its page of doorbells, of its QPs and CQs, and of its device memory.
    pub(crate) fn payer(&self) -> &Arc<Payer> {
        &self.payer
    }

    /// How its library arms CQs.
    pub(crate) fn arming(&self) -> Arming {
        self.arming
    }

    /// Looks at what the process posted so far, as [`Doorbells::settle`] does. Process context; sleeps.
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

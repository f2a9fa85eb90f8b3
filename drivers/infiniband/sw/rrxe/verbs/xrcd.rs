// SPDX-License-Identifier: GPL-2.0

//! XRC domains: the shared receive queues that an XRC target serves (IBTA annex A14).

use kernel::{prelude::*, sync::Arc};
use roce::ids::Srqn;

use crate::{
    device::Device,
    limits::accounts::Payer,
    verbs::{
        pd::{Pd, PdId},
        srq::Srq,
    },
};

/// An XRC domain.
pub(crate) struct Xrcd {
    /// What its targets have in place of a protection domain: nothing is registered in it.
    pd: Arc<Pd>,
}

impl Xrcd {
    /// Makes a domain without queues, for the process of `payer`. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn create(device: &Arc<Device>, payer: &Arc<Payer>) -> Result<Arc<Self>> {
        // uverbs holds the lock of all XRC domains of the device. So no allocation waits, as it would for a memory cgroup that has
        // more than its `memory.high`.
        let account = GFP_KERNEL_ACCOUNT & !GFP_KERNEL;
        let flags = GFP_NOWAIT | account;
        let pd = Pd::create(device, Some(payer), flags)?;
        Ok(Arc::new(Self { pd }, flags)?)
    }

    /// A protection domain of its own, in which nothing is registered.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    fn id(&self) -> PdId {
        self.pd.id()
    }

    /// It is the same domain.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    /// Its queue of this number. Any context.
    pub(crate) fn queue(&self, number: Srqn) -> Option<Arc<Srq>> {
        let srq = self.pd.device().srqs.get(number.get())?;
        let own = srq.xrcd().is_some_and(|xrcd| xrcd.is(self));
        own.then_some(srq)
    }
}

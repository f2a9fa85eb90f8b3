// SPDX-License-Identifier: GPL-2.0

//! XRC domains (IBTA annex A14). A peer's XRC initiator QP may use the shared receive queues of the
//! XRC domain of the XRC target QP to which it is connected.

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
    /// Protection domain that the XRC target QPs use. No memory is registered in it.
    pd: Arc<Pd>,
}

impl Xrcd {
    /// Creates a domain without shared receive queues, for the process of `payer`. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn create(device: &Arc<Device>, payer: &Arc<Payer>) -> Result<Arc<Self>> {
        // uverbs holds the lock of all XRC domains of the device. So these allocations must not
        // wait, as others do in a memory cgroup that exceeds its `memory.high`.
        let account = GFP_KERNEL_ACCOUNT & !GFP_KERNEL;
        let flags = GFP_NOWAIT | account;
        let pd = Pd::create(device, Some(payer), flags)?;
        Ok(Arc::new(Self { pd }, flags)?)
    }

    /// Returns the protection domain that the XRC target QPs use, in which no memory is registered.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the identity of the domain.
    fn id(&self) -> PdId {
        self.pd.id()
    }

    /// Returns whether `other` is the same domain.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    /// Returns the shared receive queue of this number, if it belongs to the domain. Any context
    /// but hard interrupts.
    pub(crate) fn queue(&self, number: Srqn) -> Option<Arc<Srq>> {
        let srq = self.pd.device().srqs.get(number.get())?;
        let own = srq.xrcd().is_some_and(|xrcd| xrcd.is(self));
        own.then_some(srq)
    }
}

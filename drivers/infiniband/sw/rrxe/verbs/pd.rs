// SPDX-License-Identifier: GPL-2.0

//! Protection domains. A QP may access only memory regions and address handles of its own
//! protection domain. A WQE of a shared receive queue names regions of that queue's domain.

use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        Arc,
    },
};

use rdma::support::quota::Claim;

use crate::{
    device::Device,
    limits::accounts::{ObjectClaim, Payer},
};

/// The identity of a protection domain, which is never used again. The top bit is set for
/// protection domains of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdId(u64);

impl PdId {
    /// Returns the identity as a number, for storage in an atomic.
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether the protection domain belongs to the kernel.
    pub(crate) const fn is_kernels(self) -> bool {
        self.0 & Self::KERNELS != 0
    }

    /// Bit of the kernel's protection domains.
    const KERNELS: u64 = 1 << 63;

    /// Returns the identity that [`Self::get`] gave as `raw`.
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

/// Number of the next protection domain.
static NEXT: Atomic<u64> = Atomic::new(1);

/// A protection domain.
pub(crate) struct Pd {
    id: PdId,
    device: Arc<Device>,
    /// Claim on the device's limit of protection domains.
    _claim: Claim,
    /// Claim on the object limit of the payer; names the payer of the domain's objects.
    object: ObjectClaim,
    /// Set when the process posted sends since [`Self::take_answers`] was last called.
    sends: Atomic<bool>,
}

impl Pd {
    /// Creates a protection domain for the process of `payer`, or for the kernel if that is `None`.
    /// Memory is allocated with `flags`, which also determine the context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn create(
        device: &Arc<Device>,
        payer: Option<&Arc<Payer>>,
        flags: Flags,
    ) -> Result<Arc<Self>> {
        let number = NEXT.fetch_add(1, ordering::Relaxed);
        let id = PdId(match payer {
            Some(_) => number,
            None => number | PdId::KERNELS,
        });
        let pd = Self {
            id,
            device: device.clone(),
            object: ObjectClaim::new(payer)?,
            _claim: device.pds.claim()?,
            sends: Atomic::new(false),
        };
        Ok(Arc::new(pd, flags)?)
    }

    /// Returns the identity of the protection domain.
    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// Records that the process posts sends. Any context.
    pub(crate) fn note_send(&self) {
        // Mostly the flag is set already. Without a write the cache line stays shared among CPUs.
        if !self.sends.load(ordering::Relaxed) {
            self.sends.store(true, ordering::Relaxed);
        }
    }

    /// Returns whether the process posted sends since the last call, and clears the flag. Such a
    /// process is assumed to answer the messages that it receives. Any context.
    pub(crate) fn take_answers(&self) -> bool {
        self.sends.xchg(false, ordering::Relaxed)
    }

    /// Claims one more object for the payer of the domain. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits of the payer don't allow one more.
    pub(crate) fn claim_object(&self) -> Result<ObjectClaim> {
        ObjectClaim::new(self.object.payer())
    }

    /// Returns the device of the domain.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Protection domains: what may be used together.

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

/// The identity of a protection domain; never used twice. The top bit is set of those of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdId(u64);

impl PdId {
    /// As a number, for where it may change.
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// It is the kernel's.
    pub(crate) const fn is_kernels(self) -> bool {
        self.0 & Self::KERNELS != 0
    }

    const KERNELS: u64 = 1 << 63;

    /// The identity of this number.
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

static NEXT: Atomic<u64> = Atomic::new(1);

/// A protection domain.
pub(crate) struct Pd {
    id: PdId,
    device: Arc<Device>,
    _claim: Claim,
    object: ObjectClaim,
    /// Its process posted sends since it was last told of a receive.
    sends: Atomic<bool>,
}

impl Pd {
    /// Makes a protection domain for the process of `payer`, or for the kernel, with memory by `flags`. Its context is theirs.
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

    /// Its identity.
    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// The process posts sends. Any context.
    pub(crate) fn note_send(&self) {
        // Mostly it is known, and then the line stays shared among CPUs.
        if !self.sends.load(ordering::Relaxed) {
            self.sends.store(true, ordering::Relaxed);
        }
    }

    /// Whether the process posted sends since this was last asked: it answers what it receives.
    /// Any context.
    pub(crate) fn answers(&self) -> bool {
        self.sends.xchg(false, ordering::Relaxed)
    }

    /// The room for another object of its process. Any context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limits of the process don't allow one more.
    pub(crate) fn claim_object(&self) -> Result<ObjectClaim> {
        ObjectClaim::new(self.object.payer())
    }

    /// Its device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

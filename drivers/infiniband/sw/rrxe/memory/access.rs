// SPDX-License-Identifier: GPL-2.0

//! Kinds of accesses to memory regions, and the checks of access rights.

use rdma::{memory::odp::Absence, verbs::mr::Access};
use roce::host::{AccessFault, LocalAccess, RemoteAccess};

/// A kind of access to a memory region, by its owner or by a peer.
pub(crate) trait AccessRequest: Copy {
    /// Returns whether a region with the access rights `rights` (`IB_ACCESS_*`) allows the access.
    fn is_allowed_by(self, rights: Access) -> bool;

    /// Returns whether the access changes the memory.
    fn writes(self) -> bool;
}

impl AccessRequest for LocalAccess {
    #[inline]
    fn is_allowed_by(self, rights: Access) -> bool {
        rights.allows_local(self)
    }

    #[inline]
    fn writes(self) -> bool {
        self == Self::Write
    }
}

impl AccessRequest for RemoteAccess {
    #[inline]
    fn is_allowed_by(self, rights: Access) -> bool {
        rights.allows_remote(self)
    }

    #[inline]
    fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Atomic)
    }
}

/// A peer's access that a memory window has granted. The rights of the window's region are not
/// checked again.
#[derive(Clone, Copy)]
pub(crate) struct Granted(pub(crate) RemoteAccess);

impl AccessRequest for Granted {
    fn is_allowed_by(self, _rights: Access) -> bool {
        true
    }

    fn writes(self) -> bool {
        self.0.writes()
    }
}

/// Returns the fault of an access to on-demand memory that failed for the reason `absence`: an
/// address out of range denies the access, and memory that isn't resident makes the engine retry
/// it.
pub(crate) fn access_fault(absence: Absence) -> AccessFault {
    match absence {
        Absence::OutOfRange => AccessFault::Denied,
        Absence::NotResident => AccessFault::Retry,
    }
}

/// Checks that an access is granted.
///
/// # Errors
///
/// [`AccessFault::Denied`] if `granted` is false.
#[inline]
pub(crate) fn require(granted: bool) -> Result<(), AccessFault> {
    granted.then_some(()).ok_or(AccessFault::Denied)
}

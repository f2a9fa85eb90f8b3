// SPDX-License-Identifier: GPL-2.0

//! Rights: what somebody wants to do with a region, and whether that is granted.

use rdma::{memory::odp::Absence, verbs::mr::Access};
use roce::host::{AccessFault, LocalAccess, RemoteAccess};

/// What somebody wants to do with a region.
pub(crate) trait AccessRequest: Copy {
    /// A region with these rights allows it.
    fn is_allowed_by(self, rights: Access) -> bool;

    /// It changes the memory.
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

/// What a window has granted, whatever its region grants.
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

/// Why a peer, or the owner, is refused memory.
pub(crate) fn access_fault(absence: Absence) -> AccessFault {
    match absence {
        Absence::OutOfRange => AccessFault::Denied,
        Absence::NotResident => AccessFault::Retry,
    }
}

/// Refuses what isn't granted.
///
/// # Errors
///
/// `Denied`.
#[inline]
pub(crate) fn require(granted: bool) -> Result<(), AccessFault> {
    granted.then_some(()).ok_or(AccessFault::Denied)
}

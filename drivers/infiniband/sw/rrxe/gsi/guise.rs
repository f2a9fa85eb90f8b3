// SPDX-License-Identifier: GPL-2.0

//! The sender of a datagram as ib_core sees it.
//!
//! ib_core knows the ends of connections by the GUID of the device and the QPN, which messages of connection management name
//! for their senders'. Whoever asks for a connection with those of somebody else has the connection of that one ended as a
//! stale one (`cm_match_req()`, cm.c). So each sender's GUIDs are replaced by others: the same ones for the same address, for
//! as long as the QP lives, and different ones for different addresses. ib_core keeps them to compare them with each other
//! only.

// `core` has no other name for SipHash-2-4.
#![expect(deprecated)]

use core::hash::{Hasher, SipHasher};

use kernel::prelude::*;
use rdma::{gid::Gid, random};
use roce::wire::mad::SenderGuid;

use super::senders::StandIn;

/// The sender of a datagram as ib_core sees it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Guise {
    /// The stand-in for it, if it may get an answer.
    pub(crate) stand_in: Option<StandIn>,
    /// The GUID of its device, if ib_core compares that.
    pub(crate) guid: Option<SenderGuid>,
}

/// Replaces GUIDs.
pub(super) struct Guids {
    /// Nobody else knows it.
    key: [u64; 2],
}

impl Guids {
    /// With a key of their own.
    pub(super) fn new() -> Self {
        Self {
            key: [random::next_u64(), random::next_u64()],
        }
    }

    /// The GUID that ib_core sees in place of the one that `sender` names.
    pub(super) fn replace(&self, sender: Gid, named: SenderGuid) -> SenderGuid {
        let [first, second] = self.key;
        let mut hasher = SipHasher::new_with_keys(first, second);
        hasher.write(&sender.0);
        hasher.write(&named.guid);
        SenderGuid {
            guid: hasher.finish().to_ne_bytes(),
            ..named
        }
    }
}

#[kunit_tests(rrxe_gsi_guise)]
mod tests {
    use super::*;

    #[test]
    fn senders_share_no_guid() {
        let (guids, others) = (Guids::new(), Guids::new());
        let named = |last| SenderGuid {
            offset: 40,
            guid: [1, 2, 3, 4, 5, 6, 7, last],
        };
        let told = guids.replace(Gid([1; 16]), named(8));
        assert_eq!(told, guids.replace(Gid([1; 16]), named(8)));
        assert_eq!(told.offset, 40);
        for different in [
            guids.replace(Gid([2; 16]), named(8)),
            guids.replace(Gid([1; 16]), named(9)),
            others.replace(Gid([1; 16]), named(8)),
            named(8),
        ] {
            assert_ne!(told, different);
        }
    }
}

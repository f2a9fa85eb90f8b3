// SPDX-License-Identifier: GPL-2.0

//! A datagram as ib_core sees it.
//!
//! The bytes of a packet may change while they are read: they may lie in pages that a process of this host still writes. So
//! ib_core gets the copy that was checked.
//!
//! ib_core knows the ends of connections by the GUID of the device and the QPN, which messages of connection management name
//! for their senders'. Whoever asks for a connection with those of somebody else has the connection of that one ended as a
//! stale one (`cm_match_req()`, cm.c). So each sender's GUIDs are replaced by others: the same ones for the same address, for
//! as long as the QP lives, and different ones for different addresses. ib_core keeps them to compare them with each other
//! only, and passes them to users in the kernel, none of which reads them (`ib_cm_req_event_param.remote_ca_guid`,
//! `ib_cm_rep_event_param.remote_ca_guid`, include/rdma/ib_cm.h).
//!
//! ib_core believes the times in messages of connection management, too, and keeps messages and what remains of connections
//! for so long. So these times have limits ([`limit_times`]).

use kernel::prelude::*;
use rdma::device::gid::Gid;
use roce::wire::mad::{limit_times, SenderGuid, MAD_LEN};

use super::{keyed_hash::Key, senders::StandIn};

/// A datagram as ib_core sees it.
#[derive(Clone, Copy, Default)]
pub(crate) struct SanitizedMad {
    /// The stand-in for its sender, if the sender may get an answer.
    pub(crate) stand_in: Option<StandIn>,
    /// Its payload, if that came in a packet from somebody else.
    pub(crate) mad: Option<[u8; MAD_LEN]>,
}

/// Replaces GUIDs.
pub(super) struct Guids {
    key: Key,
}

impl Guids {
    /// With a key of their own.
    pub(super) fn new() -> Self {
        Self { key: Key::new() }
    }

    /// The payload `mad` of a datagram of `sender`, as ib_core sees it.
    pub(super) fn sanitize(&self, sender: Gid, mut mad: [u8; MAD_LEN]) -> [u8; MAD_LEN] {
        limit_times(&mut mad);
        if let Some(named) = SenderGuid::parse(&mad) {
            self.replace(sender, named).put(&mut mad);
        }
        mad
    }

    /// The GUID that ib_core sees in place of the one that `sender` names.
    fn replace(&self, sender: Gid, mut named: SenderGuid) -> SenderGuid {
        let hash = self.key.hash(&[&sender.0, &named.guid]);
        named.guid = hash.to_ne_bytes();
        named
    }
}

#[kunit_tests(rrxe_gsi_guise)]
mod tests {
    use super::*;

    /// A request for a connection, whose GUID ends with `last`.
    fn request(last: u8) -> [u8; MAD_LEN] {
        let mut mad = [last; MAD_LEN];
        for (byte, value) in mad.iter_mut().zip([1, 7, 2, 3]) {
            *byte = value;
        }
        for (byte, value) in mad.iter_mut().skip(16).zip([0, 0x10]) {
            *byte = value;
        }
        mad
    }

    #[test]
    fn senders_share_no_guid() {
        let (guids, others) = (Guids::new(), Guids::new());
        let told = guids.sanitize(Gid([1; 16]), request(8));
        assert_eq!(told, guids.sanitize(Gid([1; 16]), request(8)));
        assert_eq!(told.get(..40), request(8).get(..40));
        let guid = |mad: [u8; MAD_LEN]| SenderGuid::parse(&mad);
        for different in [
            guids.sanitize(Gid([2; 16]), request(8)),
            guids.sanitize(Gid([1; 16]), request(9)),
            others.sanitize(Gid([1; 16]), request(8)),
            request(8),
        ] {
            assert_ne!(guid(told), guid(different));
        }
    }

    #[test]
    fn ib_core_waits_for_no_sender_for_hours() {
        let mad = Guids::new().sanitize(Gid([1; 16]), request(0xff));
        // The response timeout, in five bits, and the retries of a QP.
        assert_eq!(mad.get(71), Some(&(21 << 3 | 7)));
    }
}

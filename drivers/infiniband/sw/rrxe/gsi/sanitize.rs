// SPDX-License-Identifier: GPL-2.0

//! The sanitized form of a MAD, which ib_core gets in place of the received one.
//!
//! The bytes of a packet may change while they are read: they may lie in pages to which a process
//! of this host still writes. So ib_core gets the copy that rrxe has checked.
//!
//! ib_core identifies the ends of connections by the GUID of the device and the QPN, both as the
//! senders of CM messages name them. If a sender requests a connection with another host's GUID and
//! QPN, ib_core ends that host's connection as a stale one (`cm_match_req()`, cm.c). So each
//! sender's GUIDs are replaced. The replacement is the same for the same address and GUID as long
//! as the GSI QP lives, and different for different addresses. ib_core keeps the GUIDs only to
//! compare them with each other. It passes them to in-kernel consumers, none of which reads them
//! (`ib_cm_req_event_param.remote_ca_guid`, `ib_cm_rep_event_param.remote_ca_guid`,
//! include/rdma/ib_cm.h).
//!
//! ib_core also trusts the times in CM messages: it keeps messages, and the state of ended
//! connections, for these times. So rrxe limits the times ([`limit_times`]).

use kernel::prelude::*;
use rdma::device::gid::Gid;
use roce::wire::mad::{limit_times, SenderGuid, MAD_LEN};

use super::{keyed_hash::Key, senders::StandIn};

/// A MAD as ib_core sees it.
#[derive(Clone, Copy, Default)]
pub(crate) struct SanitizedMad {
    /// Stand-in for the sender. `None` if the sender gets no response.
    pub(crate) stand_in: Option<StandIn>,
    /// Sanitized payload. `None` for a probe, which rrxe has built itself.
    pub(crate) mad: Option<[u8; MAD_LEN]>,
}

/// Replacement of GUIDs in the MADs of one GSI QP.
pub(super) struct Guids {
    /// Key of the hash that makes the replacements.
    key: Key,
}

impl Guids {
    /// Creates a replacement with a random key.
    pub(super) fn new() -> Self {
        Self { key: Key::new() }
    }

    /// Returns the payload `mad` of a MAD of `sender` as ib_core sees it.
    pub(super) fn sanitize(&self, sender: Gid, mut mad: [u8; MAD_LEN]) -> [u8; MAD_LEN] {
        limit_times(&mut mad);
        if let Some(named) = SenderGuid::parse(&mad) {
            self.replace(sender, named).put(&mut mad);
        }
        mad
    }

    /// Returns the GUID that ib_core sees in place of the one that `sender` names.
    fn replace(&self, sender: Gid, mut named: SenderGuid) -> SenderGuid {
        let hash = self.key.hash(&[&sender.0, &named.guid]);
        named.guid = hash.to_ne_bytes();
        named
    }
}

#[kunit_tests(rrxe_gsi_sanitize)]
mod tests {
    use super::*;

    /// Returns a connection request in which all bytes behind the header, so also the GUID, are
    /// `fill`.
    fn request(fill: u8) -> [u8; MAD_LEN] {
        let mut mad = [fill; MAD_LEN];
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
        let sanitized = guids.sanitize(Gid([1; 16]), request(8));
        assert_eq!(sanitized, guids.sanitize(Gid([1; 16]), request(8)));
        assert_eq!(sanitized.get(..40), request(8).get(..40));
        let guid = |mad: [u8; MAD_LEN]| SenderGuid::parse(&mad);
        for different in [
            guids.sanitize(Gid([2; 16]), request(8)),
            guids.sanitize(Gid([1; 16]), request(9)),
            others.sanitize(Gid([1; 16]), request(8)),
            request(8),
        ] {
            assert_ne!(guid(sanitized), guid(different));
        }
    }

    #[test]
    fn times_are_limited() {
        let mad = Guids::new().sanitize(Gid([1; 16]), request(0xff));
        // The response timeout in the upper five bits, and the retry count of the QP.
        assert_eq!(mad.get(71), Some(&(21 << 3 | 7)));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Management datagrams: the fields of the common header (IBTA 1.x §13.4.2) and of the messages of
//! communication management that a driver reads or writes.

mod times;

pub use self::times::limit_times;
use crate::ids::Qpn;

/// Number of bytes of the header.
pub const MAD_HEADER_LEN: usize = 24;

/// Number of bytes of a management datagram, and of every payload for QP1.
pub const MAD_LEN: usize = 256;

/// The base version of all management datagrams (IBTA 1.x §13.4.2).
const BASE_VERSION: u8 = 1;
/// Communication management (IBTA 1.x §16.7.1).
const CLASS_CM: u8 = 0x07;
const CLASS_CM_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;
/// Baseboard management (§16.2). A bit of the attribute modifier marks its responses.
const CLASS_BM: u8 = 0x05;
const BM_RESPONSE: u32 = 1;
const METHOD_TRAP_REPRESS: u8 = 0x07;
/// The bit of the method that marks a response (§13.4.5).
const METHOD_RESPONSE: u8 = 0x80;

/// Attributes of communication management (IBTA 1.x §12.6).
const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REP: u16 = 0x18;
const APR: u16 = 0x1a;

/// The kind of a management datagram, by which ib_core chooses how to process the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadKind {
    /// The datagram is a message of communication management that gets no response.
    OneWay,
    /// The datagram is a response to a request of this exchange, and may itself get a response.
    Response(Exchange),
    /// The datagram is a request: it may get a response.
    Request,
}

/// The properties that a request and the responses to it have in common (`ib_find_send_mad()`,
/// mad.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    class: u8,
    transaction: u64,
}

/// The fields of the header that the driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    class: u8,
    method: u8,
    transaction: u64,
    attribute: u16,
    modifier: u32,
}

impl MadHeader {
    /// Parses the header. Returns `None` if the base version isn't 1; for each such datagram
    /// `validate_mad()` (mad.c) would log a line.
    pub fn parse(bytes: &[u8; MAD_HEADER_LEN]) -> Option<Self> {
        let [version, class, _, method, _, _, _, _, rest @ ..] = *bytes;
        let [t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, _, _, m0, m1, m2, m3] = rest;
        (version == BASE_VERSION).then_some(Self {
            class,
            method,
            transaction: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            attribute: u16::from_be_bytes([a0, a1]),
            modifier: u32::from_be_bytes([m0, m1, m2, m3]),
        })
    }

    /// Returns the attribute of a message of communication management. Returns `None` for other
    /// datagrams.
    fn cm_message(&self) -> Option<u16> {
        (self.class == CLASS_CM && self.method == METHOD_SEND).then_some(self.attribute)
    }

    /// Returns whether the datagram may reach the work queue of communication management. ib_mad
    /// passes a datagram to ib_cm only if ib_cm has registered for its method (`cm_add_one()`,
    /// cm.c).
    pub fn may_reach_cm(&self) -> bool {
        self.cm_message().is_some()
    }

    /// Returns the kind of the datagram.
    pub fn kind(&self) -> MadKind {
        match self.cm_message() {
            Some(MRA | REJ | RTU | DREP | SIDR_REP | APR) => MadKind::OneWay,
            _ if self.is_response() => MadKind::Response(self.exchange()),
            _ => MadKind::Request,
        }
    }

    /// Returns the exchange that the datagram begins, if it is a request that has responses.
    /// Returns `None` for communication management, whose messages are matched by the IDs in them.
    pub fn request_exchange(&self) -> Option<Exchange> {
        let has_responses = !self.is_response() && self.class != CLASS_CM;
        has_responses.then(|| self.exchange())
    }

    /// Returns whether ib_mad treats the datagram as a response (`ib_response_mad()`, mad.c).
    fn is_response(&self) -> bool {
        self.method & METHOD_RESPONSE != 0
            || self.method == METHOD_TRAP_REPRESS
            || self.class == CLASS_BM && self.modifier & BM_RESPONSE != 0
    }

    /// Returns the exchange to which the datagram belongs.
    fn exchange(&self) -> Exchange {
        Exchange {
            class: self.class,
            transaction: self.transaction,
        }
    }
}

/// Returns the sender's QP in a request for a connection (REQ, §12.6.5). Returns `None` for other
/// datagrams.
pub fn requesting_qp(mad: &[u8; MAD_LEN]) -> Option<Qpn> {
    /// Offset of the local QPN in a REQ.
    const LOCAL_QPN: usize = MAD_HEADER_LEN + 32;
    let header = MadHeader::parse(mad.first_chunk()?)?;
    let [q0, q1, q2] = *mad.get(LOCAL_QPN..)?.first_chunk()?;
    (header.cm_message() == Some(REQ)).then_some(Qpn::new(u32::from_be_bytes([0, q0, q1, q2])))
}

/// The GUID of the sender's device in a message of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderGuid {
    /// Offset of the GUID in the datagram.
    offset: usize,
    /// The GUID.
    pub guid: [u8; 8],
}

impl SenderGuid {
    /// Reads the GUID from a datagram, if ib_core compares the GUIDs of such datagrams with those
    /// of other senders: a request for a connection, the reply, and a rejection because of a
    /// timeout (`cm_match_req()`, `cm_rep_handler()`, `cm_acquire_rejected_id()`, cm.c).
    pub fn parse(mad: &[u8; MAD_LEN]) -> Option<Self> {
        /// Offsets of the GUID in the messages, and of the reason in a REJ.
        const IN_REQ: usize = MAD_HEADER_LEN + 16;
        const IN_REP: usize = MAD_HEADER_LEN + 28;
        const IN_REJ: usize = MAD_HEADER_LEN + 12;
        const REASON: usize = MAD_HEADER_LEN + 10;
        const TIMEOUT: [u8; 2] = [0, 4];
        let header = MadHeader::parse(mad.first_chunk()?)?;
        let offset = match header.cm_message()? {
            REQ => IN_REQ,
            REP => IN_REP,
            REJ if mad.get(REASON..)?.starts_with(&TIMEOUT) => IN_REJ,
            _ => return None,
        };
        Some(Self {
            offset,
            guid: *mad.get(offset..)?.first_chunk()?,
        })
    }

    /// Writes the GUID to its place in the datagram from which it was read.
    pub fn put(self, mad: &mut [u8; MAD_LEN]) {
        if let Some(place) = mad.get_mut(self.offset..).and_then(<[u8]>::first_chunk_mut) {
            *place = self.guid;
        }
    }
}

/// Builds a request to end a connection (DREQ, §12.6.10), with the communication IDs of its two
/// ends. The field for the remote QPN is 0.
pub fn disconnect_request(ids: [[u8; 4]; 2]) -> [u8; MAD_LEN] {
    let [a0, a1] = DREQ.to_be_bytes();
    let header = [BASE_VERSION, CLASS_CM, CLASS_CM_VERSION, METHOD_SEND]
        .into_iter()
        .chain([0; 12])
        .chain([a0, a1])
        .chain([0; 6]);
    let mut bytes = [0; MAD_LEN];
    for (place, byte) in bytes
        .iter_mut()
        .zip(header.chain(ids.into_iter().flatten()))
    {
        *place = byte;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, method: u8, attribute: u16) -> MadHeader {
        let mut bytes = [0; MAD_HEADER_LEN];
        bytes[0] = BASE_VERSION;
        bytes[1] = class;
        bytes[3] = method;
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        MadHeader::parse(&bytes).unwrap()
    }

    #[test]
    fn another_base_version_is_refused() {
        for version in [0, 2, 0x80, 0xff] {
            let mut bytes = [0; MAD_HEADER_LEN];
            bytes[0] = version;
            assert_eq!(MadHeader::parse(&bytes), None);
        }
    }

    #[test]
    fn requests_and_replies_may_get_a_response() {
        for attribute in [REQ, REP] {
            assert_eq!(
                header(CLASS_CM, METHOD_SEND, attribute).kind(),
                MadKind::Request
            );
        }
    }

    #[test]
    fn mra_rej_rtu_drep_sidr_rep_and_apr_get_no_response() {
        for attribute in [MRA, REJ, RTU, DREP, SIDR_REP, APR] {
            assert_eq!(
                header(CLASS_CM, METHOD_SEND, attribute).kind(),
                MadKind::OneWay
            );
        }
    }

    #[test]
    fn datagrams_of_other_classes_or_methods_may_get_a_response() {
        // ib_mad may respond to other datagrams: a GET or SET for which no agent has registered
        // gets a response with an error status.
        assert_eq!(header(CLASS_CM, 0x01, RTU).kind(), MadKind::Request);
        assert_eq!(header(0x04, METHOD_SEND, RTU).kind(), MadKind::Request);
    }

    #[test]
    fn only_messages_of_communication_management_reach_its_queue() {
        assert!(header(CLASS_CM, METHOD_SEND, REQ).may_reach_cm());
        assert!(!header(CLASS_CM, 0x01, REQ).may_reach_cm());
        assert!(!header(0x04, METHOD_SEND, REQ).may_reach_cm());
    }

    #[test]
    fn a_request_for_a_connection_names_a_qp() {
        let mut bytes = disconnect_request([[1; 4], [2; 4]]);
        bytes[56..60].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
        assert_eq!(requesting_qp(&bytes), None);
        bytes[16..18].copy_from_slice(&REQ.to_be_bytes());
        assert_eq!(requesting_qp(&bytes), Some(Qpn::new(0x12_3456)));
        bytes[1] = 0x03;
        assert_eq!(requesting_qp(&bytes), None);
    }

    #[test]
    fn the_guid_of_a_sender_is_where_ib_core_looks_for_it() {
        for (attribute, reason, offset) in [
            (REQ, 0, Some(40)),
            (REP, 0, Some(52)),
            (REJ, 4, Some(36)),
            (REJ, 28, None),
            (RTU, 4, None),
        ] {
            let mut bytes: [u8; MAD_LEN] = core::array::from_fn(|index| index as u8);
            bytes[0] = BASE_VERSION;
            bytes[1] = CLASS_CM;
            bytes[3] = METHOD_SEND;
            bytes[16..18].copy_from_slice(&u16::to_be_bytes(attribute));
            bytes[34..36].copy_from_slice(&u16::to_be_bytes(reason));
            let found = offset.map(|offset| SenderGuid {
                offset,
                guid: *bytes[offset..].first_chunk().unwrap(),
            });
            assert_eq!(SenderGuid::parse(&bytes), found);
            if let Some(found) = found {
                let other = SenderGuid {
                    guid: [0xee; 8],
                    ..found
                };
                let before = bytes;
                other.put(&mut bytes);
                assert_eq!(SenderGuid::parse(&bytes), Some(other));
                found.put(&mut bytes);
                assert_eq!(bytes, before);
            }
            bytes[1] = 0x03;
            assert_eq!(SenderGuid::parse(&bytes), None);
        }
    }

    #[test]
    fn a_disconnect_request_has_its_ids_and_may_get_a_response() {
        let bytes = disconnect_request([[1; 4], [2; 4]]);
        assert_eq!(bytes[24..33], [1, 1, 1, 1, 2, 2, 2, 2, 0]);
        let header = MadHeader::parse(bytes.first_chunk().unwrap());
        assert_eq!(header.and_then(|header| header.cm_message()), Some(DREQ));
        assert_eq!(header.unwrap().kind(), MadKind::Request);
        assert_eq!(bytes[32..], [0; 224]);
    }

    fn of_transaction(class: u8, method: u8, transaction: u64, modifier: u32) -> MadHeader {
        MadHeader {
            transaction,
            modifier,
            ..header(class, method, REQ)
        }
    }

    #[test]
    fn a_response_belongs_to_the_exchange_of_its_request() {
        for (asked, responded) in [(0x01, 0x81), (0x03, 0x83), (0x05, 0x07)] {
            let request = of_transaction(0x04, asked, 7 << 32 | 1, 0);
            let exchange = request.request_exchange().unwrap();
            let response = of_transaction(0x04, responded, 7 << 32 | 1, 0);
            assert_eq!(response.kind(), MadKind::Response(exchange));
            assert_eq!(response.request_exchange(), None);
            for other in [
                of_transaction(0x04, responded, 7 << 32 | 2, 0),
                of_transaction(0x04, responded, 6 << 32 | 1, 0),
                of_transaction(0x03, responded, 7 << 32 | 1, 0),
            ] {
                assert_ne!(other.kind(), MadKind::Response(exchange));
            }
        }
    }

    #[test]
    fn communication_management_opens_no_exchange() {
        for method in [METHOD_SEND, 0x01, 0x83] {
            assert_eq!(
                of_transaction(CLASS_CM, method, 7, 0).request_exchange(),
                None
            );
        }
        for attribute in [REQ, RTU] {
            let kind = header(CLASS_CM, 0x83, attribute).kind();
            assert!(matches!(kind, MadKind::Response(_)));
        }
    }

    #[test]
    fn the_attribute_modifier_marks_a_response_of_baseboard_management() {
        let request = of_transaction(CLASS_BM, METHOD_SEND, 7, 2);
        assert_eq!(request.kind(), MadKind::Request);
        let response = of_transaction(CLASS_BM, METHOD_SEND, 7, 3);
        assert_eq!(
            Some(response.kind()),
            request.request_exchange().map(MadKind::Response)
        );
        // In other classes this bit is no flag.
        assert_eq!(of_transaction(0x04, 0x01, 7, 1).kind(), MadKind::Request);
    }

    #[test]
    fn the_fields_are_where_the_specification_has_them() {
        let mut bytes = [0; MAD_HEADER_LEN];
        bytes[0] = BASE_VERSION;
        bytes[1] = CLASS_BM;
        bytes[8..16].copy_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
        bytes[20..24].copy_from_slice(&0x0a0b_0c0du32.to_be_bytes());
        let header = MadHeader::parse(&bytes).unwrap();
        assert_eq!(header.transaction, 0x0102_0304_0506_0708);
        assert_eq!(header.modifier, 0x0a0b_0c0d);
    }
}

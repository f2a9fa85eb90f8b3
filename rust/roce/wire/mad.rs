// SPDX-License-Identifier: GPL-2.0

//! The common header of management datagrams (IBTA 1.x §13.4.2), as far as a driver looks at it.

/// Bytes of the header.
pub const MAD_HEADER_LEN: usize = 24;

/// Communication management (IBTA 1.x §16.7.1).
const CLASS_CM: u8 = 0x07;
const METHOD_SEND: u8 = 0x03;
/// The answer to a trap (IBTA 1.x §13.4.5).
const METHOD_TRAP_REPRESS: u8 = 0x07;
/// The bit of a method that answers another.
const METHOD_RESPONSE: u8 = 0x80;

/// Attributes of communication management (IBTA 1.x §12.6).
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const RTU: u16 = 0x14;
const DREP: u16 = 0x16;
const SIDR_REP: u16 = 0x18;
const APR: u16 = 0x1a;

/// What the header of a management datagram says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    class: u8,
    method: u8,
    attribute: u16,
}

impl MadHeader {
    /// Reads it.
    pub fn parse(bytes: &[u8; MAD_HEADER_LEN]) -> Self {
        let [_, class, _, method, _, _, _, _, _, _, _, _, _, _, _, _, a0, a1, ..] = *bytes;
        Self {
            class,
            method,
            attribute: u16::from_be_bytes([a0, a1]),
        }
    }

    /// The message of communication management that this is, if it is one.
    fn cm_message(&self) -> Option<u16> {
        (self.class == CLASS_CM && self.method == METHOD_SEND).then_some(self.attribute)
    }

    /// Whether its receiver may answer to an address that it brings. What ends an exchange, or a step of one, is not answered,
    /// nor is a response.
    pub fn may_be_answered(&self) -> bool {
        let is_response = self.method & METHOD_RESPONSE != 0 || self.method == METHOD_TRAP_REPRESS;
        let is_final = matches!(
            self.cm_message(),
            Some(MRA | REJ | RTU | DREP | SIDR_REP | APR)
        );
        !is_response && !is_final
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQ: u16 = 0x10;
    const REP: u16 = 0x13;

    fn header(class: u8, method: u8, attribute: u16) -> MadHeader {
        let mut bytes = [0; MAD_HEADER_LEN];
        bytes[1] = class;
        bytes[3] = method;
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        MadHeader::parse(&bytes)
    }

    #[test]
    fn requests_and_replies_may_be_answered() {
        for attribute in [REQ, REP] {
            assert!(header(CLASS_CM, METHOD_SEND, attribute).may_be_answered());
        }
    }

    #[test]
    fn what_ends_an_exchange_is_not_answered() {
        for attribute in [MRA, REJ, RTU, DREP, SIDR_REP, APR] {
            assert!(!header(CLASS_CM, METHOD_SEND, attribute).may_be_answered());
        }
    }

    #[test]
    fn only_messages_of_communication_management_end_exchanges() {
        // ib_mad refuses a method that no agent has, and that is an answer to the sender.
        assert!(header(CLASS_CM, 0x01, RTU).may_be_answered());
        assert!(header(0x04, METHOD_SEND, RTU).may_be_answered());
    }

    #[test]
    fn a_response_of_any_class_is_not_answered() {
        assert!(!header(0x04, 0x81, 0x12).may_be_answered());
        assert!(!header(0x04, METHOD_TRAP_REPRESS, 0x12).may_be_answered());
        assert!(header(0x04, 0x01, 0x12).may_be_answered());
    }
}

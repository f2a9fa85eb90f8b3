// SPDX-License-Identifier: GPL-2.0

//! The common header of management datagrams (IBTA 1.x §13.4.2), as far as a driver looks at it.

/// Bytes of the header.
pub const MAD_HEADER_LEN: usize = 24;

/// Communication management (IBTA 1.x §16.7.1).
const CLASS_CM: u8 = 0x07;
const METHOD_SEND: u8 = 0x03;
/// The bit of a method that answers another.
const METHOD_RESPONSE: u8 = 0x80;

/// Attributes of communication management (IBTA 1.x §12.6).
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
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

    /// It ends an exchange, or a step of one: whoever receives it answers to no address that it brings.
    pub fn is_final(&self) -> bool {
        matches!(
            self.cm_message(),
            Some(MRA | REJ | RTU | DREP | SIDR_REP | APR)
        )
    }

    /// It answers another one.
    pub fn is_answer(&self) -> bool {
        self.is_final() || self.cm_message() == Some(REP) || self.method & METHOD_RESPONSE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQ: u16 = 0x10;

    fn header(class: u8, method: u8, attribute: u16) -> MadHeader {
        let mut bytes = [0; MAD_HEADER_LEN];
        bytes[1] = class;
        bytes[3] = method;
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        MadHeader::parse(&bytes)
    }

    #[test]
    fn a_request_is_neither_final_nor_an_answer() {
        let request = header(CLASS_CM, METHOD_SEND, REQ);
        assert!(!request.is_final() && !request.is_answer());
    }

    #[test]
    fn a_reply_is_an_answer_that_is_answered() {
        let reply = header(CLASS_CM, METHOD_SEND, REP);
        assert!(!reply.is_final() && reply.is_answer());
    }

    #[test]
    fn what_ends_an_exchange_is_final() {
        for attribute in [MRA, REJ, RTU, DREP, SIDR_REP, APR] {
            let message = header(CLASS_CM, METHOD_SEND, attribute);
            assert!(message.is_final() && message.is_answer());
        }
    }

    #[test]
    fn only_messages_of_communication_management_are_final() {
        // ib_mad refuses a method that no agent has, and that is an answer to the sender.
        assert!(!header(CLASS_CM, 0x01, RTU).is_final());
        assert!(!header(0x04, METHOD_SEND, RTU).is_final());
    }

    #[test]
    fn a_response_of_any_class_is_an_answer() {
        assert!(header(0x04, 0x81, 0x12).is_answer());
        assert!(!header(0x04, 0x01, 0x12).is_answer());
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Performance management: the port's responses to `perfquery`, and to sysfs, which sends the same
//! requests (IBTA 1.x §16.1).

use kernel::{ffi::c_int, prelude::*};

use crate::{bindings, device::of, provider::Provider};

/// Size of a MAD in bytes.
const LEN: usize = 256;
/// Offset of the attribute in a performance management MAD.
const ATTRIBUTE: usize = 64;

const CLASS_PERFORMANCE: u8 = 0x04;
const METHOD_GET: u8 = 0x01;
const METHOD_SET: u8 = 0x02;
const METHOD_GET_RESPONSE: u8 = 0x81;
const VERSION: u8 = 1;

const CLASS_PORT_INFO: u16 = 0x0001;
const PORT_COUNTERS: u16 = 0x0012;
const PORT_COUNTERS_EXTENDED: u16 = 0x001d;

/// Status codes of a response (IBTA 1.x §13.4.7): unsupported class or version, unsupported
/// attribute, and invalid field.
const STATUS_VERSION: u16 = 1 << 2;
const STATUS_ATTRIBUTE: u16 = 3 << 2;
const STATUS_FIELD: u16 = 7 << 2;

/// `ClassPortInfo:CapabilityMask`, with the bit `IsExtendedWidthSupportedNoIETF`: the port has
/// 64-bit counters, but none of unicast and multicast packets.
const CAPABILITIES: u16 = 0x0400;
/// `ClassPortInfo:RespTimeValue`: the port responds within 4.096 µs · 2¹⁸, about one second.
const RESPONSE_TIME: u32 = 18;
const PORT: u8 = 1;
const ALL_PORTS: u8 = 0xff;

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Number of times that the port went down.
    pub link_downed: u64,
    /// Number of packets with errors that the port's network namespace received.
    pub received_errors: u64,
    /// Number of packets that could not be sent.
    pub sent_discards: u64,
    /// Number of payload bytes sent.
    pub sent_bytes: u64,
    /// Number of payload bytes received.
    pub received_bytes: u64,
    /// Number of packets sent.
    pub sent_packets: u64,
    /// Number of packets received.
    pub received_packets: u64,
}

/// A management datagram (MAD).
struct Mad([u8; LEN]);

impl Mad {
    fn byte(&self, offset: usize) -> u8 {
        self.0.get(offset).copied().unwrap_or(0)
    }

    fn attribute_id(&self) -> u16 {
        u16::from_be_bytes([self.byte(16), self.byte(17)])
    }

    /// Writes `bytes`, which are in network byte order, at `offset`.
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let field = self.0.iter_mut().skip(offset);
        for (place, byte) in field.zip(bytes) {
            *place = *byte;
        }
    }

    fn put_attribute(&mut self, offset: usize, bytes: &[u8]) {
        self.put(offset.saturating_add(ATTRIBUTE), bytes);
    }

    /// Returns the response, if the MAD is a request to the port's performance management. Returns
    /// `None` for any other MAD, which other agents handle. The status of the response reports an
    /// unsupported request.
    fn respond(&self, counters: impl FnOnce() -> PortCounters) -> Option<Self> {
        let method = self.byte(3);
        if self.byte(1) != CLASS_PERFORMANCE || !matches!(method, METHOD_GET | METHOD_SET) {
            return None;
        }
        let mut response = Self(self.0);
        response.put(3, &[METHOD_GET_RESPONSE]);
        let status = match self.unsupported_status() {
            Some(status) => status,
            None => {
                response.put_attribute(0, &[0; LEN - ATTRIBUTE]);
                match self.attribute_id() {
                    PORT_COUNTERS => response.put_counters(&counters()),
                    PORT_COUNTERS_EXTENDED => response.put_extended(&counters()),
                    _ => response.put_class_port_info(),
                }
                0
            }
        };
        response.put(4, &status.to_be_bytes());
        Some(response)
    }

    /// Returns the status of an unsupported request, or `None` if the request is supported.
    fn unsupported_status(&self) -> Option<u16> {
        if self.byte(0) != VERSION || self.byte(2) != VERSION {
            return Some(STATUS_VERSION);
        }
        if self.byte(3) != METHOD_GET {
            return Some(STATUS_ATTRIBUTE);
        }
        let port = self.byte(ATTRIBUTE.saturating_add(1));
        match self.attribute_id() {
            CLASS_PORT_INFO => None,
            PORT_COUNTERS | PORT_COUNTERS_EXTENDED if matches!(port, PORT | ALL_PORTS) => None,
            PORT_COUNTERS | PORT_COUNTERS_EXTENDED => Some(STATUS_FIELD),
            _ => Some(STATUS_ATTRIBUTE),
        }
    }

    fn put_class_port_info(&mut self) {
        self.put_attribute(0, &[VERSION, VERSION]);
        self.put_attribute(2, &CAPABILITIES.to_be_bytes());
        self.put_attribute(4, &RESPONSE_TIME.to_be_bytes());
    }

    /// Writes the attribute `PortCounters`. A counter stays at its maximum (IBTA 1.x §16.1.3.5).
    fn put_counters(&mut self, counters: &PortCounters) {
        self.put_attribute(1, &[PORT]);
        self.put_attribute(7, &[u8::try_from(counters.link_downed).unwrap_or(u8::MAX)]);
        self.put_attribute(8, &saturated_u16(counters.received_errors));
        self.put_attribute(14, &saturated_u16(counters.sent_discards));
        for (place, value) in (24..).step_by(4).zip(data_counters(counters)) {
            let value = u32::try_from(value).unwrap_or(u32::MAX);
            self.put_attribute(place, &value.to_be_bytes());
        }
    }

    /// Writes the attribute `PortCountersExtended`.
    fn put_extended(&mut self, counters: &PortCounters) {
        self.put_attribute(1, &[PORT]);
        for (place, value) in (8..).step_by(8).zip(data_counters(counters)) {
            self.put_attribute(place, &value.to_be_bytes());
        }
    }
}

/// Returns the counters that both attributes contain, in their common order. Bytes are in units of
/// four.
fn data_counters(counters: &PortCounters) -> [u64; 4] {
    [
        counters.sent_bytes / 4,
        counters.received_bytes / 4,
        counters.sent_packets,
        counters.received_packets,
    ]
}

/// Converts a counter to 16 bits in network byte order. It stays at its maximum.
fn saturated_u16(value: u64) -> [u8; 2] {
    u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes()
}

/// Implements `process_mad` of `struct ib_device_ops`.
///
/// # Safety
///
/// Must be called only by ib_core, on a device of `P`, with MADs of InfiniBand's size.
#[allow(clippy::too_many_arguments)]
pub(crate) unsafe extern "C" fn process<P: Provider>(
    device: *mut bindings::ib_device,
    _flags: c_int,
    port: u32,
    _completion: *const bindings::ib_wc,
    _header: *const bindings::ib_grh,
    request: *const bindings::ib_mad,
    response: *mut bindings::ib_mad,
    _response_size: *mut usize,
    _pkey_index: *mut u16,
) -> c_int {
    const SUCCESS: c_int = bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS as c_int;
    const REPLY: c_int = bindings::ib_mad_result_IB_MAD_RESULT_REPLY as c_int;
    const FAILURE: c_int = bindings::ib_mad_result_IB_MAD_RESULT_FAILURE as c_int;
    const { assert!(core::mem::size_of::<bindings::ib_mad>() == LEN) };
    if port != u32::from(PORT) {
        return FAILURE;
    }
    // SAFETY: ib_core passes a valid MAD. Every value is valid for its `LEN` bytes.
    let request = Mad(unsafe { request.cast::<[u8; LEN]>().read_unaligned() });
    // SAFETY: The device is alive while ib_core calls its operations.
    let device = unsafe { of::<P>(device) };
    match request.respond(|| P::port_counters(device)) {
        None => SUCCESS,
        Some(reply) => {
            // SAFETY: ib_core passes valid memory for a response of `LEN` bytes.
            unsafe { response.cast::<[u8; LEN]>().write_unaligned(reply.0) };
            SUCCESS | REPLY
        }
    }
}

#[kunit_tests(rrxe_mad)]
mod tests {
    use super::*;

    const COUNTERS: PortCounters = PortCounters {
        link_downed: 3,
        received_errors: 70_000,
        sent_discards: 5,
        sent_bytes: 4_000_000_000_000,
        received_bytes: 4 * 77,
        sent_packets: 1 << 40,
        received_packets: 9,
    };

    fn request(method: u8, attribute: u16, port: u8) -> Mad {
        let mut mad = Mad([0; LEN]);
        mad.put(0, &[VERSION, CLASS_PERFORMANCE, VERSION, method]);
        mad.put(8, &0x1122_3344_5566_7788_u64.to_be_bytes());
        mad.put(16, &attribute.to_be_bytes());
        mad.put_attribute(1, &[port]);
        mad
    }

    fn respond_to(request: &Mad) -> (u16, Mad) {
        let response = request.respond(|| COUNTERS).unwrap_or(Mad([0xee; LEN]));
        let status = u16::from_be_bytes([response.byte(4), response.byte(5)]);
        (status, response)
    }

    fn field(mad: &Mad, offset: usize, len: usize) -> u64 {
        let bytes = mad.0.iter().skip(ATTRIBUTE + offset).take(len);
        bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// Checks which MADs get a response, and the header of a response.
    #[test]
    fn only_requests_get_a_response() {
        let (status, info) = respond_to(&request(METHOD_GET, CLASS_PORT_INFO, 0));
        assert_eq!((status, info.byte(3)), (0, METHOD_GET_RESPONSE));
        assert_eq!(field(&info, 2, 2), u64::from(CAPABILITIES));
        assert_eq!((info.byte(8), info.byte(15)), (0x11, 0x88));
        // A response to a consumer on this host, and a request of another class.
        assert!(request(METHOD_GET_RESPONSE, PORT_COUNTERS, 1)
            .respond(|| COUNTERS)
            .is_none());
        let mut other = request(METHOD_GET, PORT_COUNTERS, 1);
        other.put(1, &[7]);
        assert!(other.respond(|| COUNTERS).is_none());
    }

    /// Checks the status of a response to an unsupported request.
    #[test]
    fn unsupported_requests_get_an_error_status() {
        for (method, attribute, port, status) in [
            (METHOD_SET, PORT_COUNTERS, 1, STATUS_ATTRIBUTE),
            (METHOD_GET, 0x0010, 1, STATUS_ATTRIBUTE),
            (METHOD_GET, PORT_COUNTERS, 2, STATUS_FIELD),
            (METHOD_GET, PORT_COUNTERS_EXTENDED, 0, STATUS_FIELD),
        ] {
            assert_eq!(respond_to(&request(method, attribute, port)).0, status);
        }
        let mut old = request(METHOD_GET, PORT_COUNTERS, 1);
        old.put(2, &[9]);
        assert_eq!(respond_to(&old).0, STATUS_VERSION);
    }

    /// Checks the place of each counter, and that a counter stays at the maximum of its field.
    #[test]
    fn counters_are_at_their_offsets() {
        let (_, narrow) = respond_to(&request(METHOD_GET, PORT_COUNTERS, 1));
        for (offset, len, value) in [
            (1, 1, 1),
            (7, 1, 3),
            (8, 2, 0xffff),
            (14, 2, 5),
            (24, 4, 1_000_000_000_000),
            (28, 4, 77),
            (32, 4, 1 << 40),
            (36, 4, 9),
        ] {
            let most = (1 << (8 * len)) - 1;
            assert_eq!(field(&narrow, offset, len), most.min(value));
        }
        let (_, wide) = respond_to(&request(METHOD_GET, PORT_COUNTERS_EXTENDED, 1));
        for (offset, value) in [(8, 1_000_000_000_000), (16, 77), (24, 1 << 40), (32, 9)] {
            assert_eq!(field(&wide, offset, 8), value);
        }
    }
}

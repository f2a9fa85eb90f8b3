// SPDX-License-Identifier: GPL-2.0

//! Headers of packets between QPs of this host, which stay decoded: a buffer holds them in front of
//! the payload.

use core::ptr::NonNull;

use kernel::prelude::*;
use roce::wire::packet::Packet;

use super::rx::Endpoints;
use crate::bindings;

/// The headers of a packet.
#[derive(Clone, Copy)]
pub struct Headers {
    /// Transport headers.
    pub packet: Packet,
    /// Source and destination address.
    pub endpoints: Endpoints,
}

/// Number of bytes that the headers take in a buffer.
pub(super) const LEN: usize = size_of::<Headers>();

impl Headers {
    /// Puts the headers in front of the data of a buffer.
    ///
    /// # Safety
    ///
    /// The caller must own the valid buffer, which has [`LEN`] bytes of headroom.
    #[inline]
    pub(super) unsafe fn write(&self, skb: NonNull<bindings::sk_buff>) {
        // SAFETY: The caller guarantees that the buffer is valid (see `# Safety`).
        let data = unsafe { (*skb.as_ptr()).data };
        // SAFETY: The caller guarantees that it owns the buffer, which has `LEN` bytes of headroom
        // (see `# Safety`).
        unsafe { data.sub(LEN).cast::<Self>().write_unaligned(*self) };
    }

    /// Returns the headers in front of the data of a buffer.
    ///
    /// # Safety
    ///
    /// The buffer must be valid, and hold the bytes that [`Self::write`] has put there.
    #[inline]
    pub(super) unsafe fn read(skb: NonNull<bindings::sk_buff>) -> Self {
        // SAFETY: The caller guarantees that the buffer is valid (see `# Safety`).
        let data = unsafe { (*skb.as_ptr()).data };
        // SAFETY: The caller guarantees that `write` has put headers there (see `# Safety`).
        unsafe { data.sub(LEN).cast::<Self>().read_unaligned() }
    }
}

#[kunit_tests(rrxe_headers)]
mod tests {
    use super::{
        super::{
            queue::{compact, copy_of},
            RxSkb, TxSkb,
        },
        *,
    };
    use crate::device::gid::Gid;
    use roce::{
        ids::Qpn,
        psn::Psn,
        wire::packet::{Body, Bth, SendPart, Service},
    };

    /// Returns headers of a packet with `payload_len` bytes of payload.
    fn headers(payload_len: u32) -> Headers {
        let bth = Bth {
            ack_req: true,
            ..Bth::new(Qpn::new(17), Psn::new(4711))
        };
        Headers {
            packet: Packet {
                service: Service::Rc,
                bth,
                body: Body::Send(SendPart::Middle),
                payload_len,
            },
            endpoints: Endpoints {
                source: Gid::from_ipv4([10, 0, 0, 1]),
                destination: Gid::from_ipv4([10, 0, 0, 2]),
            },
        }
    }

    /// Checks the headers and the payload of a buffer.
    fn check(skb: &RxSkb, headers: &Headers, payload: &[u8]) {
        assert!(skb.ip_header().is_none());
        assert!(skb.udp_header().is_none());
        assert!(skb.endpoints() == headers.endpoints);
        assert_eq!(
            skb.decoded().map(|found| found.packet),
            Some(headers.packet)
        );
        assert_eq!(skb.linear(), payload);
    }

    #[test]
    fn copies_and_clones_have_the_headers() -> Result {
        for payload in [&[1; 3][..], &[2; 64], &[3; 4096]] {
            let headers = headers(payload.len() as u32);
            let mut skb = TxSkb::new_decoded(payload.len()).ok_or(ENOMEM)?;
            skb.put(payload)?;
            let skb = skb.into_decoded(&headers, 5)?;
            assert_eq!(skb.sender(), Some(5));
            check(&skb, &headers, payload);
            check(&skb.try_clone().ok_or(ENOMEM)?, &headers, payload);
            let raw = skb.into_raw();
            // SAFETY: This function owns the valid buffer.
            let copy = unsafe { copy_of(raw) }.ok_or(ENOMEM)?;
            // SAFETY: The copy is linear, and this function owns both buffers.
            let skbs = [raw, copy].map(|skb| unsafe { RxSkb::from_raw(skb) });
            check(&skbs[1], &headers, payload);
        }
        Ok(())
    }

    #[test]
    fn queues_copy_no_packet_of_this_host() -> Result {
        let payload = KVec::from_elem(2_u8, 4096, GFP_KERNEL)?;
        // Most of these lengths just exceed a size class of the allocator: `truesize` is more than
        // twice the length plus `OVERHEAD`.
        for length in [1, 80, 593, 639, 1617, 1663, 3665, 3711, 4096] {
            let mut skb = TxSkb::new_decoded(length).ok_or(ENOMEM)?;
            skb.put(payload.get(..length).ok_or(EINVAL)?)?;
            let raw = skb.into_decoded(&headers(length as u32), 5)?.into_raw();
            // SAFETY: This function owns the valid buffer, and gives it up.
            let kept = unsafe { compact(raw) }.map_err(|_| ENOMEM)?;
            let is_copy = kept != raw;
            // SAFETY: The buffer is a packet's buffer or a linear copy of it. This function owns
            // it.
            drop(unsafe { RxSkb::from_raw(kept) });
            assert!(!is_copy);
        }
        Ok(())
    }

    #[test]
    fn need_headroom() -> Result {
        let skb = TxSkb::new_local(LEN - 1, 64).ok_or(ENOMEM)?;
        assert!(skb.into_decoded(&headers(0), 5).is_err());
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A packet under construction.

use core::{
    convert::Infallible,
    mem::{size_of, ManuallyDrop},
    ptr::NonNull,
};

use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*,
    sync::{rcu, Arc},
};

use super::{crc32, linear, RxSkb};
use crate::{
    bindings,
    gid::Network,
    mr::Span,
    net::{
        credit::{Credit, Wake},
        netdev::Netdev,
        route::Route,
    },
};

/// Most bytes of a trailer: pad and ICRC.
pub const TRAILER_MAX: usize = 8;

const NET_XMIT_DROP: c_int = bindings::NET_XMIT_DROP as c_int;

/// The alignment of buffers and their parts, in bytes.
const ALIGN: usize = bindings::SMP_CACHE_BYTES as usize;

/// A packet being built: `headroom | linear data | page fragments | trailer`.
///
/// The trailer lies in front of the buffer's head, in the same page. So it needs no page of its
/// own when it has to stand behind page fragments, and nothing that moves linear data touches it.
///
/// # Invariants
///
/// The buffer is valid and owned by `self` alone; `trailer` points to `ALIGN` bytes right in front
/// of its head, in the same page fragment. At least `room` bytes are free behind the linear part.
/// `spill` is the unwritten rest of the first fragment.
pub struct TxSkb {
    skb: NonNull<bindings::sk_buff>,
    trailer: NonNull<u8>,
    room: usize,
    spill: Option<Spill>,
}

/// The fragment for payload that isn't linear.
struct Spill {
    next: NonNull<u8>,
    left: usize,
}

impl TxSkb {
    /// Allocates a packet with room for `headroom` bytes to push and `linear` bytes to put.
    ///
    /// # Context
    ///
    /// Any but hard interrupts; doesn't sleep.
    pub fn new(headroom: usize, linear: usize) -> Option<Self> {
        let shared = size_of::<bindings::skb_shared_info>().checked_next_multiple_of(ALIGN)?;
        let room = headroom.checked_add(linear)?;
        let size = room.checked_next_multiple_of(ALIGN)?.checked_add(shared)?;
        let total = u32::try_from(size.checked_add(ALIGN)?).ok()?;

        // SAFETY: No requirements.
        let memory = unsafe { bindings::netdev_alloc_frag_align(total, ALIGN as u32) };
        let trailer = NonNull::new(memory.cast::<u8>())?;
        // SAFETY: `ALIGN` of `total` bytes are in front of the head, `size` from there on.
        let skb =
            unsafe { bindings::build_skb(memory.cast::<u8>().add(ALIGN).cast(), size as u32) };
        let Some(skb) = NonNull::new(skb) else {
            // SAFETY: `build_skb` left the memory to us.
            unsafe { bindings::skb_free_frag(memory) };
            return None;
        };
        // SAFETY: The buffer is empty, and `headroom` bytes fit.
        unsafe { bindings::skb_reserve(skb.as_ptr(), headroom as i32) };
        // INVARIANT: As said above; `linear` bytes are left.
        Some(Self {
            skb,
            trailer,
            room: linear,
            spill: None,
        })
    }

    /// Appends a copy of some bytes, to the fragment if [`Self::spill`] began one, else to the
    /// linear part. Only before the trailer.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no room.
    pub fn put(&mut self, bytes: &[u8]) -> Result {
        let to = self.take(bytes.len())?;
        // SAFETY: `take` made room for as many bytes at `to`.
        unsafe {
            to.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(())
    }

    /// Appends a copy of a span, as [`Self::put`] does.
    ///
    /// The copy keeps a region's revocation synchronous: a packet to a QP of this host, or of a
    /// container, may wait there for as long as that QP's owner likes.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no room.
    pub fn put_span(&mut self, span: &Span<'_>) -> Result {
        let to = self.take(span.len())?;
        // SAFETY: `take` made room for as many bytes.
        unsafe { copy_span(to, span) };
        Ok(())
    }

    /// Begins a fragment of `len` bytes behind the linear part, once for a packet.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOSPC` for none, or if there is one.
    pub fn spill(&mut self, len: usize) -> Result {
        if len == 0 || !self.is_linear() {
            return Err(ENOSPC);
        }
        let size = u32::try_from(len).map_err(|_| ENOSPC)?;
        // SAFETY: No requirements.
        let memory = unsafe { bindings::netdev_alloc_frag_align(size, ALIGN as u32) };
        let next = NonNull::new(memory.cast::<u8>()).ok_or(ENOMEM)?;
        let (page, offset) = page_of(next);
        // SAFETY: The allocation's count is given to the fragment, which is the first.
        unsafe { self.push_fragment(page, offset, len) };
        // INVARIANT: The fragment keeps the memory.
        self.spill = Some(Spill { next, left: len });
        Ok(())
    }

    /// The next `len` bytes to copy to: of the fragment if there is one, else of the linear part.
    fn take(&mut self, len: usize) -> Result<NonNull<u8>> {
        let Some(spill) = self.spill.as_mut() else {
            return self.extend(len);
        };
        spill.left = spill.left.checked_sub(len).ok_or(ENOSPC)?;
        let taken = spill.next;
        // SAFETY: `len` bytes were left.
        spill.next = unsafe { taken.add(len) };
        Ok(taken)
    }

    /// Appends the last bytes.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if they are more than [`TRAILER_MAX`], were appended before, or there is no room.
    pub fn put_trailer(&mut self, bytes: &[u8]) -> Result {
        if self.is_linear() {
            return self.put(bytes);
        }
        if bytes.len() > TRAILER_MAX || self.fragments() != 1 {
            return Err(ENOSPC);
        }
        let trailer = self.trailer.as_ptr();
        // SAFETY: There are `ALIGN` ≥ `TRAILER_MAX` bytes by the type invariant.
        unsafe { trailer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let (page, offset) = page_of(self.trailer);
        // SAFETY: The buffer's head keeps the page alive.
        unsafe { bindings::get_page(page) };
        // SAFETY: The count just taken is given to the fragment, which is the second.
        unsafe { self.push_fragment(page, offset, bytes.len()) };
        Ok(())
    }

    /// Puts the UDP header in front.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no headroom.
    pub fn push_udp(&mut self, header: &[u8; 8]) -> Result {
        self.push(header)?;
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::skb_reset_transport_header(self.skb.as_ptr()) };
        Ok(())
    }

    /// Puts the IP header in front.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no headroom.
    pub fn push_ip(&mut self, header: &[u8]) -> Result {
        self.push(header)?;
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::skb_reset_network_header(self.skb.as_ptr()) };
        Ok(())
    }

    /// Sets the priority by which queueing disciplines and VLANs go; zero unless this is called.
    pub fn set_priority(&mut self, priority: u32) {
        // SAFETY: Valid and ours by the type invariant.
        unsafe { bindings::skb_set_priority(self.skb.as_ptr(), priority) };
    }

    /// Bytes so far.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.skb.as_ptr()).len as usize }
    }

    /// As many bytes from the first on as lie in one piece.
    pub fn linear(&self) -> &[u8] {
        // SAFETY: Valid by the type invariant.
        unsafe { linear(self.skb) }
    }

    /// Goes on with a CRC-32 over everything from `offset` on, without inverting anything.
    pub fn crc32(&self, register: u32, offset: usize) -> Option<u32> {
        let len = self.len().checked_sub(offset)?;
        // SAFETY: Valid and ours by the type invariant; nothing made a `frag_list`.
        unsafe { crc32(self.skb, register, offset, len) }
    }

    /// Sends the packet, complete with IP and UDP header, along `route`; the credit comes back when
    /// it is out. It may be as long as the network device's MTU, whatever ICMP messages say of the
    /// path.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the packet is longer than the MTU of the network device, otherwise the IP
    /// layer's. The packet is gone all the same.
    pub fn send<W: Wake>(self, route: &Route, credit: &Arc<Credit<W>>) -> Result {
        let len = self.len();
        let skb = self.charge(credit);
        // SAFETY: The count that `hold` takes is given to the buffer.
        unsafe { bindings::skb_dst_set(skb, route.hold()) };
        let readers = rcu::read_lock();
        let net = route.net(&readers);
        let code = match route.network() {
            // SAFETY: The buffer is complete, ours, and has a route; `net` is that route's. The
            // credit keeps the socket.
            Network::V4 => unsafe { bindings::ip_local_out(net, credit.probe().v4(), skb) },
            Network::V6 => {
                if len > route.mtu() {
                    // The IPv6 layer asks the buffer for the socket, not its caller.
                    // SAFETY: The buffer is ours. It holds the credit, which keeps the socket, until
                    // the network stack makes it forget the socket (`skb_orphan()`).
                    unsafe { bindings::skb_set_sk(skb, credit.probe().v6()) };
                }
                // SAFETY: As for IPv4.
                unsafe { bindings::ip6_local_out(net, core::ptr::null_mut(), skb) }
            }
        };
        sent(code)
    }

    /// Sends the buffer as a frame, complete with its link-layer header, by `netdev`; the credit
    /// comes back when it is out.
    ///
    /// # Context
    ///
    /// Bottom halves disabled.
    ///
    /// # Errors
    ///
    /// Those of the queueing discipline or the device. The frame is gone all the same.
    pub fn send_frame<W: Wake>(self, netdev: &Netdev, credit: &Arc<Credit<W>>) -> Result {
        let skb = self.charge(credit);
        // SAFETY: The buffer is ours until it is sent; the device is held until after that.
        unsafe { bindings::skb_set_dev(skb, netdev.as_ptr()) };
        // SAFETY: The buffer is ours and starts with the link-layer header.
        unsafe { bindings::skb_reset_mac_header(skb) };
        // SAFETY: As above; the caller gives no less than a header.
        unsafe { bindings::skb_set_network_header(skb, netdev.header_len() as c_int) };
        // SAFETY: As above; device and header are set.
        unsafe { bindings::skb_parse_protocol(skb) };
        // SAFETY: The buffer is complete and given up.
        sent(unsafe { bindings::dev_queue_xmit(skb) })
    }

    /// Gives the buffer up, to be sent: it holds a credit until it is destroyed.
    fn charge<W: Wake>(self, credit: &Arc<Credit<W>>) -> *mut bindings::sk_buff {
        let skb = self.into_raw().as_ptr();
        // SAFETY: The buffer is ours until it is sent, and was built without a destructor.
        unsafe { credit.charge(skb) };
        skb
    }

    /// Turns the packet, complete with IP and UDP header, into one that was received on this host.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the headers aren't there.
    pub fn into_rx(self, network: Network) -> Result<RxSkb> {
        let headers = match network {
            Network::V4 => 20 + 8,
            Network::V6 => 40 + 8,
        };
        // SAFETY: Valid and ours by the type invariant.
        if unsafe { bindings::skb_pull(self.skb.as_ptr(), headers) }.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: `push_udp` and `push_ip` set the headers, which are pulled now.
        Ok(unsafe { RxSkb::from_local(self.into_raw()) })
    }

    /// All bytes so far are in the linear part.
    fn is_linear(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.skb.as_ptr()).data_len == 0 }
    }

    /// Makes room for `len` more linear bytes.
    fn extend(&mut self, len: usize) -> Result<NonNull<u8>> {
        let skb = self.skb.as_ptr();
        // There is no tail room behind a page fragment.
        if len > self.room || !self.is_linear() {
            return Err(ENOSPC);
        }
        self.room = self.room.wrapping_sub(len);
        // SAFETY: The room is there by the type invariant.
        NonNull::new(unsafe { bindings::skb_put(skb, len as u32) }.cast()).ok_or(ENOSPC)
    }

    fn push(&mut self, bytes: &[u8]) -> Result {
        let skb = self.skb.as_ptr();
        // SAFETY: Valid by the type invariant.
        let (head, data) = unsafe { ((*skb).head, (*skb).data) };
        if bytes.len() > (data as usize).wrapping_sub(head as usize) {
            return Err(ENOSPC);
        }
        // SAFETY: Valid by the type invariant, with room for the bytes, as was just checked.
        let to = unsafe { bindings::skb_push(skb, bytes.len() as u32) }.cast::<u8>();
        // SAFETY: `skb_push` returns as many bytes to write.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn fragments(&self) -> usize {
        // SAFETY: Valid by the type invariant, so it has a shared info.
        usize::from(unsafe { (*bindings::skb_shinfo(self.skb.as_ptr())).nr_frags })
    }

    /// Appends a page fragment.
    ///
    /// # Safety
    ///
    /// The caller gives up a count of the page, which has that many bytes there, and there are
    /// fewer than `MAX_SKB_FRAGS` fragments.
    unsafe fn push_fragment(&mut self, page: *mut bindings::page, offset: usize, len: usize) {
        let skb = self.skb.as_ptr();
        let index = self.fragments() as i32;
        // SAFETY: The caller promises that there is room and that the page is right.
        unsafe { bindings::skb_fill_page_desc(skb, index, page, offset as i32, len as i32) };
        // SAFETY: Valid by the type invariant.
        let (total, paged, true_size) =
            unsafe { (&mut (*skb).len, &mut (*skb).data_len, &mut (*skb).truesize) };
        *total = total.wrapping_add(len as u32);
        *paged = paged.wrapping_add(len as u32);
        *true_size = true_size.wrapping_add(len as u32);
    }

    /// The buffer for C.
    pub(super) fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.skb.as_ptr()
    }

    fn into_raw(self) -> NonNull<bindings::sk_buff> {
        ManuallyDrop::new(self).skb
    }
}

/// Copies a span to `to`.
///
/// # Safety
///
/// As many bytes must be valid for writes there, and nobody else may use them.
unsafe fn copy_span(to: NonNull<u8>, span: &Span<'_>) {
    let mut to = to.as_ptr();
    let _: Result<(), Infallible> = span.for_each_piece(|from, len| {
        // SAFETY: The pieces add up to the span's length; they are valid for reads.
        unsafe { bindings::memcpy(to.cast(), from.as_ptr().cast(), len) };
        to = to.wrapping_add(len);
        Ok(())
    });
}

/// The result of a transmission, by the network stack's return value.
fn sent(code: c_int) -> Result {
    match code {
        NET_XMIT_DROP => Err(EAGAIN),
        code if code > 0 => Ok(()),
        code => to_result(code),
    }
}

/// The page that an allocation of page fragments lies in, and where.
fn page_of(start: NonNull<u8>) -> (*mut bindings::page, usize) {
    let address = start.as_ptr();
    // SAFETY: Fragments lie in pages of the direct mapping.
    let page = unsafe { bindings::virt_to_head_page(address.cast()) };
    // SAFETY: As above.
    let base = unsafe { bindings::page_address(page) };
    (page, (address as usize).wrapping_sub(base as usize))
}

impl Drop for TxSkb {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant, and not used again.
        unsafe { bindings::consume_skb(self.skb.as_ptr()) };
    }
}

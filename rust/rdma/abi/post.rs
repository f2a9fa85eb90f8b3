// SPDX-License-Identifier: GPL-2.0

//! Work requests of the kernel's consumers, written into the rings as librxe would write them.
//!
//! So a queue of the kernel and one of a process are executed alike. A list of requests is ib_core's, valid
//! and unchanged for the duration of the call. Any context.

use core::{marker::PhantomData, ptr, slice};

use kernel::{ffi::c_int, prelude::*};

use crate::{
    abi::{
        ring::Ring,
        uabi::{av, kernel_opcode, opcode, recv_wqe, send_flag, send_wqe, sge},
    },
    bindings::{self, ib_recv_wr, ib_send_wr, ib_sge},
    provider::Provider,
    verbs::object::Object,
};

/// What a WQE of a queue can hold.
#[derive(Clone, Copy, Debug)]
pub struct WqeRoom {
    /// SGEs.
    pub max_sge: u32,
    /// Bytes of inline payload.
    pub max_inline: u32,
}

/// The send requests of one call, in order.
pub struct SendList<'a, P> {
    current: *const ib_send_wr,
    next: *const ib_send_wr,
    datagrams: bool,
    call: PhantomData<&'a P>,
}

impl<'a, P: Provider> SendList<'a, P> {
    /// The list that begins with `first`.
    ///
    /// # Safety
    ///
    /// `first` must be the first of a list that ib_core passed to `post_send` on a QP of `P`, valid for `'a`;
    /// `datagrams` must tell whether that is a datagram QP.
    pub(crate) unsafe fn new(first: *const ib_send_wr, datagrams: bool) -> Self {
        Self {
            current: ptr::null(),
            next: first,
            datagrams,
            call: PhantomData,
        }
    }

    /// The request that was taken last.
    pub(crate) fn current(&self) -> *const ib_send_wr {
        self.current
    }
}

impl<'a, P: Provider> Iterator for SendList<'a, P> {
    type Item = SendRequest<'a, P>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: The list is valid, as the caller of `new` promised.
        let wr = unsafe { self.next.as_ref() }?;
        self.current = self.next;
        self.next = wr.next;
        Some(SendRequest {
            wr,
            datagram: self.datagrams,
            provider: PhantomData,
        })
    }
}

/// A send request of the kernel.
///
/// # Invariants
///
/// `wr` is the first part of the structure that its opcode asks for, for a SEND of a datagram that of datagrams,
/// all of it valid.
pub struct SendRequest<'a, P> {
    wr: &'a ib_send_wr,
    datagram: bool,
    provider: PhantomData<P>,
}

impl<P: Provider> SendRequest<'_, P> {
    /// Writes the WQE into a slot of `ring`, which nobody reads yet.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more SGEs or inline payload than there is room for, for an operation that doesn't exist,
    /// and for a region that isn't the one of its key.
    pub fn write(&self, ring: &Ring, slot: u32, room: &WqeRoom) -> Result {
        let mut raw = [0u8; send_wqe::PAYLOAD];
        put_u64(&mut raw, send_wqe::WR_ID, self.wr_id());
        put_u32(&mut raw, send_wqe::OPCODE, self.wr.opcode);
        // SAFETY: Both members are 32 bits; the opcode says which one it is.
        let extra = unsafe { self.wr.ex.invalidate_rkey };
        put_u32(&mut raw, send_wqe::EX, extra);
        match (self.datagram, self.wr.opcode) {
            (false, _) => self.put_operation(&mut raw)?,
            (true, opcode::SEND | opcode::SEND_WITH_IMM) => self.put_destination(&mut raw),
            // It has no destination, and fails in its turn; or is flushed, as what `ib_drain_qp` posts.
            (true, _) => {}
        }
        let flags = self.wr.send_flags as u32;
        // The operand of an ATOMIC WRITE always lies in the WQE.
        if flags & send_flag::INLINE != 0 || self.wr.opcode == opcode::ATOMIC_WRITE {
            let length = self.write_inline(ring, slot, room)?;
            put_u32(&mut raw, send_wqe::LENGTH, length);
            put_u32(&mut raw, send_wqe::FLAGS, flags | send_flag::INLINE);
        } else {
            let sges = self.sges(room.max_sge)?;
            put_u32(&mut raw, send_wqe::NUM_SGE, sges.len() as u32);
            put_u32(&mut raw, send_wqe::FLAGS, flags);
            write_sges(ring, slot, send_wqe::PAYLOAD, sges);
        }
        ring.write(slot, &raw);
        Ok(())
    }

    fn wr_id(&self) -> u64 {
        // SAFETY: The other member is a pointer, of as many bits.
        unsafe { self.wr.__bindgen_anon_1.wr_id }
    }

    /// Where a datagram goes: the address itself, since the kernel's address handles have no numbers.
    fn put_destination(&self, raw: &mut [u8; send_wqe::PAYLOAD]) {
        let wr: *const ib_send_wr = self.wr;
        // SAFETY: By the type invariant.
        let datagram = unsafe { &*wr.cast::<bindings::ib_ud_wr>() };
        // SAFETY: The consumer names an address handle of the QP's device, which is alive.
        let ah = unsafe { Object::<P, _>::get(datagram.ah.cast_const()) };
        let address = P::query_ah(ah);
        put_u32(raw, send_wqe::UD_QPN, datagram.remote_qpn);
        put_u32(raw, send_wqe::UD_QKEY, datagram.remote_qkey);
        let Some(raw) = raw.get_mut(send_wqe::UD_AV..) else {
            return;
        };
        put(raw, av::PORT, [address.port]);
        put(raw, av::DGID, address.dgid.0);
        put(raw, av::SGID_INDEX, [address.sgid_index]);
        put(raw, av::TRAFFIC_CLASS, [address.traffic_class]);
        put(raw, av::HOP_LIMIT, [address.hop_limit]);
        put_u32(raw, av::FLOW_LABEL, address.flow_label);
    }

    /// What belongs to the operation.
    fn put_operation(&self, raw: &mut [u8; send_wqe::PAYLOAD]) -> Result {
        let wr: *const ib_send_wr = self.wr;
        match self.wr.opcode {
            opcode::SEND | opcode::SEND_WITH_IMM | opcode::SEND_WITH_INV | opcode::LOCAL_INV => {}
            opcode::RDMA_WRITE
            | opcode::RDMA_WRITE_WITH_IMM
            | opcode::RDMA_READ
            | opcode::ATOMIC_WRITE => {
                // SAFETY: By the type invariant.
                let rdma = unsafe { &*wr.cast::<bindings::ib_rdma_wr>() };
                put_u64(raw, send_wqe::RDMA_ADDR, rdma.remote_addr);
                put_u32(raw, send_wqe::RDMA_RKEY, rdma.rkey);
            }
            opcode::COMPARE_SWAP | opcode::FETCH_ADD => {
                // SAFETY: By the type invariant.
                let atomic = unsafe { &*wr.cast::<bindings::ib_atomic_wr>() };
                put_u64(raw, send_wqe::ATOMIC_ADDR, atomic.remote_addr);
                put_u64(raw, send_wqe::ATOMIC_COMPARE_ADD, atomic.compare_add);
                put_u64(raw, send_wqe::ATOMIC_SWAP, atomic.swap);
                put_u32(raw, send_wqe::ATOMIC_RKEY, atomic.rkey);
            }
            kernel_opcode::REG_MR => {
                // SAFETY: By the type invariant.
                let register = unsafe { &*wr.cast::<bindings::ib_reg_wr>() };
                self.put_registration(raw, register)?;
            }
            _ => return Err(EINVAL),
        }
        Ok(())
    }

    fn put_registration(
        &self,
        raw: &mut [u8; send_wqe::PAYLOAD],
        register: &bindings::ib_reg_wr,
    ) -> Result {
        // SAFETY: The consumer names a region of the QP's device, which is alive.
        let current = unsafe { Object::<P, _>::get(register.mr.cast_const()) };
        let mr = current.fast().ok_or(EINVAL)?;
        // SAFETY: As above; the consumer may have moved the address after it mapped the pages.
        let iova = unsafe { (*register.mr).iova };
        if (P::mr_keys(mr).rkey.0 ^ register.key) >> 8 != 0 {
            return Err(EINVAL);
        }
        put_u64(raw, send_wqe::REG_IOVA, iova);
        put_u32(raw, send_wqe::REG_KEY, register.key);
        put_u32(raw, send_wqe::REG_ACCESS, register.access as u32);
        Ok(())
    }

    fn sges(&self, most: u32) -> Result<&[ib_sge]> {
        // SAFETY: By the type invariant.
        unsafe { sges(self.wr.sg_list, self.wr.num_sge, most) }
    }

    /// Copies the payload into the WQE, and returns its length.
    fn write_inline(&self, ring: &Ring, slot: u32, room: &WqeRoom) -> Result<u32> {
        let mut length = 0u32;
        for sge in self.sges(u32::MAX)? {
            let before = length;
            length = length.checked_add(sge.length).ok_or(EINVAL)?;
            if length > room.max_inline {
                return Err(EINVAL);
            }
            let start = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            if sge.length == 0 {
                continue;
            }
            // SAFETY: Without a DMA device the address is that of the consumer's memory, which is as
            // long and not changed during the call.
            let bytes = unsafe { slice::from_raw_parts(start, sge.length as usize) };
            let at = send_wqe::PAYLOAD.saturating_add(before as usize);
            ring.write_at(slot, at, bytes);
        }
        Ok(length)
    }
}

/// The receive requests of one call, in order.
pub struct RecvList<'a> {
    current: *const ib_recv_wr,
    next: *const ib_recv_wr,
    call: PhantomData<&'a ib_recv_wr>,
}

impl RecvList<'_> {
    /// The list that begins with `first`.
    ///
    /// # Safety
    ///
    /// `first` must be null or the first of a list that ib_core passed to `post_recv`, valid for `'a`.
    pub(crate) unsafe fn new(first: *const ib_recv_wr) -> Self {
        Self {
            current: ptr::null(),
            next: first,
            call: PhantomData,
        }
    }

    /// Has the driver `post` the list that begins with `first`. If that fails, `failed` gets the request that was taken last.
    ///
    /// # Safety
    ///
    /// As for [`Self::new`], and `failed` must be valid for a write.
    pub(crate) unsafe fn post(
        first: *const ib_recv_wr,
        failed: *mut *const ib_recv_wr,
        post: impl FnOnce(&mut Self) -> Result,
    ) -> c_int {
        // SAFETY: As the caller promises.
        let mut list = unsafe { Self::new(first) };
        match post(&mut list) {
            Ok(()) => 0,
            Err(error) => {
                // SAFETY: As the caller promises.
                unsafe { failed.write(list.current) };
                error.to_errno()
            }
        }
    }
}

impl<'a> Iterator for RecvList<'a> {
    type Item = RecvRequest<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: The list is valid, as the caller of `new` promised.
        let wr = unsafe { self.next.as_ref() }?;
        self.current = self.next;
        self.next = wr.next;
        Some(RecvRequest(wr))
    }
}

/// A receive request of the kernel.
pub struct RecvRequest<'a>(&'a ib_recv_wr);

impl RecvRequest<'_> {
    /// Writes the WQE into a slot of `ring`, which nobody reads yet.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more SGEs than there is room for.
    pub fn write(&self, ring: &Ring, slot: u32, room: &WqeRoom) -> Result {
        // SAFETY: The request is of a list that is valid during the call, and so are as many SGEs as it says.
        let sges = unsafe { sges(self.0.sg_list, self.0.num_sge, room.max_sge) }?;
        let mut raw = [0u8; recv_wqe::PAYLOAD];
        // SAFETY: The other member is a pointer, of as many bits.
        put_u64(&mut raw, recv_wqe::WR_ID, unsafe {
            self.0.__bindgen_anon_1.wr_id
        });
        put_u32(&mut raw, recv_wqe::NUM_SGE, sges.len() as u32);
        ring.write(slot, &raw);
        write_sges(ring, slot, recv_wqe::PAYLOAD, sges);
        Ok(())
    }
}

/// The SGEs of a request, at most `most`.
///
/// # Safety
///
/// They must be valid for `'a` if their number is positive.
unsafe fn sges<'a>(list: *const ib_sge, count: i32, most: u32) -> Result<&'a [ib_sge]> {
    let count = u32::try_from(count).map_err(|_| EINVAL)?;
    if count > most {
        return Err(EINVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: As the caller promises.
    Ok(unsafe { slice::from_raw_parts(list, count as usize) })
}

fn write_sges(ring: &Ring, slot: u32, at: usize, sges: &[ib_sge]) {
    for (index, element) in sges.iter().enumerate() {
        let mut raw = [0u8; sge::SIZE];
        put_u64(&mut raw, sge::ADDR, element.addr);
        put_u32(&mut raw, sge::LENGTH, element.length);
        put_u32(&mut raw, sge::LKEY, element.lkey);
        let offset = index.saturating_mul(sge::SIZE).saturating_add(at);
        ring.write_at(slot, offset, &raw);
    }
}

/// Stores bytes. The offsets are constants within the structures.
fn put<const N: usize>(raw: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = raw.get_mut(at..).and_then(|tail| tail.first_chunk_mut()) {
        *place = bytes;
    }
}

/// Stores a native-endian word.
fn put_u32(raw: &mut [u8], at: usize, value: u32) {
    put(raw, at, value.to_ne_bytes());
}

/// Stores a native-endian double word.
fn put_u64(raw: &mut [u8], at: usize, value: u64) {
    put(raw, at, value.to_ne_bytes());
}

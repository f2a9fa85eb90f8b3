// SPDX-License-Identifier: GPL-2.0

//! Work requests of in-kernel consumers (`struct ib_send_wr`, `struct ib_recv_wr`), converted to
//! WQEs in the format that librxe writes. So the driver executes the queues of in-kernel consumers
//! and of processes alike.
//!
//! A list of work requests belongs to the caller of `ib_post_send()` or `ib_post_recv()`. It is
//! valid and unchanged during the call. Any context.

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

/// Limits of a queue's WQEs, as `struct ib_qp_cap` and `struct ib_srq_attr` state them.
#[derive(Clone, Copy, Debug)]
pub struct WqeRoom {
    /// Largest number of SGEs.
    pub max_sge: u32,
    /// Largest inline payload in bytes.
    pub max_inline: u32,
}

/// Work requests (`struct ib_send_wr`) of one call of `post_send`, in order.
pub struct SendList<'a, P> {
    current: *const ib_send_wr,
    next: *const ib_send_wr,
    datagrams: bool,
    call: PhantomData<&'a P>,
}

impl<'a, P: Provider> SendList<'a, P> {
    /// Creates the iterator over the list that begins with `first`.
    ///
    /// # Safety
    ///
    /// `first` must be the first of a list that ib_core passed to `post_send` on a QP of `P`. The
    /// list must be valid during `'a`. `datagrams` must tell whether the QP is a datagram QP.
    pub(crate) unsafe fn new(first: *const ib_send_wr, datagrams: bool) -> Self {
        Self {
            current: ptr::null(),
            next: first,
            datagrams,
            call: PhantomData,
        }
    }

    /// Returns the work request that the iterator returned last, or null.
    pub(crate) fn current(&self) -> *const ib_send_wr {
        self.current
    }
}

impl<'a, P: Provider> Iterator for SendList<'a, P> {
    type Item = SendRequest<'a, P>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: The caller of `new` guarantees that the list is valid during `'a`.
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

/// Send work request (`struct ib_send_wr`) of an in-kernel consumer.
///
/// # Invariants
///
/// `wr` is the first field of the structure that its opcode demands. For a SEND of a datagram QP
/// that is `struct ib_ud_wr`. The whole structure is valid.
pub struct SendRequest<'a, P> {
    wr: &'a ib_send_wr,
    datagram: bool,
    provider: PhantomData<P>,
}

impl<P: Provider> SendRequest<'_, P> {
    /// Writes the WQE to the slot `slot` of `ring`, which is not published yet.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request has more SGEs or inline payload than `room` allows, if a connected
    /// QP does not support its opcode, or if a REG_MR names a region that is not for fast
    /// registration or to which its key does not belong.
    pub fn write(&self, ring: &Ring, slot: u32, room: &WqeRoom) -> Result {
        let mut raw = [0u8; send_wqe::PAYLOAD];
        put_u64(&mut raw, send_wqe::WR_ID, self.wr_id());
        put_u32(&mut raw, send_wqe::OPCODE, self.wr.opcode);
        // SAFETY: Both union members are 32 bits of integer. The opcode says which one is meant.
        let extra = unsafe { self.wr.ex.invalidate_rkey };
        put_u32(&mut raw, send_wqe::EX, extra);
        match (self.datagram, self.wr.opcode) {
            (false, _) => self.put_operation(&mut raw)?,
            (true, opcode::SEND | opcode::SEND_WITH_IMM) => self.put_destination(&mut raw),
            // Other operations have no destination. Such a WQE fails when it is executed, or is
            // flushed, as is the request that `ib_drain_qp()` posts.
            (true, _) => {}
        }
        let flags = self.wr.send_flags as u32;
        // The operand of an ATOMIC WRITE is always inline in the WQE.
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

    /// Returns the ID of the work request.
    fn wr_id(&self) -> u64 {
        // SAFETY: Both union members are 64 bits: the other one is a pointer.
        unsafe { self.wr.__bindgen_anon_1.wr_id }
    }

    /// Writes the destination of a datagram. It writes the address itself, because address handles
    /// of in-kernel consumers have no numbers.
    fn put_destination(&self, raw: &mut [u8; send_wqe::PAYLOAD]) {
        let wr: *const ib_send_wr = self.wr;
        // SAFETY: By the type invariant `wr` is the first field of a valid `struct ib_ud_wr`.
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

    /// Writes the fields that depend on the opcode.
    fn put_operation(&self, raw: &mut [u8; send_wqe::PAYLOAD]) -> Result {
        let wr: *const ib_send_wr = self.wr;
        match self.wr.opcode {
            opcode::SEND | opcode::SEND_WITH_IMM | opcode::SEND_WITH_INV | opcode::LOCAL_INV => {}
            opcode::RDMA_WRITE
            | opcode::RDMA_WRITE_WITH_IMM
            | opcode::RDMA_READ
            | opcode::ATOMIC_WRITE => {
                // SAFETY: By the type invariant `wr` is the first field of a valid
                // `struct ib_rdma_wr`.
                let rdma = unsafe { &*wr.cast::<bindings::ib_rdma_wr>() };
                put_u64(raw, send_wqe::RDMA_ADDR, rdma.remote_addr);
                put_u32(raw, send_wqe::RDMA_RKEY, rdma.rkey);
            }
            opcode::COMPARE_SWAP | opcode::FETCH_ADD => {
                // SAFETY: By the type invariant `wr` is the first field of a valid
                // `struct ib_atomic_wr`.
                let atomic = unsafe { &*wr.cast::<bindings::ib_atomic_wr>() };
                put_u64(raw, send_wqe::ATOMIC_ADDR, atomic.remote_addr);
                put_u64(raw, send_wqe::ATOMIC_COMPARE_ADD, atomic.compare_add);
                put_u64(raw, send_wqe::ATOMIC_SWAP, atomic.swap);
                put_u32(raw, send_wqe::ATOMIC_RKEY, atomic.rkey);
            }
            kernel_opcode::REG_MR => {
                // SAFETY: By the type invariant `wr` is the first field of a valid
                // `struct ib_reg_wr`.
                let register = unsafe { &*wr.cast::<bindings::ib_reg_wr>() };
                self.put_registration(raw, register)?;
            }
            _ => return Err(EINVAL),
        }
        Ok(())
    }

    /// Writes the fields of a fast registration (REG_MR).
    ///
    /// # Errors
    ///
    /// `EINVAL` if the region is not for fast registration, or the key does not belong to it.
    fn put_registration(
        &self,
        raw: &mut [u8; send_wqe::PAYLOAD],
        register: &bindings::ib_reg_wr,
    ) -> Result {
        // SAFETY: The consumer names a region of the QP's device, which is alive.
        let current = unsafe { Object::<P, _>::get(register.mr.cast_const()) };
        let mr = current.fast().ok_or(EINVAL)?;
        // SAFETY: `Object::get` above required the same region to be alive. The consumer may have
        // changed the address (`iova`) after `ib_map_mr_sg()` set it.
        let iova = unsafe { (*register.mr).iova };
        if (P::mr_keys(mr).rkey.0 ^ register.key) >> 8 != 0 {
            return Err(EINVAL);
        }
        put_u64(raw, send_wqe::REG_IOVA, iova);
        put_u32(raw, send_wqe::REG_KEY, register.key);
        put_u32(raw, send_wqe::REG_ACCESS, register.access as u32);
        Ok(())
    }

    /// Returns the SGEs of the request. Fails with `EINVAL` if there are more than `most`.
    fn sges(&self, most: u32) -> Result<&[ib_sge]> {
        // SAFETY: By the type invariant the request and its SGEs are valid.
        unsafe { sges(self.wr.sg_list, self.wr.num_sge, most) }
    }

    /// Copies the payload into the WQE. Returns its length in bytes.
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
            // SAFETY: Without a DMA device, the address is that of the consumer's memory. It is
            // valid for `sge.length` bytes and does not change during the call.
            let bytes = unsafe { slice::from_raw_parts(start, sge.length as usize) };
            let at = send_wqe::PAYLOAD.saturating_add(before as usize);
            ring.write_at(slot, at, bytes);
        }
        Ok(length)
    }
}

/// Work requests (`struct ib_recv_wr`) of one call of `post_recv` or `post_srq_recv`, in order.
pub struct RecvList<'a> {
    current: *const ib_recv_wr,
    next: *const ib_recv_wr,
    call: PhantomData<&'a ib_recv_wr>,
}

impl RecvList<'_> {
    /// Creates the iterator over the list that begins with `first`.
    ///
    /// # Safety
    ///
    /// `first` must be null, or the first of a list that ib_core passed to `post_recv` or
    /// `post_srq_recv`. The list must be valid during `'a`.
    pub(crate) unsafe fn new(first: *const ib_recv_wr) -> Self {
        Self {
            current: ptr::null(),
            next: first,
            call: PhantomData,
        }
    }

    /// Calls `post` with the list that begins with `first`. If `post` fails, stores in `failed`
    /// (`bad_wr`) the work request that the list returned last. Returns 0 or a negative errno.
    ///
    /// # Safety
    ///
    /// `first` must satisfy the requirements of [`Self::new`], and `failed` must be valid for a
    /// write.
    pub(crate) unsafe fn post(
        first: *const ib_recv_wr,
        failed: *mut *const ib_recv_wr,
        post: impl FnOnce(&mut Self) -> Result,
    ) -> c_int {
        // SAFETY: The caller guarantees that the list is valid during the call (see `# Safety`).
        let mut list = unsafe { Self::new(first) };
        match post(&mut list) {
            Ok(()) => 0,
            Err(error) => {
                // SAFETY: The caller guarantees that `failed` is valid for a write (see `#
                // Safety`).
                unsafe { failed.write(list.current) };
                error.to_errno()
            }
        }
    }
}

impl<'a> Iterator for RecvList<'a> {
    type Item = RecvRequest<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: The caller of `new` guarantees that the list is valid during `'a`.
        let wr = unsafe { self.next.as_ref() }?;
        self.current = self.next;
        self.next = wr.next;
        Some(RecvRequest(wr))
    }
}

/// Receive work request (`struct ib_recv_wr`) of an in-kernel consumer.
pub struct RecvRequest<'a>(&'a ib_recv_wr);

impl RecvRequest<'_> {
    /// Writes the WQE to the slot `slot` of `ring`, which is not published yet.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request has more SGEs than `room` allows.
    pub fn write(&self, ring: &Ring, slot: u32, room: &WqeRoom) -> Result {
        // SAFETY: The request is in a list that is valid during the call, as are its `num_sge`
        // SGEs.
        let sges = unsafe { sges(self.0.sg_list, self.0.num_sge, room.max_sge) }?;
        let mut raw = [0u8; recv_wqe::PAYLOAD];
        // SAFETY: Both union members are 64 bits: the other one is a pointer.
        put_u64(&mut raw, recv_wqe::WR_ID, unsafe {
            self.0.__bindgen_anon_1.wr_id
        });
        put_u32(&mut raw, recv_wqe::NUM_SGE, sges.len() as u32);
        ring.write(slot, &raw);
        write_sges(ring, slot, recv_wqe::PAYLOAD, sges);
        Ok(())
    }
}

/// Returns the SGEs of a request. Fails with `EINVAL` if there are more than `most`.
///
/// # Safety
///
/// If `count` is positive, `list` must be valid for reads of `count` SGEs during `'a`.
unsafe fn sges<'a>(list: *const ib_sge, count: i32, most: u32) -> Result<&'a [ib_sge]> {
    let count = u32::try_from(count).map_err(|_| EINVAL)?;
    if count > most {
        return Err(EINVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: The caller guarantees that `count` SGEs are valid during `'a` (see `# Safety`).
    Ok(unsafe { slice::from_raw_parts(list, count as usize) })
}

/// Writes SGEs to the slot `slot` of `ring`, from the offset `at` on.
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

/// Stores `bytes` at the offset `at`. All offsets are constants within the structures.
fn put<const N: usize>(raw: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = raw.get_mut(at..).and_then(|tail| tail.first_chunk_mut()) {
        *place = bytes;
    }
}

/// Stores a 32-bit word in the byte order of the machine.
fn put_u32(raw: &mut [u8], at: usize, value: u32) {
    put(raw, at, value.to_ne_bytes());
}

/// Stores a 64-bit word in the byte order of the machine.
fn put_u64(raw: &mut [u8], at: usize, value: u64) {
    put(raw, at, value.to_ne_bytes());
}

// SPDX-License-Identifier: GPL-2.0

//! Driver data of a verbs call, between a process's provider library and the driver
//! (`struct ib_udata`, `include/rdma/ib_verbs.h`).

use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
    sync::Arc,
    uaccess::{UserPtr, UserSlice},
};

use crate::{
    abi::{mmap::MmapEntries, replies::RingReply},
    bindings,
    provider::Provider,
    verbs::ucontext::{self, UserContext},
};

/// The driver's part of the request and of the response of one verbs call (`struct ib_udata`).
///
/// # Invariants
///
/// `raw` is valid for `'a`, the duration of the call.
pub struct Udata<'a> {
    raw: NonNull<bindings::ib_udata>,
    call: PhantomData<&'a bindings::ib_udata>,
}

impl Udata<'_> {
    /// Returns the buffers of the call, or `None` if `raw` is null, because an in-kernel consumer
    /// calls.
    ///
    /// # Safety
    ///
    /// `raw` must be null or valid for the lifetime of the result.
    pub(crate) unsafe fn from_raw(raw: *mut bindings::ib_udata) -> Option<Self> {
        // INVARIANT: The caller guarantees that `raw`, which isn't null, is valid for the lifetime
        // of the result.
        NonNull::new(raw).map(|raw| Self {
            raw,
            call: PhantomData,
        })
    }

    /// Returns the size of the library's request in bytes.
    pub fn request_len(&self) -> usize {
        // SAFETY: `raw` is valid by the type invariant.
        unsafe { (*self.raw.as_ptr()).inlen }
    }

    /// Returns the size of the library's response buffer in bytes.
    pub fn response_len(&self) -> usize {
        // SAFETY: `raw` is valid by the type invariant.
        unsafe { (*self.raw.as_ptr()).outlen }
    }

    /// Checks that the response buffer has room for at least `len` bytes, which the library needs.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it has less room.
    pub fn require_response(&self, len: usize) -> Result {
        if self.response_len() < len {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Checks that the request is empty or consists of zeros, so that it contains nothing that this
    /// driver doesn't know.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a request with other bytes, `EFAULT`.
    pub fn require_zero_request(&self) -> Result {
        // SAFETY: `raw` is valid by the type invariant.
        to_result(unsafe { bindings::ib_is_udata_in_empty(self.raw.as_ptr()) })
    }

    /// Copies in the library's request of `LEN` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request is shorter, `EOPNOTSUPP` if it is longer and not zero beyond `LEN`
    /// bytes, `EFAULT`.
    pub fn request<const LEN: usize>(&self) -> Result<[u8; LEN]> {
        let mut request = [0; LEN];
        let place = request.as_mut_ptr().cast();
        // SAFETY: `raw` is valid by the type invariant, and `place` is valid for writes of `LEN`
        // bytes.
        let code =
            unsafe { bindings::_ib_copy_validate_udata_in(self.raw.as_ptr(), place, LEN, LEN) };
        to_result(code)?;
        Ok(request)
    }

    /// Copies out the response. Truncates it to the size of the response buffer, or fills the rest
    /// of the buffer with zeros.
    ///
    /// # Errors
    ///
    /// `EFAULT`.
    pub fn respond(&self, response: &[u8]) -> Result {
        // SAFETY: `raw` is valid by the type invariant, and `response` is valid for reads of its
        // length.
        to_result(unsafe {
            bindings::_ib_respond_udata(self.raw.as_ptr(), response.as_ptr().cast(), response.len())
        })
    }
}

/// Checks that a call carries no driver data: refuses a request that contains anything but zeros
/// ([`Udata::require_zero_request`]), and fills the response buffer with zeros.
///
/// Must not be used for destructions. uverbs undoes a creation by a destruction with the creation's
/// driver data (`rdma_alloc_abort_uobject()`, rdma_core.c). The process may have changed these data
/// since, and uverbs warns if the destruction fails.
///
/// # Errors
///
/// `EOPNOTSUPP` if the request contains anything but zeros, `EFAULT`.
///
/// # Safety
///
/// `raw` must be null or valid.
pub(crate) unsafe fn require_zero_udata(raw: *mut bindings::ib_udata) -> Result {
    // SAFETY: The caller guarantees that `raw` is null or valid (see `# Safety`).
    if let Some(udata) = unsafe { Udata::from_raw(raw) } {
        udata.require_zero_request()?;
        udata.respond(&[])?;
    }
    Ok(())
}

/// Refuses driver data by their lengths alone, for operations during which ib_core holds a lock or
/// a reference that other threads wait for. A read of the process's memory could sleep for any
/// time, since a file system in user space, or a userfaultfd, may delay the page fault.
///
/// # Errors
///
/// `EOPNOTSUPP` if the request or the response buffer has any bytes, even if the request consists
/// of zeros.
///
/// # Safety
///
/// `raw` must be null or valid.
pub(crate) unsafe fn require_no_udata(raw: *mut bindings::ib_udata) -> Result {
    // SAFETY: The caller guarantees that `raw` is null or valid (see `# Safety`).
    match unsafe { Udata::from_raw(raw) } {
        Some(udata) if (udata.request_len(), udata.response_len()) != (0, 0) => Err(EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// A verbs call by a process (not by an in-kernel consumer).
pub struct UserCall<'a, P: Provider> {
    context: &'a UserContext<P::Context>,
    /// Request and response of the call.
    pub udata: Udata<'a>,
}

impl<P: Provider> UserCall<'_, P> {
    /// Returns the memory that the process may map.
    pub fn mmap_entries(&self) -> &Arc<MmapEntries> {
        &self.context.mmap_entries
    }

    /// Returns the driver's context of the process.
    pub fn context(&self) -> &Arc<P::Context> {
        &self.context.driver
    }

    /// Returns whether the process's library can map device memory.
    pub(crate) fn has_device_memory(&self) -> bool {
        self.context.device_memory
    }

    /// Returns the call that `raw` belongs to. Returns `None` if an in-kernel consumer calls, or if
    /// the process has no context or its context is being destroyed.
    ///
    /// # Safety
    ///
    /// `raw` must be null or ib_core's `driver_udata` of a running call in a process's context of
    /// `P`. The call must last for the lifetime of the result.
    pub(crate) unsafe fn from_raw(raw: *mut bindings::ib_udata) -> Option<Self> {
        // SAFETY: The caller guarantees that `raw` is null or valid for the lifetime of the result.
        let udata = unsafe { Udata::from_raw(raw) }?;
        // SAFETY: The caller guarantees that `raw` is the `driver_udata` of a call, so it lies in
        // an attribute bundle.
        let context = from_err_ptr(unsafe { bindings::rdma_udata_to_ucontext(raw) }).ok()?;
        // SAFETY: ib_core keeps the context alive during its calls.
        let context = unsafe { ucontext::of::<P>(context) };
        Some(Self { context, udata })
    }

    /// Returns the call of a creation, or `None` if an in-kernel consumer creates the object. A
    /// process's call is never mistaken for a call of the kernel.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a call of a process that has no context, or whose context is being destroyed.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::from_raw`] must hold.
    pub(crate) unsafe fn of_creation(raw: *mut bindings::ib_udata) -> Result<Option<Self>> {
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: The caller guarantees the conditions of `from_raw` (see `# Safety`).
        unsafe { Self::from_raw(raw) }.ok_or(EINVAL).map(Some)
    }
}

/// A call by which a process resizes one of its rings, and the place for the location of the new
/// ring.
pub struct RingChange<'a, P: Provider> {
    call: &'a UserCall<'a, P>,
    /// Address to which the location of the new ring is written, or `None` if it is in the
    /// response.
    address: Option<u64>,
}

impl<'a, P: Provider> RingChange<'a, P> {
    /// Creates the `RingChange` of `call`, which resizes a ring. [`Self::announce`] will write the
    /// location of the new ring to `address`, or to the response if that is `None`.
    pub(crate) fn new(call: &'a UserCall<'a, P>, address: Option<u64>) -> Self {
        Self { call, address }
    }

    /// Returns the memory that the process may map.
    pub fn mmap_entries(&self) -> &Arc<MmapEntries> {
        self.call.mmap_entries()
    }

    /// Returns the driver's context of the process.
    pub fn context(&self) -> &Arc<P::Context> {
        self.call.context()
    }

    /// Writes the location of the new ring to the process's memory. The process uses it only if the
    /// whole call succeeds. Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EFAULT`.
    pub fn announce(&self, ring: RingReply) -> Result {
        let bytes = ring.to_bytes();
        match self.address {
            None => self.call.udata.respond(&bytes),
            Some(address) => {
                let place = UserPtr::from_addr(address as usize);
                UserSlice::new(place, bytes.len())
                    .writer()
                    .write_slice(&bytes)
            }
        }
    }
}

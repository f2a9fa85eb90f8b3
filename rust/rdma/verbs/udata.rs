// SPDX-License-Identifier: GPL-2.0

//! What a verbs call carries between a process's provider library and the driver.

use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
    sync::Arc,
    uaccess::{UserPtr, UserSlice},
};

use crate::{
    abi::mmap::Mappings,
    bindings,
    provider::Provider,
    verbs::{
        qp::RingReply,
        ucontext::{self, UserContext},
    },
};

/// The driver's part of the request and of the response of one verbs call.
///
/// # Invariants
///
/// `raw` is valid for `'a`: the duration of the call.
pub struct Udata<'a> {
    raw: NonNull<bindings::ib_udata>,
    call: PhantomData<&'a bindings::ib_udata>,
}

impl Udata<'_> {
    /// The buffers of the call; none if the kernel itself calls.
    ///
    /// # Safety
    ///
    /// `raw` must be null or valid for the lifetime of the result.
    pub(crate) unsafe fn from_raw(raw: *mut bindings::ib_udata) -> Option<Self> {
        // INVARIANT: As the caller promises.
        NonNull::new(raw).map(|raw| Self {
            raw,
            call: PhantomData,
        })
    }

    /// How many bytes the library's request has.
    pub fn request_len(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { (*self.raw.as_ptr()).inlen }
    }

    /// How many bytes of response the library has room for.
    pub fn response_len(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { (*self.raw.as_ptr()).outlen }
    }

    /// Checks that there is room for a response that the library can't do without.
    ///
    /// # Errors
    ///
    /// `EINVAL`.
    pub fn require_response(&self, len: usize) -> Result {
        if self.response_len() < len {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Checks that the library asks for nothing that this driver doesn't know.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for anything but zeros, `EFAULT`.
    pub fn refuse_request(&self) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::ib_is_udata_in_empty(self.raw.as_ptr()) })
    }

    /// Copies in the library's request.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is shorter, `EOPNOTSUPP` if there is anything but zeros behind it, `EFAULT`.
    pub fn request<const LEN: usize>(&self) -> Result<[u8; LEN]> {
        let mut request = [0; LEN];
        let place = request.as_mut_ptr().cast();
        // SAFETY: By the type invariant; `place` is valid for `LEN` bytes.
        let code =
            unsafe { bindings::_ib_copy_validate_udata_in(self.raw.as_ptr(), place, LEN, LEN) };
        to_result(code)?;
        Ok(request)
    }

    /// Copies out the response: as much as the library has room for, with zeros behind it.
    ///
    /// # Errors
    ///
    /// `EFAULT`.
    pub fn respond(&self, response: &[u8]) -> Result {
        // SAFETY: By the type invariant; `response` is valid for its length.
        to_result(unsafe {
            bindings::_ib_respond_udata(self.raw.as_ptr(), response.as_ptr().cast(), response.len())
        })
    }
}

/// [`Udata::refuse_request`] and an empty response, for calls without a payload of the driver's.
///
/// Not for destructions. uverbs undoes a creation by a destruction with the creation's payload
/// (`rdma_alloc_abort_uobject()`, rdma_core.c), which the process may have changed since, and warns if that fails.
///
/// # Errors
///
/// `EOPNOTSUPP`, `EFAULT`.
///
/// # Safety
///
/// `raw` must be null or valid.
pub(crate) unsafe fn no_payload(raw: *mut bindings::ib_udata) -> Result {
    // SAFETY: As the caller promises.
    if let Some(udata) = unsafe { Udata::from_raw(raw) } {
        udata.refuse_request()?;
        udata.respond(&[])?;
    }
    Ok(())
}

/// Refuses a payload by its lengths alone, for operations during which ib_core keeps something that others wait for. A look at
/// the process's memory sleeps for as long as a file system in user space, or a userfaultfd, does not answer.
///
/// # Errors
///
/// `EOPNOTSUPP`, also for a payload of zeros.
///
/// # Safety
///
/// As for [`no_payload`].
pub(crate) unsafe fn refuse_payload(raw: *mut bindings::ib_udata) -> Result {
    // SAFETY: As the caller promises.
    match unsafe { Udata::from_raw(raw) } {
        Some(udata) if (udata.request_len(), udata.response_len()) != (0, 0) => Err(EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// A verbs call by a process, as opposed to the kernel.
pub struct UserCall<'a, P: Provider> {
    context: &'a UserContext<P::Context>,
    /// Request and response.
    pub udata: Udata<'a>,
}

impl<P: Provider> UserCall<'_, P> {
    /// What the process may map.
    pub fn mappings(&self) -> &Arc<Mappings> {
        &self.context.mappings
    }

    /// The driver's context of the process.
    pub fn context(&self) -> &Arc<P::Context> {
        &self.context.driver
    }

    /// The process's library knows how to map device memory.
    pub(crate) fn has_device_memory(&self) -> bool {
        self.context.device_memory
    }

    /// The call that `raw` belongs to; none if the kernel itself calls, or the context goes away.
    ///
    /// # Safety
    ///
    /// `raw` must be null or ib_core's `driver_udata` of a running call of a process's context of `P`,
    /// which lasts for the lifetime of the result.
    pub(crate) unsafe fn from_raw(raw: *mut bindings::ib_udata) -> Option<Self> {
        // SAFETY: As the caller promises.
        let udata = unsafe { Udata::from_raw(raw) }?;
        // SAFETY: As the caller promises, `raw` lies in an attribute bundle.
        let context = from_err_ptr(unsafe { bindings::rdma_udata_to_ucontext(raw) }).ok()?;
        // SAFETY: ib_core keeps the context alive during its calls.
        let context = unsafe { ucontext::of::<P>(context) };
        Some(Self { context, udata })
    }

    /// The call that creates an object; none if the kernel itself creates it. A process's call is never taken for the
    /// kernel's.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a call of a process without a context.
    ///
    /// # Safety
    ///
    /// As for [`Self::from_raw`].
    pub(crate) unsafe fn of_creation(raw: *mut bindings::ib_udata) -> Result<Option<Self>> {
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: As the caller promises.
        unsafe { Self::from_raw(raw) }.ok_or(EINVAL).map(Some)
    }
}

/// A call of a process that gives one of its rings another size.
pub struct RingChange<'a, P: Provider> {
    call: &'a UserCall<'a, P>,
    /// Where the process wants to be told, if not in the response.
    address: Option<u64>,
}

impl<'a, P: Provider> RingChange<'a, P> {
    /// The change that `call` asks for, and where the process wants to be told of its outcome: at
    /// `address`, or in the response.
    pub(crate) fn new(call: &'a UserCall<'a, P>, address: Option<u64>) -> Self {
        Self { call, address }
    }

    /// What the process may map.
    pub fn mappings(&self) -> &Arc<Mappings> {
        self.call.mappings()
    }

    /// The driver's context of the process.
    pub fn context(&self) -> &Arc<P::Context> {
        self.call.context()
    }

    /// Tells the process where its new ring will be. It takes that for true only if the whole call
    /// succeeds. Process context; may sleep.
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

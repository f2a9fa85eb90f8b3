// SPDX-License-Identifier: GPL-2.0

//! What a verbs call carries between a process's provider library and the driver.

use core::{marker::PhantomData, ptr::NonNull};
use kernel::{error::to_result, prelude::*, sync::Arc};

use crate::{bindings, mmap::Mappings, ucontext};

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

/// A verbs call by a process, as opposed to the kernel.
pub struct UserCall<'a> {
    mappings: &'a Arc<Mappings>,
    /// Request and response.
    pub udata: Udata<'a>,
}

impl UserCall<'_> {
    /// What the process may map.
    pub fn mappings(&self) -> &Arc<Mappings> {
        self.mappings
    }

    /// The call that `raw` belongs to; none if the kernel itself calls.
    ///
    /// # Safety
    ///
    /// `raw` must be null or ib_core's `driver_udata` of a running call of a process's context, which
    /// lasts for the lifetime of the result.
    pub(crate) unsafe fn from_raw(raw: *mut bindings::ib_udata) -> Option<Self> {
        // SAFETY: As the caller promises.
        let udata = unsafe { Udata::from_raw(raw) }?;
        // SAFETY: As the caller promises, `raw` lies in an attribute bundle.
        let context = unsafe { bindings::rdma_udata_to_ucontext(raw) };
        // SAFETY: ib_core keeps the context alive during its calls.
        let mappings = unsafe { ucontext::mappings(context) };
        Some(Self { mappings, udata })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Error codes that the kernel crate has no names for.

use kernel::{error::Error, ffi::c_int};

/// `EOPNOTSUPP`: the operation, or what it asks for, is not supported.
pub fn unsupported() -> Error {
    Error::from_errno(-(kernel::bindings::EOPNOTSUPP as c_int))
}

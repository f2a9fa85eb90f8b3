// SPDX-License-Identifier: GPL-2.0

//! The error for what is not supported.

use kernel::{error::Error, ffi::c_int};

/// Returns the error `EOPNOTSUPP`: the operation, or one of its parameters, is not supported.
pub fn unsupported() -> Error {
    Error::from_errno(-(kernel::bindings::EOPNOTSUPP as c_int))
}

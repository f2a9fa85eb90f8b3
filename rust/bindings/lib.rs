// SPDX-License-Identifier: GPL-2.0

//! Declarations that bindgen generates from headers of the kernel and from `rust/helpers`.
//!
//! The headers are in `bindings.h`, the options in `bindgen_parameters`, and the rules for make in
//! `Makefile.bindgen`. Only the `rdma` crate uses this crate; it wraps each use in a safe type or
//! function. The types here are distinct from those of the kernel crate's own bindings, but have
//! the same layout.

#![allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

mod bindings_raw {
    use kernel::ffi;
    use pin_init::{MaybeZeroable, Zeroable};

    type __kernel_size_t = usize;
    type __kernel_ssize_t = isize;
    type __kernel_ptrdiff_t = isize;

    // SAFETY: `__BindgenBitfieldUnit<Storage>` is a newtype around `Storage`, which is `Zeroable`.
    unsafe impl<Storage> Zeroable for __BindgenBitfieldUnit<Storage> where Storage: Zeroable {}

    pub use super::helpers::*;
    include!(concat!(env!("RRXE_BINDINGS"), "/bindings_generated.rs"));
}

mod helpers {
    use super::bindings_raw::*;
    use kernel::ffi;

    include!(concat!(env!("RRXE_BINDINGS"), "/helpers_generated.rs"));
}

pub use bindings_raw::*;

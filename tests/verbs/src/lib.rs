// SPDX-License-Identifier: GPL-2.0

//! A thin layer over libibverbs, shared by `rrxe-check`, `rrxe-scale` and `rrxe-bench`.
//!
//! An object destroys its verbs object when it is dropped, and holds references to the objects that
//! it was created from. An error of the C library is a [`std::io::Error`] with the errno.

pub mod buffer;
pub mod extended;
pub mod link;
pub mod object;
pub mod srq;
pub mod sys;
pub mod xrc;

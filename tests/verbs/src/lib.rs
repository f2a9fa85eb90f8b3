// SPDX-License-Identifier: GPL-2.0

//! A thin layer over libibverbs: what the checker and the benchmark share.
//!
//! Objects destroy themselves; each keeps alive what it was made from. Errors are those of the C
//! library: [`std::io::Error`] with the errno.

pub mod buffer;
pub mod extended;
pub mod link;
pub mod object;
pub mod srq;
pub mod sys;
pub mod xrc;

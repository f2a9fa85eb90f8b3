// SPDX-License-Identifier: GPL-2.0

//! Memory regions and memory windows, and the checks that every access to registered memory goes
//! through.

pub(crate) mod access;
pub(crate) mod advise;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod remote;

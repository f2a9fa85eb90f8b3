// SPDX-License-Identifier: GPL-2.0

//! Numbers that nobody can foretell.

/// A random number, fit for keys. Any context.
pub fn next_u32() -> u32 {
    // SAFETY: No requirements.
    unsafe { kernel::bindings::get_random_u32() }
}

/// As [`next_u32`], of 64 bits.
pub fn next_u64() -> u64 {
    // SAFETY: No requirements.
    unsafe { kernel::bindings::get_random_u64() }
}

// SPDX-License-Identifier: GPL-2.0

//! Random numbers that an attacker cannot predict.

/// Returns a random number of 32 bits, fit for memory keys (`get_random_u32()`,
/// include/linux/random.h). Callable in any context.
pub fn next_u32() -> u32 {
    // SAFETY: `get_random_u32()` has no requirements.
    unsafe { kernel::bindings::get_random_u32() }
}

/// Returns a random number of 64 bits, fit for memory keys (`get_random_u64()`,
/// include/linux/random.h). Callable in any context.
pub fn next_u64() -> u64 {
    // SAFETY: `get_random_u64()` has no requirements.
    unsafe { kernel::bindings::get_random_u64() }
}

// SPDX-License-Identifier: GPL-2.0

//! Flow steering rules: conversion of `struct ib_flow_attr` (`struct ibv_flow_attr` of libibverbs)
//! to [`Rule`].

pub(crate) mod operations;

use core::mem::size_of;

use kernel::prelude::*;
use roce::steering::{Kind, Match, Pattern, Rule, RuleFault, Spec};

use crate::{
    bindings::{self, ib_flow_attr},
    support::error::unsupported,
};

/// libibverbs' `IBV_FLOW_ATTR_FLAGS_ALLOW_LOOP_BACK`. The kernel has no name for it.
const ALLOW_LOOPBACK: u32 = 1 << 0;
const DONT_TRAP: u32 = bindings::ib_flow_flags_IB_FLOW_ATTR_FLAGS_DONT_TRAP;

/// Reads a rule from ib_core's attributes.
///
/// # Errors
///
/// `EINVAL` for a rule that contradicts itself: for example two specifications of one layer, or
/// specifications in a rule of a type that has none. `EOPNOTSUPP` for rules that are not supported:
/// rules for sent frames, tunnels, inner headers, actions.
///
/// # Safety
///
/// `attr` must be ib_core's attributes, with `num_of_specs` specifications behind them.
pub(crate) unsafe fn read(attr: *const ib_flow_attr) -> Result<Rule> {
    // SAFETY: The caller guarantees that `attr` is valid (see `# Safety`).
    let (kind, priority, flags) = unsafe { ((*attr).type_, (*attr).priority, (*attr).flags) };
    if flags & !(ALLOW_LOOPBACK | DONT_TRAP) != 0 {
        return Err(unsupported());
    }
    // SAFETY: The caller guarantees that `num_of_specs` specifications follow `attr`.
    let pattern = unsafe { read_pattern(attr) }?;
    let kind = match kind {
        bindings::ib_flow_attr_type_IB_FLOW_ATTR_NORMAL => Kind::Normal(pattern),
        _ if pattern != Pattern::default() => return Err(EINVAL),
        bindings::ib_flow_attr_type_IB_FLOW_ATTR_SNIFFER => Kind::Sniffer,
        bindings::ib_flow_attr_type_IB_FLOW_ATTR_MC_DEFAULT => Kind::MulticastDefault,
        bindings::ib_flow_attr_type_IB_FLOW_ATTR_ALL_DEFAULT => Kind::AllDefault,
        _ => return Err(EINVAL),
    };
    let (dont_trap, own) = (flags & DONT_TRAP != 0, flags & ALLOW_LOOPBACK != 0);
    Rule::new(kind, priority, dont_trap, own).map_err(to_error)
}

fn to_error(fault: RuleFault) -> Error {
    match fault {
        RuleFault::Invalid => EINVAL,
        RuleFault::Unsupported => unsupported(),
    }
}

/// Reads the specifications behind `attr`.
///
/// # Safety
///
/// `attr` must be ib_core's attributes, with `num_of_specs` specifications behind them.
unsafe fn read_pattern(attr: *const ib_flow_attr) -> Result<Pattern> {
    // SAFETY: The caller guarantees that `attr` is valid (see `# Safety`).
    let count = unsafe { (*attr).num_of_specs };
    // SAFETY: The specifications begin right behind the structure, in the same allocation.
    let mut next: *const u8 = unsafe { attr.add(1) }.cast();
    let mut pattern = Pattern::default();
    for _ in 0..count {
        // SAFETY: ib_core stores as many specifications as `num_of_specs` says, one behind the
        // other. Fewer than that were read.
        let (spec, size) = unsafe { read_spec(next) }?;
        pattern.add(spec).map_err(to_error)?;
        // SAFETY: The specification has `size` bytes, so the result is within the allocation or at
        // its end.
        next = unsafe { next.add(size) };
    }
    Ok(pattern)
}

/// Reads a specification. Returns it and its size in bytes.
///
/// # Safety
///
/// A specification of ib_core must be at `at`.
unsafe fn read_spec(at: *const u8) -> Result<(Spec, usize)> {
    let head: *const bindings::ib_flow_spec__bindgen_ty_1 = at.cast();
    // SAFETY: Specifications of all types begin with type and size. They follow one another without
    // padding, so the read is unaligned.
    let head = unsafe { head.read_unaligned() };
    let spec = match head.type_ {
        bindings::ib_flow_spec_type_IB_FLOW_SPEC_ETH => {
            // SAFETY: ib_core gives each specification the size of the structure of its type.
            let spec = unsafe { at.cast::<bindings::ib_flow_spec_eth>().read_unaligned() };
            // SAFETY: The filters consist of bytes and big-endian integers, without padding.
            Spec::Ethernet(unsafe { fields(&spec.val, &spec.mask) })
        }
        bindings::ib_flow_spec_type_IB_FLOW_SPEC_IPV4 => {
            // SAFETY: ib_core gives each specification the size of the structure of its type.
            let spec = unsafe { at.cast::<bindings::ib_flow_spec_ipv4>().read_unaligned() };
            // SAFETY: The filters consist of bytes and big-endian integers, without padding.
            Spec::Ipv4(unsafe { fields(&spec.val, &spec.mask) })
        }
        bindings::ib_flow_spec_type_IB_FLOW_SPEC_IPV6 => {
            // SAFETY: ib_core gives each specification the size of the structure of its type.
            let spec = unsafe { at.cast::<bindings::ib_flow_spec_ipv6>().read_unaligned() };
            // SAFETY: The filters consist of bytes and big-endian integers, without padding.
            Spec::Ipv6(unsafe { fields(&spec.val, &spec.mask) })
        }
        kind @ (bindings::ib_flow_spec_type_IB_FLOW_SPEC_TCP
        | bindings::ib_flow_spec_type_IB_FLOW_SPEC_UDP) => {
            // SAFETY: ib_core gives each specification the size of the structure of its type.
            let spec = unsafe { at.cast::<bindings::ib_flow_spec_tcp_udp>().read_unaligned() };
            // SAFETY: The filters consist of bytes and big-endian integers, without padding.
            let ports = unsafe { fields(&spec.val, &spec.mask) };
            match kind {
                bindings::ib_flow_spec_type_IB_FLOW_SPEC_TCP => Spec::Tcp(ports),
                _ => Spec::Udp(ports),
            }
        }
        _ => return Err(unsupported()),
    };
    Ok((spec, head.size.into()))
}

/// Returns the bytes of a filter's value and mask. The fields of a filter are in network byte order
/// and have no gaps between them.
///
/// # Safety
///
/// `F` must have no padding.
unsafe fn fields<F, const LEN: usize>(value: &F, mask: &F) -> Match<LEN> {
    const { assert!(size_of::<F>() == LEN) };
    let bytes = |filter: *const F| {
        // SAFETY: `F` has `LEN` bytes, by the assertion above. The caller guarantees that it has no
        // padding, so all of them are initialised.
        unsafe { filter.cast::<[u8; LEN]>().read() }
    };
    Match::new(bytes(value), bytes(mask))
}

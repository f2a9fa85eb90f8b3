// SPDX-License-Identifier: GPL-2.0

//! Rules of flow steering: what ib_core makes of `struct ibv_flow_attr`.

pub(crate) mod operations;

use core::mem::size_of;

use kernel::prelude::*;
use roce::steering::{Kind, Match, Pattern, Rule, RuleFault, Spec};

use crate::{
    bindings::{self, ib_flow_attr},
    support::error::unsupported,
};

/// libibverbs' `IBV_FLOW_ATTR_FLAGS_ALLOW_LOOP_BACK`, for which the kernel has no name.
const ALLOW_LOOPBACK: u32 = 1 << 0;
const DONT_TRAP: u32 = bindings::ib_flow_flags_IB_FLOW_ATTR_FLAGS_DONT_TRAP;

/// Reads a rule.
///
/// # Errors
///
/// `EINVAL` for one that contradicts itself, such as one that says something of a layer twice, or has
/// specifications where there mustn't be any; `EOPNOTSUPP` for what isn't matched here: rules for what is
/// sent, tunnels, inner headers, actions.
///
/// # Safety
///
/// `attr` must be ib_core's, with `num_of_specs` specifications behind it.
pub(crate) unsafe fn read(attr: *const ib_flow_attr) -> Result<Rule> {
    // SAFETY: As the caller promises.
    let (kind, priority, flags) = unsafe { ((*attr).type_, (*attr).priority, (*attr).flags) };
    if flags & !(ALLOW_LOOPBACK | DONT_TRAP) != 0 {
        return Err(unsupported());
    }
    // SAFETY: As the caller promises.
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
    Rule::new(kind, priority, dont_trap, own).map_err(refusal)
}

fn refusal(fault: RuleFault) -> Error {
    match fault {
        RuleFault::Invalid => EINVAL,
        RuleFault::Unsupported => unsupported(),
    }
}

/// # Safety
///
/// As for [`read`].
unsafe fn read_pattern(attr: *const ib_flow_attr) -> Result<Pattern> {
    // SAFETY: As the caller promises.
    let count = unsafe { (*attr).num_of_specs };
    // SAFETY: The specifications begin right behind the structure.
    let mut next: *const u8 = unsafe { attr.add(1) }.cast();
    let mut pattern = Pattern::default();
    for _ in 0..count {
        // SAFETY: ib_core lists as many as it says, one behind the other, and this is not the last.
        let (spec, size) = unsafe { read_spec(next) }?;
        pattern.add(spec).map_err(refusal)?;
        // SAFETY: It has as many bytes, and the allocation goes on or ends behind them.
        next = unsafe { next.add(size) };
    }
    Ok(pattern)
}

/// Reads a specification; returns also how many bytes it has.
///
/// # Safety
///
/// ib_core's must be at `at`.
unsafe fn read_spec(at: *const u8) -> Result<(Spec, usize)> {
    let head: *const bindings::ib_flow_spec__bindgen_ty_1 = at.cast();
    // SAFETY: All kinds begin with type and size. They follow one another without padding.
    let head = unsafe { head.read_unaligned() };
    let spec = match head.type_ {
        bindings::ib_flow_spec_type_IB_FLOW_SPEC_ETH => {
            // SAFETY: ib_core gives each the size of the kind that its type says.
            let spec = unsafe { at.cast::<bindings::ib_flow_spec_eth>().read_unaligned() };
            // SAFETY: The filters consist of bytes.
            Spec::Ethernet(unsafe { fields(&spec.val, &spec.mask) })
        }
        bindings::ib_flow_spec_type_IB_FLOW_SPEC_IPV4 => {
            // SAFETY: ib_core gives each the size of the kind that its type says.
            let spec = unsafe { at.cast::<bindings::ib_flow_spec_ipv4>().read_unaligned() };
            // SAFETY: The filters consist of bytes.
            Spec::Ipv4(unsafe { fields(&spec.val, &spec.mask) })
        }
        bindings::ib_flow_spec_type_IB_FLOW_SPEC_IPV6 => {
            // SAFETY: ib_core gives each the size of the kind that its type says.
            let spec = unsafe { at.cast::<bindings::ib_flow_spec_ipv6>().read_unaligned() };
            // SAFETY: The filters consist of bytes.
            Spec::Ipv6(unsafe { fields(&spec.val, &spec.mask) })
        }
        kind @ (bindings::ib_flow_spec_type_IB_FLOW_SPEC_TCP
        | bindings::ib_flow_spec_type_IB_FLOW_SPEC_UDP) => {
            // SAFETY: ib_core gives each the size of the kind that its type says.
            let spec = unsafe { at.cast::<bindings::ib_flow_spec_tcp_udp>().read_unaligned() };
            // SAFETY: The filters consist of bytes.
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

/// The bytes of two filters, whose fields are in network order and have no gaps between them.
///
/// # Safety
///
/// `F` must have no padding.
unsafe fn fields<F, const LEN: usize>(value: &F, mask: &F) -> Match<LEN> {
    const { assert!(size_of::<F>() == LEN) };
    let bytes = |filter: *const F| {
        // SAFETY: As many bytes are there, all of them initialised, as the caller promises.
        unsafe { filter.cast::<[u8; LEN]>().read() }
    };
    Match::new(bytes(value), bytes(mask))
}

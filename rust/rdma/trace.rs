// SPDX-License-Identifier: GPL-2.0

//! Tracepoints of the driver (`include/trace/events/rrxe.h`): packets, drops, retransmissions, NAKs
//! and QP state changes.
//!
//! A disabled tracepoint costs one static branch, which the kernel patches to a no-op. The
//! arguments of a tracepoint must be cheap, or must be computed only while the tracepoint is
//! enabled (see [`packet_out_enabled`]). All functions may be called in any context.

#[cfg(CONFIG_TRACEPOINTS)]
use kernel::bindings::tracepoint;
use kernel::{ffi::c_char, prelude::*};
use roce::{
    mtu::Mtu,
    train::Train,
    transmit::Transmit,
    wire::packet::{Aeth, Body, Packet, Syndrome},
};

use crate::device::IbDevice;

/// Declares tracepoints. For each, it defines a function that returns whether the tracepoint is
/// enabled, and a function that emits the event.
macro_rules! events {
    ($($name:ident, $enabled:ident, $point:ident, $report:ident
        ($($argument:ident: $type:ty),*);)*) => {
        // `struct tracepoint` leads by pointers, through its static call key, to structures that
        // are empty in this configuration. Rust code does not access these.
        #[allow(improper_ctypes)]
        extern "C" {
            $(
                #[cfg(CONFIG_TRACEPOINTS)]
                static $point: tracepoint;
                #[cfg(CONFIG_TRACEPOINTS)]
                fn $report($($argument: $type),*);
            )*
        }
        $(
            /// Returns whether the tracepoint is enabled.
            #[inline(always)]
            pub fn $enabled() -> bool {
                #[cfg(CONFIG_TRACEPOINTS)]
                {
                    // SAFETY: `trace.c` defines the tracepoint together with its static key.
                    unsafe { kernel::jump_label::static_branch_unlikely!($point, tracepoint, key) }
                }
                #[cfg(not(CONFIG_TRACEPOINTS))]
                false
            }

            /// Emits the event.
            ///
            /// # Safety
            ///
            /// Pointer arguments must point to valid, NUL-terminated strings.
            #[cold]
            unsafe fn $name($($argument: $type),*) {
                #[cfg(CONFIG_TRACEPOINTS)]
                {
                    // SAFETY: The caller guarantees that pointer arguments are valid strings (see
                    // `# Safety`). All other arguments are numbers.
                    unsafe { $report($($argument),*) };
                }
                #[cfg(not(CONFIG_TRACEPOINTS))]
                {
                    $(let _ = $argument;)*
                }
            }
        )*
    };
}

events! {
    report_packet_out, packet_out_enabled, __tracepoint_rrxe_packet_out,
        rust_do_trace_rrxe_packet_out(
            device: *const c_char, qpn: u32, dest: u32, opcode: u8, psn: u32, length: u32);
    report_packet_in, packet_in_enabled, __tracepoint_rrxe_packet_in,
        rust_do_trace_rrxe_packet_in(
            device: *const c_char, qpn: u32, dest: u32, opcode: u8, psn: u32, length: u32);
    report_retransmit, retransmit_enabled, __tracepoint_rrxe_retransmit,
        rust_do_trace_rrxe_retransmit(
            device: *const c_char, qpn: u32, dest: u32, opcode: u8, psn: u32, length: u32);
    report_drop, drop_enabled, __tracepoint_rrxe_drop,
        rust_do_trace_rrxe_drop(
            device: *const c_char, qpn: u32, psn: u32, reason: *const c_char);
    report_nak_out, nak_out_enabled, __tracepoint_rrxe_nak_out,
        rust_do_trace_rrxe_nak_out(device: *const c_char, qpn: u32, psn: u32, syndrome: u8);
    report_nak_in, nak_in_enabled, __tracepoint_rrxe_nak_in,
        rust_do_trace_rrxe_nak_in(device: *const c_char, qpn: u32, psn: u32, syndrome: u8);
    report_qp_state, qp_state_enabled, __tracepoint_rrxe_qp_state,
        rust_do_trace_rrxe_qp_state(device: *const c_char, qpn: u32, from: u32, to: u32);
}

/// Emits the events of a packet that QP `qpn` sends: `rrxe_packet_out`, `rrxe_retransmit` for a
/// retransmission, and `rrxe_nak_out` for a NAK or RNR NAK. For a train, it emits the events of
/// each packet. `mtu` is the path MTU of the QP.
#[inline(always)]
pub fn packet_out(device: &IbDevice, qpn: u32, transmit: &Transmit, mtu: Mtu) {
    if packet_out_enabled() || retransmit_enabled() || nak_out_enabled() {
        let train = transmit.train(mtu);
        for index in 0..train.count {
            trace_packet_out(device, qpn, &train.packet(index).0, transmit.retransmission);
        }
    }
}

/// Emits those events of [`packet_out`] that are enabled. A separate cold function keeps the
/// inlined check small.
#[cold]
#[inline(never)]
fn trace_packet_out(device: &IbDevice, qpn: u32, packet: &Packet, retransmission: bool) {
    let (dest, psn) = (packet.bth.dest.get(), packet.bth.psn.get());
    let (opcode, length) = (packet.opcode(), packet.payload_len);
    if packet_out_enabled() {
        // SAFETY: `device` is borrowed for the call, so its name is a valid string during the call.
        unsafe { report_packet_out(device.name_ptr(), qpn, dest, opcode, psn, length) };
    }
    if retransmit_enabled() && retransmission {
        // SAFETY: `device` is borrowed for the call, so its name is a valid string during the call.
        unsafe { report_retransmit(device.name_ptr(), qpn, dest, opcode, psn, length) };
    }
    if nak_out_enabled() {
        if let Some(syndrome) = nak(packet) {
            // SAFETY: `device` is borrowed for the call, so its name is a valid string during the
            // call.
            unsafe { report_nak_out(device.name_ptr(), qpn, psn, syndrome) };
        }
    }
}

/// Emits the events of each packet of a train (or of a single packet) that QP `qpn` has received:
/// `rrxe_packet_in`, and `rrxe_nak_in` for a NAK or RNR NAK. `train` is called only if one of these
/// events is enabled.
#[inline(always)]
pub fn packet_in(device: &IbDevice, qpn: u32, train: impl FnOnce() -> Train) {
    if packet_in_enabled() || nak_in_enabled() {
        let train = train();
        for index in 0..train.count {
            trace_packet_in(device, qpn, &train.packet(index).0);
        }
    }
}

/// Emits those events of [`packet_in`] that are enabled. A separate cold function keeps the inlined
/// check small.
#[cold]
#[inline(never)]
fn trace_packet_in(device: &IbDevice, qpn: u32, packet: &Packet) {
    let (dest, psn) = (packet.bth.dest.get(), packet.bth.psn.get());
    if packet_in_enabled() {
        let (opcode, length) = (packet.opcode(), packet.payload_len);
        // SAFETY: `device` is borrowed for the call, so its name is a valid string during the call.
        unsafe { report_packet_in(device.name_ptr(), qpn, dest, opcode, psn, length) };
    }
    if nak_in_enabled() {
        if let Some(syndrome) = nak(packet) {
            // SAFETY: `device` is borrowed for the call, so its name is a valid string during the
            // call.
            unsafe { report_nak_in(device.name_ptr(), qpn, psn, syndrome) };
        }
    }
}

/// Emits `rrxe_drop` for a packet with the sequence number `psn` that QP `qpn` drops. `reason` is
/// the name of a counter.
#[inline(always)]
pub fn drop_by_qp(device: &IbDevice, qpn: u32, psn: u32, reason: &CStr) {
    if drop_enabled() {
        // SAFETY: `device` is borrowed for the call, so its name is a valid string. `reason` is
        // borrowed, too.
        unsafe { report_drop(device.name_ptr(), qpn, psn, reason.as_ptr().cast()) };
    }
}

/// Emits `rrxe_drop` for a packet that is dropped before a QP handles it: no QP was found for it,
/// or too many packets wait for the QP. The event has the device name `-`, QPN 0 and PSN 0.
/// `reason` is the name of a counter.
#[inline(always)]
pub fn drop_before_qp(reason: &CStr) {
    if drop_enabled() {
        // SAFETY: `c"-"` is static, and `reason` is borrowed for the call, so both are valid
        // strings.
        unsafe { report_drop(c"-".as_ptr().cast(), 0, 0, reason.as_ptr().cast()) };
    }
}

/// Emits `rrxe_qp_state` for QP `qpn`, which changes from the state `from` to the state `to` (both
/// of `enum ib_qp_state`). Callers check [`qp_state_enabled`] first.
pub fn qp_state(device: &IbDevice, qpn: u32, from: u32, to: u32) {
    // SAFETY: `device` is borrowed for the call, so its name is a valid string during the call.
    unsafe { report_qp_state(device.name_ptr(), qpn, from, to) };
}

/// Returns the AETH syndrome of `packet` if it is a NAK or an RNR NAK, else `None`.
fn nak(packet: &Packet) -> Option<u8> {
    match packet.body {
        Body::Ack(Aeth {
            syndrome: syndrome @ (Syndrome::RnrNak { .. } | Syndrome::Nak(_)),
            ..
        }) => Some(syndrome.to_wire()),
        _ => None,
    }
}

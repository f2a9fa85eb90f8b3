// SPDX-License-Identifier: GPL-2.0

//! Tracepoints (`include/trace/events/rrxe.h`): packets, drops, retransmissions, NAKs, states.
//!
//! One that nobody listens to costs a jump that is patched away. Its arguments are to be cheap, or
//! worked out only when [`enabled`](packet_out_enabled) says so. Any context.

#[cfg(CONFIG_TRACEPOINTS)]
use kernel::bindings::tracepoint;
use kernel::{ffi::c_char, prelude::*};
use roce::{
    transmit::Transmit,
    wire::packet::{Aeth, Body, Packet, Syndrome},
};

use crate::device::IbDevice;

/// Declares a tracepoint: a function that says whether somebody listens, and one that reports.
macro_rules! events {
    ($($name:ident, $enabled:ident, $point:ident, $report:ident
        ($($argument:ident: $type:ty),*);)*) => {
        // The key's lock class is an empty structure in this configuration; nobody here looks inside.
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
            /// Whether somebody listens.
            #[inline(always)]
            pub fn $enabled() -> bool {
                #[cfg(CONFIG_TRACEPOINTS)]
                {
                    // SAFETY: `trace.c` defines the tracepoint, with its key.
                    unsafe { kernel::jump_label::static_branch_unlikely!($point, tracepoint, key) }
                }
                #[cfg(not(CONFIG_TRACEPOINTS))]
                false
            }

            /// # Safety
            ///
            /// Strings must be valid.
            #[cold]
            unsafe fn $name($($argument: $type),*) {
                #[cfg(CONFIG_TRACEPOINTS)]
                {
                    // SAFETY: As the caller promises; the rest is numbers.
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

/// QP `qpn` sends a packet.
#[inline(always)]
pub fn packet_out(device: &IbDevice, qpn: u32, transmit: &Transmit) {
    if packet_out_enabled() || retransmit_enabled() || nak_out_enabled() {
        tell_out(device, qpn, transmit);
    }
}

#[cold]
#[inline(never)]
fn tell_out(device: &IbDevice, qpn: u32, transmit: &Transmit) {
    let packet = &transmit.packet;
    let (dest, psn) = (packet.bth.dest.get(), packet.bth.psn.get());
    let (opcode, length) = (packet.opcode(), packet.payload_len);
    if packet_out_enabled() {
        // SAFETY: The name lives as long as the device.
        unsafe { report_packet_out(device.name_ptr(), qpn, dest, opcode, psn, length) };
    }
    if retransmit_enabled() && transmit.retransmission {
        // SAFETY: As above.
        unsafe { report_retransmit(device.name_ptr(), qpn, dest, opcode, psn, length) };
    }
    if nak_out_enabled() {
        if let Some(syndrome) = nak(packet) {
            // SAFETY: As above.
            unsafe { report_nak_out(device.name_ptr(), qpn, psn, syndrome) };
        }
    }
}

/// `packet` came for QP `qpn`, from its peer.
#[inline(always)]
pub fn packet_in(device: &IbDevice, qpn: u32, packet: &Packet) {
    if packet_in_enabled() || nak_in_enabled() {
        tell_in(device, qpn, packet);
    }
}

#[cold]
#[inline(never)]
fn tell_in(device: &IbDevice, qpn: u32, packet: &Packet) {
    let (dest, psn) = (packet.bth.dest.get(), packet.bth.psn.get());
    if packet_in_enabled() {
        let (opcode, length) = (packet.opcode(), packet.payload_len);
        // SAFETY: The name lives as long as the device.
        unsafe { report_packet_in(device.name_ptr(), qpn, dest, opcode, psn, length) };
    }
    if nak_in_enabled() {
        if let Some(syndrome) = nak(packet) {
            // SAFETY: As above.
            unsafe { report_nak_in(device.name_ptr(), qpn, psn, syndrome) };
        }
    }
}

/// QP `qpn` drops a packet, for `reason`.
#[inline(always)]
pub fn drop_for_qp(device: &IbDevice, qpn: u32, psn: u32, reason: &CStr) {
    if drop_enabled() {
        // SAFETY: The name lives as long as the device.
        unsafe { report_drop(device.name_ptr(), qpn, psn, reason.as_ptr().cast()) };
    }
}

/// A packet is dropped that no QP could be blamed for, for `reason`.
#[inline(always)]
pub fn drop_without_qp(reason: &CStr) {
    if drop_enabled() {
        // SAFETY: Both are constant or borrowed.
        unsafe { report_drop(c"-".as_ptr().cast(), 0, 0, reason.as_ptr().cast()) };
    }
}

/// QP `qpn` changes its state, between two of `enum ib_qp_state`. To be called if
/// [`qp_state_enabled`].
pub fn qp_state(device: &IbDevice, qpn: u32, from: u32, to: u32) {
    // SAFETY: The name lives as long as the device.
    unsafe { report_qp_state(device.name_ptr(), qpn, from, to) };
}

/// The syndrome of a NAK or RNR NAK.
fn nak(packet: &Packet) -> Option<u8> {
    match packet.body {
        Body::Ack(Aeth {
            syndrome: syndrome @ (Syndrome::RnrNak { .. } | Syndrome::Nak(_)),
            ..
        }) => Some(syndrome.to_wire()),
        _ => None,
    }
}

// SPDX-License-Identifier: GPL-2.0
/* Defines the tracepoints of include/trace/events/rrxe.h, for C and for Rust. */
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include <trace/events/rrxe.h>

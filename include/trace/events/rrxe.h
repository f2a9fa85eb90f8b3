/* SPDX-License-Identifier: GPL-2.0 */
/* Tracepoints of the RDMA driver rrxe. The functions of rust/rdma/trace.rs emit them. */

#undef TRACE_SYSTEM
#define TRACE_SYSTEM rrxe

#if !defined(_TRACE_RRXE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_RRXE_H

#include <linux/tracepoint.h>

#define rrxe_operations \
	{ 0x00, "SEND_FIRST" }, { 0x01, "SEND_MIDDLE" }, { 0x02, "SEND_LAST" }, \
	{ 0x03, "SEND_LAST_IMM" }, { 0x04, "SEND_ONLY" }, { 0x05, "SEND_ONLY_IMM" }, \
	{ 0x06, "WRITE_FIRST" }, { 0x07, "WRITE_MIDDLE" }, { 0x08, "WRITE_LAST" }, \
	{ 0x09, "WRITE_LAST_IMM" }, { 0x0a, "WRITE_ONLY" }, { 0x0b, "WRITE_ONLY_IMM" }, \
	{ 0x0c, "READ_REQUEST" }, { 0x0d, "READ_RESPONSE_FIRST" }, \
	{ 0x0e, "READ_RESPONSE_MIDDLE" }, { 0x0f, "READ_RESPONSE_LAST" }, \
	{ 0x10, "READ_RESPONSE_ONLY" }, { 0x11, "ACK" }, { 0x12, "ATOMIC_ACK" }, \
	{ 0x13, "COMPARE_SWAP" }, { 0x14, "FETCH_ADD" }, { 0x16, "SEND_LAST_INV" }, \
	{ 0x17, "SEND_ONLY_INV" }, { 0x1c, "FLUSH" }, { 0x1d, "ATOMIC_WRITE" }

#define rrxe_transports \
	{ 0x00, "RC" }, { 0x20, "UC" }, { 0x60, "UD" }, { 0x80, "CNP" }, { 0xa0, "XRC" }

#define rrxe_states \
	{ 0, "RESET" }, { 1, "INIT" }, { 2, "RTR" }, { 3, "RTS" }, { 4, "SQD" }, { 5, "SQE" }, \
	{ 6, "ERR" }

/*
 * A packet that QP qpn of this host sends or receives. dest is the destination QPN in the packet's
 * BTH, length the number of payload bytes.
 */
DECLARE_EVENT_CLASS(rrxe_packet,
	TP_PROTO(const char *device, u32 qpn, u32 dest, u8 opcode, u32 psn, u32 length),
	TP_ARGS(device, qpn, dest, opcode, psn, length),
	TP_STRUCT__entry(
		__string(device, device)
		__field(u32, qpn)
		__field(u32, dest)
		__field(u32, psn)
		__field(u32, length)
		__field(u8, opcode)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->qpn = qpn;
		__entry->dest = dest;
		__entry->psn = psn;
		__entry->length = length;
		__entry->opcode = opcode;
	),
	TP_printk("%s qpn=%u dest=%u %s %s psn=%u length=%u", __get_str(device), __entry->qpn,
		__entry->dest, __print_symbolic(__entry->opcode & 0xe0, rrxe_transports),
		__print_symbolic(__entry->opcode & 0x1f, rrxe_operations), __entry->psn,
		__entry->length)
);

/* QP qpn sends the packet, for the first time or again. */
DEFINE_EVENT(rrxe_packet, rrxe_packet_out,
	TP_PROTO(const char *device, u32 qpn, u32 dest, u8 opcode, u32 psn, u32 length),
	TP_ARGS(device, qpn, dest, opcode, psn, length));

/* QP qpn has received the packet. */
DEFINE_EVENT(rrxe_packet, rrxe_packet_in,
	TP_PROTO(const char *device, u32 qpn, u32 dest, u8 opcode, u32 psn, u32 length),
	TP_ARGS(device, qpn, dest, opcode, psn, length));

/* QP qpn retransmits the packet. rrxe_packet_out reports the same packet, too. */
DEFINE_EVENT(rrxe_packet, rrxe_retransmit,
	TP_PROTO(const char *device, u32 qpn, u32 dest, u8 opcode, u32 psn, u32 length),
	TP_ARGS(device, qpn, dest, opcode, psn, length));

/*
 * A packet is dropped. reason is the name of the counter that counts it. If the packet is dropped
 * before a QP handles it, device is "-", and qpn and psn are 0.
 */
TRACE_EVENT(rrxe_drop,
	TP_PROTO(const char *device, u32 qpn, u32 psn, const char *reason),
	TP_ARGS(device, qpn, psn, reason),
	TP_STRUCT__entry(
		__string(device, device)
		__string(reason, reason)
		__field(u32, qpn)
		__field(u32, psn)
	),
	TP_fast_assign(
		__assign_str(device);
		__assign_str(reason);
		__entry->qpn = qpn;
		__entry->psn = psn;
	),
	TP_printk("%s qpn=%u psn=%u %s", __get_str(device), __entry->qpn, __entry->psn,
		__get_str(reason))
);

/*
 * An RNR NAK or a NAK. syndrome is that of the AETH: its lower five bits are the timer of an RNR
 * NAK, or the code of a NAK (IBTA table 58).
 */
DECLARE_EVENT_CLASS(rrxe_nak,
	TP_PROTO(const char *device, u32 qpn, u32 psn, u8 syndrome),
	TP_ARGS(device, qpn, psn, syndrome),
	TP_STRUCT__entry(
		__string(device, device)
		__field(u32, qpn)
		__field(u32, psn)
		__field(u8, syndrome)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->qpn = qpn;
		__entry->psn = psn;
		__entry->syndrome = syndrome;
	),
	TP_printk("%s qpn=%u psn=%u %s code=%u", __get_str(device), __entry->qpn, __entry->psn,
		__print_symbolic(__entry->syndrome >> 5, { 1, "RNR_NAK" }, { 3, "NAK" }),
		__entry->syndrome & 0x1f)
);

/* QP qpn sends the NAK. */
DEFINE_EVENT(rrxe_nak, rrxe_nak_out,
	TP_PROTO(const char *device, u32 qpn, u32 psn, u8 syndrome),
	TP_ARGS(device, qpn, psn, syndrome));

/* QP qpn receives the NAK. */
DEFINE_EVENT(rrxe_nak, rrxe_nak_in,
	TP_PROTO(const char *device, u32 qpn, u32 psn, u8 syndrome),
	TP_ARGS(device, qpn, psn, syndrome));

/* A QP changes its state, by modify_qp or because of an error. */
TRACE_EVENT(rrxe_qp_state,
	TP_PROTO(const char *device, u32 qpn, u32 from, u32 to),
	TP_ARGS(device, qpn, from, to),
	TP_STRUCT__entry(
		__string(device, device)
		__field(u32, qpn)
		__field(u32, from)
		__field(u32, to)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->qpn = qpn;
		__entry->from = from;
		__entry->to = to;
	),
	TP_printk("%s qpn=%u %s -> %s", __get_str(device), __entry->qpn,
		__print_symbolic(__entry->from, rrxe_states),
		__print_symbolic(__entry->to, rrxe_states))
);

#endif /* _TRACE_RRXE_H */

#include <trace/define_trace.h>

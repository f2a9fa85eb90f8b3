// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin for QEMU's emulator (TCG) that counts how often each block of guest code is executed
 * between two marks. tools/bench/profile.py adds up the counts by function.
 *
 * A mark is the instruction `nopl MARK + n(%rax)`, which does nothing (mark.rs of rrxe-bench
 * executes it). Mark 0 sets all counts to 0. Mark n appends the counts to a file, after a line
 * `mark n`, with a line for each block that ran: its address in hexadecimal, its number of
 * instructions, how often it ran, and its kind. The counts continue until the next mark 0.
 *
 * With -icount, each iteration of a repeated string instruction ends a block and counts as one
 * instruction. The kind of a block is `m` if it ends with `rep movs`, `s` if it ends with
 * `rep stos`, and `-` otherwise.
 *
 *	-plugin count.so,out=FILE
 *
 * The guest has one CPU, so the counters need no lock.
 *
 * Debian has no package with qemu-plugin.h. So the part of QEMU's interface that is used here is
 * declared below. QEMU does not load a plugin for a version of this interface that it lacks.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
typedef struct {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
} qemu_plugin_u64;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t element_size);
void *qemu_plugin_scoreboard_find(struct qemu_plugin_scoreboard *score, unsigned int vcpu);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
					   void (*cb)(qemu_plugin_id_t id,
						      struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *tb,
						       enum qemu_plugin_op op,
						       qemu_plugin_u64 entry, uint64_t imm);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
					    void (*cb)(unsigned int vcpu, void *data),
					    enum qemu_plugin_cb_flags flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t size);

#define EXPORT __attribute__((visibility("default")))

/* The version of the interface: that of QEMU 10.0. */
EXPORT int qemu_plugin_version = 4;

/* The displacement of mark 0. The low 16 bits are the number of a mark. */
#define MARK 0x52780000u

/* Blocks that can be told apart. Two blocks may begin at the same address with other lengths. */
#define BLOCKS (1u << 19)

struct block {
	uint64_t address;
	uint64_t instructions;
	char kind;
};

static struct block blocks[BLOCKS];
static uint32_t used;
/* An open hash table of the numbers of blocks, plus one. */
static uint32_t table[2 * BLOCKS];
static struct qemu_plugin_scoreboard *counters;
static FILE *out;

/* Returns the kind of a block that ends with this instruction. */
static char kind_of(const struct qemu_plugin_insn *insn)
{
	uint8_t bytes[16];
	size_t size = qemu_plugin_insn_data(insn, bytes, sizeof(bytes)), opcode = 1;

	if (size < 2 || (bytes[0] != 0xf2 && bytes[0] != 0xf3))
		return '-';
	/* A REX prefix. */
	if ((bytes[1] & 0xf0) == 0x40 && size > 2)
		opcode = 2;
	if (size != opcode + 1)
		return '-';
	if ((bytes[opcode] & 0xfe) == 0xa4)
		return 'm';
	return (bytes[opcode] & 0xfe) == 0xaa ? 's' : '-';
}

/* Returns the number of a block. If there are too many blocks, nothing can be measured. */
static uint32_t number_of(uint64_t address, uint64_t instructions, char kind)
{
	uint64_t hash = (address ^ instructions << 48) * 0x9e3779b97f4a7c15u;
	uint32_t at;

	for (at = hash >> 44; table[at]; at = (at + 1) % (2 * BLOCKS)) {
		const struct block *block = &blocks[table[at] - 1];

		if (block->address == address && block->instructions == instructions &&
		    block->kind == kind)
			return table[at] - 1;
	}
	if (used == BLOCKS) {
		fprintf(stderr, "count.so: the guest has more than %u blocks of code\n", BLOCKS);
		exit(1);
	}
	blocks[used] = (struct block){ address, instructions, kind };
	table[at] = ++used;
	return used - 1;
}

static void at_mark(unsigned int vcpu, void *data)
{
	uint64_t *counts = qemu_plugin_scoreboard_find(counters, vcpu);
	unsigned int mark = (uintptr_t)data;
	uint32_t i;

	if (!mark) {
		memset(counts, 0, used * sizeof(*counts));
		return;
	}
	fprintf(out, "mark %u\n", mark);
	for (i = 0; i < used; i++) {
		if (counts[i])
			fprintf(out, "%llx %llu %llu %c\n", (unsigned long long)blocks[i].address,
				(unsigned long long)blocks[i].instructions,
				(unsigned long long)counts[i], blocks[i].kind);
	}
	fflush(out);
}

/* Adds the callback of a mark to an instruction if it is a mark: opcode, ModR/M, displacement. */
static void mark_if_it_is_one(struct qemu_plugin_insn *insn)
{
	uint8_t bytes[16];
	uint32_t displacement;

	if (qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) != 7 ||
	    memcmp(bytes, "\x0f\x1f\x80", 3))
		return;
	memcpy(&displacement, bytes + 3, sizeof(displacement));
	if ((displacement & 0xffff0000u) == MARK)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, at_mark, QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(uintptr_t)(displacement & 0xffff));
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t instructions = qemu_plugin_tb_n_insns(tb), i;
	qemu_plugin_u64 counter = { .score = counters };

	char kind = kind_of(qemu_plugin_tb_get_insn(tb, instructions - 1));

	(void)id;
	for (i = 0; i < instructions; i++)
		mark_if_it_is_one(qemu_plugin_tb_get_insn(tb, i));
	counter.offset = number_of(qemu_plugin_tb_vaddr(tb), instructions, kind);
	counter.offset *= sizeof(uint64_t);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, counter,
							  1);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	(void)info;
	if (argc == 1 && !strncmp(argv[0], "out=", 4))
		out = fopen(argv[0] + 4, "w");
	if (!out) {
		fprintf(stderr, "count.so: usage: -plugin count.so,out=FILE\n");
		return 1;
	}
	counters = qemu_plugin_scoreboard_new(BLOCKS * sizeof(uint64_t));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}

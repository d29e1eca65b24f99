/* Threads of a running kernel, and what the parts of the interpreter share of them. */
#ifndef SIMGPU_PTX_RUN_H
#define SIMGPU_PTX_RUN_H

#include "ptx.h"

#define WARP 32

enum thread_state { RUNNING, AT_BARRIER, AT_WARP, ENDED };

/* The state of a running function; a kernel is the first. */
struct frame {
	const struct ptx_kernel *code;
	const struct ptx_instruction *at; /* the next one */
	uint64_t *slots;
	uint8_t *area;       /* its parameters, its result and the arguments of its calls */
	uint32_t local_base; /* where its local memory begins in the thread's */
};

struct copy {
	const struct ptx_instruction *by;
	uint64_t to, from;
	uint32_t read, group;
};

struct thread {
	struct frame frame, *callers;
	uint32_t depth, callers_room, local_room, readings;
	uint8_t *local;
	bool carry;
	struct copy *copies; /* cp.async that have not arrived, the oldest first */
	uint32_t copy_count, copy_room, groups;
	enum thread_state state;
	uint64_t cycles, extra_ns, first_reading_ns;
};

struct run {
	struct ptx_launch *launch;
	uint32_t specials, thread_count, shared_size, dynamic_base;
	uint8_t *shared;
	struct thread *threads;
	struct ptx_window windows[2];
	uint32_t victim;
	uint64_t limit, stores;
};

static inline enum ptx_result fault(struct run *run, const struct ptx_instruction *i, uint64_t address, enum ptx_result result)
{
	run->launch->fault_address = address;
	run->launch->fault_line = i->line;
	return result;
}

static inline void put(const struct ptx_instruction *i, struct thread *thread, int place, enum ptx_type type, uint64_t value)
{
	if (i->slot[place] == PTX_NO_SLOT)
		return;
	value = ptx_is_signed(type) ? (uint64_t)ptx_signed(type, value) : ptx_mask(type, value);
	thread->frame.slots[i->slot[place]] = ptx_mask((enum ptx_type)i->register_type, value);
}

/* frames.c */
enum ptx_result thread_call(struct run *run, struct thread *thread, const struct ptx_instruction *i);
bool thread_return(struct thread *thread); /* false: it was the kernel's own */
/* Registers zero, constants as they are at this place; special registers are the caller's. */
void fill_slots(const struct run *run, const struct frame *frame, const uint64_t *specials);
uint32_t slot_count(const struct ptx_kernel *code);

uint8_t *reach_at(struct run *run, const struct thread *thread, const struct ptx_instruction *i, uint64_t address,
		  enum ptx_space space, uint32_t size, enum ptx_result *result);

/* builtins.c */
enum ptx_result builtin_call(struct run *run, struct thread *thread, const struct ptx_instruction *i, const struct ptx_call *call,
			     enum ptx_builtin builtin);

/* copies.c */
enum ptx_result thread_copy(struct run *run, struct thread *thread, const struct ptx_instruction *i);

/* warp.c: lets all threads of a block go on that wait at a barrier */
void pass_barrier(struct thread *threads, uint32_t count);
/* lets those threads of a warp go on that meet at the same instruction, once all it names have come. */
bool meet(struct thread *lanes, uint32_t count);

#endif

/*
 * Running a kernel: blocks one after another; in a block each thread runs until it ends, or until it has to wait for the
 * others of its warp or block. A kernel whose threads never wait needs the registers of one thread only.
 *
 * A thread's time is what it executed, in cycles of a GPU. A thread that reads a clock again and again is waiting for time to pass:
 * from the ninth reading on, time runs faster and faster for it, so that spinning for a second takes a thousand readings.
 */
#include "run.h"

#include <stdlib.h>
#include <string.h>

#define CYCLES_PER_INSTRUCTION 4
#define PATIENCE 8            /* readings of a clock before time is helped along */
#define WRONG_EVERY 977       /* a broken GPU spoils one store of so many */
#define DEFAULT_LIMIT 2000000000ull

static uint64_t thread_ns(const struct run *run, const struct thread *thread)
{
	return thread->cycles * 1000 / run->launch->clock_mhz + thread->extra_ns;
}

/* The memory behind an address, NULL when there is none. */
uint8_t *reach_at(struct run *run, const struct thread *thread, const struct ptx_instruction *i, uint64_t address,
		  enum ptx_space space, uint32_t size, enum ptx_result *result)
{
	*result = PTX_OK;
	if (space == PTX_GENERIC && address & PTX_WINDOW_MASK) {
		uint64_t window = address & PTX_WINDOW_MASK;
		space = window == PTX_SHARED_WINDOW  ? PTX_SHARED
			: window == PTX_LOCAL_WINDOW ? PTX_LOCAL
			: window == PTX_PARAM_WINDOW ? PTX_PARAM
						     : PTX_GLOBAL;
		if (space != PTX_GLOBAL)
			address &= ~PTX_WINDOW_MASK;
	}
	if (address % size) {
		*result = fault(run, i, address, PTX_MISALIGNED);
		return NULL;
	}
	const struct frame *frame = &thread->frame;
	uint32_t local_end = frame->local_base + frame->code->local_bytes;
	if (space == PTX_SHARED && address + size <= run->shared_size && address < run->shared_size)
		return run->shared + address;
	if (space == PTX_LOCAL && address + size <= local_end && address < local_end)
		return thread->local + address;
	/* The parameters of a kernel cannot be written. */
	if (space == PTX_PARAM && address + size <= frame->code->area_bytes && address < frame->code->area_bytes &&
	    (i->op == OP_LD || address >= frame->code->param_bytes))
		return frame->area + address;
	if (space <= PTX_GLOBAL || space == PTX_CONST) {
		for (int k = 0; k < 2; k++)
			if (address >= run->windows[k].start && address < run->windows[k].end &&
			    size <= run->windows[k].end - address)
				return run->windows[k].host + (address - run->windows[k].start);
		struct ptx_window *window = &run->windows[run->victim ^= 1];
		if (run->launch->find(run->launch->find_context, address, window) && size <= window->end - address)
			return window->host + (address - window->start);
		window->end = window->start = 0;
	}
	*result = fault(run, i, address, PTX_ILLEGAL_ADDRESS);
	return NULL;
}

static uint8_t *reach(struct run *run, const struct thread *thread, const struct ptx_instruction *i, uint32_t size,
		      enum ptx_result *result)
{
	return reach_at(run, thread, i, thread->frame.slots[i->slot[8]] + (uint64_t)i->offset, (enum ptx_space)i->space, size, result);
}

static enum ptx_result load(struct run *run, struct thread *thread, const struct ptx_instruction *i)
{
	enum ptx_result result;
	enum ptx_type type = (enum ptx_type)i->type;
	uint32_t width = ptx_width(type);
	const uint8_t *from = reach(run, thread, i, width * i->vector, &result);
	if (!from)
		return result;
	for (int part = 0; part < i->vector; part++, from += width) {
		uint64_t value = 0;
		memcpy(&value, from, width);
		put(i, thread, part, type, value);
	}
	if (i->space != PTX_PARAM)
		run->launch->bytes += width * i->vector;
	return PTX_OK;
}

static enum ptx_result store(struct run *run, struct thread *thread, const struct ptx_instruction *i)
{
	enum ptx_result result;
	uint32_t width = ptx_width((enum ptx_type)i->type);
	uint8_t *to = reach(run, thread, i, width * i->vector, &result);
	if (!to)
		return result;
	for (int part = 0; part < i->vector; part++, to += width) {
		uint64_t value = thread->frame.slots[i->slot[part]];
		if (run->launch->wrong_results && i->space <= PTX_GLOBAL && run->stores++ % WRONG_EVERY == 13)
			value ^= width >= 4 ? 0x00400000 : 1;
		memcpy(to, &value, width);
	}
	run->launch->bytes += width * i->vector;
	return PTX_OK;
}

static enum ptx_result atomic(struct run *run, struct thread *thread, const struct ptx_instruction *i)
{
	enum ptx_result result;
	enum ptx_type type = (enum ptx_type)i->type;
	uint32_t width = ptx_width(type);
	uint8_t *at = reach(run, thread, i, width, &result);
	if (!at)
		return result;
	uint64_t old = 0, c = i->slot[2] == PTX_NO_SLOT ? 0 : thread->frame.slots[i->slot[2]];
	memcpy(&old, at, width);
	uint64_t fresh = ptx_atomic(i, old, thread->frame.slots[i->slot[1]], c);
	memcpy(at, &fresh, width);
	if (i->op == OP_ATOM)
		put(i, thread, 0, type, old);
	run->launch->bytes += 2 * width;
	return PTX_OK;
}

static void change_address_space(struct thread *thread, const struct ptx_instruction *i)
{
	static const uint64_t windows[] = {[PTX_SHARED] = PTX_SHARED_WINDOW, [PTX_LOCAL] = PTX_LOCAL_WINDOW,
					   [PTX_PARAM] = PTX_PARAM_WINDOW, [PTX_CONST] = 0};
	uint64_t value = thread->frame.slots[i->slot[1]], window = windows[i->space];
	if (i->op == OP_ISSPACEP) {
		bool in_window = (value & PTX_WINDOW_MASK) == window;
		put(i, thread, 0, PTX_PRED, window ? in_window : (value & PTX_WINDOW_MASK) == 0);
	} else {
		put(i, thread, 0, PTX_U64, i->mode == M_TO ? value - window : value + window);
	}
}

static void read_clock(struct run *run, struct thread *thread, const struct ptx_instruction *i)
{
	uint64_t now = thread_ns(run, thread);
	if (thread->readings++ == 0)
		thread->first_reading_ns = now;
	else if (thread->readings > PATIENCE)
		thread->extra_ns += (now - thread->first_reading_ns) / 64 + 20;
	now = thread_ns(run, thread);
	put(i, thread, 0, (enum ptx_type)i->type,
	    i->mode == PTX_GLOBALTIMER ? run->launch->start_ns + now : now * run->launch->clock_mhz / 1000);
}

static void add_with_carry(struct thread *thread, const struct ptx_instruction *i)
{
	const uint64_t *slots = thread->frame.slots;
	uint64_t c = i->slot[3] == PTX_NO_SLOT ? 0 : slots[i->slot[3]];
	put(i, thread, 0, (enum ptx_type)i->type, ptx_carry(i, slots[i->slot[1]], slots[i->slot[2]], c, &thread->carry));
}

static void pack(struct thread *thread, const struct ptx_instruction *i)
{
	uint32_t bits = 8 * ptx_width((enum ptx_type)i->type) / i->vector;
	uint64_t mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
	if (i->op == OP_PACK) {
		uint64_t value = 0;
		for (uint32_t part = 0; part < i->vector; part++)
			value |= (thread->frame.slots[i->slot[1 + part]] & mask) << bits * part;
		put(i, thread, 0, (enum ptx_type)i->type, value);
		return;
	}
	uint64_t value = thread->frame.slots[i->slot[4]];
	for (int part = 0; part < i->vector; part++)
		put(i, thread, part, PTX_U64, value >> bits * (uint32_t)part & mask);
}

static uint32_t active_mask(const struct run *run, uint32_t number)
{
	uint32_t first = number / WARP * WARP, mask = 0;
	for (uint32_t lane = 0; lane < WARP && first + lane < run->thread_count; lane++)
		if (!run->launch->kernel->meets || run->threads[first + lane].state != ENDED)
			mask |= 1u << lane;
	return mask;
}

static enum ptx_result branch_by_index(struct run *run, struct thread *thread, const struct ptx_instruction *i)
{
	uint64_t index = (uint32_t)thread->frame.slots[i->slot[1]];
	if (index >= (uint64_t)i->offset)
		return fault(run, i, index, PTX_TRAPPED);
	thread->frame.at = thread->frame.code->code + i->target + index;
	return PTX_OK;
}

/* Runs one thread until it ends or waits. */
static enum ptx_result run_thread(struct run *run, struct thread *thread, uint32_t number)
{
	uint64_t executed = 0, limit = run->limit - run->launch->instructions;
	enum ptx_result result = PTX_OK;
	while (thread->state == RUNNING && result == PTX_OK) {
		const struct ptx_instruction *i = thread->frame.at++;
		if (++executed > limit) {
			result = fault(run, i, 0, PTX_TOO_LONG);
			break;
		}
		thread->cycles += CYCLES_PER_INSTRUCTION;
		if (i->guarded && (thread->frame.slots[i->guard] & 1) == i->guard_negated)
			continue;
		if (i->op < OP_FIRST_SPECIAL) {
			uint64_t value = ptx_compute(i, thread->frame.slots);
			put(i, thread, 0, (enum ptx_type)i->result_type, value);
			if (i->op == OP_SETP)
				put(i, thread, 5, PTX_PRED, !value);
			continue;
		}
		switch (i->op) {
		case OP_LD: result = load(run, thread, i); break;
		case OP_ST: result = store(run, thread, i); break;
		case OP_ATOM: case OP_RED: result = atomic(run, thread, i); break;
		case OP_CVTA: case OP_ISSPACEP: change_address_space(thread, i); break;
		case OP_PACK: case OP_UNPACK: pack(thread, i); break;
		case OP_CLOCK: read_clock(run, thread, i); break;
		case OP_CARRY: add_with_carry(thread, i); break;
		case OP_CALL: result = thread_call(run, thread, i); break;
		case OP_RET: thread->state = thread_return(thread) ? RUNNING : ENDED; break;
		case OP_BRX: result = branch_by_index(run, thread, i); break;
		case OP_CP_ASYNC: result = thread_copy(run, thread, i); break;
		case OP_BRA: thread->frame.at = thread->frame.code->code + i->target; break;
		case OP_EXIT: thread->state = ENDED; break;
		case OP_TRAP: result = fault(run, i, 0, PTX_TRAPPED); break;
		case OP_NANOSLEEP: thread->extra_ns += (uint32_t)thread->frame.slots[i->slot[1]]; break;
		case OP_ACTIVEMASK: put(i, thread, 0, PTX_U32, active_mask(run, number)); break;
		case OP_BAR: thread->state = AT_BARRIER; break;
		case OP_WARPSYNC: case OP_SHFL: case OP_VOTE: case OP_REDUX: case OP_MATCH: thread->state = AT_WARP; break;
		default: break;
		}
	}
	run->launch->instructions += executed;
	return result;
}

static enum ptx_result run_meeting_block(struct run *run)
{
	for (;;) {
		bool ended = true, progress = false, all_wait = true;
		for (uint32_t first = 0; first < run->thread_count; first += WARP) {
			uint32_t count = run->thread_count - first < WARP ? run->thread_count - first : WARP;
			struct thread *lanes = run->threads + first;
			do
				for (uint32_t lane = 0; lane < count; lane++)
					if (lanes[lane].state == RUNNING) {
						enum ptx_result result = run_thread(run, &lanes[lane], first + lane);
						if (result != PTX_OK)
							return result;
						progress = true;
					}
			while (meet(lanes, count));
			for (uint32_t lane = 0; lane < count; lane++) {
				ended &= lanes[lane].state == ENDED;
				all_wait &= lanes[lane].state == ENDED || lanes[lane].state == AT_BARRIER;
			}
		}
		if (ended)
			return PTX_OK;
		if (all_wait)
			pass_barrier(run->threads, run->thread_count);
		if (!all_wait && !progress)
			return fault(run, run->threads[0].frame.at - 1, 0, PTX_TOO_LONG); /* they wait for ever */
	}
}

static void prepare(struct run *run, struct thread *thread, uint32_t number, const uint32_t *block)
{
	const struct ptx_launch *launch = run->launch;
	uint64_t *special = thread->frame.slots + run->specials;
	uint32_t lane = number % WARP;
	while (thread_return(thread))
		; /* it may have ended in a function */
	memset(thread->frame.slots, 0, launch->kernel->registers * sizeof *thread->frame.slots);
	if (launch->kernel->call_count)
		memcpy(thread->frame.area, launch->params, launch->kernel->param_bytes);
	thread->frame.at = launch->kernel->code;
	thread->readings = 0;
	thread->carry = false;
	thread->copy_count = thread->groups = 0;
	thread->cycles = thread->extra_ns = 0;
	thread->state = RUNNING;
	special[PTX_TID_X] = number % launch->block[0];
	special[PTX_TID_Y] = number / launch->block[0] % launch->block[1];
	special[PTX_TID_Z] = number / launch->block[0] / launch->block[1];
	for (int axis = 0; axis < 3; axis++)
		special[PTX_CTAID_X + axis] = block[axis];
	special[PTX_LANEID] = lane;
	special[PTX_WARPID] = number / WARP;
	special[PTX_SMID] = (block[0] + block[1] * launch->grid[0]) % launch->multiprocessors;
	special[PTX_LANEMASK_EQ] = 1u << lane;
	special[PTX_LANEMASK_LT] = (1u << lane) - 1;
	special[PTX_LANEMASK_LE] = ((1u << lane) - 1) | 1u << lane;
	special[PTX_LANEMASK_GE] = ~((1u << lane) - 1);
	special[PTX_LANEMASK_GT] = ~((1u << lane) - 1) & ~(1u << lane);
}

static void account(struct run *run, const struct thread *thread)
{
	uint64_t ns = thread_ns(run, thread);
	run->launch->total_ns += ns;
	if (ns > run->launch->longest_ns)
		run->launch->longest_ns = ns;
}

static enum ptx_result run_block(struct run *run, const uint32_t *block)
{
	enum ptx_result result = PTX_OK;
	memset(run->shared, 0, run->shared_size);
	if (!run->launch->kernel->meets) {
		for (uint32_t number = 0; number < run->thread_count && result == PTX_OK; number++) {
			prepare(run, run->threads, number, block);
			result = run_thread(run, run->threads, number);
			account(run, run->threads);
		}
		return result;
	}
	for (uint32_t number = 0; number < run->thread_count; number++)
		prepare(run, &run->threads[number], number, block);
	result = run_meeting_block(run);
	for (uint32_t number = 0; number < run->thread_count; number++)
		account(run, &run->threads[number]);
	return result;
}

/* Registers, constants and what is the same for all threads. */
static bool make_threads(struct run *run, uint32_t count)
{
	const struct ptx_launch *launch = run->launch;
	const struct ptx_kernel *kernel = launch->kernel;
	run->threads = calloc(count, sizeof *run->threads);
	for (uint32_t k = 0; run->threads && k < count; k++) {
		struct thread *thread = &run->threads[k];
		thread->local = malloc(kernel->local_bytes + 16);
		thread->local_room = kernel->local_bytes + 16;
		thread->frame = (struct frame){.code = kernel, .slots = calloc(slot_count(kernel), sizeof *thread->frame.slots)};
		/* Only who calls writes to it. */
		thread->frame.area = kernel->call_count ? calloc(1, kernel->area_bytes + 16) : (uint8_t *)(uintptr_t)launch->params;
		if (!thread->frame.slots || !thread->frame.area || !thread->local)
			return false;
		fill_slots(run, &thread->frame, NULL);
		uint64_t *special = thread->frame.slots + run->specials;
		for (int axis = 0; axis < 3; axis++) {
			special[PTX_NTID_X + axis] = launch->block[axis];
			special[PTX_NCTAID_X + axis] = launch->grid[axis];
		}
		special[PTX_NWARPID] = (run->thread_count + WARP - 1) / WARP;
		special[PTX_NSMID] = launch->multiprocessors;
		special[PTX_DYNAMIC_SMEM_SIZE] = launch->dynamic_shared;
		special[PTX_TOTAL_SMEM_SIZE] = run->shared_size;
	}
	return run->threads != NULL;
}

enum ptx_result ptx_run(struct ptx_launch *launch)
{
	const struct ptx_kernel *kernel = launch->kernel;
	const char *limit = getenv("SIMGPU_MAX_INSTRUCTIONS");
	struct run run = {
		.launch = launch, .specials = kernel->registers + kernel->constant_count,
		.thread_count = launch->block[0] * launch->block[1] * launch->block[2],
		.dynamic_base = (kernel->shared_bytes + 15) / 16 * 16,
		.shared_size = kernel->shared_bytes,
		.limit = limit ? strtoull(limit, NULL, 10) : DEFAULT_LIMIT,
	};
	if (launch->dynamic_shared)
		run.shared_size = run.dynamic_base + launch->dynamic_shared;
	run.shared = calloc(1, run.shared_size + 16);
	uint32_t count = kernel->meets ? run.thread_count : 1;
	launch->instructions = launch->bytes = launch->longest_ns = launch->total_ns = 0;
	enum ptx_result result = run.shared && make_threads(&run, count) ? PTX_OK : PTX_NO_MEMORY;
	uint32_t block[3];
	for (block[2] = 0; block[2] < launch->grid[2] && result == PTX_OK; block[2]++)
		for (block[1] = 0; block[1] < launch->grid[1] && result == PTX_OK; block[1]++)
			for (block[0] = 0; block[0] < launch->grid[0] && result == PTX_OK; block[0]++)
				result = run_block(&run, block);
	for (uint32_t k = 0; run.threads && k < count; k++) {
		struct thread *thread = &run.threads[k];
		while (thread_return(thread))
			;
		if (kernel->call_count)
			free(thread->frame.area);
		free(thread->frame.slots);
		free(thread->callers);
		free(thread->copies);
		free(thread->local);
	}
	free(run.threads);
	free(run.shared);
	return result;
}

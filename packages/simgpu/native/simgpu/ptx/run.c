/*
 * Running a kernel: blocks one after another; in a block each thread runs until it ends, or until it has to wait for the
 * others of its warp or block. A kernel whose threads never wait needs the registers of one thread only.
 *
 * A thread's time is what it executed, in cycles of a GPU. Who reads a clock again and again is waiting for time to pass:
 * from the ninth reading on, time runs faster and faster for it, so that spinning for a second takes a thousand readings.
 */
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

#define CYCLES_PER_INSTRUCTION 4
#define PATIENCE 8            /* readings of a clock before time is helped along */
#define WRONG_EVERY 977       /* a broken GPU spoils one store of so many */
#define DEFAULT_LIMIT 2000000000ull
#define WARP 32

enum thread_state { RUNNING, AT_BARRIER, AT_WARP, ENDED };

struct thread {
	uint64_t *slots;
	uint8_t *local;
	uint32_t at, readings;
	enum thread_state state;
	uint64_t cycles, extra_ns, first_reading_ns;
};

struct run {
	struct ptx_launch *launch;
	const struct ptx_instruction *code;
	uint32_t slot_count, specials, thread_count, shared_size;
	uint8_t *shared;
	struct thread *threads;
	struct ptx_window windows[2];
	uint32_t victim;
	uint64_t limit, stores;
};

static uint64_t thread_ns(const struct run *run, const struct thread *thread)
{
	return thread->cycles * 1000 / run->launch->clock_mhz + thread->extra_ns;
}

static enum ptx_result fault(struct run *run, const struct ptx_instruction *i, uint64_t address, enum ptx_result result)
{
	run->launch->fault_address = address;
	run->launch->fault_line = i->line;
	return result;
}

/* The memory behind an address of an instruction, NULL when there is none. */
static uint8_t *reach(struct run *run, const struct thread *thread, const struct ptx_instruction *i, uint32_t size,
		      enum ptx_result *result)
{
	uint64_t address = thread->slots[i->slot[8]] + (uint64_t)i->offset;
	enum ptx_space space = (enum ptx_space)i->space;
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
	const struct ptx_kernel *kernel = run->launch->kernel;
	if (space == PTX_SHARED && address + size <= run->shared_size && address < run->shared_size)
		return run->shared + address;
	if (space == PTX_LOCAL && address + size <= kernel->local_bytes && address < kernel->local_bytes)
		return thread->local + address;
	if (space == PTX_PARAM && address + size <= kernel->param_bytes && address < kernel->param_bytes && i->op == OP_LD)
		return (uint8_t *)(uintptr_t)run->launch->params + address;
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

static void put(const struct ptx_instruction *i, struct thread *thread, int place, enum ptx_type type, uint64_t value)
{
	if (i->slot[place] == PTX_NO_SLOT)
		return;
	value = ptx_is_signed(type) ? (uint64_t)ptx_signed(type, value) : ptx_mask(type, value);
	thread->slots[i->slot[place]] = ptx_mask((enum ptx_type)i->register_type, value);
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
		uint64_t value = thread->slots[i->slot[part]];
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
	uint64_t old = 0, c = i->slot[2] == PTX_NO_SLOT ? 0 : thread->slots[i->slot[2]];
	memcpy(&old, at, width);
	uint64_t fresh = ptx_atomic(i, old, thread->slots[i->slot[1]], c);
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
	uint64_t value = thread->slots[i->slot[1]], window = windows[i->space];
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

static void pack(struct thread *thread, const struct ptx_instruction *i)
{
	uint32_t bits = 8 * ptx_width((enum ptx_type)i->type) / i->vector;
	uint64_t mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
	if (i->op == OP_PACK) {
		uint64_t value = 0;
		for (uint32_t part = 0; part < i->vector; part++)
			value |= (thread->slots[i->slot[1 + part]] & mask) << bits * part;
		put(i, thread, 0, (enum ptx_type)i->type, value);
		return;
	}
	uint64_t value = thread->slots[i->slot[4]];
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

/* Runs one thread until it ends or waits. */
static enum ptx_result run_thread(struct run *run, struct thread *thread, uint32_t number)
{
	uint64_t executed = 0, limit = run->limit - run->launch->instructions;
	enum ptx_result result = PTX_OK;
	while (thread->state == RUNNING && result == PTX_OK) {
		const struct ptx_instruction *i = &run->code[thread->at++];
		if (++executed > limit) {
			result = fault(run, i, 0, PTX_TOO_LONG);
			break;
		}
		thread->cycles += CYCLES_PER_INSTRUCTION;
		if (i->guarded && (thread->slots[i->guard] & 1) == i->guard_negated)
			continue;
		if (i->op < OP_FIRST_SPECIAL) {
			uint64_t value = ptx_compute(i, thread->slots);
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
		case OP_BRA: thread->at = i->target; break;
		case OP_EXIT: thread->state = ENDED; break;
		case OP_TRAP: result = fault(run, i, 0, PTX_TRAPPED); break;
		case OP_NANOSLEEP: thread->extra_ns += (uint32_t)thread->slots[i->slot[1]]; break;
		case OP_ACTIVEMASK: put(i, thread, 0, PTX_U32, active_mask(run, number)); break;
		case OP_BAR: thread->state = AT_BARRIER; break;
		case OP_WARPSYNC: case OP_SHFL: case OP_VOTE: case OP_REDUX: thread->state = AT_WARP; break;
		default: break;
		}
	}
	run->launch->instructions += executed;
	return result;
}

static void shuffle(struct thread *lanes, uint32_t members, const struct ptx_instruction *i)
{
	uint64_t values[WARP];
	for (uint32_t lane = 0; lane < WARP; lane++)
		values[lane] = members >> lane & 1 ? lanes[lane].slots[i->slot[1]] : 0;
	for (uint32_t lane = 0; lane < WARP; lane++) {
		if (!(members >> lane & 1))
			continue;
		uint32_t b = (uint32_t)lanes[lane].slots[i->slot[2]] & 31, c = (uint32_t)lanes[lane].slots[i->slot[3]];
		uint32_t segment = c >> 8 & 31, clamp = c & 31;
		uint32_t most = (lane & segment) | (clamp & ~segment), least = lane & segment;
		int32_t from = (int32_t)lane;
		bool inside;
		switch (i->mode) {
		case M_UP: from -= (int32_t)b; inside = from >= (int32_t)most; break;
		case M_DOWN: from += (int32_t)b; inside = from <= (int32_t)most; break;
		case M_BFLY: from ^= (int32_t)b; inside = from <= (int32_t)most; break;
		default: from = (int32_t)(least | (b & ~segment)); inside = from <= (int32_t)most;
		}
		if (!inside || from < 0 || from >= WARP)
			from = (int32_t)lane;
		put(i, &lanes[lane], 0, (enum ptx_type)i->type, values[from]);
		if (i->slot[5] != PTX_NO_SLOT)
			lanes[lane].slots[i->slot[5]] = inside;
	}
}

/* vote and redux: all members get the same, or their own bit of it. */
static void reduce(struct thread *lanes, uint32_t members, const struct ptx_instruction *i)
{
	uint64_t result = 0;
	uint32_t ballot = 0;
	bool first = true;
	for (uint32_t lane = 0; lane < WARP; lane++) {
		if (!(members >> lane & 1))
			continue;
		uint64_t value = lanes[lane].slots[i->slot[1]];
		if (i->op == OP_VOTE)
			ballot |= (uint32_t)((value & 1) != (i->negate >> 1 & 1)) << lane;
		else
			result = first ? value : ptx_atomic(i, result, value, 0);
		first = false;
	}
	if (i->op == OP_VOTE)
		result = i->mode == M_BALLOT ? ballot : i->mode == M_ANY ? ballot != 0 : ballot == members;
	enum ptx_type type = i->op == OP_REDUX ? (enum ptx_type)i->type : i->mode == M_BALLOT ? PTX_U32 : PTX_PRED;
	for (uint32_t lane = 0; lane < WARP; lane++)
		if (members >> lane & 1)
			put(i, &lanes[lane], 0, type, result);
}

/* Lets those threads of a warp go on that meet at the same instruction, once all it names have come. */
static bool meet(struct thread *lanes, uint32_t count, const struct ptx_instruction *code)
{
	bool progress = false;
	for (uint32_t lane = 0; lane < count; lane++) {
		if (lanes[lane].state != AT_WARP)
			continue;
		uint32_t at = lanes[lane].at - 1, members = 0, alive = 0;
		const struct ptx_instruction *i = &code[at];
		for (uint32_t other = 0; other < count; other++) {
			alive |= (uint32_t)(lanes[other].state != ENDED) << other;
			if (lanes[other].state == AT_WARP && lanes[other].at - 1 == at)
				members |= 1u << other;
		}
		uint32_t named = i->slot[4] == PTX_NO_SLOT ? 0xffffffff : (uint32_t)lanes[lane].slots[i->slot[4]];
		if ((named & alive) & ~members)
			continue;
		members &= named;
		if (!(members >> lane & 1))
			members = 1u << lane; /* not named by its own mask: undefined; it goes alone */
		if (i->op == OP_SHFL)
			shuffle(lanes, members, i);
		else if (i->op != OP_WARPSYNC)
			reduce(lanes, members, i);
		for (uint32_t other = 0; other < count; other++)
			if (members >> other & 1)
				lanes[other].state = RUNNING;
		progress = true;
	}
	return progress;
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
			while (meet(lanes, count, run->code));
			for (uint32_t lane = 0; lane < count; lane++) {
				ended &= lanes[lane].state == ENDED;
				all_wait &= lanes[lane].state == ENDED || lanes[lane].state == AT_BARRIER;
			}
		}
		if (ended)
			return PTX_OK;
		if (all_wait)
			for (uint32_t k = 0; k < run->thread_count; k++)
				if (run->threads[k].state == AT_BARRIER)
					run->threads[k].state = RUNNING;
		if (!all_wait && !progress)
			return fault(run, &run->code[run->threads[0].at - 1], 0, PTX_TOO_LONG); /* they wait for ever */
	}
}

static void prepare(struct run *run, struct thread *thread, uint32_t number, const uint32_t *block)
{
	const struct ptx_launch *launch = run->launch;
	uint64_t *special = thread->slots + run->specials;
	uint32_t lane = number % WARP;
	memset(thread->slots, 0, launch->kernel->registers * sizeof *thread->slots);
	thread->at = thread->readings = 0;
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
		thread->slots = calloc(run->slot_count, sizeof *thread->slots);
		thread->local = malloc(kernel->local_bytes + 16);
		if (!thread->slots || !thread->local)
			return false;
		for (uint32_t i = 0; i < kernel->constant_count; i++)
			thread->slots[kernel->registers + i] = kernel->constants[i] + (kernel->relocated[i] ? launch->base : 0);
		uint64_t *special = thread->slots + run->specials;
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
		.launch = launch, .code = kernel->code, .specials = kernel->registers + kernel->constant_count,
		.thread_count = launch->block[0] * launch->block[1] * launch->block[2],
		.shared_size = kernel->shared_bytes + launch->dynamic_shared,
		.limit = limit ? strtoull(limit, NULL, 10) : DEFAULT_LIMIT,
	};
	run.slot_count = run.specials + PTX_SPECIALS;
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
		free(run.threads[k].slots);
		free(run.threads[k].local);
	}
	free(run.threads);
	free(run.shared);
	return result;
}

/* Instructions at which the threads of a warp meet: shuffles, votes, reductions. */
#include "run.h"

static void shuffle(struct thread *lanes, uint32_t members, const struct ptx_instruction *i)
{
	uint64_t values[WARP];
	for (uint32_t lane = 0; lane < WARP; lane++)
		values[lane] = members >> lane & 1 ? lanes[lane].frame.slots[i->slot[1]] : 0;
	for (uint32_t lane = 0; lane < WARP; lane++) {
		if (!(members >> lane & 1))
			continue;
		uint32_t b = (uint32_t)lanes[lane].frame.slots[i->slot[2]] & 31, c = (uint32_t)lanes[lane].frame.slots[i->slot[3]];
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
			lanes[lane].frame.slots[i->slot[5]] = inside;
	}
}

/* Threads with the same value: for each thread those with its own, or whether all have one. */
static void match(struct thread *lanes, uint32_t members, const struct ptx_instruction *i)
{
	for (uint32_t lane = 0; lane < WARP; lane++) {
		uint32_t same = 0;
		for (uint32_t other = 0; other < WARP; other++)
			if ((members >> lane & 1) && (members >> other & 1) &&
			    lanes[lane].frame.slots[i->slot[1]] == lanes[other].frame.slots[i->slot[1]])
				same |= 1u << other;
		if (!(members >> lane & 1))
			continue;
		bool all = same == members;
		put(i, &lanes[lane], 0, PTX_U32, i->mode == M_ALL && !all ? 0 : same);
		if (i->slot[5] != PTX_NO_SLOT)
			lanes[lane].frame.slots[i->slot[5]] = all;
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
		uint64_t value = lanes[lane].frame.slots[i->slot[1]];
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

bool meet(struct thread *lanes, uint32_t count)
{
	bool progress = false;
	for (uint32_t lane = 0; lane < count; lane++) {
		if (lanes[lane].state != AT_WARP)
			continue;
		uint32_t members = 0, alive = 0;
		const struct ptx_instruction *i = lanes[lane].frame.at - 1;
		for (uint32_t other = 0; other < count; other++) {
			alive |= (uint32_t)(lanes[other].state != ENDED) << other;
			if (lanes[other].state == AT_WARP && lanes[other].frame.at - 1 == i)
				members |= 1u << other;
		}
		uint32_t named = i->slot[4] == PTX_NO_SLOT ? 0xffffffff : (uint32_t)lanes[lane].frame.slots[i->slot[4]];
		if ((named & alive) & ~members)
			continue;
		members &= named;
		if (!(members >> lane & 1))
			members = 1u << lane; /* not named by its own mask: undefined; it goes alone */
		if (i->op == OP_SHFL)
			shuffle(lanes, members, i);
		else if (i->op == OP_MATCH)
			match(lanes, members, i);
		else if (i->op != OP_WARPSYNC)
			reduce(lanes, members, i);
		for (uint32_t other = 0; other < count; other++)
			if (members >> other & 1)
				lanes[other].state = RUNNING;
		progress = true;
	}
	return progress;
}


/* The result of bar.red: of all threads that wait at the same instruction. */
static uint64_t reduced(const struct thread *threads, uint32_t count, const struct ptx_instruction *i)
{
	uint64_t with = 0, all = 0;
	for (uint32_t k = 0; k < count; k++)
		if (threads[k].state == AT_BARRIER && threads[k].frame.at - 1 == i) {
			all++;
			with += (threads[k].frame.slots[i->slot[1]] & 1) != i->negate;
		}
	return i->second_mode == M_POPC ? with : i->second_mode == M_AND ? with == all : with != 0;
}

void pass_barrier(struct thread *threads, uint32_t count)
{
	const struct ptx_instruction *last = NULL;
	uint64_t value = 0;
	for (uint32_t k = 0; k < count; k++) {
		const struct ptx_instruction *i = threads[k].frame.at - 1;
		if (threads[k].state != AT_BARRIER || i->mode != M_RED)
			continue;
		if (i != last)
			value = reduced(threads, count, i);
		last = i;
		put(i, &threads[k], 0, (enum ptx_type)i->type, value);
	}
	for (uint32_t k = 0; k < count; k++)
		if (threads[k].state == AT_BARRIER)
			threads[k].state = RUNNING;
}

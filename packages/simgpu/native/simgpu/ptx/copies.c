/*
 * cp.async: copies to shared memory that a thread starts and waits for. The bytes arrive with the wait and not before, so
 * a kernel that reads them without waiting reads what was there, as it may on a GPU.
 */
#include "run.h"

#include <stdlib.h>
#include <string.h>

static enum ptx_result start(struct thread *thread, const struct ptx_instruction *i)
{
	const uint64_t *slots = thread->frame.slots;
	if (thread->copy_count == thread->copy_room) {
		uint32_t room = thread->copy_room ? 2 * thread->copy_room : 16;
		struct copy *larger = realloc(thread->copies, room * sizeof *larger);
		if (!larger)
			return PTX_NO_MEMORY;
		thread->copies = larger;
		thread->copy_room = room;
	}
	uint32_t read = i->slot[1] == PTX_NO_SLOT ? i->vector : (uint32_t)slots[i->slot[1]];
	thread->copies[thread->copy_count++] = (struct copy){
		.by = i, .to = slots[i->slot[7]] + (uint64_t)(int64_t)(int32_t)i->target, .from = slots[i->slot[8]] + (uint64_t)i->offset,
		.read = read < i->vector ? read : i->vector, .group = thread->groups,
	};
	return PTX_OK;
}

static enum ptx_result arrive(struct run *run, struct thread *thread, const struct copy *copy)
{
	enum ptx_result result;
	const struct ptx_instruction *i = copy->by;
	uint8_t *to = reach_at(run, thread, i, copy->to, PTX_SHARED, i->vector, &result);
	if (!to)
		return result;
	memset(to, 0, i->vector);
	if (!copy->read)
		return PTX_OK;
	if (copy->from % i->vector)
		return fault(run, i, copy->from, PTX_MISALIGNED);
	/* Fewer bytes are read one by one, since they need not be a power of two. */
	for (uint32_t k = 0; k < copy->read; k++) {
		const uint8_t *from = reach_at(run, thread, i, copy->from + k, PTX_GLOBAL, 1, &result);
		if (!from)
			return result;
		to[k] = *from;
	}
	run->launch->bytes += copy->read;
	return PTX_OK;
}

/* Groups below `until` arrive. */
static enum ptx_result wait_until(struct run *run, struct thread *thread, uint32_t until)
{
	enum ptx_result result = PTX_OK;
	uint32_t done = 0;
	while (done < thread->copy_count && thread->copies[done].group < until && result == PTX_OK)
		result = arrive(run, thread, &thread->copies[done++]);
	thread->copy_count -= done;
	if (done)
		memmove(thread->copies, thread->copies + done, thread->copy_count * sizeof *thread->copies);
	return result;
}

enum ptx_result thread_copy(struct run *run, struct thread *thread, const struct ptx_instruction *i)
{
	switch (i->mode) {
	case M_COMMIT:
		thread->groups++;
		return PTX_OK;
	case M_WAIT_GROUP:
		return wait_until(run, thread, thread->groups > i->offset ? thread->groups - (uint32_t)i->offset : 0);
	case M_WAIT_ALL:
		return wait_until(run, thread, ++thread->groups);
	default:
		return start(thread, i);
	}
}

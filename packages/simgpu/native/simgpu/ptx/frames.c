/* Calls of functions: a frame for each, with registers, parameters and a part of the thread's local memory. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

uint32_t slot_count(const struct ptx_kernel *code)
{
	return code->registers + code->constant_count + PTX_SPECIALS;
}

void fill_slots(const struct run *run, const struct frame *frame, const uint64_t *specials)
{
	const struct ptx_kernel *code = frame->code;
	const uint64_t bases[] = {[RELOCATE_NONE] = 0, [RELOCATE_MODULE] = run->launch->base, [RELOCATE_LOCAL] = frame->local_base,
				  [RELOCATE_DYNAMIC_SHARED] = run->dynamic_base};
	for (uint32_t i = 0; i < code->constant_count; i++)
		frame->slots[code->registers + i] = code->constants[i] + bases[code->relocated[i]];
	if (specials)
		memcpy(frame->slots + code->registers + code->constant_count, specials, PTX_SPECIALS * sizeof *specials);
}

/* The function that a call goes to; NULL: at that address there is none with such parameters. */
static const struct ptx_kernel *target(const struct run *run, const struct thread *thread, const struct ptx_instruction *i,
				       const struct ptx_call *call)
{
	const struct ptx_module *module = run->launch->module;
	if (call->function != PTX_BY_ADDRESS)
		return &module->functions[call->function];
	uint64_t number = thread->frame.slots[i->slot[1]] - PTX_FUNCTION_WINDOW;
	if (number >= module->function_count || !ptx_call_fits(call, &module->functions[number]))
		return NULL;
	return &module->functions[number];
}

static bool make_room(struct thread *thread, uint32_t local_bytes)
{
	if (thread->depth == thread->callers_room) {
		uint32_t room = thread->callers_room ? 2 * thread->callers_room : 8;
		struct frame *larger = realloc(thread->callers, room * sizeof *larger);
		if (!larger)
			return false;
		thread->callers = larger;
		thread->callers_room = room;
	}
	if (local_bytes > thread->local_room) {
		uint8_t *larger = realloc(thread->local, local_bytes);
		if (!larger)
			return false;
		thread->local = larger;
		thread->local_room = local_bytes;
	}
	return true;
}

enum ptx_result thread_call(struct run *run, struct thread *thread, const struct ptx_instruction *i)
{
	const struct frame *caller = &thread->frame;
	const struct ptx_call *call = &caller->code->calls[i->target];
	const struct ptx_kernel *function = target(run, thread, i, call);
	if (!function)
		return fault(run, i, caller->slots[i->slot[1]], PTX_TRAPPED);
	if (!function->code)
		return builtin_call(run, thread, i, call, ptx_builtin_called(function->name, call));
	uint32_t base = (caller->local_base + caller->code->local_bytes + 15) / 16 * 16;
	if (thread->depth == PTX_MAX_DEPTH || base + function->local_bytes > PTX_MAX_LOCAL)
		return fault(run, i, base, PTX_ILLEGAL_ADDRESS);
	struct frame fresh = {.code = function, .at = function->code, .local_base = base};
	fresh.slots = calloc(slot_count(function), sizeof *fresh.slots);
	fresh.area = calloc(1, function->area_bytes + 16);
	if (!fresh.slots || !fresh.area || !make_room(thread, base + function->local_bytes)) {
		free(fresh.slots);
		free(fresh.area);
		return PTX_NO_MEMORY;
	}
	fill_slots(run, &fresh, caller->slots + caller->code->registers + caller->code->constant_count);
	for (uint32_t k = 0; k < call->argument_count; k++)
		memcpy(fresh.area + function->params[k].offset, caller->area + call->arguments[k].offset, call->arguments[k].size);
	thread->callers[thread->depth++] = thread->frame;
	thread->frame = fresh;
	return PTX_OK;
}

bool thread_return(struct thread *thread)
{
	struct frame done = thread->frame;
	if (!thread->depth)
		return false;
	thread->frame = thread->callers[--thread->depth];
	/* The call is the instruction before the one to go on with. */
	const struct ptx_call *call = &thread->frame.code->calls[thread->frame.at[-1].target];
	if (call->result.size)
		memcpy(thread->frame.area + call->result.offset, done.area + done.code->result.offset, call->result.size);
	free(done.slots);
	free(done.area);
	return true;
}

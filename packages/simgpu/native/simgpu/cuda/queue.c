/*
 * What waits in a stream for something outside of it: host functions, values in memory, events of other processes, and all
 * that is queued behind one of these. A thread of the stream runs it in its order, as long as there is any. Without such
 * waits a stream has no queue: work is run when it is asked for.
 */
#include "cuda.h"

#include <stdlib.h>

#define LOOK_NS 50000ull /* so often memory and events of others are looked at */

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void look_again(void)
{
	simgpu_sleep_until(simgpu_now() + LOOK_NS);
}

static uint64_t tail_of(struct stream *stream)
{
	pthread_mutex_lock(&cuda_guard);
	uint64_t ready = cuda_stream_ready(stream);
	pthread_mutex_unlock(&cuda_guard);
	return ready;
}

static void end_at(struct stream *stream, uint64_t when)
{
	pthread_mutex_lock(&cuda_guard);
	if (stream->tail < when)
		stream->tail = when;
	pthread_mutex_unlock(&cuda_guard);
}

static bool holds(const struct operation *operation)
{
	const struct memory_operation *memory = &operation->memory;
	uint64_t seen = memory->wide ? __atomic_load_n((uint64_t *)memory->place, __ATOMIC_SEQ_CST)
				     : __atomic_load_n((uint32_t *)memory->place, __ATOMIC_SEQ_CST);
	uint64_t value = memory->wide ? memory->value : (uint32_t)memory->value;
	switch (memory->condition) {
	case 0: return memory->wide ? (int64_t)(seen - value) >= 0 : (int32_t)((uint32_t)seen - (uint32_t)value) >= 0;
	case 1: return seen == value;
	case 2: return seen & value;
	default: return memory->wide ? ~(seen | value) : (uint32_t)~(seen | value);
	}
}

static void run(struct stream *stream, struct operation *operation)
{
	switch (operation->kind) {
	case OPERATION_KERNEL:
		cuda_run(stream->context, stream, operation->work);
		break;
	case OPERATION_HOST:
		simgpu_sleep_until(tail_of(stream));
		if (operation->host.function)
			operation->host.function(operation->host.data);
		else
			operation->host.callback(operation->host.handle, CUDA_SUCCESS, operation->host.data);
		end_at(stream, simgpu_now());
		break;
	case OPERATION_WAIT_VALUE:
		simgpu_sleep_until(tail_of(stream));
		while (!holds(operation))
			look_again();
		end_at(stream, simgpu_now());
		break;
	case OPERATION_WRITE_VALUE:
		simgpu_sleep_until(tail_of(stream));
		if (operation->memory.wide)
			__atomic_store_n((uint64_t *)operation->memory.place, operation->memory.value, __ATOMIC_SEQ_CST);
		else
			__atomic_store_n((uint32_t *)operation->memory.place, (uint32_t)operation->memory.value, __ATOMIC_SEQ_CST);
		break;
	case OPERATION_WAIT_EVENT:
		while (!cuda_event_known(operation->event, operation->record))
			look_again();
		end_at(stream, __atomic_load_n(&operation->event->marks->time, __ATOMIC_SEQ_CST));
		break;
	case OPERATION_RECORD:
		cuda_event_reached(operation->event, operation->record, tail_of(stream));
		break;
	}
}

static void *run_all(void *argument)
{
	struct stream *stream = argument;
	pthread_mutex_lock(&cuda_guard);
	while (stream->queue) {
		struct operation *operation = stream->queue;
		pthread_mutex_unlock(&cuda_guard);
		run(stream, operation);
		pthread_mutex_lock(&cuda_guard);
		if (operation->event)
			cuda_event_release(operation->event);
		stream->queue = operation->next;
		stream->queued--;
		free(operation->work);
		free(operation);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&cuda_guard); /* NB: From here on the stream may be gone. */
	return NULL;
}

CUresult cuda_queue(struct stream *stream, struct operation wanted)
{
	pthread_t thread;
	struct operation *operation = malloc(sizeof *operation);
	if (!operation)
		return CUDA_OUT_OF_MEMORY;
	*operation = wanted;
	pthread_mutex_lock(&cuda_guard);
	while (stream->queued >= QUEUE_DEPTH)
		pthread_cond_wait(&changed, &cuda_guard);
	bool first = !stream->queue;
	struct operation **at = &stream->queue;
	while (*at)
		at = &(*at)->next;
	*at = operation;
	if (first && pthread_create(&thread, NULL, run_all, stream)) {
		*at = NULL;
		pthread_mutex_unlock(&cuda_guard);
		free(operation);
		return CUDA_OPERATING_SYSTEM;
	}
	stream->queued++;
	if (wanted.event)
		wanted.event->users++;
	pthread_mutex_unlock(&cuda_guard);
	if (first)
		pthread_detach(thread);
	return CUDA_SUCCESS;
}

bool cuda_queued(struct stream *stream)
{
	pthread_mutex_lock(&cuda_guard);
	bool queued = stream->queue != NULL;
	pthread_mutex_unlock(&cuda_guard);
	return queued;
}

void cuda_wait_queue(struct stream *stream)
{
	while (stream->queue)
		pthread_cond_wait(&changed, &cuda_guard);
}

static CUresult queue_host(CUstream handle, struct operation wanted)
{
	struct context *context;
	struct stream *stream;
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_none(handle);
	wanted.kind = OPERATION_HOST;
	wanted.host.handle = handle;
	return result == CUDA_SUCCESS ? cuda_queue(stream, wanted) : result;
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, void (*function)(void *), void *data)
{
	NEED(function);
	return queue_host(handle, (struct operation){.host = {.function = function, .data = data}});
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags)
{
	NEED(callback && flags == 0);
	return queue_host(handle, (struct operation){.host = {.callback = callback, .data = data}});
}

#define FLUSH (1u << 30)

static CUresult queue_memory(CUstream handle, CUdeviceptr address, struct operation wanted)
{
	struct context *context;
	struct stream *stream;
	size_t size = wanted.memory.wide ? 8 : 4;
	NEED(address % size == 0 && wanted.memory.condition <= 3);
	wanted.memory.place = cuda_bytes(address, size, true);
	NEED(wanted.memory.place);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_none(handle);
	return result == CUDA_SUCCESS ? cuda_queue(stream, wanted) : result;
}

#define MEMORY(name, type, is_wide, what)                                                                              \
	EXPORT CUresult name(CUstream handle, CUdeviceptr address, type value, unsigned flags)                          \
	{                                                                                                               \
		unsigned condition = what == OPERATION_WAIT_VALUE ? flags & ~FLUSH : 0;                                 \
		return queue_memory(handle, address, (struct operation){                                                \
			.kind = what, .memory = {.value = value, .condition = condition, .wide = is_wide}});            \
	}                                                                                                               \
	PER_THREAD(name, _ptsz, (CUstream handle, CUdeviceptr address, type value, unsigned flags),                     \
		   (handle, address, value, flags))
MEMORY(cuStreamWaitValue32, uint32_t, false, OPERATION_WAIT_VALUE)
MEMORY(cuStreamWaitValue32_v2, uint32_t, false, OPERATION_WAIT_VALUE)
MEMORY(cuStreamWaitValue64, uint64_t, true, OPERATION_WAIT_VALUE)
MEMORY(cuStreamWaitValue64_v2, uint64_t, true, OPERATION_WAIT_VALUE)
MEMORY(cuStreamWriteValue32, uint32_t, false, OPERATION_WRITE_VALUE)
MEMORY(cuStreamWriteValue32_v2, uint32_t, false, OPERATION_WRITE_VALUE)
MEMORY(cuStreamWriteValue64, uint64_t, true, OPERATION_WRITE_VALUE)
MEMORY(cuStreamWriteValue64_v2, uint64_t, true, OPERATION_WRITE_VALUE)

struct batch_entry {
	int operation; /* CUstreamBatchMemOpType */
	CUdeviceptr address;
	uint64_t value;
	unsigned flags;
	CUdeviceptr alias;
	uint64_t reserved;
};
_Static_assert(sizeof(struct batch_entry) == 48, "ABI");

EXPORT CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, struct batch_entry *entries, unsigned flags)
{
	CUresult result = CUDA_SUCCESS;
	NEED(!flags && count <= 256 && (entries || !count));
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		const struct batch_entry *entry = &entries[i];
		switch (entry->operation) {
		case 1: result = cuStreamWaitValue32(stream, entry->address, (uint32_t)entry->value, entry->flags); break;
		case 2: result = cuStreamWriteValue32(stream, entry->address, (uint32_t)entry->value, entry->flags); break;
		case 4: result = cuStreamWaitValue64(stream, entry->address, entry->value, entry->flags); break;
		case 5: result = cuStreamWriteValue64(stream, entry->address, entry->value, entry->flags); break;
		case 3:
		case 6: break; /* order, which all operations here have */
		default: result = CUDA_INVALID_VALUE;
		}
	}
	return result;
}

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, struct batch_entry *entries, unsigned flags)
{
	return cuStreamBatchMemOp(stream, count, entries, flags);
}

#define BATCH (CUstream stream, unsigned count, struct batch_entry *entries, unsigned flags)
PER_THREAD(cuStreamBatchMemOp, _ptsz, BATCH, (stream, count, entries, flags))
PER_THREAD(cuStreamBatchMemOp_v2, _ptsz, BATCH, (stream, count, entries, flags))
PER_THREAD(cuStreamAddCallback, _ptsz,
	   (CUstream handle, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags),
	   (handle, callback, data, flags))
PER_THREAD(cuLaunchHostFunc, _ptsz, (CUstream handle, void (*function)(void *), void *data), (handle, function, data))

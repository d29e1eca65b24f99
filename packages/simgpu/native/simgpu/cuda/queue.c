/*
 * Operations that wait in a stream for something outside of it: host functions, values in memory, events of other processes, and all
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
	case OPERATION_MOVE:
		cuda_move(stream->context, stream, operation->move);
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
		simgpu_sleep_until(tail_of(stream));
		break;
	case OPERATION_RECORD:
		pthread_mutex_lock(&cuda_guard);
		cuda_event_reached(operation->event, operation->record, cuda_stream_ready(stream));
		pthread_mutex_unlock(&cuda_guard);
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
		free(operation->move);
		free(operation);
		pthread_cond_broadcast(&changed);
	}
	if (stream->gone)
		cuda_stream_free(stream);
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

/* NB: Entries are freed while no thread looks, so it begins from the first each time. */
void cuda_wait_queues(struct context *context)
{
	struct stream *stream;
	do {
		for (stream = context->streams; stream && !stream->queue; stream = stream->next)
			;
		stream = stream ? stream : context->legacy.queue ? &context->legacy : NULL;
		if (stream)
			pthread_cond_wait(&changed, &cuda_guard);
	} while (stream);
}

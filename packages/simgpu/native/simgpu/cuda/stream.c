/* Streams and events: who waits for whom in simulated time. */
#include "cuda.h"

#include <stdlib.h>

__thread unsigned cuda_default_stream = 1;

static pthread_cond_t callback_done = PTHREAD_COND_INITIALIZER;
static uint64_t next_id = 3;

CUresult cuda_stream(CUstream handle, struct context **context, struct stream **stream)
{
	if (handle && handle != STREAM_LEGACY && handle != STREAM_PER_THREAD) {
		READY();
		if (handle->magic != MAGIC_STREAM)
			return CUDA_INVALID_HANDLE;
		*stream = handle;
		*context = handle->context;
		return cuda_usable(*context);
	}
	CUresult result = cuda_current(context);
	if (result == CUDA_SUCCESS) {
		bool legacy = handle == STREAM_LEGACY || (!handle && cuda_default_stream == 1);
		*stream = legacy ? &(*context)->legacy : &(*context)->per_thread;
	}
	return result;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The legacy stream waits for all blocking streams, and they for it. */
uint64_t cuda_stream_ready(struct stream *stream)
{
	struct context *context = stream->context;
	uint64_t ready = stream->tail;
	if (stream == &context->legacy) {
		ready = later(ready, context->per_thread.tail);
		for (struct stream *other = context->streams; other; other = other->next)
			if (!(other->flags & STREAM_NON_BLOCKING))
				ready = later(ready, other->tail);
	} else if (!(stream->flags & STREAM_NON_BLOCKING)) {
		ready = later(ready, context->legacy.tail);
	}
	return ready;
}

void cuda_wait_callbacks(struct stream *stream)
{
	while (stream->callbacks)
		pthread_cond_wait(&callback_done, &cuda_guard);
}

void cuda_wait_stream(struct stream *stream)
{
	pthread_mutex_lock(&cuda_guard);
	cuda_wait_callbacks(stream);
	uint64_t ready = cuda_stream_ready(stream);
	pthread_mutex_unlock(&cuda_guard);
	if (ready > simgpu_now())
		simgpu_sleep_until(ready);
}

void cuda_wait_context(struct context *context)
{
	pthread_mutex_lock(&cuda_guard);
	cuda_wait_callbacks(&context->legacy);
	cuda_wait_callbacks(&context->per_thread);
	uint64_t ready = cuda_stream_ready(&context->legacy);
	for (struct stream *stream = context->streams; stream; stream = stream->next) {
		cuda_wait_callbacks(stream);
		ready = later(ready, stream->tail);
	}
	pthread_mutex_unlock(&cuda_guard);
	if (ready > simgpu_now())
		simgpu_sleep_until(ready);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *result, unsigned flags, int priority)
{
	NEED(result && flags <= STREAM_NON_BLOCKING);
	CONTEXT(context);
	struct stream *stream = calloc(1, sizeof *stream);
	if (!stream)
		return CUDA_OUT_OF_MEMORY;
	*stream = (struct stream){.magic = MAGIC_STREAM, .flags = flags, .context = context,
				  .priority = priority > 0 ? 0 : priority < -5 ? -5 : priority};
	pthread_mutex_lock(&cuda_guard);
	stream->id = next_id++;
	stream->next = context->streams;
	context->streams = stream;
	pthread_mutex_unlock(&cuda_guard);
	*result = stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *result, unsigned flags)
{
	return cuStreamCreateWithPriority(result, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	NEED(stream);
	READY();
	if (stream == STREAM_LEGACY || stream == STREAM_PER_THREAD || stream->magic != MAGIC_STREAM)
		return CUDA_INVALID_HANDLE;
	pthread_mutex_lock(&cuda_guard);
	cuda_wait_callbacks(stream);
	/* What is queued goes on without it: who waits for the context still waits for that. */
	struct context *context = stream->context;
	if (!(stream->flags & STREAM_NON_BLOCKING))
		context->per_thread.tail = later(context->per_thread.tail, stream->tail);
	for (struct stream **at = &context->streams; *at; at = &(*at)->next)
		if (*at == stream) {
			*at = stream->next;
			break;
		}
	stream->magic = 0;
	pthread_mutex_unlock(&cuda_guard);
	free(stream);
	return CUDA_SUCCESS;
}

#define STREAM(handle)                                                                                                 \
	struct context *context;                                                                                        \
	struct stream *stream;                                                                                          \
	CUresult stream_result = cuda_stream(handle, &context, &stream);                                                \
	if (stream_result != CUDA_SUCCESS)                                                                              \
	return stream_result

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
	STREAM(handle);
	CUresult result = cuda_waitable(context, stream);
	if (result != CUDA_SUCCESS)
		return result;
	cuda_wait_stream(stream);
	return cuda_usable(context);
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
	STREAM(handle);
	pthread_mutex_lock(&cuda_guard);
	bool done = !stream->callbacks && cuda_stream_ready(stream) <= simgpu_now();
	pthread_mutex_unlock(&cuda_guard);
	return done ? CUDA_SUCCESS : CUDA_NOT_READY;
}

#define STREAM_FACT(name, type, value)                                                                                 \
	EXPORT CUresult name(CUstream handle, type *result)                                                             \
	{                                                                                                               \
		NEED(result);                                                                                           \
		STREAM(handle);                                                                                         \
		*result = (type)(value);                                                                                \
		return CUDA_SUCCESS;                                                                                    \
	}                                                                                                               \
	PER_THREAD(name, _ptsz, (CUstream handle, type *result), (handle, result))
STREAM_FACT(cuStreamGetFlags, unsigned, stream->flags)
STREAM_FACT(cuStreamGetPriority, int, stream->priority)
STREAM_FACT(cuStreamGetId, unsigned long long, stream->id)
STREAM_FACT(cuStreamGetCtx, CUcontext, context)
STREAM_FACT(cuStreamGetDevice, CUdevice, context->device)
STREAM_FACT(cuStreamIsCapturing, int, stream->capture ? 1 + stream->capture_broken : 0)

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *result, void **green)
{
	if (green)
		*green = NULL;
	return cuStreamGetCtx(handle, result);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, unsigned long long *id, void *graph, void *nodes, size_t *count)
{
	(void)id;
	(void)graph;
	(void)nodes;
	if (count)
		*count = 0;
	return cuStreamIsCapturing(handle, status);
}

struct host_call {
	void (*function)(void *);
	void (*callback)(CUstream, CUresult, void *);
	void *data;
	struct stream *stream;
	uint64_t when;
};

static void *call_host(void *argument)
{
	struct host_call *call = argument;
	simgpu_sleep_until(call->when);
	if (call->function)
		call->function(call->data);
	else
		call->callback(call->stream, CUDA_SUCCESS, call->data);
	pthread_mutex_lock(&cuda_guard);
	call->stream->callbacks--;
	uint64_t now = simgpu_now();
	if (call->stream->tail < now)
		call->stream->tail = now;
	pthread_cond_broadcast(&callback_done);
	pthread_mutex_unlock(&cuda_guard);
	free(call);
	return NULL;
}

static CUresult queue_host_call(CUstream handle, struct host_call wanted)
{
	STREAM(handle);
	struct host_call *call = malloc(sizeof *call);
	pthread_t thread;
	if (!call)
		return CUDA_OUT_OF_MEMORY;
	*call = wanted;
	pthread_mutex_lock(&cuda_guard);
	cuda_wait_callbacks(stream); /* one after another */
	call->stream = stream;
	call->when = cuda_stream_ready(stream);
	bool started = !pthread_create(&thread, NULL, call_host, call);
	if (started)
		stream->callbacks++;
	pthread_mutex_unlock(&cuda_guard);
	if (!started) {
		free(call);
		return CUDA_OPERATING_SYSTEM;
	}
	pthread_detach(thread);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, void (*function)(void *), void *data)
{
	NEED(function);
	return queue_host_call(handle, (struct host_call){.function = function, .data = data});
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags)
{
	NEED(callback && flags == 0);
	return queue_host_call(handle, (struct host_call){.callback = callback, .data = data});
}

EXPORT CUresult cuEventCreate(CUevent *result, unsigned flags)
{
	NEED(result && flags < 8);
	CONTEXT(context);
	struct event *event = calloc(1, sizeof *event);
	if (!event)
		return CUDA_OUT_OF_MEMORY;
	*event = (struct event){.magic = MAGIC_EVENT, .flags = flags, .context = context};
	*result = event;
	return CUDA_SUCCESS;
}

#define EVENT(event)                                                                                                   \
	READY();                                                                                                        \
	if (!(event) || (event)->magic != MAGIC_EVENT)                                                                  \
	return CUDA_INVALID_HANDLE

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	EVENT(event);
	event->magic = 0;
	free(event);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
	EVENT(event);
	NEED(flags <= 1);
	STREAM(handle);
	if (context != event->context)
		return CUDA_INVALID_HANDLE;
	pthread_mutex_lock(&cuda_guard);
	event->time = later(cuda_stream_ready(stream), simgpu_now());
	event->recorded = true;
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream handle)
{
	return cuEventRecordWithFlags(event, handle, 0);
}

EXPORT CUresult cuEventQuery(CUevent event)
{
	EVENT(event);
	CUresult result = cuda_usable(event->context);
	if (result != CUDA_SUCCESS)
		return result;
	return !event->recorded || event->time <= simgpu_now() ? CUDA_SUCCESS : CUDA_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
	EVENT(event);
	if (event->recorded && event->time > simgpu_now())
		simgpu_sleep_until(event->time);
	return cuda_usable(event->context);
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	NEED(milliseconds);
	EVENT(start);
	EVENT(end);
	if (!start->recorded || !end->recorded || (start->flags & 2) || (end->flags & 2))
		return CUDA_INVALID_HANDLE;
	uint64_t now = simgpu_now();
	if (start->time > now || end->time > now)
		return CUDA_NOT_READY;
	*milliseconds = (float)(((double)end->time - (double)start->time) / 1e6);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	return cuEventElapsedTime(milliseconds, start, end);
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
	EVENT(event);
	NEED(flags <= 1);
	STREAM(handle);
	(void)context;
	pthread_mutex_lock(&cuda_guard);
	if (event->recorded)
		stream->tail = later(stream->tail, event->time);
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

PER_THREAD(cuStreamSynchronize, _ptsz, (CUstream handle), (handle))
PER_THREAD(cuStreamQuery, _ptsz, (CUstream handle), (handle))
PER_THREAD(cuStreamWaitEvent, _ptsz, (CUstream handle, CUevent event, unsigned flags), (handle, event, flags))
PER_THREAD(cuStreamAddCallback, _ptsz,
	   (CUstream handle, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags),
	   (handle, callback, data, flags))
PER_THREAD(cuStreamGetCtx_v2, _ptsz, (CUstream handle, CUcontext *result, void **green), (handle, result, green))
PER_THREAD(cuStreamGetCaptureInfo_v2, _ptsz,
	   (CUstream handle, int *status, unsigned long long *id, void *graph, void *nodes, size_t *count),
	   (handle, status, id, graph, nodes, count))
PER_THREAD(cuLaunchHostFunc, _ptsz, (CUstream handle, void (*function)(void *), void *data), (handle, function, data))
PER_THREAD(cuEventRecord, _ptsz, (CUevent event, CUstream handle), (event, handle))
PER_THREAD(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream handle, unsigned flags), (event, handle, flags))

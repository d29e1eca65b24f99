/* Streams: which work waits for which in simulated time. Events are in event.c. */
#include "cuda.h"

#include <stdlib.h>

__thread unsigned cuda_default_stream = 1;

static uint64_t next_id = 3;

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* With the guard held. */
static struct stream *add(struct context *context, struct stream wanted)
{
	struct stream *stream = malloc(sizeof *stream);
	if (!stream)
		return NULL;
	*stream = wanted;
	stream->magic = MAGIC_STREAM;
	stream->context = context;
	stream->id = next_id++;
	stream->next = context->streams;
	return context->streams = stream;
}

void cuda_stream_free(struct stream *stream)
{
	struct context *context = stream->context;
	uint64_t *left = &context->left[stream->flags & STREAM_NON_BLOCKING];
	*left = later(*left, stream->tail);
	for (struct stream **at = &context->streams; *at; at = &(*at)->next)
		if (*at == stream) {
			*at = stream->next;
			break;
		}
	free(stream);
}

/* With the guard held. Queued work goes on without the stream: a wait for the context still waits for it. */
static void leave(struct stream *stream)
{
	cuda_capture_leave(stream);
	stream->magic = 0;
	stream->thread = 0;
	stream->gone = true;
	if (!stream->queue)
		cuda_stream_free(stream);
}

/* A thread's own default streams end with it. A captured stream stays: no other thread can end its capture. */
static void thread_ended(void *number)
{
	pthread_mutex_lock(&cuda_guard);
	for (struct context *context = cuda_contexts; context; context = context->next) {
		struct stream *stream = context->streams;
		while (stream && (stream->thread != (uint64_t)(uintptr_t)number || stream->capture))
			stream = stream->next;
		if (stream)
			leave(stream);
	}
	pthread_mutex_unlock(&cuda_guard);
}

static pthread_key_t ended;

static void make_key(void)
{
	pthread_key_create(&ended, thread_ended);
}

uint64_t cuda_thread(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	static __thread uint64_t own;
	static uint64_t last;
	if (!own) {
		pthread_once(&once, make_key);
		own = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
		pthread_setspecific(ended, (void *)(uintptr_t)own);
	}
	return own;
}

/* The calling thread's own default stream, made when it is first used; NULL if there is no memory. */
static struct stream *own_stream(struct context *context)
{
	uint64_t thread = cuda_thread();
	pthread_mutex_lock(&cuda_guard);
	struct stream *stream = context->streams;
	while (stream && stream->thread != thread)
		stream = stream->next;
	if (!stream)
		stream = add(context, (struct stream){.thread = thread});
	pthread_mutex_unlock(&cuda_guard);
	return stream;
}

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
		*stream = legacy ? &(*context)->legacy : own_stream(*context);
	}
	return result == CUDA_SUCCESS && !*stream ? CUDA_OUT_OF_MEMORY : result;
}

/* The legacy stream waits for all blocking streams, and they for it. */
uint64_t cuda_stream_ready(struct stream *stream)
{
	struct context *context = stream->context;
	uint64_t ready = stream->tail;
	if (stream == &context->legacy) {
		ready = later(ready, context->left[0]);
		for (struct stream *other = context->streams; other; other = other->next)
			if (!(other->flags & STREAM_NON_BLOCKING))
				ready = later(ready, other->tail);
	} else if (!(stream->flags & STREAM_NON_BLOCKING)) {
		ready = later(ready, context->legacy.tail);
	}
	return ready;
}

void cuda_wait_stream(struct stream *stream)
{
	pthread_mutex_lock(&cuda_guard);
	cuda_wait_queue(stream);
	uint64_t ready = cuda_stream_ready(stream);
	pthread_mutex_unlock(&cuda_guard);
	if (ready > simgpu_now())
		simgpu_sleep_until(ready);
}

uint64_t cuda_context_ready(struct context *context)
{
	uint64_t ready = later(cuda_stream_ready(&context->legacy), context->left[1]);
	for (struct stream *stream = context->streams; stream; stream = stream->next)
		ready = later(ready, stream->tail);
	return ready;
}

/* The primary context is waited for with the green ones in it. */
void cuda_wait_context(struct context *context)
{
	uint64_t ready = 0;
	pthread_mutex_lock(&cuda_guard);
	for (struct context *part = cuda_contexts; part; part = part->next)
		if (part == context || (part->parent == context && !part->destroyed)) {
			cuda_wait_queues(part);
			ready = later(ready, cuda_context_ready(part));
		}
	pthread_mutex_unlock(&cuda_guard);
	if (ready > simgpu_now())
		simgpu_sleep_until(ready);
}

CUresult cuda_stream_make(struct context *context, unsigned flags, int priority, CUstream *result)
{
	struct stream wanted = {.flags = flags, .priority = priority > 0 ? 0 : priority < -5 ? -5 : priority};
	pthread_mutex_lock(&cuda_guard);
	struct stream *stream = add(context, wanted);
	pthread_mutex_unlock(&cuda_guard);
	if (!stream)
		return CUDA_OUT_OF_MEMORY;
	*result = stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *result, unsigned flags, int priority)
{
	NEED(result && flags <= STREAM_NON_BLOCKING);
	CONTEXT(context);
	return cuda_stream_make(context, flags, priority, result);
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
	leave(stream);
	pthread_mutex_unlock(&cuda_guard);
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
	CUresult result = cuda_capture_wait(stream);
	if (result != CUDA_SUCCESS)
		return result;
	cuda_wait_stream(stream);
	return cuda_usable(context);
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
	STREAM(handle);
	CUresult result = cuda_capture_wait(stream);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&cuda_guard);
	bool done = !stream->queue && cuda_stream_ready(stream) <= simgpu_now();
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
STREAM_FACT(cuStreamGetDevice, CUdevice, context->device)

/* The older form has no answer for the streams of green contexts. */
EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *result)
{
	NEED(result);
	STREAM(handle);
	if (context->parent)
		return CUDA_NOT_SUPPORTED;
	*result = context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *result, struct green **green)
{
	NEED(result);
	STREAM(handle);
	if (green)
		*green = context->green;
	*result = cuda_root(context);
	return CUDA_SUCCESS;
}

PER_THREAD(cuStreamSynchronize, _ptsz, (CUstream handle), (handle))
PER_THREAD(cuStreamQuery, _ptsz, (CUstream handle), (handle))
PER_THREAD(cuStreamGetCtx, _ptsz, (CUstream handle, CUcontext *result), (handle, result))
PER_THREAD(cuStreamGetCtx_v2, _ptsz, (CUstream handle, CUcontext *result, struct green **green), (handle, result, green))

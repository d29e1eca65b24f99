/*
 * Stream capture: which streams record into which graph, and what is refused meanwhile.
 *
 * A capture begins in one stream, its origin. Another stream joins it by waiting for an event of the capture, and has to
 * be joined back, by an event too, before the capture ends. A refused call spoils the captures that it met: what uses
 * their streams is refused from then on, and their end returns no graph.
 *
 * Calls are refused for two reasons. Asking about recorded work conflicts with the capture in every mode. Calls that a
 * capture does not see (SAFE in cuda.h) are refused by modes: that of the thread, and those in which captures began.
 *
 * NB: Which calls are unsafe is not documented as a list. Here it is what allocates, frees, loads, waits or queries.
 */
#include "captures.h"

#include <stdlib.h>

__thread int capture_mode;

static struct capture *captures; /* under cuda_guard */
static uint64_t next_id = 1;

static bool blocking(const struct stream *stream)
{
	return stream->capture && !(stream->flags & STREAM_NON_BLOCKING);
}

/* The legacy stream waits for blocking streams, so also for captured ones. */
bool capture_met_by_legacy(const struct context *context, bool spoil)
{
	bool met = false;
	for (struct stream *stream = context->streams; stream; stream = stream->next)
		if (blocking(stream)) {
			met = true;
			stream->capture->broken |= spoil;
		}
	return met;
}

CUresult capture_spoil(struct capture *capture, CUresult reason)
{
	bool before = capture->broken;
	capture->broken = true;
	return before ? CUDA_CAPTURE_INVALIDATED : reason;
}

/* The functions with "locked" are called with the guard held. */
static CUresult use_locked(struct stream *stream)
{
	if (stream == &stream->context->legacy)
		return capture_met_by_legacy(stream->context, true) ? CUDA_CAPTURE_IMPLICIT : CUDA_SUCCESS;
	return stream->capture && stream->capture->broken ? CUDA_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

/* Records one operation where the stream is captured: `add` is what does that, in the graph that is there. */
#define RECORD(stream, captured, add)                                                                                  \
	pthread_mutex_lock(&cuda_guard);                                                                                \
	CUresult result = use_locked(stream);                                                                           \
	*(captured) = result == CUDA_SUCCESS && (stream)->capture;                                                      \
	if (*(captured)) {                                                                                              \
		struct graph *graph = (stream)->capture->graph;                                                         \
		(stream)->before.operations[(stream)->branch]++;                                                        \
		result = add;                                                                                           \
		if (result == CUDA_SUCCESS)                                                                             \
			result = cuda_graph_entered(graph, (stream)->capture->id, (stream)->branch, &(stream)->before, &(stream)->linked); \
	}                                                                                                               \
	pthread_mutex_unlock(&cuda_guard);                                                                              \
	return result

CUresult cuda_capture_kernel(struct stream *stream, const struct work *work, bool *captured)
{
	RECORD(stream, captured, cuda_add_kernel(graph, work));
}

CUresult cuda_capture_move(struct stream *stream, const struct move *move, bool *captured)
{
	RECORD(stream, captured, cuda_add_move(graph, move));
}

CUresult cuda_capture_host(struct stream *stream, const struct host_operation *host, bool *captured)
{
	RECORD(stream, captured, cuda_add_host(graph, host));
}

CUresult cuda_capture_allocation(struct stream *stream, uint64_t size, uint64_t *address, bool *captured)
{
	RECORD(stream, captured, cuda_add_allocation(graph, stream->context, size, address));
}

CUresult cuda_capture_free(struct stream *stream, uint64_t address, bool *captured)
{
	RECORD(stream, captured, cuda_add_free(graph, address));
}

CUresult cuda_capture_exec(struct stream *stream, const struct graph_exec *exec, bool *captured)
{
	RECORD(stream, captured, cuda_add_exec(graph, exec));
}

CUresult cuda_capture_none(CUstream handle)
{
	struct context *context;
	struct stream *stream;
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&cuda_guard);
	result = use_locked(stream);
	if (result == CUDA_SUCCESS && stream->capture)
		result = CUDA_NOT_SUPPORTED;
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

static CUresult unsafe_locked(void)
{
	bool met = false;
	for (struct capture *capture = captures; capture && capture_mode != MODE_RELAXED; capture = capture->next) {
		bool own = capture->thread == cuda_thread() && capture->mode != MODE_RELAXED;
		if (!own && (capture_mode != MODE_GLOBAL || capture->mode != MODE_GLOBAL))
			continue;
		capture->broken = met = true;
	}
	return met ? CUDA_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult cuda_unsafe(void)
{
	pthread_mutex_lock(&cuda_guard);
	CUresult result = unsafe_locked();
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

CUresult cuda_capture_wait(struct stream *stream)
{
	pthread_mutex_lock(&cuda_guard);
	CUresult result = use_locked(stream);
	if (result == CUDA_SUCCESS)
		result = stream->capture ? capture_spoil(stream->capture, CUDA_CAPTURE_UNSUPPORTED) : unsafe_locked();
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

CUresult cuda_capture_wait_all(struct context *context)
{
	bool met = false;
	pthread_mutex_lock(&cuda_guard);
	for (struct context *part = cuda_contexts; part; part = part->next)
		for (struct stream *stream = part->streams; stream && (part == context || part->parent == context); stream = stream->next)
			if (stream->capture)
				met = stream->capture->broken = true;
	CUresult result = met ? CUDA_CAPTURE_UNSUPPORTED : unsafe_locked();
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

static struct capture *find(uint64_t id)
{
	struct capture *capture = captures;
	while (capture && capture->id != id)
		capture = capture->next;
	return capture;
}

CUresult cuda_capture_wait_event(struct event *event)
{
	pthread_mutex_lock(&cuda_guard);
	struct capture *capture = find(event->capture);
	if (capture)
		capture->broken = true;
	CUresult result = event->capture ? CUDA_CAPTURED_EVENT : unsafe_locked();
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

CUresult cuda_capture_record(struct stream *stream, struct event *event, bool *captured)
{
	pthread_mutex_lock(&cuda_guard);
	CUresult result = use_locked(stream);
	*captured = result == CUDA_SUCCESS && stream->capture;
	if (result == CUDA_SUCCESS)
		event->capture = stream->capture ? stream->capture->id : 0;
	if (*captured)
		event->before = stream->before;
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

static CUresult join_locked(struct stream *stream, struct event *event)
{
	struct capture *of_event = find(event->capture), *of_stream = stream->capture;
	if (!event->capture)
		return capture_spoil(of_stream, CUDA_CAPTURE_ISOLATION);
	if (!of_event) /* ended */
		return of_stream ? capture_spoil(of_stream, CUDA_CAPTURED_EVENT) : CUDA_CAPTURED_EVENT;
	if (of_event->broken || (of_stream && of_stream->broken))
		return CUDA_CAPTURE_INVALIDATED;
	if (stream == &stream->context->legacy)
		return capture_spoil(of_event, CUDA_CAPTURE_IMPLICIT);
	if (of_stream && of_stream != of_event) {
		of_stream->broken = true;
		return capture_spoil(of_event, CUDA_CAPTURE_MERGE);
	}
	if (!of_stream) {
		if (of_event->branches == CAPTURE_STREAMS)
			return capture_spoil(of_event, CUDA_NOT_SUPPORTED);
		stream->capture = of_event;
		stream->branch = of_event->branches++;
		stream->before = stream->linked = (struct history){{0}};
	}
	for (unsigned i = 0; i < CAPTURE_STREAMS; i++)
		if (stream->before.operations[i] < event->before.operations[i])
			stream->before.operations[i] = event->before.operations[i];
	return CUDA_SUCCESS;
}

CUresult cuda_capture_join(struct stream *stream, struct event *event, bool external, bool *captured)
{
	pthread_mutex_lock(&cuda_guard);
	CUresult result = use_locked(stream);
	*captured = result == CUDA_SUCCESS && (stream->capture || event->capture);
	if (*captured)
		result = external && !event->capture ? CUDA_NOT_SUPPORTED : join_locked(stream, event);
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

void capture_begin(struct capture *capture, struct stream *origin)
{
	capture->id = next_id++;
	capture->origin = origin;
	capture->branches = 1;
	capture->next = captures;
	captures = capture;
	origin->capture = capture;
	origin->branch = 0;
	origin->before = origin->linked = (struct history){{0}};
}

bool capture_end(struct capture *capture)
{
	struct history joined = capture->origin->before;
	bool whole = true;
	/* An event takes a capture from one context to another, so its streams may be anywhere. */
	for (struct context *context = cuda_contexts; context; context = context->next)
		for (struct stream *stream = context->streams; stream; stream = stream->next) {
			if (stream->capture != capture)
				continue;
			whole &= stream->before.operations[stream->branch] <= joined.operations[stream->branch];
			stream->capture = NULL;
		}
	for (struct capture **at = &captures; *at; at = &(*at)->next)
		if (*at == capture) {
			*at = capture->next;
			break;
		}
	return whole;
}

void cuda_capture_leave(struct stream *stream)
{
	struct capture *capture = stream->capture;
	if (!capture)
		return;
	capture->broken = true;
	stream->capture = NULL;
	if (capture->origin != stream)
		return;
	/* No call can end it any more. */
	capture_end(capture);
	if (!capture->given)
		cuda_graph_free(capture->graph);
	free(capture);
}


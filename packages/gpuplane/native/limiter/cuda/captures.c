/*
 * Which streams are captured, and the calls that begin and end that. The count only decides how the end of a turn waits:
 * for a context, or for marks (streams.h). If it is too high, launches cost more and limits hold all the same.
 */
#include "gate.h"
#include "streams.h"

#include <stdlib.h>

#define MODE_RELAXED 2
#define CAPTURE_IMPLICIT 906
#define FIRST_CAPTURE_ERROR 900
#define LAST_CAPTURE_ERROR 908

struct capture {
	CUcontext context;
	CUstream stream;
	uint64_t thread; /* that began it, for its own default stream; else 0 */
	struct capture *next;
};

int captures_open;

/* Of the book, and held while captures begin and end, so that all is marked before the first one begins. */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static bool all_marked; /* before the first of the captures that are open */

bool captures_hold(CUstream stream)
{
	int status = 0;
	CUresult result = HAS(cuStreamIsCapturing) ? REAL(cuStreamIsCapturing)(stream, &status) : CUDA_SUCCESS;
	/* The legacy stream is refused while a stream is captured that it would wait for. */
	return result == CAPTURE_IMPLICIT || (result == CUDA_SUCCESS && status);
}

static void count_unknown(void)
{
	ADD(captures_open, 1);
	say(SAY_CAPTURE, "a stream is captured that was not seen to begin: launches are limited, and cost more");
}

bool captures_refused(CUresult result)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	if (result < FIRST_CAPTURE_ERROR || result > LAST_CAPTURE_ERROR)
		return false;
	pthread_once(&once, count_unknown);
	return true;
}

int captures_relax(void)
{
	int mode = MODE_RELAXED;
	if (HAS(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

void captures_restore(int mode)
{
	if (HAS(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

/* The functions below, up to the calls, are called with the guard held. */

static struct capture **find(CUstream stream)
{
	struct capture **at = &captures;
	while (*at && ((*at)->stream != stream || (*at)->thread != streams_owner(stream)))
		at = &(*at)->next;
	return at;
}

static void count_down(void)
{
	if (ADD(captures_open, -1) == 0)
		all_marked = false;
}

static void take_out(struct capture **at)
{
	struct capture *gone = *at;
	*at = gone->next;
	free(gone);
	count_down();
}

/* A capture that cannot be entered stays counted. */
static void enter(CUstream stream)
{
	CUcontext context = NULL;
	bool other;
	struct capture *capture = malloc(sizeof *capture), **before = find(stream);
	if (*before) /* it ended in a way that was not seen */
		take_out(before);
	if (!capture)
		return;
	cuda_of_stream(stream, &context, &other);
	*capture = (struct capture){context, stream, streams_owner(stream), captures};
	captures = capture;
}

/* Around the driver's call. Counted first: from here on launches of other threads are marked, and no wait for a context
   begins. The wait that goes on is over before the guard is taken, or other threads would wait for it too. */
static bool opening(void)
{
	if (!cuda_active)
		return false;
	ADD(captures_open, 1);
	gate_wait_whole();
	pthread_mutex_lock(&guard);
	if (!all_marked)
		gate_mark_all();
	all_marked = true;
	return true;
}

void captures_mark_from_now(void)
{
	if (opening())
		pthread_mutex_unlock(&guard);
}

void captures_close(unsigned count)
{
	pthread_mutex_lock(&guard);
	while (count--)
		count_down();
	pthread_mutex_unlock(&guard);
}

static CUresult opened(bool active, CUresult result, CUstream stream)
{
	if (!active)
		return result;
	if (result == CUDA_SUCCESS)
		enter(stream);
	else
		count_down();
	pthread_mutex_unlock(&guard);
	return result;
}

#define BEGIN(symbol, per_thread, parameters, arguments)                                                               \
	EXPORT CUresult symbol parameters                                                                               \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		bool active = opening();                                                                                \
		return opened(active, REAL(symbol) arguments, streams_meant(stream, per_thread));                       \
	}
BEGIN(cuStreamBeginCapture, false, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, true, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, false, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, true, (CUstream stream, int mode), (stream, mode))
#define TO_GRAPH                                                                                                       \
	(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count, int mode)
BEGIN(cuStreamBeginCaptureToGraph, false, TO_GRAPH, (stream, graph, nodes, edges, count, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz, true, TO_GRAPH, (stream, graph, nodes, edges, count, mode))
#define AGAIN (CUstream stream, int mode, CUgraph graph, void *callback, void *data)
BEGIN(cuStreamBeginRecaptureToGraph, false, AGAIN, (stream, mode, graph, callback, data))
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, true, AGAIN, (stream, mode, graph, callback, data))

/* Whether a failed end has ended the capture is the driver's to say. */
static CUresult end(CUresult (*real)(CUstream, CUgraph *), CUstream handle, bool per_thread, CUgraph *graph)
{
	CUstream stream = streams_meant(handle, per_thread);
	if (!cuda_active)
		return real(handle, graph);
	pthread_mutex_lock(&guard);
	CUresult result = real(handle, graph);
	struct capture **at = find(stream);
	if (*at && !captures_hold(stream))
		take_out(at);
	pthread_mutex_unlock(&guard);
	return result;
}

#define END(symbol, per_thread)                                                                                        \
	EXPORT CUresult symbol(CUstream stream, CUgraph *graph)                                                         \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		return end(REAL(symbol), stream, per_thread, graph);                                                    \
	}
END(cuStreamEndCapture, false)
END(cuStreamEndCapture_ptsz, true)

/* NB: With the guard held over the driver's call: another thread may get the handle as soon as the driver has it back, and
   may begin a capture in it. */
static CUresult destroy(CUresult (*real)(CUstream), CUstream stream)
{
	if (!cuda_active)
		return real(stream);
	streams_end(stream);
	pthread_mutex_lock(&guard);
	CUresult result = real(stream);
	struct capture **at = find(stream);
	if (*at && result == CUDA_SUCCESS)
		take_out(at);
	pthread_mutex_unlock(&guard);
	return result;
}

#define DESTROY(symbol)                                                                                                \
	EXPORT CUresult symbol(CUstream stream)                                                                         \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		return destroy(REAL(symbol), stream);                                                                   \
	}
DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)

void captures_drop(CUcontext context)
{
	pthread_mutex_lock(&guard);
	for (struct capture **at = &captures; *at;)
		if ((*at)->context == context)
			take_out(at);
		else
			at = &(*at)->next;
	pthread_mutex_unlock(&guard);
}

void captures_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	guard = fresh;
	captures = NULL;
	captures_open = 0;
	all_marked = false;
}

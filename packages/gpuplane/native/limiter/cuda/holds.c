/* The calls that put a wait for something outside of the GPU into a stream. waits.c explains the whole. */
#include "book.h"
#include "gate.h"
#include "holds.h"
#include "hosts.h"

#include <stdlib.h>

#define IPC_PLACES 1024
#define IPC_TRIES 16

static void leave(const struct opening *opening)
{
	CUcontext before;
	if (opening->pushed)
		REAL(cuCtxPopCurrent_v2)(&before);
	captures_restore(opening->mode);
}

static void discard(const struct opening *opening)
{
	if (opening->hold->before)
		REAL(cuEventDestroy_v2)(opening->hold->before);
	if (opening->hold->after)
		REAL(cuEventDestroy_v2)(opening->hold->after);
	if (opening->hold->hosts)
		hosts_finished(opening->hold->hosts);
	free(opening->hold->called);
	free(opening->hold);
	ADD(waits_open, -1);
	captures_close(1);
	leave(opening);
}

/* Before the call; nothing is in the stream yet. False: it is nothing that a turn would wait for. */
static bool prepare(struct opening *opening, CUstream stream, bool graph)
{
	bool other;
	*opening = (struct opening){.stream = stream, .gpu = -1};
	if (!cuda_active || captures_hold(stream) || !(opening->hold = calloc(1, sizeof *opening->hold)))
		return false;
	opening->gpu = cuda_of_stream(stream, &opening->context, &other);
	opening->mode = captures_relax();
	opening->pushed = opening->gpu >= 0 && other && REAL(cuCtxPushCurrent_v2)(opening->context) == CUDA_SUCCESS;
	if (opening->gpu < 0 || !(graph || LOAD(limits->gpus[opening->gpu].core))) {
		free(opening->hold);
		leave(opening);
		return false;
	}
	captures_mark_from_now();
	ADD(waits_open, 1);
	struct hold *hold = opening->hold;
	if (REAL(cuEventCreate)(&hold->before, BOOK_EVENT) == CUDA_SUCCESS && REAL(cuEventCreate)(&hold->after, BOOK_EVENT) == CUDA_SUCCESS)
		return true;
	discard(opening);
	return false;
}

/* Right before the call. */
static bool begin(const struct opening *opening)
{
	if (REAL(cuEventRecord)(opening->hold->before, opening->stream) == CUDA_SUCCESS)
		return true;
	discard(opening);
	return false;
}

bool holds_open(struct opening *opening, CUstream stream)
{
	return prepare(opening, stream, false) && begin(opening);
}

bool holds_prepare_graph(struct opening *opening, CUstream stream)
{
	return prepare(opening, stream, true);
}

bool holds_begin_graph(struct opening *opening, struct hosts *hosts)
{
	if (!begin(opening))
		return false;
	hosts_launched(hosts, opening->gpu);
	opening->hold->hosts = hosts;
	return true;
}

/* A function that the driver will call at an unknown time. */
static void leave_alive(const struct opening *opening)
{
	if (opening->hold->hosts)
		hosts_pin(opening->hold->hosts);
	opening->hold->called = NULL;
}

CUresult holds_close(const struct opening *opening, CUresult result)
{
	if (result != CUDA_SUCCESS || REAL(cuEventRecord)(opening->hold->after, opening->stream) != CUDA_SUCCESS) {
		if (result == CUDA_SUCCESS)
			leave_alive(opening);
		discard(opening);
		return result;
	}
	pthread_mutex_lock(&book_guard);
	struct stream *stream = book_find(opening->context, opening->stream, opening->gpu);
	struct hold **at = stream ? &stream->holds : NULL;
	while (at && *at)
		at = &(*at)->next;
	if (at)
		*at = opening->hold;
	pthread_mutex_unlock(&book_guard);
	if (!at)
		leave_alive(opening);
	if (at)
		leave(opening);
	else
		discard(opening);
	return result;
}

/* Events of other processes. A place is never freed, since a handle that is used again costs two events at most. */
static CUevent ipc_events[IPC_PLACES];
static bool ipc_many; /* there was no place for one */

static CUevent *ipc_place(CUevent event, int i)
{
	return &ipc_events[((uintptr_t)event * 0x9e3779b97f4a7c15ull >> 40) + (unsigned)i & IPC_PLACES - 1];
}

static void ipc_enter(CUevent event)
{
	for (int i = 0; i < IPC_TRIES; i++) {
		CUevent none = NULL;
		if (EXCHANGE(*ipc_place(event, i), &none, event) || none == event)
			return;
	}
	STORE(ipc_many, true);
}

static bool ipc_known(CUevent event)
{
	for (int i = 0; i < IPC_TRIES; i++)
		if (LOAD(*ipc_place(event, i)) == event)
			return true;
	return LOAD(ipc_many);
}

static bool may_be_outside(CUevent event)
{
	if (!cuda_active || !event || LOAD(captures_open) > LOAD(waits_open) || (gate_only && !waits_any() && !ipc_known(event)))
		return false;
	int mode = captures_relax();
	bool not_yet = REAL(cuEventQuery)(event) == CUDA_NOT_READY;
	captures_restore(mode);
	return not_yet;
}

/* All streams of a context would be held behind the event, and no two marks could say for how long. */
static CUresult may_wait(CUevent event)
{
	if (!may_be_outside(event))
		return CUDA_SUCCESS;
	say(SAY_CONTEXT_WAIT, "under limits a whole context cannot wait for an event of another process or GPU, see cuStreamWaitEvent");
	return CUDA_NOT_SUPPORTED;
}

#define WAIT_WHOLE(symbol, type)                                                                                       \
	EXPORT CUresult symbol(type context, CUevent event)                                                             \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		CUresult result = may_wait(event);                                                                      \
		return result == CUDA_SUCCESS ? REAL(symbol)(context, event) : result;                                  \
	}
WAIT_WHOLE(cuCtxWaitEvent, CUcontext)
WAIT_WHOLE(cuGreenCtxWaitEvent, CUgreen)

struct ipc_handle {
	char reserved[64];
};

EXPORT CUresult cuIpcOpenEventHandle(CUevent *event, struct ipc_handle handle)
{
	NEED_REAL(cuIpcOpenEventHandle);
	CUresult result = REAL(cuIpcOpenEventHandle)(event, handle);
	if (cuda_active && result == CUDA_SUCCESS)
		ipc_enter(*event);
	return result;
}

#define WAIT(symbol, per_thread, outside, parameters, arguments)                                                       \
	EXPORT CUresult symbol parameters                                                                               \
	{                                                                                                               \
		struct opening opening;                                                                                 \
		NEED_REAL(symbol);                                                                                      \
		if (!(outside) || !holds_open(&opening, streams_meant(stream, per_thread)))                              \
			return REAL(symbol) arguments;                                                                  \
		return holds_close(&opening, REAL(symbol) arguments);                                                    \
	}
#define WAITS(symbol, outside, parameters, arguments)                                                                  \
	WAIT(symbol, false, outside, parameters, arguments)                                                             \
	WAIT(symbol##_ptsz, true, outside, parameters, arguments)
#define VALUE(type) (CUstream stream, CUdeviceptr address, type value, unsigned flags)
WAITS(cuStreamWaitEvent, may_be_outside(event), (CUstream stream, CUevent event, unsigned flags), (stream, event, flags))
WAITS(cuStreamWaitValue32, true, VALUE(uint32_t), (stream, address, value, flags))
WAITS(cuStreamWaitValue32_v2, true, VALUE(uint32_t), (stream, address, value, flags))
WAITS(cuStreamWaitValue64, true, VALUE(uint64_t), (stream, address, value, flags))
WAITS(cuStreamWaitValue64_v2, true, VALUE(uint64_t), (stream, address, value, flags))
WAITS(cuStreamBatchMemOp, true, (CUstream stream, unsigned count, void *operations, unsigned flags), (stream, count, operations, flags))
WAITS(cuStreamBatchMemOp_v2, true, (CUstream stream, unsigned count, void *operations, unsigned flags), (stream, count, operations, flags))

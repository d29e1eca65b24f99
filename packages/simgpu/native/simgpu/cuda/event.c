/* Events: marks in streams, which other streams and programs wait for. Those for several processes lie in a memory file. */
#include "cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WAIT_EXTERNAL 1u
#define TIMELESS 2u
#define INTERPROCESS 4u
#define LOOK_NS 50000ull

/* A handle of 64 bytes names the process and the descriptor of its memory file. */
struct handle {
	char path[64];
};

static CUresult make(CUevent *result, unsigned flags, int file)
{
	CONTEXT(context);
	struct event *event = calloc(1, sizeof *event);
	if (!event)
		return CUDA_OUT_OF_MEMORY;
	*event = (struct event){.magic = MAGIC_EVENT, .flags = flags, .context = cuda_root(context), .file = file, .marks = &event->own};
	if (file >= 0) {
		event->marks = mmap(NULL, sizeof *event->marks, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (event->marks == MAP_FAILED) {
			free(event);
			return CUDA_OUT_OF_MEMORY;
		}
	}
	*result = event;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *result, unsigned flags)
{
	NEED(result && flags < 8 && (!(flags & INTERPROCESS) || flags & TIMELESS));
	int file = flags & INTERPROCESS ? (int)syscall(SYS_memfd_create, "simgpu-event", 1u /* close on exec */) : -1;
	if (flags & INTERPROCESS && (file < 0 || ftruncate(file, sizeof(struct event_marks))))
		return CUDA_OPERATING_SYSTEM;
	CUresult made = make(result, flags, file);
	if (made != CUDA_SUCCESS && file >= 0)
		close(file);
	return made;
}

#define EVENT(event)                                                                                                   \
	READY();                                                                                                        \
	if (!(event) || (event)->magic != MAGIC_EVENT)                                                                  \
	return CUDA_INVALID_HANDLE

EXPORT CUresult cuIpcGetEventHandle(struct handle *handle, CUevent event)
{
	NEED(handle);
	EVENT(event);
	NEED(event->flags & INTERPROCESS);
	memset(handle, 0, sizeof *handle);
	snprintf(handle->path, sizeof handle->path, "/proc/%d/fd/%d", (int)getpid(), event->file);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenEventHandle(CUevent *result, struct handle handle)
{
	NEED(result && memchr(handle.path, 0, sizeof handle.path) && !strncmp(handle.path, "/proc/", 6));
	READY();
	int file = open(handle.path, O_RDWR | O_CLOEXEC);
	if (file < 0)
		return CUDA_INVALID_HANDLE;
	CUresult made = make(result, INTERPROCESS | TIMELESS, file);
	if (made != CUDA_SUCCESS)
		close(file);
	return made;
}

/* With the guard held. */
void cuda_event_release(struct event *event)
{
	if (event->users && --event->users)
		return;
	if (event->magic)
		return;
	if (event->file >= 0) {
		munmap(event->marks, sizeof *event->marks);
		close(event->file);
	}
	free(event);
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	EVENT(event);
	pthread_mutex_lock(&cuda_guard);
	event->magic = 0;
	if (!event->users)
		cuda_event_release(event);
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

bool cuda_event_known(const struct event *event, uint64_t record)
{
	return __atomic_load_n(&event->marks->reached, __ATOMIC_SEQ_CST) >= record;
}

void cuda_event_reached(struct event *event, uint64_t record, uint64_t ready)
{
	uint64_t now = simgpu_now();
	if (cuda_event_known(event, record)) /* a later one, in another stream */
		return;
	__atomic_store_n(&event->marks->time, ready > now ? ready : now, __ATOMIC_SEQ_CST);
	__atomic_store_n(&event->marks->reached, record, __ATOMIC_SEQ_CST);
}

static uint64_t last_record(const struct event *event)
{
	return __atomic_load_n(&event->marks->recorded, __ATOMIC_SEQ_CST);
}

/* Whether what came before its last record is done; *when it is, UINT64_MAX while that is unknown. */
static bool reached(const struct event *event, uint64_t *when)
{
	*when = cuda_event_known(event, last_record(event)) ? __atomic_load_n(&event->marks->time, __ATOMIC_SEQ_CST) : UINT64_MAX;
	return *when <= simgpu_now();
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
	struct context *context;
	struct stream *stream;
	bool captured;
	EVENT(event);
	NEED(flags <= 1);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (cuda_root(context) != event->context)
		return CUDA_INVALID_HANDLE;
	result = cuda_capture_record(stream, event, &captured);
	if (result != CUDA_SUCCESS || captured)
		return result;
	uint64_t record = __atomic_add_fetch(&event->marks->recorded, 1, __ATOMIC_SEQ_CST);
	if (cuda_queued(stream))
		return cuda_queue(stream, (struct operation){.kind = OPERATION_RECORD, .event = event, .record = record});
	pthread_mutex_lock(&cuda_guard);
	cuda_event_reached(event, record, cuda_stream_ready(stream));
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream handle)
{
	return cuEventRecordWithFlags(event, handle, 0);
}

EXPORT CUresult cuEventQuery(CUevent event)
{
	uint64_t when;
	EVENT(event);
	CUresult result = cuda_usable(event->context);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_wait_event(event);
	if (result != CUDA_SUCCESS)
		return result;
	return reached(event, &when) ? CUDA_SUCCESS : CUDA_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
	uint64_t when;
	EVENT(event);
	CUresult result = cuda_capture_wait_event(event);
	if (result != CUDA_SUCCESS)
		return result;
	while (!reached(event, &when))
		simgpu_sleep_until(when == UINT64_MAX ? simgpu_now() + LOOK_NS : when);
	return cuda_usable(event->context);
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	uint64_t first, last;
	NEED(milliseconds);
	EVENT(start);
	EVENT(end);
	CUresult result = cuda_capture_wait_event(start);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_wait_event(end);
	if (result != CUDA_SUCCESS)
		return result;
	if (!last_record(start) || !last_record(end) || (start->flags & TIMELESS) || (end->flags & TIMELESS))
		return CUDA_INVALID_HANDLE;
	if (!reached(start, &first) || !reached(end, &last))
		return CUDA_NOT_READY;
	*milliseconds = (float)(((double)last - (double)first) / 1e6);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	return cuEventElapsedTime(milliseconds, start, end);
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
	struct context *context;
	struct stream *stream;
	bool captured;
	EVENT(event);
	NEED(flags <= WAIT_EXTERNAL);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_join(stream, event, flags == WAIT_EXTERNAL, &captured);
	if (result != CUDA_SUCCESS || captured)
		return result;
	uint64_t record = last_record(event), when;
	/* Work behind another GPU's event gets its time when that is reached, so that others can use the time before. */
	bool others = event->file >= 0 || event->context->device != context->device;
	if (cuda_queued(stream) || !cuda_event_known(event, record) || (others && record && !reached(event, &when)))
		return cuda_queue(stream, (struct operation){.kind = OPERATION_WAIT_EVENT, .event = event, .record = record});
	pthread_mutex_lock(&cuda_guard);
	if (event->marks->time > stream->tail)
		stream->tail = event->marks->time;
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

PER_THREAD(cuStreamWaitEvent, _ptsz, (CUstream handle, CUevent event, unsigned flags), (handle, event, flags))
PER_THREAD(cuEventRecord, _ptsz, (CUevent event, CUstream handle), (event, handle))
PER_THREAD(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream handle, unsigned flags), (event, handle, flags))

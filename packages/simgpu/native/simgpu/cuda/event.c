/* Events: marks in streams, which other streams and programs wait for. */
#include "cuda.h"

#include <stdlib.h>

#define WAIT_EXTERNAL 1u

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
	struct context *context;
	struct stream *stream;
	bool captured;
	EVENT(event);
	NEED(flags <= 1);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (context != event->context)
		return CUDA_INVALID_HANDLE;
	result = cuda_capture_record(stream, event, &captured);
	if (result != CUDA_SUCCESS || captured)
		return result;
	pthread_mutex_lock(&cuda_guard);
	uint64_t ready = cuda_stream_ready(stream), now = simgpu_now();
	event->time = ready > now ? ready : now;
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
	if (result == CUDA_SUCCESS)
		result = cuda_capture_wait_event(event);
	if (result != CUDA_SUCCESS)
		return result;
	return !event->recorded || event->time <= simgpu_now() ? CUDA_SUCCESS : CUDA_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
	EVENT(event);
	CUresult result = cuda_capture_wait_event(event);
	if (result != CUDA_SUCCESS)
		return result;
	if (event->recorded && event->time > simgpu_now())
		simgpu_sleep_until(event->time);
	return cuda_usable(event->context);
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	NEED(milliseconds);
	EVENT(start);
	EVENT(end);
	CUresult result = cuda_capture_wait_event(start);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_wait_event(end);
	if (result != CUDA_SUCCESS)
		return result;
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
	pthread_mutex_lock(&cuda_guard);
	if (event->recorded && event->time > stream->tail)
		stream->tail = event->time;
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

PER_THREAD(cuStreamWaitEvent, _ptsz, (CUstream handle, CUevent event, unsigned flags), (handle, event, flags))
PER_THREAD(cuEventRecord, _ptsz, (CUevent event, CUstream handle), (event, handle))
PER_THREAD(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream handle, unsigned flags), (event, handle, flags))

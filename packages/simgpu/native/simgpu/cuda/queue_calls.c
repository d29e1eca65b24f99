/* The calls that let a stream wait for something outside of the GPU. queue.c runs what they queue. */
#include "cuda.h"

static CUresult queue_host(CUstream handle, struct operation wanted)
{
	struct context *context;
	struct stream *stream;
	bool captured = false;
	CUresult result = cuda_stream(handle, &context, &stream);
	wanted.kind = OPERATION_HOST;
	wanted.host.handle = handle;
	if (result == CUDA_SUCCESS)
		result = wanted.host.function ? cuda_capture_host(stream, &wanted.host, &captured) : cuda_capture_none(handle);
	return result == CUDA_SUCCESS && !captured ? cuda_queue(stream, wanted) : result;
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

/* Copies and fills. Their bytes move at once; their time goes to the copy engine's line of the GPU. */
#include "cuda.h"

#include <string.h>
#include <sys/mman.h>

enum direction { TO_DEVICE, FROM_DEVICE, ON_DEVICE, BETWEEN_DEVICES };

/* Whether a copy may be made now. In a capture none can be recorded here. */
static CUresult allowed(CUstream stream, bool wait)
{
	CUresult result = cuda_capture_none(stream);
	return result == CUDA_SUCCESS && wait ? cuda_unsafe() : result;
}

/* Gives a copy its time on a stream; with `wait` returns when it is done. */
static CUresult take_time(CUstream handle, uint64_t bytes, enum direction direction, bool wait)
{
	struct context *context;
	struct stream *stream;
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	struct simgpu_gpu *gpu = cuda_gpu(context->device);
	pthread_mutex_lock(&cuda_guard);
	cuda_wait_queue(stream); /* a copy is not queued: it waits with its caller */
	pthread_mutex_unlock(&cuda_guard);
	/* On the device a byte is read and written at the speed of its memory, which is many times that of PCIe. */
	if (direction == ON_DEVICE && gpu->bandwidth_mbps)
		bytes = 2 * bytes * gpu->pcie_mbps / gpu->bandwidth_mbps;
	pthread_mutex_lock(&cuda_guard);
	struct simgpu_span span = simgpu_copy(&cuda_view, cuda_devices[context->device].gpu, cuda_stream_ready(stream), bytes,
					      direction == TO_DEVICE);
	stream->tail = span.end;
	pthread_mutex_unlock(&cuda_guard);
	if (wait)
		simgpu_sleep_until(span.end);
	return CUDA_SUCCESS;
}

static enum direction direction_of(const uint64_t to, const uint64_t from)
{
	struct allocation a, b;
	bool to_device = cuda_find(to, &a) && a.kind <= KIND_MANAGED, from_device = cuda_find(from, &b) && b.kind <= KIND_MANAGED;
	if (to_device && from_device)
		return a.device == b.device ? ON_DEVICE : BETWEEN_DEVICES;
	return to_device ? TO_DEVICE : FROM_DEVICE;
}

static void count_nvlink(uint64_t to, uint64_t from, uint64_t bytes)
{
	struct allocation a, b;
	if (!cuda_find(to, &a) || !cuda_find(from, &b))
		return;
	struct simgpu_gpu *first = cuda_gpu(a.device), *second = cuda_gpu(b.device);
	if (!first->nvlink_switch && !first->lanes[cuda_devices[b.device].gpu])
		return;
	__atomic_add_fetch(&first->nvlink_bytes, bytes, __ATOMIC_RELAXED);
	__atomic_add_fetch(&second->nvlink_bytes, bytes, __ATOMIC_RELAXED);
}

/* `to_host` and `from_host`: this side may be memory that CUDA does not know. */
static CUresult copy(uint64_t to, bool to_host, uint64_t from, bool from_host, size_t size, CUstream stream, bool wait)
{
	CONTEXT(context);
	(void)context;
	if (!size)
		return CUDA_SUCCESS;
	CUresult result = allowed(stream, wait);
	if (result != CUDA_SUCCESS)
		return result;
	uint8_t *target = cuda_bytes(to, size, to_host);
	const uint8_t *source = cuda_bytes(from, size, from_host);
	NEED(target && source);
	enum direction direction = direction_of(to, from);
	/* A blocking copy out waits for what is before it in the stream; the bytes are right either way. */
	memmove(target, source, size);
	if (direction == BETWEEN_DEVICES)
		count_nvlink(to, from, size);
	return take_time(stream, size, direction, wait);
}

#define HOST(pointer) ((uint64_t)(uintptr_t)(pointer))

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	return copy(to, true, from, true, size, NULL, true);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	return copy(to, true, from, true, size, stream, false);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	NEED(from || !size);
	return copy(to, false, HOST(from), true, size, NULL, true);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
	NEED(from || !size);
	return copy(to, false, HOST(from), true, size, stream, false);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	NEED(to || !size);
	return copy(HOST(to), true, from, false, size, NULL, true);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	NEED(to || !size);
	return copy(HOST(to), true, from, false, size, stream, false);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	return copy(to, false, from, false, size, NULL, true);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	return copy(to, false, from, false, size, stream, false);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t size)
{
	NEED(target && source);
	return copy(to, false, from, false, size, NULL, true);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t size, CUstream stream)
{
	NEED(target && source);
	return copy(to, false, from, false, size, stream, false);
}

/* One side of a copy of rows. */
struct side {
	uint64_t base;
	bool host;
	size_t x, y, z, pitch, height;
};

struct side_2d {
	size_t x, y;
	unsigned type; /* CUmemorytype: 1 host, 2 device, 3 array, 4 unified */
	void *host;
	CUdeviceptr device;
	void *array;
	size_t pitch;
};

struct copy_2d {
	struct side_2d from, to;
	size_t width, height;
};

struct side_3d {
	size_t x, y, z, level;
	unsigned type;
	void *host;
	CUdeviceptr device;
	void *array, *reserved;
	size_t pitch, height;
};

struct copy_3d {
	struct side_3d from, to;
	size_t width, height, depth;
};

static CUresult copy_rows(struct side to, struct side from, size_t width, size_t height, size_t depth, CUstream stream, bool wait)
{
	CONTEXT(context);
	(void)context;
	if (!width || !height || !depth)
		return CUDA_SUCCESS;
	CUresult result = allowed(stream, wait);
	if (result != CUDA_SUCCESS)
		return result;
	NEED(to.x <= SIZE_MAX - width && from.x <= SIZE_MAX - width);
	NEED((height == 1 && depth == 1) || (to.pitch >= to.x + width && from.pitch >= from.x + width));
	enum direction direction = direction_of(to.base, from.base);
	for (size_t z = 0; z < depth; z++)
		for (size_t y = 0; y < height; y++) {
			uint64_t a = to.base + to.x + to.pitch * (to.y + y + to.height * (to.z + z));
			uint64_t b = from.base + from.x + from.pitch * (from.y + y + from.height * (from.z + z));
			uint8_t *target = cuda_bytes(a, width, to.host);
			const uint8_t *source = cuda_bytes(b, width, from.host);
			NEED(target && source);
			memmove(target, source, width);
		}
	return take_time(stream, width * height * depth, direction, wait);
}

static bool side_of(unsigned type, void *host, CUdeviceptr device, struct side *side)
{
	side->host = type != 2;
	side->base = type == 1 ? HOST(host) : device;
	return type == 1 || type == 2 || type == 4;
}

static CUresult copy_2d(const struct copy_2d *c, CUstream stream, bool wait)
{
	NEED(c);
	struct side to = {.x = c->to.x, .y = c->to.y, .pitch = c->to.pitch};
	struct side from = {.x = c->from.x, .y = c->from.y, .pitch = c->from.pitch};
	if (!side_of(c->to.type, c->to.host, c->to.device, &to) || !side_of(c->from.type, c->from.host, c->from.device, &from))
		return CUDA_NOT_SUPPORTED;
	if (!to.pitch)
		to.pitch = c->width;
	if (!from.pitch)
		from.pitch = c->width;
	return copy_rows(to, from, c->width, c->height, 1, stream, wait);
}

static CUresult copy_3d(const struct copy_3d *c, CUstream stream, bool wait)
{
	NEED(c);
	struct side to = {.x = c->to.x, .y = c->to.y, .z = c->to.z, .pitch = c->to.pitch, .height = c->to.height};
	struct side from = {.x = c->from.x, .y = c->from.y, .z = c->from.z, .pitch = c->from.pitch, .height = c->from.height};
	if (!side_of(c->to.type, c->to.host, c->to.device, &to) || !side_of(c->from.type, c->from.host, c->from.device, &from))
		return CUDA_NOT_SUPPORTED;
	return copy_rows(to, from, c->width, c->height, c->depth, stream, wait);
}

EXPORT CUresult cuMemcpy2D_v2(const struct copy_2d *c)
{
	return copy_2d(c, NULL, true);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const struct copy_2d *c)
{
	return copy_2d(c, NULL, true);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const struct copy_2d *c, CUstream stream)
{
	return copy_2d(c, stream, false);
}

EXPORT CUresult cuMemcpy3D_v2(const struct copy_3d *c)
{
	return copy_3d(c, NULL, true);
}

EXPORT CUresult cuMemcpy3DAsync_v2(const struct copy_3d *c, CUstream stream)
{
	return copy_3d(c, stream, false);
}

static void fill_row(uint8_t *at, uint64_t value, uint32_t width, size_t count)
{
	uintptr_t start = ((uintptr_t)at + 4095) & ~(uintptr_t)4095, end = ((uintptr_t)at + width * count) & ~(uintptr_t)4095;
	/* Much memory made zero is given back to the machine instead of written to. */
	if (!value && end > start && end - start >= 1u << 20 && !madvise((void *)start, end - start, MADV_DONTNEED)) {
		memset(at, 0, start - (uintptr_t)at);
		memset((void *)end, 0, (uintptr_t)at + width * count - end);
	} else if (width == 1) {
		memset(at, (int)value, count);
	} else {
		for (size_t i = 0; i < count; i++)
			memcpy(at + i * width, &value, width);
	}
}

static CUresult fill(uint64_t address, size_t pitch, uint64_t value, uint32_t width, size_t count, size_t rows, CUstream stream)
{
	CONTEXT(context);
	(void)context;
	if (!count || !rows)
		return CUDA_SUCCESS;
	CUresult result = allowed(stream, false);
	if (result != CUDA_SUCCESS)
		return result;
	NEED(address % width == 0 && count <= SIZE_MAX / width && (rows == 1 || (pitch >= width * count && pitch % width == 0)));
	for (size_t row = 0; row < rows; row++) {
		struct allocation found;
		uint8_t *at = cuda_bytes(address + row * pitch, width * count, false);
		NEED(at && cuda_find(address, &found));
		if (found.kind == KIND_REGISTERED) /* not our mapping: its pages must not be given back */
			for (size_t i = 0; i < count; i++)
				memcpy(at + i * width, &value, width);
		else
			fill_row(at, value, width, count);
	}
	return take_time(stream, width * count * rows, ON_DEVICE, false);
}

#define FILL(bits, type)                                                                                               \
	EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr address, type value, size_t count)                             \
	{                                                                                                               \
		return fill(address, 0, value, bits / 8, count, 1, NULL);                                               \
	}                                                                                                               \
	EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr address, type value, size_t count, CUstream stream)          \
	{                                                                                                               \
		return fill(address, 0, value, bits / 8, count, 1, stream);                                             \
	}                                                                                                               \
	EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr address, size_t pitch, type value, size_t width, size_t height) \
	{                                                                                                               \
		return fill(address, pitch, value, bits / 8, width, height, NULL);                                      \
	}                                                                                                               \
	EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr address, size_t pitch, type value, size_t width,           \
						 size_t height, CUstream stream)                                       \
	{                                                                                                               \
		return fill(address, pitch, value, bits / 8, width, height, stream);                                    \
	}                                                                                                               \
	PER_THREAD(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr address, type value, size_t count), (address, value, count)) \
	PER_THREAD(cuMemsetD##bits##Async, _ptsz, (CUdeviceptr address, type value, size_t count, CUstream stream),     \
		   (address, value, count, stream))                                                                     \
	PER_THREAD(cuMemsetD2D##bits##_v2, _ptds, (CUdeviceptr address, size_t pitch, type value, size_t width, size_t height), \
		   (address, pitch, value, width, height))                                                              \
	PER_THREAD(cuMemsetD2D##bits##Async, _ptsz,                                                                     \
		   (CUdeviceptr address, size_t pitch, type value, size_t width, size_t height, CUstream stream),       \
		   (address, pitch, value, width, height, stream))
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)

PER_THREAD(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t size), (to, from, size))
PER_THREAD(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), (to, from, size, stream))
PER_THREAD(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t size), (to, from, size))
PER_THREAD(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t size), (to, from, size))
PER_THREAD(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t size), (to, from, size))
PER_THREAD(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr to, const void *from, size_t size, CUstream stream), (to, from, size, stream))
PER_THREAD(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t size, CUstream stream), (to, from, size, stream))
PER_THREAD(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), (to, from, size, stream))
PER_THREAD(cuMemcpyPeer, _ptds, (CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t size),
	   (to, target, from, source, size))
PER_THREAD(cuMemcpyPeerAsync, _ptsz,
	   (CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t size, CUstream stream),
	   (to, target, from, source, size, stream))
PER_THREAD(cuMemcpy2D_v2, _ptds, (const struct copy_2d *c), (c))
PER_THREAD(cuMemcpy2DUnaligned_v2, _ptds, (const struct copy_2d *c), (c))
PER_THREAD(cuMemcpy2DAsync_v2, _ptsz, (const struct copy_2d *c, CUstream stream), (c, stream))
PER_THREAD(cuMemcpy3D_v2, _ptds, (const struct copy_3d *c), (c))
PER_THREAD(cuMemcpy3DAsync_v2, _ptsz, (const struct copy_3d *c, CUstream stream), (c, stream))

/*
 * Copies and fills: struct move. Copies from and to the host take the copy engine's line of the GPU. Fills and copies inside a GPU run
 * on its multiprocessors, as on most boards: they take its time as a kernel does, as long as its memory needs for them.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define START_NS 2500ull /* the least that a fill or a copy inside a GPU takes, as for a kernel */

enum direction { TO_DEVICE, FROM_DEVICE, ON_DEVICE, BETWEEN_DEVICES };

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

static uint8_t *place(const struct move_side *side, size_t row, size_t layer, size_t size)
{
	return cuda_bytes(side->base + side->x + side->pitch * (side->y + row + side->height * (side->z + layer)), size, side->host);
}

static bool rows_fit(const struct move_side *side, const struct move *move)
{
	bool one_row = move->height == 1 && move->depth == 1;
	return side->x <= SIZE_MAX - move->width && (one_row || side->pitch >= side->x + move->width);
}

/* The first and last rows are there, and those between them are in the same allocation or fail when they are moved. */
static bool valid(const struct move *move)
{
	size_t row = move->height - 1, layer = move->depth - 1;
	if (move->element && (move->to.base % move->element || (move->height > 1 && move->to.pitch % move->element)))
		return false;
	return rows_fit(&move->to, move) && place(&move->to, 0, 0, move->width) && place(&move->to, row, layer, move->width) &&
	       (move->element || (rows_fit(&move->from, move) && place(&move->from, 0, 0, move->width) &&
				  place(&move->from, row, layer, move->width)));
}

static void fill_row(uint8_t *at, uint64_t value, uint32_t width, size_t size)
{
	uintptr_t start = ((uintptr_t)at + 4095) & ~(uintptr_t)4095, end = ((uintptr_t)at + size) & ~(uintptr_t)4095;
	/* Much memory made zero is given back to the machine instead of written to. */
	if (!value && end > start && end - start >= 1u << 20 && !madvise((void *)start, end - start, MADV_DONTNEED)) {
		memset(at, 0, start - (uintptr_t)at);
		memset((void *)end, 0, (uintptr_t)at + size - end);
	} else if (width == 1) {
		memset(at, (int)value, size);
	} else {
		for (size_t i = 0; i < size; i += width)
			memcpy(at + i, &value, width);
	}
}

static void move_row(const struct move *move, size_t row, size_t layer)
{
	struct allocation found;
	uint8_t *target = place(&move->to, row, layer, move->width);
	const uint8_t *source = move->element ? target : place(&move->from, row, layer, move->width);
	if (!target || !source) /* it was freed meanwhile */
		return;
	if (!move->element) {
		if (target != source)
			memmove(target, source, move->width);
	} else if (cuda_find(move->to.base, &found) && found.kind == KIND_REGISTERED) {
		/* Not our mapping: its pages must not be given back. */
		for (size_t i = 0; i < move->width; i += move->element)
			memcpy(target + i, &move->value, move->element);
	} else {
		fill_row(target, move->value, move->element, move->width);
	}
}

/* Its bytes move at once; its time follows what is before it in the stream. A blocking copy out waits for that, so its bytes are
   right either way. */
void cuda_move(struct context *context, struct stream *stream, const struct move *move)
{
	uint64_t bytes = (uint64_t)move->width * move->height * move->depth;
	enum direction direction = move->element ? ON_DEVICE : direction_of(move->to.base, move->from.base);
	for (size_t layer = 0; layer < move->depth; layer++)
		for (size_t row = 0; row < move->height; row++)
			move_row(move, row, layer);
	if (direction == ON_DEVICE) {
		/* A fill writes each byte, a copy reads it too. */
		uint64_t memory_ns = bytes * (move->element ? 1 : 2) * 1000 / cuda_gpu(context->device)->bandwidth_mbps;
		cuda_occupy(context, stream, START_NS + memory_ns, memory_ns);
		return;
	}
	if (direction == BETWEEN_DEVICES)
		count_nvlink(move->to.base, move->from.base, bytes);
	pthread_mutex_lock(&cuda_guard);
	struct simgpu_span span = simgpu_copy(&cuda_view, cuda_devices[context->device].gpu, cuda_stream_ready(stream), bytes,
					      direction == TO_DEVICE);
	stream->tail = span.end;
	pthread_mutex_unlock(&cuda_guard);
}

CUresult cuda_queue_move(struct stream *stream, const struct move *move)
{
	struct move *copy = malloc(sizeof *copy);
	if (!copy)
		return CUDA_OUT_OF_MEMORY;
	*copy = *move;
	CUresult result = cuda_queue(stream, (struct operation){.kind = OPERATION_MOVE, .move = copy});
	if (result != CUDA_SUCCESS)
		free(copy);
	return result;
}

/* How a call goes on: at once, without being recorded in captures; when its move is done; or before it has begun. */
enum mode { BLOCKING_START, BLOCKING, ASYNC };

static CUresult submit(const struct move *move, CUstream handle, enum mode mode)
{
	CONTEXT(context);
	struct stream *stream;
	bool captured = false;
	if (!move->width || !move->height || !move->depth)
		return CUDA_SUCCESS;
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result == CUDA_SUCCESS && mode != ASYNC)
		result = cuda_capture_none(handle);
	if (result == CUDA_SUCCESS && mode == BLOCKING)
		result = cuda_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	NEED(valid(move));
	if (mode == ASYNC)
		result = cuda_capture_move(stream, move, &captured);
	if (result != CUDA_SUCCESS || captured)
		return result;
	if (mode == ASYNC && cuda_queued(stream))
		return cuda_queue_move(stream, move);
	pthread_mutex_lock(&cuda_guard);
	cuda_wait_queue(stream);
	pthread_mutex_unlock(&cuda_guard);
	cuda_move(context, stream, move);
	if (mode == BLOCKING)
		simgpu_sleep_until(stream->tail);
	return CUDA_SUCCESS;
}

/* `to_host` and `from_host`: this side may be memory that CUDA does not know. */
static CUresult copy(uint64_t to, bool to_host, uint64_t from, bool from_host, size_t size, CUstream stream, bool wait)
{
	return submit(&(struct move){.to = {.base = to, .host = to_host}, .from = {.base = from, .host = from_host}, .width = size,
				     .height = 1, .depth = 1}, stream, wait ? BLOCKING : ASYNC);
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

static bool side_of(unsigned type, void *host, CUdeviceptr device, struct move_side *side)
{
	side->host = type != 2;
	side->base = type == 1 ? HOST(host) : device;
	return type == 1 || type == 2 || type == 4;
}

static CUresult copy_2d(const struct copy_2d *c, CUstream stream, bool wait)
{
	NEED(c);
	struct move_side to = {.x = c->to.x, .y = c->to.y, .pitch = c->to.pitch};
	struct move_side from = {.x = c->from.x, .y = c->from.y, .pitch = c->from.pitch};
	if (!side_of(c->to.type, c->to.host, c->to.device, &to) || !side_of(c->from.type, c->from.host, c->from.device, &from))
		return CUDA_NOT_SUPPORTED;
	if (!to.pitch)
		to.pitch = c->width;
	if (!from.pitch)
		from.pitch = c->width;
	return submit(&(struct move){.to = to, .from = from, .width = c->width, .height = c->height, .depth = 1}, stream,
		      wait ? BLOCKING : ASYNC);
}

static CUresult copy_3d(const struct copy_3d *c, CUstream stream, bool wait)
{
	NEED(c);
	struct move_side to = {.x = c->to.x, .y = c->to.y, .z = c->to.z, .pitch = c->to.pitch, .height = c->to.height};
	struct move_side from = {.x = c->from.x, .y = c->from.y, .z = c->from.z, .pitch = c->from.pitch, .height = c->from.height};
	if (!side_of(c->to.type, c->to.host, c->to.device, &to) || !side_of(c->from.type, c->from.host, c->from.device, &from))
		return CUDA_NOT_SUPPORTED;
	return submit(&(struct move){.to = to, .from = from, .width = c->width, .height = c->height, .depth = c->depth}, stream,
		      wait ? BLOCKING : ASYNC);
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

static CUresult fill(uint64_t address, size_t pitch, uint64_t value, uint32_t element, size_t count, size_t rows, CUstream stream,
		     enum mode mode)
{
	NEED(count <= SIZE_MAX / element);
	return submit(&(struct move){.to = {.base = address, .pitch = pitch}, .value = value, .element = element, .width = element * count,
				     .height = rows, .depth = 1}, stream, mode);
}

#define FILL(bits, type)                                                                                               \
	EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr address, type value, size_t count)                             \
	{                                                                                                               \
		return fill(address, 0, value, bits / 8, count, 1, NULL, BLOCKING_START);                                               \
	}                                                                                                               \
	EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr address, type value, size_t count, CUstream stream)          \
	{                                                                                                               \
		return fill(address, 0, value, bits / 8, count, 1, stream, ASYNC);                                             \
	}                                                                                                               \
	EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr address, size_t pitch, type value, size_t width, size_t height) \
	{                                                                                                               \
		return fill(address, pitch, value, bits / 8, width, height, NULL, BLOCKING_START);                                      \
	}                                                                                                               \
	EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr address, size_t pitch, type value, size_t width,           \
						 size_t height, CUstream stream)                                       \
	{                                                                                                               \
		return fill(address, pitch, value, bits / 8, width, height, stream, ASYNC);                             \
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

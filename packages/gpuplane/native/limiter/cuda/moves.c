/*
 * Copies inside a GPU and fills: they take the GPU's time as kernels do, so they pass the gate like launches, by their kind and their
 * size as a power of two. Most boards run them on multiprocessors; where a copy engine runs them, they use all of the memory's speed,
 * and neighbours wait all the same.
 *
 * Copies from and to the host go straight through: copy engines run them, at the speed of PCIe, next to the kernels of others, and
 * NVML's utilisation does not count them. The general forms (cuMemcpy, 2D, 3D) are held if both sides are on a GPU. A copy
 * between two GPUs counts on the GPU of its stream. In a capture all of them become nodes, and run nothing.
 */
#include "gate.h"

#define ATTRIBUTE_TYPE 2
enum { ON_HOST = 1, ON_DEVICE = 2, IN_ARRAY = 3, ANYWHERE = 4 }; /* CUmemorytype */

/* Of what kind a key is; each has a place for each power of two. */
enum kind_of_move { FILL, FILL_ROWS, COPY, COPY_ROWS, COPY_MANY, KINDS };
static const char kinds[KINDS][64];

static uint64_t key_of(enum kind_of_move kind, uint64_t bytes)
{
	return costs_key(kinds[kind], bytes);
}

static bool on_device(CUdeviceptr address)
{
	unsigned type = 0;
	/* Memory of the host that CUDA does not know has no type. */
	return !HAS(cuPointerGetAttribute) || (REAL(cuPointerGetAttribute)(&type, ATTRIBUTE_TYPE, address) == CUDA_SUCCESS && type == ON_DEVICE);
}

static bool inside(CUdeviceptr to, CUdeviceptr from)
{
	return cuda_active && on_device(to) && on_device(from);
}

static bool side_on_device(int type, CUdeviceptr address)
{
	return type == ON_DEVICE || type == IN_ARRAY || (type == ANYWHERE && on_device(address));
}

#define SIDE(size, address)                                                                                            \
	{                                                                                                               \
		size x, y;                                                                                              \
		int type;                                                                                               \
		void *host;                                                                                             \
		address device;                                                                                         \
		CUarray array;                                                                                          \
		size pitch;                                                                                             \
	}
#define SIDE_3D(size, address)                                                                                         \
	{                                                                                                               \
		size x, y, z, level;                                                                                    \
		int type;                                                                                               \
		void *host;                                                                                             \
		address device;                                                                                         \
		CUarray array;                                                                                          \
		void *context; /* of copies between contexts */                                                         \
		size pitch, height;                                                                                     \
	}
struct copy_2d {
	struct SIDE(size_t, CUdeviceptr) from, to;
	size_t width, height;
};
struct copy_2d_v1 {
	struct SIDE(unsigned, unsigned) from, to;
	unsigned width, height;
};
struct copy_3d {
	struct SIDE_3D(size_t, CUdeviceptr) from, to;
	size_t width, height, depth;
};
struct copy_3d_v1 {
	struct SIDE_3D(unsigned, unsigned) from, to;
	unsigned width, height, depth;
};
_Static_assert(sizeof(struct copy_2d) == 128 && sizeof(struct copy_3d) == 200, "ABI");
#define BOTH_INSIDE(copy)                                                                                              \
	(cuda_active && (copy) && side_on_device((copy)->from.type, (copy)->from.device) &&                             \
	 side_on_device((copy)->to.type, (copy)->to.device))

/* Several copies at once are held if one of them is inside a GPU. */
static bool any_inside(const CUdeviceptr *to, const CUdeviceptr *from, size_t count)
{
	for (size_t i = 0; cuda_active && to && from && i < count; i++)
		if (inside(to[i], from[i]))
			return true;
	return false;
}

static uint64_t sum(const size_t *sizes, size_t count)
{
	uint64_t bytes = 0;
	for (size_t i = 0; sizes && i < count; i++)
		bytes += sizes[i];
	return bytes;
}

#define MOVE(symbol, per_thread, stream, held, kind, bytes, parameters, ...)                                           \
	GATED(symbol, per_thread, stream, held, key_of(kind, bytes), parameters, __VA_ARGS__)
/* The plain form of a name, and the one in which a NULL stream is the thread's own. */
#define MOVES(symbol, suffix, stream, held, kind, bytes, parameters, ...)                                              \
	MOVE(symbol, false, stream, held, kind, bytes, parameters, __VA_ARGS__)                                         \
	MOVE(symbol##suffix, true, stream, held, kind, bytes, parameters, __VA_ARGS__)
#define PLAIN (CUdeviceptr to, CUdeviceptr from, size_t size)
#define ASYNC (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
#define OLD (unsigned to, unsigned from, unsigned size)

MOVES(cuMemcpy, _ptds, NULL, inside(to, from), COPY, size, PLAIN, to, from, size)
MOVES(cuMemcpyAsync, _ptsz, stream, inside(to, from), COPY, size, ASYNC, to, from, size, stream)
MOVES(cuMemcpyWithAttributesAsync, _ptsz, stream, inside(to, from), COPY, size,
      (CUdeviceptr to, CUdeviceptr from, size_t size, void *attributes, CUstream stream), to, from, size, attributes, stream)
MOVES(cuMemcpyDtoD_v2, _ptds, NULL, true, COPY, size, PLAIN, to, from, size)
MOVES(cuMemcpyDtoDAsync_v2, _ptsz, stream, true, COPY, size, ASYNC, to, from, size, stream)
MOVE(cuMemcpyDtoD, false, NULL, true, COPY, size, OLD, to, from, size)
MOVE(cuMemcpyDtoDAsync, false, stream, true, COPY, size, (unsigned to, unsigned from, unsigned size, CUstream stream), to, from, size,
     stream)
#define PEER CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t size
MOVES(cuMemcpyPeer, _ptds, NULL, true, COPY, size, (PEER), to, target, from, source, size)
MOVES(cuMemcpyPeerAsync, _ptsz, stream, true, COPY, size, (PEER, CUstream stream), to, target, from, source, size, stream)

MOVES(cuMemcpyDtoA_v2, _ptds, NULL, true, COPY, bytes, (CUarray to, size_t at, CUdeviceptr from, size_t bytes), to, at, from, bytes)
MOVES(cuMemcpyAtoD_v2, _ptds, NULL, true, COPY, bytes, (CUdeviceptr to, CUarray from, size_t at, size_t bytes), to, from, at, bytes)
MOVES(cuMemcpyAtoA_v2, _ptds, NULL, true, COPY, bytes, (CUarray to, size_t at, CUarray from, size_t start, size_t bytes), to, at, from,
      start, bytes)
MOVE(cuMemcpyDtoA, false, NULL, true, COPY, bytes, (CUarray to, unsigned at, unsigned from, unsigned bytes), to, at, from, bytes)
MOVE(cuMemcpyAtoD, false, NULL, true, COPY, bytes, (unsigned to, CUarray from, unsigned at, unsigned bytes), to, from, at, bytes)
MOVE(cuMemcpyAtoA, false, NULL, true, COPY, bytes, (CUarray to, unsigned at, CUarray from, unsigned start, unsigned bytes), to, at, from,
     start, bytes)

#define ROWS ((uint64_t)c->width * c->height)
#define LAYERS ((uint64_t)c->width * c->height * c->depth)
#define OF_ROWS(symbol, suffix, type, bytes) \
	MOVES(symbol, suffix, NULL, BOTH_INSIDE(c), COPY_ROWS, bytes, (const struct type *c), c)
#define OF_ROWS_ASYNC(symbol, suffix, type, bytes) \
	MOVES(symbol, suffix, stream, BOTH_INSIDE(c), COPY_ROWS, bytes, (const struct type *c, CUstream stream), c, stream)
OF_ROWS(cuMemcpy2D_v2, _ptds, copy_2d, ROWS)
OF_ROWS(cuMemcpy2DUnaligned_v2, _ptds, copy_2d, ROWS)
OF_ROWS_ASYNC(cuMemcpy2DAsync_v2, _ptsz, copy_2d, ROWS)
OF_ROWS(cuMemcpy3D_v2, _ptds, copy_3d, LAYERS)
OF_ROWS_ASYNC(cuMemcpy3DAsync_v2, _ptsz, copy_3d, LAYERS)
OF_ROWS(cuMemcpy3DPeer, _ptds, copy_3d, LAYERS)
OF_ROWS_ASYNC(cuMemcpy3DPeerAsync, _ptsz, copy_3d, LAYERS)
#define OLD_ROWS(symbol, type, bytes) MOVE(symbol, false, NULL, BOTH_INSIDE(c), COPY_ROWS, bytes, (const struct type *c), c)
#define OLD_ROWS_ASYNC(symbol, type, bytes) \
	MOVE(symbol, false, stream, BOTH_INSIDE(c), COPY_ROWS, bytes, (const struct type *c, CUstream stream), c, stream)
OLD_ROWS(cuMemcpy2D, copy_2d_v1, ROWS)
OLD_ROWS(cuMemcpy2DUnaligned, copy_2d_v1, ROWS)
OLD_ROWS_ASYNC(cuMemcpy2DAsync, copy_2d_v1, ROWS)
OLD_ROWS(cuMemcpy3D, copy_3d_v1, LAYERS)
OLD_ROWS_ASYNC(cuMemcpy3DAsync, copy_3d_v1, LAYERS)

#define MANY CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *places, size_t attribute_count
MOVES(cuMemcpyBatchAsync, _ptsz, stream, any_inside(to, from, count), COPY_MANY, sum(sizes, count),
      (MANY, size_t *failed, CUstream stream), to, from, sizes, count, attributes, places, attribute_count, failed, stream)
MOVES(cuMemcpyBatchAsync_v2, _ptsz, stream, any_inside(to, from, count), COPY_MANY, sum(sizes, count), (MANY, CUstream stream), to,
      from, sizes, count, attributes, places, attribute_count, stream)
/* Where the sides of these are is not looked up. */
MOVES(cuMemcpy3DBatchAsync, _ptsz, stream, true, COPY_MANY, count,
      (size_t count, void *copies, size_t *failed, unsigned long long flags, CUstream stream), count, copies, failed, flags, stream)
MOVES(cuMemcpy3DBatchAsync_v2, _ptsz, stream, true, COPY_MANY, count,
      (size_t count, void *copies, unsigned long long flags, CUstream stream), count, copies, flags, stream)
MOVES(cuMemcpy3DWithAttributesAsync, _ptsz, stream, true, COPY_MANY, 1, (void *copy, unsigned long long flags, CUstream stream), copy,
      flags, stream)

#define FILLS(bits, type)                                                                                              \
	MOVES(cuMemsetD##bits##_v2, _ptds, NULL, true, FILL, count * (bits / 8),                                        \
	      (CUdeviceptr address, type value, size_t count), address, value, count)                                  \
	MOVES(cuMemsetD##bits##Async, _ptsz, stream, true, FILL, count * (bits / 8),                                    \
	      (CUdeviceptr address, type value, size_t count, CUstream stream), address, value, count, stream)         \
	MOVES(cuMemsetD2D##bits##_v2, _ptds, NULL, true, FILL_ROWS, width * height * (bits / 8),                        \
	      (CUdeviceptr address, size_t pitch, type value, size_t width, size_t height), address, pitch, value, width, height) \
	MOVES(cuMemsetD2D##bits##Async, _ptsz, stream, true, FILL_ROWS, width * height * (bits / 8),                    \
	      (CUdeviceptr address, size_t pitch, type value, size_t width, size_t height, CUstream stream), address,  \
	      pitch, value, width, height, stream)                                                                     \
	MOVE(cuMemsetD##bits, false, NULL, true, FILL, (uint64_t)count * (bits / 8),                                    \
	     (unsigned address, type value, unsigned count), address, value, count)                                    \
	MOVE(cuMemsetD2D##bits, false, NULL, true, FILL_ROWS, (uint64_t)width * height * (bits / 8),                    \
	     (unsigned address, unsigned pitch, type value, unsigned width, unsigned height), address, pitch, value, width, height)
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)

/* Arrays, whose size the driver does not tell beforehand: computed, with rows padded to 512 bytes. */
#include "cuda.h"

#define LAYERED 0x01u
#define CUBEMAP 0x04u
#define WITHOUT_MEMORY 0xc0u /* sparse, or mapped later: their memory comes from cuMemCreate */

static uint64_t element(int format, unsigned channels)
{
	static const unsigned char sizes[] = {[0x01] = 1, [0x02] = 2, [0x03] = 4, [0x08] = 1,
					      [0x09] = 2, [0x0a] = 4, [0x10] = 2, [0x20] = 4};
	unsigned one = format >= 0 && format <= 0x20 ? sizes[format] : 0;
	/* The formats behind these say the channels themselves; none is larger than 16 bytes. */
	return one ? (uint64_t)one * (channels ? channels : 1) : 16;
}

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t result;
	return __builtin_mul_overflow(a, b ? b : 1, &result) ? UINT64_MAX : result;
}

static uint64_t size_of(const struct array3d_descriptor *wanted)
{
	uint64_t row = times(wanted->width, element(wanted->format, wanted->channels));
	row = row > UINT64_MAX - 511 ? UINT64_MAX : (row + 511) / 512 * 512;
	return memory_rounded(times(times(row, wanted->height), wanted->depth));
}

static uint64_t half(uint64_t size)
{
	return size > 1 ? size / 2 : size;
}

static uint64_t size_of_levels(struct array3d_descriptor level, unsigned levels)
{
	uint64_t sum = 0;
	bool layered = level.flags & (LAYERED | CUBEMAP); /* whose depth is a number of layers or faces */
	for (unsigned i = 0; i < levels && i < 64; i++) {
		uint64_t size = size_of(&level);
		sum = size > UINT64_MAX - sum ? UINT64_MAX : sum + size;
		level.width = half(level.width);
		level.height = half(level.height);
		if (!layered)
			level.depth = half(level.depth);
	}
	return sum;
}

/* First phase: false if it does not fit. `held` keeps gpu -1 where nothing is charged. */
static bool take(struct held *held, uint64_t bytes)
{
	CUcontext context = NULL;
	int gpu = cuda_current(&context);
	*held = (struct held){bytes, context, gpu};
	return gpu < 0 || memory_take(gpu, bytes);
}

#define CREATE(symbol, kind, bytes, ...)                                                                               \
	struct held held;                                                                                               \
	NEED_REAL(symbol);                                                                                              \
	if (!wanted || !array)                                                                                          \
		return REAL(symbol)(__VA_ARGS__);                                                                       \
	if (!take(&held, bytes))                                                                                        \
		return CUDA_OUT_OF_MEMORY;                                                                              \
	CUresult result = REAL(symbol)(__VA_ARGS__);                                                                    \
	if (held.gpu < 0)                                                                                               \
		return result;                                                                                          \
	return memory_settle(result, kind, result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*array : 0, held)

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const struct array_descriptor *wanted)
{
	CREATE(cuArrayCreate_v2, KIND_ARRAY,
	       size_of(&(struct array3d_descriptor){wanted->width, wanted->height, 1, wanted->format, wanted->channels, 0}),
	       array, wanted);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const struct array3d_descriptor *wanted)
{
	CREATE(cuArray3DCreate_v2, KIND_ARRAY, wanted->flags & WITHOUT_MEMORY ? 0 : size_of(wanted), array, wanted);
}

/* Of before CUDA 3.2, see legacy.c. */
EXPORT CUresult cuArrayCreate(CUarray *array, const struct array_descriptor_v1 *wanted)
{
	CREATE(cuArrayCreate, KIND_ARRAY,
	       size_of(&(struct array3d_descriptor){wanted->width, wanted->height, 1, wanted->format, wanted->channels, 0}),
	       array, wanted);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const struct array3d_descriptor_v1 *wanted)
{
	CREATE(cuArray3DCreate, KIND_ARRAY,
	       wanted->flags & WITHOUT_MEMORY
		       ? 0
		       : size_of(&(struct array3d_descriptor){wanted->width, wanted->height, wanted->depth, wanted->format,
							      wanted->channels, wanted->flags}),
	       array, wanted);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const struct array3d_descriptor *wanted, unsigned levels)
{
	CREATE(cuMipmappedArrayCreate, KIND_MIPMAP, wanted->flags & WITHOUT_MEMORY ? 0 : size_of_levels(*wanted, levels),
	       array, wanted, levels);
}

#define DESTROY(symbol, type, kind)                                                                                    \
	EXPORT CUresult symbol(type array)                                                                              \
	{                                                                                                               \
		struct held held;                                                                                       \
		NEED_REAL(symbol);                                                                                      \
		bool ours = cuda_active && track_begin_take(kind, (uint64_t)(uintptr_t)array, &held);                   \
		CUresult result = REAL(symbol)(array);                                                                  \
		if (ours && result == CUDA_SUCCESS)                                                                     \
			slots_give_end(held.gpu, held.bytes);                                                           \
		else if (ours)                                                                                          \
			track_put_end(kind, (uint64_t)(uintptr_t)array, held);                                          \
		else if (cuda_active)                                                                                   \
			slots_end_change();                                                                             \
		return result;                                                                                          \
	}
DESTROY(cuArrayDestroy, CUarray, KIND_ARRAY)
DESTROY(cuMipmappedArrayDestroy, CUmipmappedArray, KIND_MIPMAP)

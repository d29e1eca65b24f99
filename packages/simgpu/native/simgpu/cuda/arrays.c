/* CUDA arrays: they take memory and can be described; copies to and from them and textures are not there. */
#include "cuda.h"

#include <stdlib.h>

#define LAYERED 0x01u
#define CUBEMAP 0x04u

struct array_descriptor {
	size_t width, height;
	int format;
	unsigned channels;
};

struct array3d_descriptor {
	size_t width, height, depth;
	int format;
	unsigned channels, flags;
};

typedef struct array {
	uint32_t magic;
	struct array3d_descriptor described;
	uint64_t address;
} *CUarray;

typedef struct mipmap {
	uint32_t magic;
	unsigned levels;
	uint64_t address;
} *CUmipmappedArray;

static uint64_t bytes_of(const struct array3d_descriptor *wanted)
{
	static const uint8_t sizes[0x21] = {[1] = 1, [2] = 2, [3] = 4, [8] = 1, [9] = 2, [10] = 4, [0x10] = 2, [0x20] = 4};
	unsigned element = wanted->format > 0 && wanted->format <= 0x20 ? sizes[wanted->format] : 0;
	uint64_t height = wanted->height ? wanted->height : 1, depth = wanted->depth ? wanted->depth : 1;
	if (!element || !wanted->width || wanted->width > 1 << 20 || height > 1 << 20 || depth > 1 << 14)
		return 0;
	if (wanted->channels != 1 && wanted->channels != 2 && wanted->channels != 4)
		return 0;
	return (wanted->width * element * wanted->channels + 511) / 512 * 512 * height * depth;
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *result, const struct array3d_descriptor *wanted)
{
	NEED(result && wanted && bytes_of(wanted));
	CONTEXT(context);
	SAFE();
	struct array *array = calloc(1, sizeof *array);
	if (!array)
		return CUDA_OUT_OF_MEMORY;
	*array = (struct array){.magic = MAGIC_ARRAY, .described = *wanted};
	CUresult status = cuda_allocate(context, bytes_of(wanted), KIND_DEVICE, 0, NULL, &array->address);
	if (status == CUDA_SUCCESS)
		*result = array;
	else
		free(array);
	return status;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *result, const struct array_descriptor *wanted)
{
	NEED(wanted);
	return cuArray3DCreate_v2(
		result, &(struct array3d_descriptor){wanted->width, wanted->height, 0, wanted->format, wanted->channels, 0});
}

/* The forms of before CUDA 3.2, with sizes of 32 bits. */
struct array3d_descriptor_v1 {
	unsigned width, height, depth;
	int format;
	unsigned channels, flags;
};

struct array_descriptor_v1 {
	unsigned width, height;
	int format;
	unsigned channels;
};

EXPORT CUresult cuArray3DCreate(CUarray *result, const struct array3d_descriptor_v1 *wanted)
{
	NEED(wanted);
	return cuArray3DCreate_v2(result, &(struct array3d_descriptor){wanted->width, wanted->height, wanted->depth,
								       wanted->format, wanted->channels, wanted->flags});
}

EXPORT CUresult cuArrayCreate(CUarray *result, const struct array_descriptor_v1 *wanted)
{
	NEED(wanted);
	return cuArray3DCreate_v2(
		result, &(struct array3d_descriptor){wanted->width, wanted->height, 0, wanted->format, wanted->channels, 0});
}

#define ARRAY(array)                                                                                                   \
	READY();                                                                                                        \
	if (!(array) || (array)->magic != MAGIC_ARRAY)                                                                  \
	return CUDA_INVALID_HANDLE

EXPORT CUresult cuArrayDestroy(CUarray array)
{
	ARRAY(array);
	SAFE();
	CUresult result = cuda_release(array->address, false);
	array->magic = 0;
	free(array);
	return result;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(struct array3d_descriptor *described, CUarray array)
{
	NEED(described);
	ARRAY(array);
	*described = array->described;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetDescriptor_v2(struct array_descriptor *described, CUarray array)
{
	NEED(described);
	ARRAY(array);
	const struct array3d_descriptor *all = &array->described;
	*described = (struct array_descriptor){all->width, all->height, all->format, all->channels};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *result, const struct array3d_descriptor *wanted, unsigned levels)
{
	NEED(result && wanted && levels && levels < 32 && bytes_of(wanted));
	CONTEXT(context);
	SAFE();
	struct array3d_descriptor level = *wanted;
	uint64_t sum = 0;
	for (unsigned i = 0; i < levels; i++) {
		sum += bytes_of(&level);
		level.width = level.width > 1 ? level.width / 2 : 1;
		level.height = level.height > 1 ? level.height / 2 : level.height;
		if (!(level.flags & (LAYERED | CUBEMAP))) /* their depth is a number of layers or faces */
			level.depth = level.depth > 1 ? level.depth / 2 : level.depth;
	}
	struct mipmap *mipmap = calloc(1, sizeof *mipmap);
	if (!mipmap)
		return CUDA_OUT_OF_MEMORY;
	*mipmap = (struct mipmap){.magic = MAGIC_MIPMAP, .levels = levels};
	CUresult status = cuda_allocate(context, sum, KIND_DEVICE, 0, NULL, &mipmap->address);
	if (status == CUDA_SUCCESS)
		*result = mipmap;
	else
		free(mipmap);
	return status;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	READY();
	if (!mipmap || mipmap->magic != MAGIC_MIPMAP)
		return CUDA_INVALID_HANDLE;
	SAFE();
	CUresult result = cuda_release(mipmap->address, false);
	mipmap->magic = 0;
	free(mipmap);
	return result;
}

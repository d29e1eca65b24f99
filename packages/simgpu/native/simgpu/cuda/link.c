/*
 * Linking: several texts become one module, whose functions call each other. A text is checked when it is added, missing
 * functions when the link is completed; both write the compiler's log where cuLinkCreate got a place.
 */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_CUBIN, INPUT_PTX, INPUT_FAT, INPUT_OBJECT, INPUT_LIBRARY, INPUT_NVVM, INPUTS };

typedef struct link {
	uint32_t magic;
	struct context *context;
	unsigned option_count;
	int *options;
	void **values; /* the caller's: logs go there, */
	void *log_size; /* which have this much room */
	char *text;
	size_t length;
	void *image; /* the caller's until the link ends */
} *CUlinkState;

#define LINK(handle)                                                                                                   \
	READY();                                                                                                        \
	if (!(handle) || (handle)->magic != MAGIC_LINK)                                                                 \
	return CUDA_INVALID_HANDLE

EXPORT CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *result)
{
	NEED(result && (!count || (options && values)));
	CONTEXT(context);
	struct link *link = calloc(1, sizeof *link);
	if (link)
		link->options = calloc(count + 1, sizeof *link->options);
	if (!link || !link->options) {
		free(link);
		return CUDA_OUT_OF_MEMORY;
	}
	link->magic = MAGIC_LINK;
	link->context = context;
	link->option_count = count;
	for (unsigned i = 0; i < count; i++)
		if (options[i] == CUDA_JIT_ERROR_LOG_SIZE)
			link->log_size = values[i];
	link->values = values;
	if (count)
		memcpy(link->options, options, count * sizeof *options);
	*result = link;
	return CUDA_SUCCESS;
}

static CUresult check(struct link *link, const char *text, bool whole)
{
	char message[256];
	struct ptx_module *ptx;
	CUresult result = cuda_compile(link->context->device, text, whole, &ptx, message, sizeof message);
	/* The size that is passed in comes back as the length of the log. */
	for (unsigned i = 0; i < link->option_count; i++)
		if (link->options[i] == CUDA_JIT_ERROR_LOG_SIZE)
			link->values[i] = link->log_size;
	cuda_write_log(link->option_count, link->options, link->values, message);
	ptx_free(ptx);
	return result;
}

static CUresult add(struct link *link, int type, const char *image, size_t size)
{
	char *text = NULL;
	CUresult result = CUDA_SUCCESS;
	NEED(type >= 0 && type < INPUTS && image && size);
	/* Objects and libraries hold machine code that is still to be linked; there is none for this GPU. */
	if (type == INPUT_OBJECT || type == INPUT_LIBRARY)
		return CUDA_NO_BINARY_FOR_GPU;
	if (type == INPUT_NVVM)
		return CUDA_NOT_SUPPORTED;
	if (type == INPUT_PTX)
		text = strndup(image, size);
	else
		result = cuda_image_text(image, link->context->device, &text);
	if (result == CUDA_SUCCESS && !text)
		result = CUDA_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		result = check(link, text, false);
	size_t length = text ? strlen(text) : 0;
	char *longer = result == CUDA_SUCCESS ? realloc(link->text, link->length + length + 2) : NULL;
	if (longer) {
		memcpy(longer + link->length, text, length);
		memcpy(longer + link->length + length, "\n", 2);
		link->text = longer;
		link->length += length + 1;
	} else if (result == CUDA_SUCCESS) {
		result = CUDA_OUT_OF_MEMORY;
	}
	free(text);
	return result;
}

EXPORT CUresult cuLinkAddData_v2(CUlinkState link, int type, void *data, size_t size, const char *name, unsigned count,
				 int *options, void **values)
{
	LINK(link);
	(void)name; /* for messages that the simulated compiler does not write */
	(void)options;
	(void)values;
	(void)count;
	return add(link, type, data, size);
}

EXPORT CUresult cuLinkAddFile_v2(CUlinkState link, int type, const char *path, unsigned count, int *options, void **values)
{
	NEED(path);
	LINK(link);
	(void)options;
	(void)values;
	(void)count;
	size_t size = 0;
	char *data = cuda_read_file(path, &size);
	if (!data)
		return CUDA_FILE_NOT_FOUND;
	CUresult result = add(link, type, data, size);
	free(data);
	return result;
}

EXPORT CUresult cuLinkComplete(CUlinkState link, void **image, size_t *size)
{
	size_t ignored;
	NEED(image);
	LINK(link);
	NEED(link->text && !link->image);
	CUresult result = check(link, link->text, true);
	if (result != CUDA_SUCCESS)
		return result;
	link->image = cuda_image_make(link->text, size ? size : &ignored);
	*image = link->image;
	return link->image ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

EXPORT CUresult cuLinkDestroy(CUlinkState link)
{
	LINK(link);
	link->magic = 0;
	free(link->options);
	free(link->text);
	free(link->image);
	free(link);
	return CUDA_SUCCESS;
}

/* The forms of CUDA 5.5 have the same parameters on 64 bits. */
EXPORT CUresult cuLinkCreate(unsigned count, int *options, void **values, CUlinkState *result)
{
	return cuLinkCreate_v2(count, options, values, result);
}

EXPORT CUresult cuLinkAddData(CUlinkState link, int type, void *data, size_t size, const char *name, unsigned count,
			      int *options, void **values)
{
	return cuLinkAddData_v2(link, type, data, size, name, count, options, values);
}

EXPORT CUresult cuLinkAddFile(CUlinkState link, int type, const char *path, unsigned count, int *options, void **values)
{
	return cuLinkAddFile_v2(link, type, path, count, options, values);
}

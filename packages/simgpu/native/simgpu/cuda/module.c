/* Modules: PTX text into kernels and variables of a context; libraries, which are modules for any context. */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_INFO_LOG = 3, OPTION_INFO_SIZE = 4, OPTION_ERROR_LOG = 5, OPTION_ERROR_SIZE = CUDA_JIT_ERROR_LOG_SIZE };

/* A library of kernels that is loaded into each context when a kernel of it is first used there. */
typedef struct library {
	uint32_t magic;
	char *image;
	struct kernel *kernels;
	uint32_t count;
} *CUlibrary;

typedef struct kernel {
	uint32_t magic;
	char *name;
	struct library *library;
	struct module *module; /* in the context it was used in last */
} *CUkernel;

void cuda_write_log(unsigned count, const int *options, void **values, const char *text)
{
	char *buffer = NULL;
	size_t size = 0;
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == OPTION_ERROR_LOG)
			buffer = values[i];
		if (options[i] == OPTION_ERROR_SIZE)
			size = (size_t)(uintptr_t)values[i];
	}
	if (!buffer || !size)
		return;
	snprintf(buffer, size, "%s", text);
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == OPTION_ERROR_SIZE)
			values[i] = (void *)(uintptr_t)strlen(buffer);
		if (options[i] == OPTION_INFO_SIZE)
			values[i] = NULL;
	}
}

/* The newest PTX version that a driver for this CUDA version understands. */
static uint32_t newest_ptx(uint32_t cuda)
{
	static const struct { uint32_t cuda, ptx; } table[] = {
		{13010, 91}, {13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85}, {12040, 84}, {12030, 83},
		{12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}, {11070, 77}, {11060, 76}, {11050, 75}, {11040, 74},
		{11030, 73}, {11020, 72}, {11010, 71}, {11000, 70}, {10020, 65}, {0, 60},
	};
	for (size_t i = 0;; i++)
		if (cuda >= table[i].cuda)
			return table[i].ptx;
}

CUresult cuda_compile(CUdevice device, const char *text, bool whole, struct ptx_module **ptx, char *message, size_t size)
{
	*message = 0;
	*ptx = NULL;
	struct ptx_error error;
	struct ptx_module *found = ptx_parse(text, strlen(text), whole, &error);
	if (!found) {
		snprintf(message, size, "ptxas application ptx input, line %u; error   : %s", error.line, error.message);
		return CUDA_INVALID_PTX;
	}
	const struct simgpu_gpu *gpu = cuda_gpu(device);
	CUresult result = CUDA_SUCCESS;
	if (found->version > newest_ptx(cuda_view.state->cuda_version)) {
		snprintf(message, size, "ptxas application ptx input; fatal   : unsupported .version %u.%u", found->version / 10,
			 found->version % 10);
		result = CUDA_UNSUPPORTED_PTX_VERSION;
	} else if (found->target > gpu->compute_major * 10 + gpu->compute_minor) {
		snprintf(message, size, "ptxas application ptx input; fatal   : .target sm_%u is newer than this GPU, sm_%u%u",
			 found->target, gpu->compute_major, gpu->compute_minor);
		result = CUDA_INVALID_PTX;
	}
	if (result != CUDA_SUCCESS)
		ptx_free(found);
	else
		*ptx = found;
	return result;
}

/* The PTX in an image, to be freed, and what it means. */
static CUresult parse(CUdevice device, const void *image, char **text, struct ptx_module **ptx, char *message, size_t size)
{
	*ptx = NULL;
	*message = 0;
	CUresult result = cuda_image_text(image, device, text);
	if (result == CUDA_NO_BINARY_FOR_GPU)
		snprintf(message, size, "simulated GPUs run PTX only, no machine code");
	if (result == CUDA_SUCCESS)
		result = cuda_compile(device, *text, true, ptx, message, size);
	if (result != CUDA_SUCCESS) {
		free(*text);
		*text = NULL;
	}
	return result;
}

static void place_image(uint64_t base, const struct ptx_module *ptx)
{
	uint8_t *image = cuda_bytes(base, ptx->image_size, false);
	memcpy(image, ptx->image, ptx->image_size);
	for (uint32_t i = 0; i < ptx->address_count; i++) {
		uint64_t value;
		memcpy(&value, image + ptx->addresses[i], sizeof value);
		value += base;
		memcpy(image + ptx->addresses[i], &value, sizeof value);
	}
}

CUresult cuda_load(struct context *context, const char *image, unsigned count, const int *options, void **values, struct module **result)
{
	struct ptx_module *ptx;
	char message[256], *text;
	context = cuda_root(context);
	CUresult status = parse(context->device, image, &text, &ptx, message, sizeof message);
	cuda_write_log(count, options, values, message);
	if (status != CUDA_SUCCESS)
		return status;
	free(text);
	struct module *module = calloc(1, sizeof *module);
	struct function *functions = calloc(ptx->kernel_count + 1, sizeof *functions);
	if (!module || !functions)
		status = CUDA_OUT_OF_MEMORY;
	else if (ptx->image_size)
		status = cuda_allocate(context, ptx->image_size, KIND_DEVICE, 0, NULL, &module->base);
	if (status != CUDA_SUCCESS) {
		free(module);
		free(functions);
		ptx_free(ptx);
		return status;
	}
	if (ptx->image_size)
		place_image(module->base, ptx);
	module->magic = MAGIC_MODULE;
	module->context = context;
	module->ptx = ptx;
	module->functions = functions;
	for (uint32_t i = 0; i < ptx->kernel_count; i++)
		functions[i] = (struct function){.magic = MAGIC_FUNCTION, .kernel = &ptx->kernels[i], .module = module,
						 .dynamic_shared_limit = 49152, .carveout = -1};
	pthread_mutex_lock(&cuda_guard);
	module->next = context->modules;
	context->modules = module;
	pthread_mutex_unlock(&cuda_guard);
	*result = module;
	return CUDA_SUCCESS;
}

void cuda_module_free(struct module *module)
{
	for (struct module **at = &module->context->modules; *at; at = &(*at)->next)
		if (*at == module) {
			*at = module->next;
			break;
		}
	if (module->base)
		cuda_release(module->base, false);
	module->magic = 0;
	for (uint32_t i = 0; i < module->ptx->kernel_count; i++)
		module->functions[i].magic = 0;
	ptx_free(module->ptx);
	free(module->functions);
	free(module);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
	NEED(module && image && (!count || (options && values)));
	CONTEXT(context);
	SAFE();
	return cuda_load(context, image, count, options, values, module);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

char *cuda_read_file(const char *path, size_t *size)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t length = 0;
	for (size_t room = 65536; file; room *= 2) {
		char *larger = realloc(text, room + 1);
		if (!larger)
			break;
		text = larger;
		length += fread(text + length, 1, room - length, file);
		text[length] = 0;
		if (length < room || room > 64u << 20)
			break;
	}
	if (file)
		fclose(file);
	*size = length;
	return text;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	NEED(module && path);
	CONTEXT(context);
	SAFE();
	size_t length;
	char *text = cuda_read_file(path, &length);
	if (!text)
		return CUDA_FILE_NOT_FOUND;
	CUresult result = cuda_load(context, text, 0, NULL, NULL, module);
	free(text);
	return result;
}

#define MODULE(handle)                                                                                                 \
	READY();                                                                                                        \
	if (!(handle) || (handle)->magic != MAGIC_MODULE)                                                               \
	return CUDA_INVALID_HANDLE

EXPORT CUresult cuModuleUnload(CUmodule module)
{
	MODULE(module);
	SAFE();
	cuda_wait_context(module->context);
	pthread_mutex_lock(&cuda_guard);
	cuda_module_free(module);
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
	NEED(mode);
	READY();
	*mode = 1; /* everything is loaded at once */
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	NEED(function && name && *name);
	MODULE(module);
	for (uint32_t i = 0; i < module->ptx->kernel_count; i++) {
		if (strcmp(module->ptx->kernels[i].name, name))
			continue;
		*function = &module->functions[i];
		return CUDA_SUCCESS;
	}
	return CUDA_NOT_FOUND;
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module)
{
	NEED(count);
	MODULE(module);
	*count = module->ptx->kernel_count;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module)
{
	NEED(functions);
	MODULE(module);
	for (unsigned i = 0; i < count && i < module->ptx->kernel_count; i++)
		functions[i] = &module->functions[i];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
	NEED(name);
	MODULE(module);
	for (uint32_t i = 0; i < module->ptx->variable_count; i++) {
		const struct ptx_variable *variable = &module->ptx->variables[i];
		if (strcmp(variable->name, name))
			continue;
		if (address)
			*address = module->base + variable->offset;
		if (size)
			*size = variable->size;
		return CUDA_SUCCESS;
	}
	return CUDA_NOT_FOUND;
}

/* The runtime wants the handles of all textures of a module when it loads it. A call that binds one is refused. */
EXPORT CUresult cuModuleGetTexRef(void **texture, CUmodule module, const char *name)
{
	NEED(texture && name);
	MODULE(module);
	for (uint32_t i = 0; i < module->ptx->variable_count; i++) {
		if (strcmp(module->ptx->variables[i].name, name))
			continue;
		*texture = &module->ptx->variables[i];
		return CUDA_SUCCESS;
	}
	return CUDA_NOT_FOUND;
}

static void free_library(struct library *library)
{
	for (uint32_t i = 0; i < library->count; i++)
		free(library->kernels[i].name);
	free(library->kernels);
	free(library->image);
	library->magic = 0;
	free(library);
}

static CUresult make_library(CUlibrary *result, const char *image, unsigned count, const int *options, void **values)
{
	struct ptx_module *ptx;
	char message[256], *text;
	CUresult status = parse(0, image, &text, &ptx, message, sizeof message);
	cuda_write_log(count, options, values, message);
	if (status != CUDA_SUCCESS)
		return status;
	struct library *library = calloc(1, sizeof *library);
	if (library) {
		library->magic = MAGIC_LIBRARY;
		library->image = text;
		library->kernels = calloc(ptx->kernel_count + 1, sizeof *library->kernels);
	} else {
		free(text);
	}
	bool whole = library && library->image && library->kernels;
	for (uint32_t i = 0; whole && i < ptx->kernel_count; i++) {
		library->kernels[i] = (struct kernel){.magic = MAGIC_KERNEL, .library = library, .name = strdup(ptx->kernels[i].name)};
		whole = library->kernels[i].name != NULL;
		library->count = i + 1;
	}
	ptx_free(ptx);
	if (whole)
		*result = library;
	else if (library)
		free_library(library);
	return whole ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *options, void **values, unsigned count,
				  int *library_options, void **library_values, unsigned library_count)
{
	NEED(library && image && (!count || (options && values)));
	READY();
	(void)library_options; /* how to keep the binary: there is none */
	(void)library_values;
	(void)library_count;
	return make_library(library, image, count, options, values);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *options, void **values, unsigned count,
				      int *library_options, void **library_values, unsigned library_count)
{
	NEED(library && path);
	READY();
	size_t length;
	char *text = cuda_read_file(path, &length);
	if (!text)
		return CUDA_FILE_NOT_FOUND;
	CUresult result = cuLibraryLoadData(library, text, options, values, count, library_options, library_values, library_count);
	free(text);
	return result;
}

#define LIBRARY(handle)                                                                                                \
	READY();                                                                                                        \
	if (!(handle) || (handle)->magic != MAGIC_LIBRARY)                                                              \
	return CUDA_INVALID_HANDLE

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	LIBRARY(library);
	free_library(library);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	NEED(kernel && name);
	LIBRARY(library);
	for (uint32_t i = 0; i < library->count; i++) {
		if (strcmp(library->kernels[i].name, name))
			continue;
		*kernel = &library->kernels[i];
		return CUDA_SUCCESS;
	}
	return CUDA_NOT_FOUND;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
	NEED(count);
	LIBRARY(library);
	*count = library->count;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library)
{
	NEED(kernels);
	LIBRARY(library);
	for (unsigned i = 0; i < count && i < library->count; i++)
		kernels[i] = &library->kernels[i];
	return CUDA_SUCCESS;
}

/* The module of a library in the current context. All its kernels share one, so that they share its variables. */
static CUresult module_here(struct library *library, struct module **module)
{
	CONTEXT(context);
	for (uint32_t i = 0; i < library->count; i++) {
		*module = library->kernels[i].module;
		for (struct module *live = cuda_root(context)->modules; live; live = live->next)
			if (live == *module)
				return CUDA_SUCCESS;
	}
	CUresult result = cuda_load(context, library->image, 0, NULL, NULL, module);
	for (uint32_t i = 0; result == CUDA_SUCCESS && i < library->count; i++)
		library->kernels[i].module = *module;
	return result;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	NEED(module);
	LIBRARY(library);
	return module_here(library, module);
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
	struct module *module;
	LIBRARY(library);
	CUresult result = module_here(library, &module);
	return result == CUDA_SUCCESS ? cuModuleGetGlobal_v2(address, size, module, name) : result;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	struct module *module;
	NEED(function);
	READY();
	if (!kernel || kernel->magic != MAGIC_KERNEL)
		return CUDA_INVALID_HANDLE;
	CUresult result = module_here(kernel->library, &module);
	return result == CUDA_SUCCESS ? cuModuleGetFunction(function, module, kernel->name) : result;
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	NEED(library);
	READY();
	if (!kernel || kernel->magic != MAGIC_KERNEL)
		return CUDA_INVALID_HANDLE;
	*library = kernel->library;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	NEED(name);
	READY();
	if (!kernel || kernel->magic != MAGIC_KERNEL)
		return CUDA_INVALID_HANDLE;
	*name = kernel->name;
	return CUDA_SUCCESS;
}

/* A CUkernel may stand where a CUfunction is wanted. */
CUresult cuda_function(CUfunction handle, struct function **function)
{
	READY();
	if (handle && handle->magic == MAGIC_KERNEL)
		return cuKernelGetFunction(function, (CUkernel)handle);
	if (!handle || handle->magic != MAGIC_FUNCTION)
		return CUDA_INVALID_HANDLE;
	*function = handle;
	return CUDA_SUCCESS;
}

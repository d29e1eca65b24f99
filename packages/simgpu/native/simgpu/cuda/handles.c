/*
 * Virtual memory management: addresses are reserved, physical memory is created by handle, and the one is mapped to the
 * other. A handle's bytes lie in a memory file, so that another process can import them.
 */
#include "cuda.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GRANULARITY (2ull << 20)
#define HANDLE_FILE 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */

struct location {
	int type, id;
};

struct properties {
	int type, handle_types;
	struct location location;
	void *security;
	uint8_t flags[8];
};

struct access {
	struct location location;
	int flags;
};

/* Lives while it has references or mappings. An imported handle is not charged: its exporter's process is. */
struct block {
	uint32_t magic;
	CUdevice device;
	uint64_t size, charged;
	int file;
	uint8_t *host;
	unsigned references, mappings;
	struct block *next;
	struct properties properties;
};

struct mapping {
	uint64_t address;
	struct block *block;
	struct mapping *next;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;

static void let_go(struct block *block)
{
	if (block->references || block->mappings)
		return;
	if (block->charged)
		simgpu_uncharge(&cuda_view, cuda_devices[block->device].gpu, block->charged);
	munmap(block->host, block->size);
	close(block->file);
	block->magic = 0;
	free(block);
}

static CUresult make(struct block wanted, uint64_t *handle)
{
	struct block *block = malloc(sizeof *block);
	wanted.host = block ? mmap(NULL, wanted.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, wanted.file, 0) : MAP_FAILED;
	if (wanted.host == MAP_FAILED) {
		free(block);
		return CUDA_OUT_OF_MEMORY;
	}
	*block = wanted;
	*handle = (uint64_t)(uintptr_t)block;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const struct properties *properties, int option)
{
	NEED(granularity && properties && (option == 0 || option == 1));
	READY();
	*granularity = GRANULARITY;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemCreate(uint64_t *handle, size_t size, const struct properties *properties, unsigned long long flags)
{
	NEED(handle && properties && size && size % GRANULARITY == 0 && !flags && properties->type == 1);
	if (properties->location.type != 1 || properties->handle_types & ~HANDLE_FILE)
		return CUDA_NOT_SUPPORTED;
	CUdevice device = properties->location.id;
	CUresult result = cuda_valid_device(device);
	if (result != CUDA_SUCCESS)
		return result;
	SAFE();
	uint32_t gpu = cuda_devices[device].gpu;
	cuda_take_allocation_time(device);
	if (size > 1ull << 46 || !simgpu_charge(&cuda_view, gpu, cuda_instance(device), size, cuda_capacity(device)))
		return CUDA_OUT_OF_MEMORY;
	int file = (int)syscall(SYS_memfd_create, "simgpu", 1u /* close on exec */);
	if (file >= 0 && ftruncate(file, (off_t)size) == 0)
		result = make((struct block){.magic = MAGIC_BLOCK, .device = device, .size = size, .charged = size, .file = file,
					     .references = 1, .properties = *properties}, handle);
	else
		result = CUDA_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS) {
		simgpu_uncharge(&cuda_view, gpu, size);
		if (file >= 0)
			close(file);
	}
	return result;
}

#define BLOCK(handle)                                                                                                  \
	struct block *block = (struct block *)(uintptr_t)(handle);                                                      \
	READY();                                                                                                        \
	if (!block || block->magic != MAGIC_BLOCK)                                                                      \
	return CUDA_INVALID_VALUE

EXPORT CUresult cuMemRelease(uint64_t handle)
{
	BLOCK(handle);
	pthread_mutex_lock(&guard);
	bool held = block->references > 0;
	if (held) {
		block->references--;
		let_go(block);
	}
	pthread_mutex_unlock(&guard);
	return held ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shared, uint64_t handle, int type, unsigned long long flags)
{
	NEED(shared && type == HANDLE_FILE && !flags);
	BLOCK(handle);
	NEED(block->properties.handle_types & HANDLE_FILE);
	int file = fcntl(block->file, F_DUPFD_CLOEXEC, 0);
	if (file < 0)
		return CUDA_OPERATING_SYSTEM;
	*(int *)shared = file;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type)
{
	struct stat info;
	NEED(handle && type == HANDLE_FILE);
	READY();
	int file = fcntl((int)(uintptr_t)shared, F_DUPFD_CLOEXEC, 0);
	NEED(file >= 0);
	CUresult result = CUDA_INVALID_VALUE;
	if (fstat(file, &info) == 0 && info.st_size)
		result = make((struct block){.magic = MAGIC_BLOCK, .size = (uint64_t)info.st_size, .file = file, .references = 1,
					     .properties = {1, HANDLE_FILE, {1, 0}, NULL, {0}}}, handle);
	if (result != CUDA_SUCCESS)
		close(file);
	return result;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(struct properties *properties, uint64_t handle)
{
	NEED(properties);
	BLOCK(handle);
	*properties = block->properties;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
	NEED(address && size && size % GRANULARITY == 0 && size < 1ull << 46 && alignment <= GRANULARITY && !flags);
	READY();
	(void)wanted; /* a wish, which need not be granted */
	uint8_t *all = mmap(NULL, size + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED)
		return CUDA_OUT_OF_MEMORY;
	uint8_t *start = (uint8_t *)(((uintptr_t)all + GRANULARITY - 1) / GRANULARITY * GRANULARITY);
	if (start > all)
		munmap(all, (size_t)(start - all));
	if (start < all + GRANULARITY)
		munmap(start + size, (size_t)(all + GRANULARITY - start));
	*address = (CUdeviceptr)(uintptr_t)start;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	struct allocation found;
	NEED(address && size && size % GRANULARITY == 0 && address % GRANULARITY == 0);
	READY();
	for (uint64_t at = address; at < address + size; at += GRANULARITY)
		NEED(!cuda_find(at, &found));
	munmap((void *)(uintptr_t)address, size);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
	NEED(size && address % GRANULARITY == 0 && size % GRANULARITY == 0 && !flags);
	BLOCK(handle);
	NEED(offset % GRANULARITY == 0 && offset < block->size && size <= block->size - offset);
	struct mapping *mapping = malloc(sizeof *mapping);
	if (!mapping)
		return CUDA_OUT_OF_MEMORY;
	pthread_mutex_lock(&guard);
	bool mapped = cuda_map(block->device, address, size, block->host + offset);
	if (mapped) {
		*mapping = (struct mapping){address, block, mappings};
		mappings = mapping;
		block->mappings++;
	}
	pthread_mutex_unlock(&guard);
	if (!mapped)
		free(mapping);
	return mapped ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	READY();
	NEED(size && size % GRANULARITY == 0);
	uint64_t one = GRANULARITY;
	bool any = false;
	pthread_mutex_lock(&guard);
	for (uint64_t at = address; at < address + size; at += one) {
		one = GRANULARITY;
		if (!cuda_unmap(at, &one))
			continue;
		any = true;
		for (struct mapping **next = &mappings; *next; next = &(*next)->next) {
			struct mapping *gone = *next;
			if (gone->address != at)
				continue;
			*next = gone->next;
			gone->block->mappings--;
			let_go(gone->block);
			free(gone);
			break;
		}
	}
	pthread_mutex_unlock(&guard);
	return any ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

EXPORT CUresult cuMemRetainAllocationHandle(uint64_t *handle, void *address)
{
	NEED(handle);
	READY();
	struct block *found = NULL;
	struct allocation part;
	pthread_mutex_lock(&guard);
	if (cuda_find((uint64_t)(uintptr_t)address, &part))
		for (struct mapping *mapping = mappings; mapping && !found; mapping = mapping->next)
			if (mapping->address == part.start)
				found = mapping->block;
	if (found)
		found->references++;
	pthread_mutex_unlock(&guard);
	*handle = (uint64_t)(uintptr_t)found;
	return found ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

/* All mapped memory can be used: access is checked for its arguments only. */
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const struct access *access, size_t count)
{
	struct allocation found;
	NEED(size && access && count);
	READY();
	return cuda_find(address, &found) && found.kind == KIND_MAPPED ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

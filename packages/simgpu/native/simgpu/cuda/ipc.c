/*
 * Memory of other processes, by handles: it lies in a memory file that both map. The process that allocated it is charged, and
 * what it frees lives on until the others have closed it.
 */
#include "cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LAZY_PEER_ACCESS 1u

/* A handle of 64 bytes names the process and the descriptor of its memory file. */
struct handle {
	char path[64];
};

EXPORT CUresult cuIpcGetMemHandle(struct handle *handle, CUdeviceptr address)
{
	NEED(handle);
	READY();
	int file = cuda_share(address);
	NEED(file >= 0);
	memset(handle, 0, sizeof *handle);
	snprintf(handle->path, sizeof handle->path, "/proc/%d/fd/%d", (int)getpid(), file);
	return CUDA_SUCCESS;
}

static CUresult open_file(CUdeviceptr *address, CUdevice device, int file)
{
	struct stat info;
	if (fstat(file, &info) < 0 || !info.st_size)
		return CUDA_INVALID_HANDLE;
	uint64_t size = (uint64_t)info.st_size;
	void *seen = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (seen != MAP_FAILED && host != MAP_FAILED && cuda_map(device, (uint64_t)(uintptr_t)seen, size, host)) {
		*address = (uint64_t)(uintptr_t)seen;
		return CUDA_SUCCESS;
	}
	if (seen != MAP_FAILED)
		munmap(seen, size);
	if (host != MAP_FAILED)
		munmap(host, size);
	return CUDA_OUT_OF_MEMORY;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, struct handle handle, unsigned flags)
{
	NEED(address && flags == LAZY_PEER_ACCESS && memchr(handle.path, 0, sizeof handle.path));
	NEED(!strncmp(handle.path, "/proc/", 6));
	CONTEXT(context);
	int file = open(handle.path, O_RDWR | O_CLOEXEC);
	if (file < 0)
		return CUDA_INVALID_HANDLE;
	CUresult result = open_file(address, context->device, file);
	close(file);
	return result;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *address, struct handle handle, unsigned flags)
{
	return cuIpcOpenMemHandle_v2(address, handle, flags);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	struct allocation found;
	uint64_t size;
	READY();
	NEED(cuda_find(address, &found) && found.start == address && cuda_unmap(address, &size));
	munmap((void *)(uintptr_t)address, size);
	munmap(found.host, size);
	return CUDA_SUCCESS;
}

/*
 * Allocations. Device memory has two faces: the address that programs see cannot be touched by the CPU, as on a real
 * machine; the bytes lie elsewhere. Both are reserved only, so an 80 GB GPU costs what is written to it.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ull
#ifdef MAP_32BIT
#define LOW MAP_32BIT
#else
#define LOW 0 /* no such mapping: what lies too high is given back by the caller */
#endif
#define BLOCK (2ull << 20)

static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct allocation *table; /* by address */
static size_t table_count, table_room;
static uint64_t next_id = 1;

/* The driver takes memory in blocks of 2 MiB; small allocations share one. */
uint64_t cuda_charge_of(uint64_t size)
{
	uint64_t unit = size < BLOCK / 2 ? 512 : BLOCK;
	return (size + unit - 1) / unit * unit;
}

/* The first entry that ends behind `address`. */
static size_t place_of(uint64_t address)
{
	size_t low = 0, high = table_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (table[middle].start + table[middle].size <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool insert(const struct allocation *fresh)
{
	if (table_count == table_room) {
		size_t room = table_room ? table_room * 2 : 64;
		struct allocation *larger = realloc(table, room * sizeof *table);
		if (!larger)
			return false;
		table = larger;
		table_room = room;
	}
	size_t at = place_of(fresh->start);
	memmove(table + at + 1, table + at, (table_count - at) * sizeof *table);
	table[at] = *fresh;
	table_count++;
	return true;
}

static void forget(size_t at)
{
	memmove(table + at, table + at + 1, (table_count - at - 1) * sizeof *table);
	table_count--;
}

static void unmap(const struct allocation *dead)
{
	uint64_t mapped = (dead->size + PAGE - 1) / PAGE * PAGE;
	if (dead->kind == KIND_REGISTERED)
		return;
	munmap((void *)(uintptr_t)dead->start, mapped);
	if (dead->kind < KIND_MANAGED)
		munmap(dead->host, mapped);
	if (dead->shared)
		close(dead->shared - 1);
	if (dead->charged)
		simgpu_uncharge(&cuda_view, cuda_devices[dead->device].gpu, dead->charged);
	if (dead->pool)
		__atomic_sub_fetch(&dead->pool->used, dead->charged, __ATOMIC_SEQ_CST);
}

static void *map(uint64_t size, int protection, int where)
{
	void *at = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | where, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

CUresult cuda_allocate(struct context *context, uint64_t size, enum kind kind, unsigned flags, struct pool *pool, uint64_t *address)
{
	uint64_t mapped = (size + PAGE - 1) / PAGE * PAGE;
	struct allocation fresh = {.size = size, .kind = kind, .device = context->device, .flags = flags, .context = cuda_root(context), .pool = pool};
	if (!size || size > 1ull << 46)
		return size ? CUDA_OUT_OF_MEMORY : CUDA_INVALID_VALUE;
	if (kind != KIND_HOST && kind != KIND_GRAPH) {
		fresh.charged = cuda_charge_of(size);
		cuda_take_allocation_time(context->device);
		if (!simgpu_charge(&cuda_view, cuda_devices[context->device].gpu, cuda_instance(context->device),
				   fresh.charged, cuda_capacity(context->device)))
			return CUDA_OUT_OF_MEMORY;
	}
	void *seen = map(mapped, kind < KIND_MANAGED ? PROT_NONE : PROT_READ | PROT_WRITE, flags & ALLOCATE_LOW ? LOW : 0);
	void *host = kind < KIND_MANAGED && seen ? map(mapped, PROT_READ | PROT_WRITE, 0) : seen;
	fresh.start = (uint64_t)(uintptr_t)seen;
	fresh.host = host;
	pthread_rwlock_wrlock(&table_lock);
	fresh.id = next_id++;
	bool kept = seen && host && insert(&fresh);
	pthread_rwlock_unlock(&table_lock);
	if (!kept) {
		if (seen)
			munmap(seen, mapped);
		if (host && host != seen)
			munmap(host, mapped);
		if (fresh.charged)
			simgpu_uncharge(&cuda_view, cuda_devices[context->device].gpu, fresh.charged);
		return CUDA_OUT_OF_MEMORY;
	}
	if (pool) {
		uint64_t used = __atomic_add_fetch(&pool->used, fresh.charged, __ATOMIC_SEQ_CST);
		if (used > pool->used_high)
			pool->used_high = used;
	}
	*address = fresh.start;
	return CUDA_SUCCESS;
}

CUresult cuda_release(uint64_t address, bool host)
{
	struct allocation dead;
	pthread_rwlock_wrlock(&table_lock);
	size_t at = place_of(address);
	bool found = at < table_count && table[at].start == address && (table[at].kind == KIND_HOST) == host &&
		     table[at].kind != KIND_REGISTERED && table[at].kind != KIND_MAPPED;
	if (found) {
		dead = table[at];
		if (dead.kind != KIND_GRAPH)
			forget(at);
	}
	pthread_rwlock_unlock(&table_lock);
	if (found && dead.kind == KIND_GRAPH)
		return cuda_graph_freed(address) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
	if (found && dead.charged)
		cuda_take_allocation_time(dead.device);
	if (found)
		unmap(&dead);
	return found ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

void cuda_forget(uint64_t address)
{
	struct allocation dead;
	pthread_rwlock_wrlock(&table_lock);
	size_t at = place_of(address);
	bool found = at < table_count && table[at].start == address && table[at].kind == KIND_GRAPH;
	if (found) {
		dead = table[at];
		forget(at);
	}
	pthread_rwlock_unlock(&table_lock);
	if (found)
		unmap(&dead);
}

void cuda_release_all(struct context *context)
{
	pthread_rwlock_wrlock(&table_lock);
	for (size_t i = table_count; i-- > 0;) {
		if (table[i].context != context)
			continue;
		struct allocation dead = table[i];
		forget(i);
		unmap(&dead);
	}
	pthread_rwlock_unlock(&table_lock);
}

bool cuda_map(CUdevice device, uint64_t address, uint64_t size, uint8_t *host)
{
	struct allocation fresh = {.start = address, .size = size, .host = host, .kind = KIND_MAPPED, .device = device};
	pthread_rwlock_wrlock(&table_lock);
	size_t at = place_of(address);
	bool empty = at >= table_count || table[at].start >= address + size;
	fresh.id = next_id++;
	bool kept = empty && insert(&fresh);
	pthread_rwlock_unlock(&table_lock);
	return kept;
}

bool cuda_unmap(uint64_t address, uint64_t *size)
{
	pthread_rwlock_wrlock(&table_lock);
	size_t at = place_of(address);
	bool found = at < table_count && table[at].start == address && table[at].kind == KIND_MAPPED;
	if (found) {
		*size = table[at].size;
		forget(at);
	}
	pthread_rwlock_unlock(&table_lock);
	return found;
}

/* The bytes of an allocation, and a file with the same: from now on the same memory. */
static int move_to_file(uint8_t *host, uint64_t size)
{
	int file = (int)syscall(SYS_memfd_create, "simgpu-memory", 1u /* close on exec */);
	if (file < 0)
		return -1;
	if (ftruncate(file, (off_t)size) == 0) {
		uint8_t *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (copy != MAP_FAILED) {
			memcpy(copy, host, size);
			munmap(copy, size);
			if (mmap(host, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED)
				return file;
		}
	}
	close(file);
	return -1;
}

int cuda_share(uint64_t address)
{
	int file = -1;
	pthread_rwlock_wrlock(&table_lock);
	size_t at = place_of(address);
	if (at < table_count && table[at].start <= address && table[at].kind == KIND_DEVICE && !table[at].pool) {
		struct allocation *found = &table[at];
		file = found->shared ? found->shared - 1 : move_to_file(found->host, (found->size + PAGE - 1) / PAGE * PAGE);
		found->shared = file + 1;
	}
	pthread_rwlock_unlock(&table_lock);
	return file;
}

bool cuda_find(uint64_t address, struct allocation *found)
{
	pthread_rwlock_rdlock(&table_lock);
	size_t at = place_of(address);
	bool inside = at < table_count && table[at].start <= address;
	if (inside)
		*found = table[at];
	pthread_rwlock_unlock(&table_lock);
	return inside;
}

uint8_t *cuda_bytes(uint64_t address, uint64_t size, bool host)
{
	struct allocation found;
	if (!cuda_find(address, &found))
		return host ? (uint8_t *)(uintptr_t)address : NULL;
	if (size > found.start + found.size - address)
		return host && found.kind >= KIND_MANAGED ? (uint8_t *)(uintptr_t)address : NULL;
	return found.host + (address - found.start);
}

void cuda_hold_table(bool hold)
{
	if (hold)
		pthread_rwlock_rdlock(&table_lock);
	else
		pthread_rwlock_unlock(&table_lock);
}

bool cuda_window(void *context, uint64_t address, struct ptx_window *window)
{
	const struct context *launching = context;
	size_t at = place_of(address);
	if (at >= table_count || table[at].start > address)
		return false;
	/* Another GPU's memory only after peer access was enabled; what the host can see, every GPU can. */
	if (table[at].kind == KIND_DEVICE && table[at].device != launching->device &&
	    !(launching->peers >> table[at].device & 1))
		return false;
	*window = (struct ptx_window){table[at].start, table[at].start + table[at].size, table[at].host};
	return true;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	NEED(address);
	CONTEXT(context);
	SAFE();
	return cuda_allocate(context, size, KIND_DEVICE, 0, NULL, address);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
	NEED(address && pitch && width && height && (element == 4 || element == 8 || element == 16));
	CONTEXT(context);
	SAFE();
	size_t row = (width + 511) / 512 * 512;
	NEED(row >= width && height <= SIZE_MAX / row);
	CUresult result = cuda_allocate(context, row * height, KIND_DEVICE, 0, NULL, address);
	if (result == CUDA_SUCCESS)
		*pitch = row;
	return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
	NEED(address && (flags == 1 || flags == 2));
	CONTEXT(context);
	SAFE();
	return cuda_allocate(context, size, KIND_MANAGED, flags, NULL, address);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
	CONTEXT(context);
	SAFE();
	if (!address)
		return CUDA_SUCCESS;
	/* Work that still runs may use it. */
	cuda_wait_context(context);
	return cuda_release(address, false);
}

EXPORT CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
	NEED(pointer);
	CONTEXT(context);
	SAFE();
	uint64_t address;
	CUresult result = cuda_allocate(context, size, KIND_HOST, flags, NULL, &address);
	if (result == CUDA_SUCCESS)
		*pointer = (void *)(uintptr_t)address;
	return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t size)
{
	return cuMemHostAlloc(pointer, size, 0);
}

EXPORT CUresult cuMemFreeHost(void *pointer)
{
	CONTEXT(context);
	SAFE();
	(void)context;
	return pointer ? cuda_release((uint64_t)(uintptr_t)pointer, true) : CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags)
{
	struct allocation found;
	NEED(address && flags == 0);
	CONTEXT(context);
	(void)context;
	if (!cuda_find((uint64_t)(uintptr_t)pointer, &found) || found.kind < KIND_HOST)
		return CUDA_INVALID_VALUE;
	*address = (CUdeviceptr)(uintptr_t)pointer;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *pointer)
{
	struct allocation found;
	NEED(flags);
	CONTEXT(context);
	(void)context;
	if (!cuda_find((uint64_t)(uintptr_t)pointer, &found) || found.kind < KIND_HOST)
		return CUDA_INVALID_VALUE;
	*flags = found.flags;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
	struct allocation found;
	NEED(pointer && size);
	CONTEXT(context);
	SAFE();
	if (cuda_find((uint64_t)(uintptr_t)pointer, &found))
		return CUDA_HOST_MEMORY_ALREADY_REGISTERED;
	struct allocation fresh = {.start = (uint64_t)(uintptr_t)pointer, .size = size, .host = pointer,
				   .kind = KIND_REGISTERED, .device = context->device, .flags = flags, .context = cuda_root(context)};
	pthread_rwlock_wrlock(&table_lock);
	fresh.id = next_id++;
	bool kept = insert(&fresh);
	pthread_rwlock_unlock(&table_lock);
	return kept ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostUnregister(void *pointer)
{
	CONTEXT(context);
	SAFE();
	(void)context;
	pthread_rwlock_wrlock(&table_lock);
	size_t at = place_of((uint64_t)(uintptr_t)pointer);
	bool found = at < table_count && table[at].start == (uint64_t)(uintptr_t)pointer && table[at].kind == KIND_REGISTERED;
	if (found)
		forget(at);
	pthread_rwlock_unlock(&table_lock);
	return found ? CUDA_SUCCESS : CUDA_HOST_MEMORY_NOT_REGISTERED;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	NEED(available && total);
	CONTEXT(context);
	simgpu_reap(&cuda_view);
	uint64_t capacity = cuda_capacity(context->device);
	uint64_t used = simgpu_used(cuda_view.state, cuda_devices[context->device].gpu, cuda_instance(context->device));
	const struct simgpu_limit *limit = simgpu_limit_of(cuda_view.state, cuda_view.state->slots[cuda_view.slot].cgroups,
							   cuda_devices[context->device].gpu);
	if (limit && limit->hard[cuda_devices[context->device].gpu] < capacity) {
		/* The rest of the cgroup's limit, where that is less than the GPU has left. */
		uint64_t held = simgpu_limit_used(cuda_view.state, limit, cuda_devices[context->device].gpu);
		uint64_t rest = used < capacity ? capacity - used : 0;
		capacity = limit->hard[cuda_devices[context->device].gpu];
		used = capacity - (held < capacity && capacity - held < rest ? capacity - held : held < capacity ? rest : 0);
	}
	*total = capacity;
	*available = used < capacity ? capacity - used : 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr address)
{
	struct allocation found;
	CONTEXT(context);
	(void)context;
	if (!cuda_find(address, &found))
		return CUDA_NOT_FOUND;
	if (start)
		*start = found.start;
	if (size)
		*size = found.size;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address)
{
	struct allocation found;
	NEED(value);
	READY();
	if (!cuda_find(address, &found))
		return CUDA_INVALID_VALUE;
	bool host = found.kind >= KIND_HOST;
	switch (attribute) {
	case 1: *(CUcontext *)value = found.context; break;
	case 2: *(unsigned *)value = host ? 1 : 2; break; /* CU_MEMORYTYPE_HOST, _DEVICE */
	case 3: *(CUdeviceptr *)value = address; break;
	case 4:
		if (found.kind < KIND_MANAGED)
			return CUDA_INVALID_VALUE;
		*(void **)value = (void *)(uintptr_t)address;
		break;
	case 6: *(unsigned *)value = 1; break;
	case 7: *(unsigned long long *)value = found.id; break;
	case 8: *(unsigned *)value = found.kind == KIND_MANAGED; break;
	case 9: *(int *)value = found.device; break;
	case 10: *(unsigned *)value = 0; break;
	case 11: *(CUdeviceptr *)value = found.start; break;
	case 12: *(size_t *)value = found.size; break;
	case 13: *(unsigned *)value = 1; break;
	case 14: *(unsigned long long *)value = 0; break;
	case 15: *(unsigned *)value = 0; break;
	case 16: *(int *)value = 3; break; /* read and write */
	case 17: *(CUmemoryPool *)value = found.pool; break;
	case 18: *(size_t *)value = found.size; break;
	case 19: *(CUdeviceptr *)value = found.start; break;
	case 20: *(unsigned long long *)value = found.id; break;
	default: return CUDA_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr address)
{
	NEED(attributes && values);
	READY();
	/* Unknown attributes of a pointer stay as the caller has set them, except the type of memory. */
	for (unsigned i = 0; i < count; i++)
		if (cuPointerGetAttribute(values[i], attributes[i], address) != CUDA_SUCCESS && attributes[i] == 2)
			*(unsigned *)values[i] = 0;
	return CUDA_SUCCESS;
}

/*
 * Memory limits of cgroups, as drivers have them from r615 on: hard ones are enforced, soft ones only stored.
 * Older drivers do not have these functions, so they answer as for what a GPU does not offer.
 */
#include "nvml.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_DRIVER 615
#define NO_LIMIT 0xffffffffffffffffull /* NVML_DEVICE_MEMORY_LIMIT_MAX */

typedef struct {
	const char *name_space;
	unsigned long long soft, hard;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
	const char *name_space;
	unsigned long long soft, hard, used;
} nvmlGetMemoryLimits_v1_t;

static bool offered(void)
{
	return atoi(nvml_view.state->driver_version) >= FIRST_DRIVER;
}

/* The inode of a cgroup's directory; 0 for anything else. */
static uint64_t cgroup_of(const char *path)
{
	char file[4096];
	struct stat info;
	snprintf(file, sizeof file, "%s/cgroup.procs", path);
	return access(file, F_OK) == 0 && stat(path, &info) == 0 ? info.st_ino : 0;
}

/* The entry of a cgroup, or a free one when it has none yet; with its cgroup an entry goes. */
static struct simgpu_limit *entry(uint64_t cgroup)
{
	struct simgpu_limit *unused = NULL;
	for (int i = 0; i < SIMGPU_LIMITS; i++) {
		struct simgpu_limit *limit = &nvml_view.state->limits[i];
		if (limit->cgroup == cgroup && cgroup_of(limit->path) == cgroup)
			return limit;
		if (limit->cgroup && cgroup_of(limit->path) != limit->cgroup)
			memset(limit, 0, sizeof *limit);
		if (!limit->cgroup && !unused)
			unused = limit;
	}
	return unused;
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
	GPU(device);
	(void)gpu;
	NEED(limits && limits->name_space);
	if (!offered())
		return NVML_NOT_SUPPORTED;
	if (geteuid() != 0)
		return NVML_NO_PERMISSION;
	uint64_t cgroup = cgroup_of(limits->name_space);
	if (!cgroup)
		return NVML_NOT_FOUND;
	if (limits->soft > limits->hard || !limits->hard || strlen(limits->name_space) >= sizeof(((struct simgpu_limit *)0)->path))
		return NVML_INVALID_ARGUMENT;
	simgpu_lock(&nvml_view, LOCK_LIMITS, true);
	struct simgpu_limit *found_entry = entry(cgroup);
	if (found_entry) {
		snprintf(found_entry->path, sizeof found_entry->path, "%s", limits->name_space);
		found_entry->soft[device->gpu] = limits->soft;
		__atomic_store_n(&found_entry->hard[device->gpu], limits->hard == NO_LIMIT ? 0 : limits->hard, __ATOMIC_SEQ_CST);
		__atomic_store_n(&found_entry->cgroup, cgroup, __ATOMIC_SEQ_CST);
	}
	simgpu_unlock(&nvml_view, LOCK_LIMITS);
	return found_entry ? NVML_SUCCESS : NVML_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
	GPU(device);
	(void)gpu;
	NEED(limits && limits->name_space);
	if (!offered())
		return NVML_NOT_SUPPORTED;
	uint64_t cgroup = cgroup_of(limits->name_space);
	if (!cgroup)
		return NVML_NOT_FOUND;
	limits->soft = limits->used = 0;
	limits->hard = NO_LIMIT;
	uint64_t chain[SIMGPU_CGROUPS] = {cgroup};
	const struct simgpu_limit *limit = simgpu_limit_of(nvml_view.state, chain, device->gpu);
	if (limit) {
		simgpu_reap(&nvml_view);
		limits->soft = limit->soft[device->gpu];
		limits->hard = limit->hard[device->gpu];
		limits->used = simgpu_limit_used(nvml_view.state, limit, device->gpu);
	}
	return NVML_SUCCESS;
}

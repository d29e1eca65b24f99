/* Cgroups of processes, and the memory limits that the driver holds them to. */
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Where version 2 is mounted: the fifth word of its line; "" when it is not. */
static void mount_point(char *path, size_t size)
{
	char line[1024], place[512];
	FILE *file = fopen("/proc/self/mountinfo", "re");
	*path = 0;
	while (file && !*path && fgets(line, sizeof line, file))
		if (strstr(line, " - cgroup2 ") && sscanf(line, "%*s %*s %*s %*s %511s", place) == 1)
			snprintf(path, size, "%s", place);
	if (file)
		fclose(file);
}

void simgpu_find_cgroups(uint64_t *cgroups)
{
	char path[2048] = "", line[1024];
	struct stat info;
	FILE *file = fopen("/proc/self/cgroup", "re");
	memset(cgroups, 0, SIMGPU_CGROUPS * sizeof *cgroups);
	mount_point(path, 512);
	size_t top = strlen(path);
	if (!file || !top) {
		if (file)
			fclose(file);
		return;
	}
	while (fgets(line, sizeof line, file))
		if (!strncmp(line, "0::", 3))
			snprintf(path + top, sizeof path - top, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
	fclose(file);
	for (int i = 0; i < SIMGPU_CGROUPS && strlen(path) >= top; i++) {
		if (stat(path, &info) < 0)
			return;
		cgroups[i] = info.st_ino;
		char *slash = strrchr(path, '/');
		if (!slash || slash == path)
			return;
		*slash = 0;
	}
}

const struct simgpu_limit *simgpu_limit_of(const struct simgpu_state *state, const uint64_t *cgroups, uint32_t gpu)
{
	for (int i = 0; i < SIMGPU_CGROUPS && cgroups[i]; i++)
		for (int k = 0; k < SIMGPU_LIMITS; k++)
			if (state->limits[k].cgroup == cgroups[i] && state->limits[k].hard[gpu])
				return &state->limits[k];
	return NULL;
}

bool simgpu_any_limit(const struct simgpu_state *state)
{
	for (int i = 0; i < SIMGPU_LIMITS; i++)
		if (state->limits[i].cgroup)
			return true;
	return false;
}

uint64_t simgpu_limit_used(const struct simgpu_state *state, const struct simgpu_limit *limit, uint32_t gpu)
{
	uint64_t sum = 0;
	for (int i = 0; i < SIMGPU_SLOTS; i++) {
		const struct simgpu_slot *slot = &state->slots[i];
		if (__atomic_load_n(&slot->pid, __ATOMIC_SEQ_CST) && simgpu_limit_of(state, slot->cgroups, gpu) == limit)
			sum += __atomic_load_n(&slot->memory[gpu], __ATOMIC_SEQ_CST);
	}
	return sum;
}

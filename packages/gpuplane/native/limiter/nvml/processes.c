/*
 * NVML's lists of processes: a container sees its own ones only, by its own process ids. NVML lists the host's ids, which the
 * agent writes into the slots of the usage page about a second after a process has begun. Until then, and where a driver
 * already lists ids of the container, the id of the slot itself counts.
 */
#include "nvml.h"

#include <stdlib.h>
#include <string.h>

#define AT_FIRST 64

struct process_v1 {
	unsigned pid;
	unsigned long long used;
};

struct process {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
};

struct sample {
	unsigned pid;
	unsigned long long time;
	unsigned sm, memory, encoder, decoder;
};

/* All entries begin with the pid. */
static unsigned pid_of(const char *entry)
{
	unsigned pid;
	memcpy(&pid, entry, sizeof pid);
	return pid;
}

static bool listed(const char *list, unsigned count, size_t size, unsigned pid)
{
	for (unsigned i = 0; i < count; i++)
		if (pid_of(list + i * size) == pid)
			return true;
	return false;
}

/* Whether a process is one of this container's: then *inner is its id there. */
static bool own(const char *list, unsigned count, size_t size, unsigned pid, unsigned *inner)
{
	uint64_t top = LOAD(usage->high_water);
	for (unsigned i = 0; i < top && i < PAGE_SLOTS; i++) {
		uint64_t owner = LOAD(usage->slots[i].owner), host = LOAD(usage->slots[i].host_pid);
		*inner = (unsigned)(owner & ((1ull << OWNER_PID_BITS) - 1));
		bool by_host = host && listed(list, count, size, (unsigned)host);
		if (owner && pid == (by_host ? (unsigned)host : *inner))
			return true;
	}
	return false;
}

/* Leaves this container's entries; returns how many. */
static unsigned keep_own(char *list, unsigned count, size_t size)
{
	unsigned found = 0, inner;
	char *before = malloc(count * size + 1);
	if (!before)
		return 0;
	memcpy(before, list, count * size);
	for (unsigned i = 0; i < count; i++) {
		if (!own(before, count, size, pid_of(before + i * size), &inner))
			continue;
		memcpy(list + found * size, before + i * size, size);
		memcpy(list + found++ * size, &inner, sizeof inner);
	}
	free(before);
	return found;
}

struct question {
	nvmlReturn_t (*list)(nvmlDevice_t, unsigned *, void *);
	nvmlReturn_t (*samples)(nvmlDevice_t, void *, unsigned *, unsigned long long);
	unsigned long long since;
	size_t size; /* of an entry */
};

static nvmlReturn_t ask(const struct question *question, nvmlDevice_t device, unsigned *count, void *list)
{
	return question->list ? question->list(device, count, list) : question->samples(device, list, count, question->since);
}

static nvmlReturn_t answer(const struct question *question, nvmlDevice_t device, unsigned *count, void *list)
{
	if (!question->list && !question->samples)
		return NVML_FUNCTION_NOT_FOUND;
	if (page_attach() != ATTACHED || !count)
		return ask(question, device, count, list);
	unsigned room = AT_FIRST, found = 0;
	char *all = NULL;
	nvmlReturn_t result;
	do {
		char *more = realloc(all, room * question->size);
		if (!more) {
			free(all);
			return NVML_MEMORY;
		}
		all = more;
		found = room;
		result = ask(question, device, &found, all);
		room = found > room ? found + AT_FIRST : 2 * room;
	} while (result == NVML_INSUFFICIENT_SIZE);
	if (result != NVML_SUCCESS) {
		free(all);
		return result;
	}
	found = keep_own(all, found, question->size);
	bool fits = list && found <= *count;
	if (fits)
		memcpy(list, all, found * question->size);
	*count = found;
	free(all);
	if (!found)
		return question->list ? NVML_SUCCESS : NVML_NOT_FOUND;
	return fits ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE;
}

#define LISTS(X)                                                                                                       \
	X(nvmlDeviceGetComputeRunningProcesses, struct process_v1)                                                      \
	X(nvmlDeviceGetComputeRunningProcesses_v2, struct process)                                                      \
	X(nvmlDeviceGetComputeRunningProcesses_v3, struct process)                                                      \
	X(nvmlDeviceGetGraphicsRunningProcesses, struct process_v1)                                                     \
	X(nvmlDeviceGetGraphicsRunningProcesses_v2, struct process)                                                     \
	X(nvmlDeviceGetGraphicsRunningProcesses_v3, struct process)                                                     \
	X(nvmlDeviceGetMPSComputeRunningProcesses, struct process_v1)                                                   \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v2, struct process)                                                   \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v3, struct process)

#define LIST(name, entry)                                                                                              \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *list)                                      \
	{                                                                                                               \
		struct question question = {.size = sizeof(entry)};                                                     \
		*(void **)&question.list = nvml_real(#name);                                                            \
		return answer(&question, device, count, list);                                                          \
	}
LISTS(LIST)

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *list, unsigned *count, unsigned long long since)
{
	struct question question = {.since = since, .size = sizeof(struct sample)};
	*(void **)&question.samples = nvml_real("nvmlDeviceGetProcessUtilization");
	return answer(&question, device, count, list);
}

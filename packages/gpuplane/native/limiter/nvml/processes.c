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

struct accounted {
	unsigned pid;
};

struct session {
	unsigned id, pid, rest[6];
};

struct capture_session {
	unsigned id, pid, rest[10];
};

/* The forms in which the list is a part. Their first word is their version, of which the libraries know one. */
struct details {
	unsigned version, mode, count;
	struct detail {
		unsigned pid;
		unsigned long long used;
		unsigned gpu_instance, compute_instance;
		unsigned long long protected;
	} *list;
};

struct utilisations {
	unsigned version, count;
	unsigned long long since;
	struct utilisation {
		unsigned long long time;
		unsigned pid, sm, memory, encoder, decoder, jpeg, optical_flow;
	} *list;
};
_Static_assert(sizeof(struct details) == 24 && sizeof(struct utilisations) == 24, "ABI");
_Static_assert(sizeof(struct detail) == 32 && sizeof(struct utilisation) == 40, "ABI");
#define FORM_VERSION (1u << 24 | 24u)

/* The entries of a list: so large, with the pid so far behind their beginnings. */
struct entries {
	char *first;
	unsigned count;
	size_t size, pid_at;
};

static unsigned pid_of(const struct entries *list, unsigned i)
{
	unsigned pid;
	memcpy(&pid, list->first + i * list->size + list->pid_at, sizeof pid);
	return pid;
}

static bool listed(const struct entries *list, unsigned pid)
{
	for (unsigned i = 0; i < list->count; i++)
		if (pid_of(list, i) == pid)
			return true;
	return false;
}

/* Whether a process is one of this container's: then *inner is its id there. */
static bool own(const struct entries *list, unsigned pid, unsigned *inner)
{
	uint64_t top = LOAD(usage->high_water);
	for (unsigned i = 0; i < top && i < PAGE_SLOTS; i++) {
		uint64_t owner = LOAD(usage->slots[i].owner), host = LOAD(usage->slots[i].host_pid);
		*inner = (unsigned)(owner & ((1ull << OWNER_PID_BITS) - 1));
		bool by_host = host && listed(list, (unsigned)host);
		if (owner && pid == (by_host ? (unsigned)host : *inner))
			return true;
	}
	return false;
}

/* Leaves this container's entries. */
static void keep_own(struct entries *list)
{
	unsigned found = 0, inner;
	struct entries before = *list;
	before.first = malloc(list->count * list->size + 1);
	if (before.first)
		memcpy(before.first, list->first, list->count * list->size);
	for (unsigned i = 0; before.first && i < list->count; i++) {
		if (!own(&before, pid_of(&before, i), &inner))
			continue;
		char *to = list->first + found++ * list->size;
		memcpy(to, before.first + i * list->size, list->size);
		memcpy(to + list->pid_at, &inner, sizeof inner);
	}
	free(before.first);
	list->count = found;
}

struct question {
	nvmlReturn_t (*list)(nvmlDevice_t, unsigned *, void *);
	nvmlReturn_t (*samples)(nvmlDevice_t, void *, unsigned *, unsigned long long);
	nvmlReturn_t (*details)(nvmlDevice_t, struct details *);
	nvmlReturn_t (*utilisations)(nvmlDevice_t, struct utilisations *);
	unsigned version, mode;
	unsigned long long since;
	size_t size, pid_at; /* of an entry */
};

static nvmlReturn_t ask(const struct question *question, nvmlDevice_t device, unsigned *count, void *list)
{
	nvmlReturn_t result;
	if (question->details) {
		struct details form = {question->version, question->mode, *count, list};
		result = question->details(device, &form);
		*count = form.count;
	} else if (question->utilisations) {
		struct utilisations form = {question->version, *count, question->since, list};
		result = question->utilisations(device, &form);
		*count = form.count;
	} else {
		result = question->list ? question->list(device, count, list) : question->samples(device, list, count, question->since);
	}
	return result;
}

static nvmlReturn_t answer(const struct question *question, nvmlDevice_t device, unsigned *count, void *list)
{
	if (!question->list && !question->samples && !question->details && !question->utilisations)
		return NVML_FUNCTION_NOT_FOUND;
	if (page_attach() != ATTACHED || !count)
		return ask(question, device, count, list);
	unsigned room = AT_FIRST;
	struct entries all = {.size = question->size, .pid_at = question->pid_at};
	nvmlReturn_t result;
	do {
		char *more = realloc(all.first, room * question->size);
		if (!more) {
			free(all.first);
			return NVML_MEMORY;
		}
		all.first = more;
		all.count = room;
		result = ask(question, device, &all.count, all.first);
		room = all.count > room ? all.count + AT_FIRST : 2 * room;
	} while (result == NVML_INSUFFICIENT_SIZE);
	if (result != NVML_SUCCESS) {
		free(all.first);
		return result;
	}
	keep_own(&all);
	bool fits = list && all.count <= *count, samples = question->samples || question->utilisations;
	if (fits)
		memcpy(list, all.first, all.count * question->size);
	*count = all.count;
	free(all.first);
	if (!all.count)
		return samples ? NVML_NOT_FOUND : NVML_SUCCESS;
	return fits ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE;
}

#define LISTS(X)                                                                                                       \
	X(nvmlDeviceGetAccountingPids, struct accounted)                                                                \
	X(nvmlDeviceGetEncoderSessions, struct session)                                                                 \
	X(nvmlDeviceGetFBCSessions, struct capture_session)                                                             \
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
		struct question question = {.size = sizeof(entry), .pid_at = offsetof(entry, pid)};                    \
		*(void **)&question.list = nvml_real(#name);                                                            \
		return answer(&question, device, count, list);                                                          \
	}
LISTS(LIST)

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *list, unsigned *count, unsigned long long since)
{
	struct question question = {.since = since, .size = sizeof(struct sample), .pid_at = offsetof(struct sample, pid)};
	*(void **)&question.samples = nvml_real("nvmlDeviceGetProcessUtilization");
	return answer(&question, device, count, list);
}

/* NB: Where a form that is newer has its pids is unknown, so it is refused as by a driver that is older than the program. */
#define FORM(name, type, part, ...)                                                                                    \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, struct type *form)                                                \
	{                                                                                                               \
		struct question question = {.size = sizeof(struct part), .pid_at = offsetof(struct part, pid)};         \
		*(void **)&question.type = nvml_real(#name);                                                            \
		if (!question.type)                                                                                     \
			return NVML_FUNCTION_NOT_FOUND;                                                                 \
		if (!form || page_attach() != ATTACHED)                                                                 \
			return question.type(device, form);                                                             \
		if (form->version != FORM_VERSION)                                                                      \
			return NVML_ARGUMENT_VERSION_MISMATCH;                                                          \
		question.version = form->version;                                                                       \
		__VA_ARGS__;                                                                                            \
		return answer(&question, device, &form->count, form->list);                                             \
	}
FORM(nvmlDeviceGetRunningProcessDetailList, details, detail, question.mode = form->mode)
FORM(nvmlDeviceGetProcessesUtilizationInfo, utilisations, utilisation, question.since = form->since)

/* The host's id of a process of this container; false: it has none of that id. */
static bool outer(unsigned inner, unsigned *pid)
{
	uint64_t top = LOAD(usage->high_water);
	for (unsigned i = 0; i < top && i < PAGE_SLOTS; i++) {
		uint64_t owner = LOAD(usage->slots[i].owner), host = LOAD(usage->slots[i].host_pid);
		if (!owner || (unsigned)(owner & ((1ull << OWNER_PID_BITS) - 1)) != inner)
			continue;
		*pid = host ? (unsigned)host : inner;
		return true;
	}
	return false;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, void *figures)
{
	nvmlReturn_t (*real)(nvmlDevice_t, unsigned, void *);
	*(void **)&real = nvml_real("nvmlDeviceGetAccountingStats");
	if (!real)
		return NVML_FUNCTION_NOT_FOUND;
	if (page_attach() == ATTACHED && !outer(pid, &pid))
		return NVML_NOT_FOUND;
	return real(device, pid, figures);
}

/* Its figures begin with the pid. */
EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, unsigned *figures)
{
	nvmlReturn_t (*real)(nvmlDevice_t, unsigned *);
	*(void **)&real = nvml_real("nvmlDeviceGetAccountingStats_v2");
	if (!real)
		return NVML_FUNCTION_NOT_FOUND;
	if (!figures || page_attach() != ATTACHED)
		return real(device, figures);
	unsigned inner = *figures;
	if (!outer(inner, figures))
		return NVML_NOT_FOUND;
	nvmlReturn_t result = real(device, figures);
	*figures = inner;
	return result;
}

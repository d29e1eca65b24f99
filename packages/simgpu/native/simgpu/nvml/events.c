/* Event sets. A set remembers the last event it has seen; registering starts from now. */
#include "nvml.h"

#include <stdlib.h>

#define OFFERED (EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT | EVENT_XID | EVENT_GPU_UNAVAILABLE | EVENT_RECOVERY_ACTION)

#define REPORT_NS 50000000ull

typedef struct event_set {
	uint64_t seen;
	uint64_t wanted[SIMGPU_GPUS];
} *nvmlEventSet_t;

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	NEED(set);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	*set = calloc(1, sizeof **set);
	if (!*set)
		return NVML_MEMORY;
	(*set)->seen = __atomic_load_n(&nvml_view.state->event_last, __ATOMIC_SEQ_CST);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	NEED(set);
	free(set);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	GPU(device);
	NEED(types);
	*types = gpu->ecc_enabled ? OFFERED : OFFERED & ~(EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	GPU(device);
	NEED(set);
	(void)gpu;
	if (types & ~OFFERED)
		return NVML_NOT_SUPPORTED;
	set->wanted[device->gpu] |= types;
	return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
	const struct simgpu_state *state = nvml_view.state;
	uint64_t last = __atomic_load_n(&state->event_last, __ATOMIC_SEQ_CST);
	/* A reader that did not look for a whole round of the ring lost the oldest. */
	if (last > SIMGPU_EVENTS && set->seen < last - SIMGPU_EVENTS)
		set->seen = last - SIMGPU_EVENTS;
	while (set->seen < last) {
		struct simgpu_event event = state->events[++set->seen % SIMGPU_EVENTS];
		if (event.number != set->seen || event.gpu >= SIMGPU_GPUS || !(set->wanted[event.gpu] & event.type))
			continue;
		*data = (nvmlEventData_t){nvml_handle(event.gpu, -1), event.type, event.data, event.gpu_instance,
					  event.compute_instance};
		return true;
	}
	return false;
}

static bool one_is_lost(nvmlEventSet_t set)
{
	for (uint32_t gpu = 0; gpu < nvml_view.state->gpu_count; gpu++)
		if (set->wanted[gpu] && nvml_view.state->gpus[gpu].lost)
			return true;
	return false;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	NEED(set && data);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	uint64_t deadline = simgpu_now() + timeout_ms * 1000000ull;
	for (;;) {
		if (next_event(set, data))
			return NVML_SUCCESS;
		/* A GPU falls off the bus first and is reported a moment later; the report says more, so it goes first. */
		if (one_is_lost(set)) {
			if (simgpu_await(&nvml_view, set->seen, simgpu_now() + REPORT_NS))
				continue;
			return NVML_GPU_IS_LOST;
		}
		if (!simgpu_await(&nvml_view, set->seen, deadline))
			return NVML_TIMEOUT;
	}
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	return nvmlEventSetWait_v2(set, data, timeout_ms);
}

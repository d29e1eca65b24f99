/* How long allocations take: as Faults.allocation_latency says. The driver of a real GPU takes microseconds to milliseconds. */
#include "cuda.h"

static uint64_t chance(void)
{
	static __thread uint64_t state;
	if (!state)
		state = (uint64_t)(uintptr_t)&state ^ simgpu_now();
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

void cuda_take_allocation_time(CUdevice device)
{
	const struct simgpu_gpu *gpu = &cuda_view.state->gpus[cuda_devices[device].gpu];
	uint32_t count = __atomic_load_n(&gpu->latency_count, __ATOMIC_ACQUIRE);
	if (!count || count > SIMGPU_LATENCIES)
		return;
	uint64_t us = __atomic_load_n(&gpu->allocation_us[chance() % count], __ATOMIC_RELAXED);
	simgpu_sleep_until(simgpu_now() + us * 1000);
}

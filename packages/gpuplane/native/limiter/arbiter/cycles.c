/*
 * Tenants that wait for each other on several GPUs. A collective operation (NCCL) runs on all GPUs of a tenant at once: its
 * kernel on one GPU does not end before the one on the other has begun. If the other GPU is held by a tenant that waits the
 * same way for the first one, neither ends. Then a turn is over although its kernel still runs, and GPUs divide their time.
 */
#include "arbiter.h"

#define STUCK_NS 20000000ull /* so long behind its time a turn may be part of a circle */

/* The tenant that holds a GPU beyond its time; 0: none. */
static uint64_t stuck(const struct gpu *gpu, uint64_t now)
{
	const struct order *order = &gpu->order;
	if (order->holder < 0 || now < order->ends + STUCK_NS)
		return 0;
	return order->tenants[order->seats[order->holder].tenant].number;
}

static bool waits(const struct gpu *gpu, uint64_t tenant)
{
	for (int i = 0; i < ORDER_TENANTS; i++)
		if (gpu->order.tenants[i].number == tenant)
			return gpu->order.tenants[i].waiting > 0;
	return false;
}

/* Reaches GPUs that `tenant` waits for and that are stuck too; true: one of them leads back to `first`. */
static bool leads_back(struct gpu *gpus, const struct gpu *first, uint64_t tenant, uint64_t now)
{
	for (struct gpu *gpu = gpus; gpu; gpu = gpu->next) {
		uint64_t next = gpu == first || gpu->reached ? 0 : stuck(gpu, now);
		if (!next || next == tenant || !waits(gpu, tenant))
			continue;
		gpu->reached = true;
		if (waits(first, next) || leads_back(gpus, first, next, now))
			return true;
	}
	return false;
}

bool cycles_through(struct gpu *gpus, struct gpu *first, uint64_t now)
{
	uint64_t tenant = stuck(first, now);
	if (!tenant)
		return false;
	for (struct gpu *gpu = gpus; gpu; gpu = gpu->next)
		gpu->reached = false;
	return leads_back(gpus, first, tenant, now);
}

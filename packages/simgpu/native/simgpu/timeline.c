/*
 * Simulated time: work gets a span on a GPU's time line when it is queued, and what it did is added to buckets from
 * which utilisation is read. One time line a GPU: kernels of all processes follow each other, as they do without MPS. A client of MPS
 * with a portion of the multiprocessors has a line of its own, on which its kernels take longer.
 */
#include "state.h"

#include <errno.h>
#include <time.h>

#define SPIN_NS 60000ull
#define RECENT_NS 50000000ull
#define SLICE_NS 1000000000ull
#define BUCKETS_SPAN (SIMGPU_BUCKETS * SIMGPU_BUCKET_NS)

uint64_t simgpu_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void simgpu_sleep_until(uint64_t when)
{
	/* The kernel wakes sleepers some 50 us late, which is long for a short kernel: the end is waited out awake. */
	uint64_t early = when > SPIN_NS ? when - SPIN_NS : 0;
	struct timespec until = {(time_t)(early / 1000000000ull), (long)(early % 1000000000ull)};
	if (early > simgpu_now())
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
			;
	while (simgpu_now() < when)
		;
}

/* Adds [start, end) to a ring of buckets; additions of other processes at the same time stay. */
static void add_span(uint64_t *ring, uint32_t count, uint64_t start, uint64_t end)
{
	for (uint64_t at = start; at < end;) {
		uint64_t epoch = at / SIMGPU_BUCKET_NS;
		uint64_t stop = (epoch + 1) * SIMGPU_BUCKET_NS;
		uint64_t micros = ((stop < end ? stop : end) - at + 500) / 1000;
		uint64_t *bucket = &ring[epoch % count];
		uint64_t old = __atomic_load_n(bucket, __ATOMIC_RELAXED), fresh;
		do
			fresh = old >> 32 == (epoch & 0xffffffffu) ? old + micros
								    : (epoch & 0xffffffffu) << 32 | micros;
		while (!__atomic_compare_exchange_n(bucket, &old, fresh, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
		at = stop;
	}
}

/* Adds work to a ring, or what ends too far ahead for it to the one long piece, which grows when it goes on without a
   pause. Half of the ring, because work in the future must not overwrite what is being read. */
static void add_work(uint64_t *ring, uint32_t count, uint64_t *long_start, uint64_t *long_end, struct simgpu_span span)
{
	if (span.end < simgpu_now() + count * SIMGPU_BUCKET_NS / 2) {
		add_span(ring, count, span.start, span.end);
		return;
	}
	if (span.start > __atomic_load_n(long_end, __ATOMIC_RELAXED) + SIMGPU_BUCKET_NS)
		__atomic_store_n(long_start, span.start, __ATOMIC_RELAXED);
	__atomic_store_n(long_end, span.end, __ATOMIC_RELAXED);
}

/* The part of the last `window` that the ring counts as busy, 0 to 1. */
static double ring_busy(const uint64_t *ring, uint32_t count, uint64_t window, uint64_t long_start, uint64_t long_end)
{
	uint64_t now = simgpu_now();
	uint64_t from = now > window ? now - window : 0;
	double busy = 0;
	for (uint64_t epoch = from / SIMGPU_BUCKET_NS; epoch <= now / SIMGPU_BUCKET_NS; epoch++) {
		uint64_t bucket = __atomic_load_n(&ring[epoch % count], __ATOMIC_RELAXED);
		uint64_t start = epoch * SIMGPU_BUCKET_NS, stop = start + SIMGPU_BUCKET_NS;
		if (bucket >> 32 != (epoch & 0xffffffffu))
			continue;
		/* Of the first and last bucket only the part in the window counts, in proportion. */
		double share = (double)((stop < now ? stop : now) - (start > from ? start : from)) / SIMGPU_BUCKET_NS;
		busy += (double)(bucket & 0xffffffffu) * 1000.0 * share;
	}
	uint64_t a = long_start > from ? long_start : from, b = long_end < now ? long_end : now;
	if (b > a)
		busy += (double)(b - a);
	busy /= (double)window;
	return busy > 1 ? 1 : busy;
}

/* `own` is when the caller's own work ends. Queued work of others delays it by SLICE_NS at most: a GPU has time
   slices, and the others' work ends later by as much. */
static struct simgpu_span reserve(uint64_t *timeline, uint64_t own, uint64_t ready, uint64_t cost)
{
	struct simgpu_span span;
	uint64_t tail = __atomic_load_n(timeline, __ATOMIC_SEQ_CST), after;
	uint64_t now = simgpu_now(), slice = now + SLICE_NS;
	do {
		span.start = tail > now ? tail : now;
		if (span.start > slice && own < span.start)
			span.start = own > slice ? own : slice;
		if (ready > span.start)
			span.start = ready;
		span.end = span.start + cost;
		after = tail + cost > span.end && tail > now ? tail + cost : span.end;
	} while (!__atomic_compare_exchange_n(timeline, &tail, after, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	return span;
}

struct simgpu_span simgpu_run(struct simgpu *view, uint32_t number, uint64_t ready, uint64_t cost, uint64_t memory_ns)
{
	struct simgpu_gpu *gpu = &view->state->gpus[number];
	struct simgpu_slot *slot = &view->state->slots[view->slot];
	struct simgpu_span span = reserve(view->portion ? &slot->tail[number] : &gpu->timeline, slot->tail[number], ready, cost);
	__atomic_store_n(&slot->tail[number], span.end, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&gpu->busy_ns, view->portion ? cost / 100 * view->portion : cost, __ATOMIC_RELAXED);
	add_work(gpu->buckets, SIMGPU_BUCKETS, &gpu->long_start, &gpu->long_end, span);
	uint64_t memory_end = span.start + (memory_ns < cost ? memory_ns : cost);
	__atomic_add_fetch(&gpu->memory_busy_ns, memory_end - span.start, __ATOMIC_RELAXED);
	if (memory_end < simgpu_now() + BUCKETS_SPAN / 2)
		add_span(gpu->memory_buckets, SIMGPU_BUCKETS, span.start, memory_end);
	add_work(slot->buckets[number], SIMGPU_SLOT_BUCKETS, &slot->long_start[number], &slot->long_end[number], span);
	return span;
}

struct simgpu_span simgpu_copy(struct simgpu *view, uint32_t number, uint64_t ready, uint64_t bytes, bool to_device)
{
	struct simgpu_gpu *gpu = &view->state->gpus[number];
	uint64_t mbps = gpu->pcie_mbps ? gpu->pcie_mbps : 12000;
	/* A microsecond to start, then as PCIe goes: bytes per MB/s are microseconds. */
	struct simgpu_span span = reserve(&gpu->copy_timeline, UINT64_MAX, ready, 1000 + bytes * 1000 / mbps);
	__atomic_add_fetch(to_device ? &gpu->pcie_rx_bytes : &gpu->pcie_tx_bytes, bytes, __ATOMIC_RELAXED);
	if (span.end - span.start < BUCKETS_SPAN / 2)
		add_span(gpu->memory_buckets, SIMGPU_BUCKETS, span.start, span.end);
	return span;
}

void simgpu_forget_queued(struct simgpu_state *state, uint32_t number, const struct simgpu_slot *gone)
{
	struct simgpu_gpu *gpu = &state->gpus[number];
	uint64_t now = simgpu_now(), rest = now, timeline = __atomic_load_n(&gpu->timeline, __ATOMIC_SEQ_CST);
	for (int i = 0; i < SIMGPU_SLOTS; i++) {
		const struct simgpu_slot *slot = &state->slots[i];
		if (slot != gone && slot->pid && slot->tail[number] > rest)
			rest = slot->tail[number];
	}
	if (gone->tail[number] <= now || timeline <= rest ||
	    !__atomic_compare_exchange_n(&gpu->timeline, &timeline, rest, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	__atomic_sub_fetch(&gpu->busy_ns, timeline - rest < gpu->busy_ns ? timeline - rest : gpu->busy_ns, __ATOMIC_RELAXED);
	if (gpu->long_end > rest)
		gpu->long_end = rest;
	for (uint64_t epoch = rest / SIMGPU_BUCKET_NS + 1; epoch <= now / SIMGPU_BUCKET_NS + SIMGPU_BUCKETS / 2; epoch++)
		gpu->buckets[epoch % SIMGPU_BUCKETS] = gpu->memory_buckets[epoch % SIMGPU_BUCKETS] = 0;
}

bool simgpu_contended(const struct simgpu *view, uint32_t number)
{
	uint64_t since = simgpu_now() - RECENT_NS;
	for (int i = 0; i < SIMGPU_SLOTS; i++)
		if (i != view->slot && view->state->slots[i].pid && view->state->slots[i].tail[number] > since)
			return true;
	return false;
}

double simgpu_busy(const struct simgpu_gpu *gpu, uint64_t window)
{
	double busy = ring_busy(gpu->buckets, SIMGPU_BUCKETS, window, gpu->long_start, gpu->long_end);
	busy += gpu->load_gpu_percent / 100.0;
	return busy > 1 ? 1 : busy;
}

double simgpu_memory_busy(const struct simgpu_gpu *gpu, uint64_t window)
{
	double busy = ring_busy(gpu->memory_buckets, SIMGPU_BUCKETS, window, 0, 0) + gpu->load_memory_percent / 100.0;
	return busy > 1 ? 1 : busy;
}

double simgpu_slot_busy(const struct simgpu_slot *slot, uint32_t gpu, uint64_t window)
{
	return ring_busy(slot->buckets[gpu], SIMGPU_SLOT_BUCKETS, window, slot->long_start[gpu], slot->long_end[gpu]);
}

uint64_t simgpu_total_busy_ns(const struct simgpu_gpu *gpu)
{
	uint64_t now = simgpu_now();
	/* Queued work that is not done yet does not count. */
	uint64_t ahead = gpu->timeline > now ? gpu->timeline - now : 0;
	uint64_t busy = gpu->busy_ns > ahead ? gpu->busy_ns - ahead : 0;
	uint64_t loaded = gpu->load_since && now > gpu->load_since ? (now - gpu->load_since) / 100 * gpu->load_gpu_percent : 0;
	return busy + gpu->load_busy_ns + loaded;
}

/* The table of what launches cost. costs.h explains it. A lost race between threads costs a measurement more. */
#include "costs.h"

#define FIRST_PENALTY 4
#define MOST_OWED 256
#define GET(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define SET(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

struct cost costs[COSTS_PLACES];

static struct cost *find(uint64_t key)
{
	unsigned place = (unsigned)(key >> 52) % COSTS_PLACES;
	return GET(costs[place].key) == key ? &costs[place] : GET(costs[place ^ 1].key) == key ? &costs[place ^ 1] : NULL;
}

uint32_t costs_known(uint64_t key)
{
	const struct cost *cost = find(key);
	return cost && !GET(cost->owed) ? GET(cost->ns) : UINT32_MAX;
}

void costs_learn(uint64_t key, uint64_t nanoseconds)
{
	uint32_t ns = nanoseconds < UINT32_MAX ? (uint32_t)nanoseconds : UINT32_MAX - 1;
	struct cost *cost = find(key);
	if (!cost) {
		unsigned place = (unsigned)(key >> 52) % COSTS_PLACES;
		/* Of its two places the free one, else that of the longer launch, which is measured each time anyway. */
		if (GET(costs[place].key) && (!GET(costs[place ^ 1].key) || GET(costs[place ^ 1].ns) > GET(costs[place].ns)))
			place ^= 1;
		cost = &costs[place];
		SET(cost->key, 0);
		SET(cost->ns, ns);
		SET(cost->owed, 0);
		SET(cost->penalty, 0);
		__atomic_store_n(&cost->key, key, __ATOMIC_SEQ_CST);
		return;
	}
	uint32_t before = GET(cost->ns);
	uint16_t owed = GET(cost->owed);
	SET(cost->ns, ns > before ? ns : before / 2 + ns / 2);
	if (ns < COSTS_LONG_NS && owed)
		SET(cost->owed, (uint16_t)(owed - 1));
}

void costs_distrust(const uint16_t *used, int count)
{
	for (int i = 0; i < count; i++) {
		struct cost *cost = &costs[used[i] % COSTS_PLACES];
		unsigned penalty = GET(cost->penalty);
		if (GET(cost->owed))
			continue;
		penalty = penalty ? penalty * 2 : FIRST_PENALTY;
		SET(cost->penalty, (uint16_t)(penalty < MOST_OWED ? penalty : MOST_OWED));
		SET(cost->owed, (uint16_t)(penalty < MOST_OWED ? penalty : MOST_OWED));
	}
}

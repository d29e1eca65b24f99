/*
 * Every sequence of so many messages and pauses among three tenants, two of whose processes belong to one tenant: what
 * order.h promises holds in every state that is reached. A tenant says anything at any time, also about turns of others.
 *
 *     order_model DEPTH       prints how many states were looked at; exits with 1 and a line where a promise is broken
 *
 * Compiled with order.c and its sizes made small.
 */
#include "order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define SEATS 4
#define BUCKETS (1u << 22)

struct state {
	struct order order;
	uint64_t now;
	uint64_t paid_before; /* of the holder, when its turn began */
};

static const struct order_limit limits[] = {
	{20 * MS, 50 * MS, 30, 30, CORE_HARD},
	{20 * MS, 0, 100, 10, CORE_WEIGHTED},
	{20 * MS, 0, 60, 60, CORE_BURST},
};
static const unsigned tenant_of_seat[SEATS] = {0, 1, 2, 2};
static const uint64_t pauses[] = {MS / 2, 11 * MS, 130 * MS};

/* What has been looked at, with how many steps were left then. */
static struct seen {
	uint64_t hash;
	int left;
} *seen;
static long looked;
static int depth;

static void must(bool holds, const char *promise)
{
	if (holds)
		return;
	printf("broken: %s\n", promise);
	exit(1);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash ^= value;
	hash *= 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* Times count from now, and virtual times from the GPU's. */
static uint64_t hash_of(const struct state *state)
{
	const struct order *order = &state->order;
	uint64_t hash = mix(7, (uint64_t)order->holder);
	for (int i = 0; i < ORDER_TENANTS; i++) {
		const struct order_tenant *tenant = &order->tenants[i];
		uint64_t soon = tenant->soon > state->now ? tenant->soon - state->now : 0;
		hash = mix(hash, tenant->number ? tenant->virtual_ns - order->virtual_ns : 1);
		hash = mix(hash, state->now - tenant->paid_until);
		hash = mix(hash, state->now - tenant->active);
		hash = mix(hash, state->now - tenant->owed_until);
		hash = mix(hash, soon << 16 | tenant->seats << 8 | tenant->waiting);
	}
	for (int i = 0; i < ORDER_SEATS; i++)
		hash = mix(hash, order->seats[i].state == SEAT_WAITING ? state->now - order->seats[i].since : order->seats[i].state);
	if (order->holder >= 0) {
		hash = mix(hash, state->now - order->granted);
		hash = mix(hash, order->charged);
		hash = mix(hash, order->expires - state->now);
		hash = mix(hash, order->ends - state->now);
		hash = mix(hash, order->without_tokens);
	}
	return hash ? hash : 1;
}

static bool fresh(const struct state *state, int left)
{
	uint64_t hash = hash_of(state);
	uint32_t at = (uint32_t)(hash >> 20) % BUCKETS;
	for (int i = 0; i < 64; i++, at = (at + 1) % BUCKETS) {
		if (seen[at].hash == hash) {
			if (seen[at].left >= left)
				return false;
			seen[at].left = left;
			return true;
		}
		if (!seen[at].hash) {
			seen[at] = (struct seen){hash, left};
			return true;
		}
	}
	return true; /* no room: it may be looked at again */
}

static void check_books(const struct order *order)
{
	int holding = 0;
	unsigned waiting[ORDER_TENANTS] = {0}, seats[ORDER_TENANTS] = {0};
	for (int i = 0; i < ORDER_SEATS; i++) {
		const struct order_seat *seat = &order->seats[i];
		holding += seat->state == SEAT_HOLDING;
		waiting[seat->tenant] += seat->state == SEAT_WAITING;
		seats[seat->tenant] += seat->state != SEAT_FREE;
	}
	must(holding == (order->holder >= 0), "one seat at most holds the turn");
	must(order->holder < 0 || order->seats[order->holder].state == SEAT_HOLDING, "the holder holds");
	for (int i = 0; i < ORDER_TENANTS; i++)
		must(order->tenants[i].waiting == waiting[i] && order->tenants[i].seats == seats[i], "seats are counted");
}

static void check_charge(const struct state *state, const struct order *before, uint64_t paid_before)
{
	const struct order *order = &state->order;
	if (before->holder < 0 || (order->holder == before->holder && order->turn == before->turn))
		return;
	const struct order_tenant *tenant = &order->tenants[before->seats[before->holder].tenant];
	uint64_t held = state->now - before->granted, least = held > ORDER_EXCUSED_NS ? held - ORDER_EXCUSED_NS : 0;
	if (!before->without_tokens && tenant->limit.mode == CORE_HARD)
		must(tenant->paid_until + 100 >= paid_before + least * 100 / tenant->limit.core, "a holder pays for its turn");
}

/* As talk.c does after each message. */
static void take_turns(struct state *state)
{
	struct order *order = &state->order;
	uint64_t length, wake, now = state->now;
	for (int round = 0;; round++) {
		must(round < 3, "granting ends");
		struct order before = *order;
		int lost = order_expire(order, now);
		must(lost < 0 || now >= before.expires, "no turn ends before its time");
		check_charge(state, &before, state->paid_before);
		int seat = order_next(order, now, &length, &wake);
		if (seat < 0)
			break;
		const struct order_tenant *tenant = &order->tenants[order->seats[seat].tenant];
		int64_t tokens = (int64_t)(now - tenant->paid_until) / 100 * tenant->limit.core;
		must(before.seats[seat].state == SEAT_WAITING, "only a seat that waits is granted a turn");
		must(tenant->limit.mode != CORE_HARD || tokens >= (int64_t)(tenant->limit.quantum_ns / 2), "a hard limit holds");
		must(length > 0 && length <= tenant->limit.quantum_ns, "a turn is a quantum at most");
		state->paid_before = tenant->paid_until;
	}
	check_books(order);
	for (int i = 0; i < ORDER_SEATS; i++)
		must(order->seats[i].state != SEAT_WAITING || (wake > now && wake != ORDER_NEVER), "who waits is looked after");
}

/* From here on nobody answers, those that lose a turn ask again at once, and `seat` waits: it still gets its turn. */
static void check_progress(struct state state, int seat)
{
	struct order *order = &state.order;
	if (order->seats[seat].state == SEAT_HOLDING)
		return;
	order_want(order, seat, state.now);
	const struct order_tenant *tenant = &order->tenants[order->seats[seat].tenant];
	uint64_t started = state.now, length, wake;
	uint64_t ready = tenant->paid_until + tenant->limit.quantum_ns / 2 * 100 / tenant->limit.core;
	uint64_t debt = tenant->limit.mode != CORE_WEIGHTED && ready > started ? ready - started : 0;
	uint64_t ahead = tenant->virtual_ns > order->virtual_ns ? tenant->virtual_ns - order->virtual_ns : 0;
	for (int i = 0; i < ORDER_TENANTS; i++) /* the others may be behind in their order */
		if (order->tenants[i].number && tenant->virtual_ns > order->tenants[i].virtual_ns)
			ahead += (tenant->virtual_ns - order->tenants[i].virtual_ns) * order->tenants[i].limit.weight / 100;
	for (int step = 0; step < 400; step++) {
		order_expire(order, state.now);
		for (int i = 0; i < SEATS; i++)
			order_want(order, i, state.now);
		int granted = order_next(order, state.now, &length, &wake);
		if (granted == seat) {
			must(state.now - started <= debt + ahead + 10 * (20 * MS + ORDER_GRACE_NS), "nobody waits long for the silent");
			return;
		}
		if (granted < 0)
			state.now = wake;
	}
	must(false, "who waits gets a turn");
}

enum saying { WANT, MORE_ALL, MORE_STALE, BUSY, DONE_NOTHING, DONE_ALL_SOON, DONE_STALE, OWES, LEAVE_JOIN, SAYINGS };

static void say_it(struct state *state, int seat, enum saying saying)
{
	struct order *order = &state->order;
	uint64_t turn = order->turn, now = state->now;
	switch (saying) {
	case WANT: order_want(order, seat, now); break;
	case MORE_ALL: order_more(order, seat, turn, UINT64_MAX, now); break;
	case MORE_STALE: order_more(order, seat, turn - 1, 0, now); break;
	case BUSY: order_busy(order, seat, turn, 0, now); break;
	case DONE_NOTHING: order_done(order, seat, turn, 0, false, now); break;
	case DONE_ALL_SOON: order_done(order, seat, turn, UINT64_MAX, true, now); break;
	case DONE_STALE: order_done(order, seat, turn + 1, 0, true, now); break;
	case OWES: order_owe(order, seat, 30 * MS, now); break;
	case LEAVE_JOIN:
		order_leave(order, seat, now);
		must(order_join(order, 100 + tenant_of_seat[seat], limits[tenant_of_seat[seat]], now) == seat, "a seat is free again");
		break;
	case SAYINGS: break;
	}
}

/* A message changes nothing of those that did not send it. */
static void check_others(const struct order *before, const struct order *after, int seat)
{
	for (int i = 0; i < ORDER_SEATS; i++)
		must(i == seat || !memcmp(&before->seats[i], &after->seats[i], sizeof before->seats[i]), "other seats are left alone");
	for (unsigned i = 0; i < ORDER_TENANTS; i++)
		must(i == tenant_of_seat[seat] || !memcmp(&before->tenants[i], &after->tenants[i], sizeof before->tenants[i]),
		     "other tenants are left alone");
	if (before->holder >= 0 && before->holder != seat)
		must(after->holder == before->holder && after->expires == before->expires && after->ends == before->ends,
		     "the turn of another is left alone");
	else
		must(after->holder < 0 || after->expires <= after->ends + ORDER_PATIENCE_NS, "patience has an end");
}

static void explore(const struct state *from, int left)
{
	looked++;
	for (int seat = 0; seat < SEATS; seat++)
		check_progress(*from, seat);
	if (!left)
		return;
	for (unsigned i = 0; i < sizeof pauses / sizeof *pauses; i++) {
		struct state state = *from;
		state.now += pauses[i];
		take_turns(&state);
		if (fresh(&state, left - 1))
			explore(&state, left - 1);
	}
	for (int seat = 0; seat < SEATS; seat++)
		for (enum saying saying = WANT; saying < SAYINGS; saying++) {
			struct state state = *from;
			say_it(&state, seat, saying);
			check_others(&from->order, &state.order, seat);
			if (saying == MORE_STALE || saying == DONE_STALE)
				must(!memcmp(&from->order, &state.order, sizeof state.order), "only words about this turn count");
			check_charge(&state, &from->order, from->paid_before);
			take_turns(&state);
			if (fresh(&state, left - 1))
				explore(&state, left - 1);
		}
}

int main(int count, char **words)
{
	struct state state = {.now = 1000000 * MS};
	depth = count > 1 ? atoi(words[1]) : 4;
	seen = calloc(BUCKETS, sizeof *seen);
	order_begin(&state.order);
	for (int seat = 0; seat < SEATS; seat++)
		if (order_join(&state.order, 100 + tenant_of_seat[seat], limits[tenant_of_seat[seat]], state.now) != seat)
			return 2;
	must(order_join(&state.order, 100, limits[0], state.now) < 0, "there is no seat without end");
	fresh(&state, depth);
	explore(&state, depth);
	printf("%ld\n", looked);
	return 0;
}

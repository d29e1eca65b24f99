/* Whose turn it is on a GPU. order.h explains the whole. */
#include "order.h"

#include <string.h>

#define DEFAULT_QUANTUM_US 20000u
#define LEAST_QUANTUM_US 100u
#define MOST_QUANTUM_US 1000000u
#define MOST_WEIGHT 1000000u
#define MOST_SAVED_MS 60000u

enum right { BY_TOKENS, BY_BURST, NOT_NOW };

void order_begin(struct order *order)
{
	memset(order, 0, sizeof *order);
	order->holder = -1;
}

struct order_limit order_bounded(const struct limits_gpu *limit)
{
	uint32_t core = limit->core > 100 ? 100 : limit->core, quantum = limit->quantum_us ? limit->quantum_us : DEFAULT_QUANTUM_US;
	uint32_t weight = limit->weight ? limit->weight : core ? core : 1;
	quantum = quantum < LEAST_QUANTUM_US ? LEAST_QUANTUM_US : quantum > MOST_QUANTUM_US ? MOST_QUANTUM_US : quantum;
	return (struct order_limit){
		.quantum_ns = quantum * 1000ull,
		.saved_ns = (limit->saved_ms > MOST_SAVED_MS ? MOST_SAVED_MS : limit->saved_ms) * 1000000ull,
		.core = core ? core : 100,
		.weight = weight > MOST_WEIGHT ? MOST_WEIGHT : weight,
		.mode = limit->mode,
	};
}

static void raise_to(uint64_t *word, uint64_t least)
{
	if (*word < least)
		*word = least;
}

static int64_t tokens(const struct order_tenant *tenant, uint64_t now)
{
	return (int64_t)(now - tenant->paid_until) / 100 * (int64_t)tenant->limit.core;
}

static void cut_savings(struct order_tenant *tenant, uint64_t now)
{
	uint64_t most = (tenant->limit.quantum_ns + tenant->limit.saved_ns) * 100 / tenant->limit.core;
	raise_to(&tenant->paid_until, now > most ? now - most : 0);
}

/* A tenant that is new, or has another rate: it has saved a quantum at most. */
static void begin_savings(struct order_tenant *tenant, uint64_t now)
{
	uint64_t quantum = tenant->limit.quantum_ns * 100 / tenant->limit.core;
	raise_to(&tenant->paid_until, now > quantum ? now - quantum : 0);
}

static enum right may_run(const struct order_tenant *tenant, uint64_t now)
{
	const struct order_limit *limit = &tenant->limit;
	if (limit->mode == CORE_WEIGHTED || limit->core >= 100 || tokens(tenant, now) >= (int64_t)(limit->quantum_ns / 2))
		return BY_TOKENS;
	return limit->mode == CORE_BURST && now >= tenant->burst_from ? BY_BURST : NOT_NOW;
}

/* When a tenant that may not run has the tokens for it. */
static uint64_t ready_at(const struct order_tenant *tenant, uint64_t now)
{
	int64_t missing = (int64_t)(tenant->limit.quantum_ns / 2) - tokens(tenant, now);
	uint64_t at = now + (uint64_t)(missing > 0 ? missing : 0) * 100 / tenant->limit.core + 1000;
	return tenant->limit.mode == CORE_BURST && tenant->burst_from < at ? tenant->burst_from : at;
}

static struct order_tenant *tenant_of(struct order *order, int seat)
{
	return &order->tenants[order->seats[seat].tenant];
}

/* Between half a quantum and a whole one, by the tokens. */
static uint64_t length_of(const struct order_tenant *tenant, uint64_t now)
{
	int64_t quantum = (int64_t)tenant->limit.quantum_ns, rest = tokens(tenant, now);
	if (tenant->limit.mode != CORE_HARD || tenant->limit.core >= 100 || rest > quantum)
		return (uint64_t)quantum;
	return (uint64_t)(rest > quantum / 2 ? rest : quantum / 2);
}

static int place_of(struct order *order, uint64_t number, uint64_t now)
{
	int free = -1, oldest = -1;
	for (int i = 0; i < ORDER_TENANTS; i++) {
		const struct order_tenant *tenant = &order->tenants[i];
		if (tenant->number == number)
			return i;
		if (!tenant->number && free < 0)
			free = i;
		if (tenant->number && !tenant->seats && tenant->active + ORDER_FORGET_NS < now &&
		    (oldest < 0 || tenant->active < order->tenants[oldest].active))
			oldest = i;
	}
	int place = free >= 0 ? free : oldest;
	if (place >= 0)
		order->tenants[place] = (struct order_tenant){.number = number, .virtual_ns = order->virtual_ns};
	return place;
}

int order_join(struct order *order, uint64_t number, struct order_limit limit, uint64_t now)
{
	int seat = 0;
	while (seat < ORDER_SEATS && order->seats[seat].state != SEAT_FREE)
		seat++;
	int place = seat < ORDER_SEATS ? place_of(order, number, now) : -1;
	if (place < 0)
		return -1;
	struct order_tenant *tenant = &order->tenants[place];
	bool fresh = !tenant->limit.core;
	if (tenant->seats >= ORDER_TENANT_SEATS)
		return -1;
	order->seats[seat] = (struct order_seat){.state = SEAT_IDLE, .tenant = (unsigned)place};
	order->top = order->top > (unsigned)seat ? order->top : (unsigned)seat + 1;
	tenant->seats++;
	if (fresh) {
		tenant->limit = limit;
		begin_savings(tenant, now);
	} else {
		order_resize(order, seat, limit, now);
	}
	return seat;
}

void order_resize(struct order *order, int seat, struct order_limit limit, uint64_t now)
{
	struct order_tenant *tenant = tenant_of(order, seat);
	bool other = tenant->limit.core != limit.core;
	tenant->limit = limit;
	if (other)
		begin_savings(tenant, now);
}

static void charge(struct order *order, uint64_t used)
{
	struct order_tenant *tenant = tenant_of(order, order->holder);
	if (used <= order->charged)
		return;
	uint64_t time = used - order->charged;
	order->charged = used;
	tenant->virtual_ns += time * 100 / tenant->limit.weight;
	if (!order->without_tokens)
		tenant->paid_until += time * 100 / tenant->limit.core;
}

/* By the holder's own word, as far as it can be true. */
static void charge_holder(struct order *order, uint64_t used, uint64_t now)
{
	uint64_t held = now - order->granted, least = held > ORDER_EXCUSED_NS ? held - ORDER_EXCUSED_NS : 0;
	tenant_of(order, order->holder)->active = now;
	charge(order, used > held ? held : used < least ? least : used);
}

/* Spare time ends with a turn: what went on while tenants with tokens waited is paid before more spare time. */
static void end_spare_time(struct order *order, uint64_t now)
{
	struct order_tenant *tenant = tenant_of(order, order->holder);
	bool others = false;
	if (!order->without_tokens || now <= order->ends)
		return;
	for (int i = 0; i < ORDER_TENANTS && !others; i++)
		others = &order->tenants[i] != tenant && order->tenants[i].waiting && may_run(&order->tenants[i], now) == BY_TOKENS;
	if (!others)
		return;
	tenant->paid_until += (now - order->ends) * 100 / tenant->limit.core;
	tenant->burst_from = tenant->paid_until;
}

static void end_turn(struct order *order, uint64_t now)
{
	end_spare_time(order, now);
	tenant_of(order, order->holder)->active = now;
	order->seats[order->holder].state = SEAT_IDLE;
	order->holder = -1;
}

static void stop_waiting(struct order *order, int seat)
{
	tenant_of(order, seat)->waiting -= order->seats[seat].state == SEAT_WAITING;
}

void order_leave(struct order *order, int seat, uint64_t now)
{
	struct order_tenant *tenant = tenant_of(order, seat);
	if (order->holder == seat) {
		/* A killed holder pays for a turn, or a tenant whose processes die all the time would always be first. */
		uint64_t held = now - order->granted;
		charge(order, held > tenant->limit.quantum_ns ? held : tenant->limit.quantum_ns);
		end_turn(order, now);
	}
	stop_waiting(order, seat);
	tenant->seats--;
	order->seats[seat].state = SEAT_FREE;
	while (order->top && order->seats[order->top - 1].state == SEAT_FREE)
		order->top--;
}

void order_want(struct order *order, int seat, uint64_t now)
{
	struct order_tenant *tenant = tenant_of(order, seat);
	if (order->seats[seat].state != SEAT_IDLE)
		return;
	if (!tenant->waiting && tenant->active + ORDER_IDLE_NS < now) {
		cut_savings(tenant, now);
		raise_to(&tenant->virtual_ns, order->virtual_ns);
	}
	order->seats[seat].state = SEAT_WAITING;
	order->seats[seat].since = now;
	tenant->waiting++;
	tenant->active = now;
	tenant->soon = 0;
}

static bool expected(const struct order_tenant *tenant, uint64_t now)
{
	return tenant->number && (tenant->waiting || tenant->soon > now);
}

static bool holds(const struct order *order, int seat, uint64_t turn)
{
	return order->holder == seat && order->turn == turn;
}

uint64_t order_more(struct order *order, int seat, uint64_t turn, uint64_t used, uint64_t now)
{
	if (!holds(order, seat, turn))
		return 0;
	struct order_tenant *tenant = tenant_of(order, seat);
	charge_holder(order, used, now);
	bool others = tenant->waiting;
	for (int i = 0; i < ORDER_TENANTS && !others; i++)
		others = &order->tenants[i] != tenant && expected(&order->tenants[i], now) &&
			 may_run(&order->tenants[i], now) != NOT_NOW;
	enum right right = may_run(tenant, now);
	bool over = others || right == NOT_NOW || now >= order->expires;
	if (over)
		return 0;
	uint64_t length = length_of(tenant, now);
	order->without_tokens = right == BY_BURST;
	order->ends = now + length;
	order->expires = order->ends + ORDER_GRACE_NS;
	return length;
}

void order_busy(struct order *order, int seat, uint64_t turn, uint64_t used, uint64_t now)
{
	if (!holds(order, seat, turn))
		return;
	charge_holder(order, used, now);
	uint64_t last = order->ends + ORDER_PATIENCE_NS;
	raise_to(&order->expires, now + ORDER_GRACE_NS < last ? now + ORDER_GRACE_NS : last);
}

void order_done(struct order *order, int seat, uint64_t turn, uint64_t used, bool soon, uint64_t now)
{
	if (!holds(order, seat, turn))
		return;
	charge_holder(order, used, now);
	tenant_of(order, seat)->soon = soon ? now + ORDER_SOON_NS : 0;
	end_turn(order, now);
}

void order_owe(struct order *order, int seat, uint64_t used, uint64_t now)
{
	struct order_tenant *tenant = tenant_of(order, seat);
	raise_to(&tenant->owed_until, now > ORDER_PATIENCE_NS ? now - ORDER_PATIENCE_NS : 0);
	uint64_t most = now - tenant->owed_until, time = used < most ? used : most;
	tenant->owed_until += time;
	tenant->virtual_ns += time * 100 / tenant->limit.weight;
	tenant->paid_until += time * 100 / tenant->limit.core;
}

int order_expire(struct order *order, uint64_t now)
{
	int holder = order->holder;
	if (holder < 0 || now < order->expires)
		return -1;
	charge(order, now - order->granted);
	end_turn(order, now);
	return holder;
}

static int first_waiting(const struct order *order, unsigned tenant)
{
	int found = -1;
	for (int i = 0; i < (int)order->top; i++) {
		const struct order_seat *seat = &order->seats[i];
		if (seat->state == SEAT_WAITING && seat->tenant == tenant &&
		    (found < 0 || seat->since < order->seats[found].since))
			found = i;
	}
	return found;
}

static void grant(struct order *order, int seat, enum right right, uint64_t length, uint64_t now)
{
	struct order_tenant *tenant = tenant_of(order, seat);
	stop_waiting(order, seat);
	order->seats[seat].state = SEAT_HOLDING;
	order->holder = seat;
	order->turn++;
	order->granted = now;
	order->charged = 0;
	order->ends = now + length;
	order->expires = order->ends + ORDER_GRACE_NS;
	order->without_tokens = right == BY_BURST;
	raise_to(&order->virtual_ns, tenant->virtual_ns);
	tenant->active = now;
	tenant->soon = 0;
}

int order_next(struct order *order, uint64_t now, uint64_t *length, uint64_t *wake)
{
	struct order_tenant *first = NULL;
	enum right best = NOT_NOW;
	*wake = order->holder >= 0 ? order->expires : ORDER_NEVER;
	if (order->holder >= 0)
		return -1;
	for (int i = 0; i < ORDER_TENANTS; i++) {
		struct order_tenant *tenant = &order->tenants[i];
		if (!expected(tenant, now))
			continue;
		enum right right = may_run(tenant, now);
		if (right == NOT_NOW) {
			uint64_t at = ready_at(tenant, now);
			*wake = tenant->waiting && at < *wake ? at : *wake;
		} else if (right < best || (right == best && tenant->virtual_ns < first->virtual_ns)) {
			first = tenant;
			best = right;
		}
	}
	if (!first)
		return -1;
	if (!first->waiting) {
		*wake = first->soon < *wake ? first->soon : *wake;
		return -1;
	}
	int seat = first_waiting(order, (unsigned)(first - order->tenants));
	*length = length_of(first, now);
	grant(order, seat, best, *length, now);
	return seat;
}

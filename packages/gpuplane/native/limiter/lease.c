/* Whose turn it is on a GPU, and what turns cost. */
#include "lease.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS 20000000ull   /* who waits says so again within this */
#define SOON_NS 2000000ull    /* who was driven out comes back within this, or does not count as waiting */
#define FOREMOST_NS 1000000ull /* so long a free lease is kept for the one whose turn it is */
/* So long an expired one. Nobody wakes those that wait for it, and the tenant of the dead must not be first again and
   again on a busy machine. */
#define EXPIRED_NS 20000000ull
#define LOOK_NS 5000000ull    /* who waits for another process of its container looks that often whether it lives */
#define IDLE_NS 50000000ull   /* who did not ask for so long was idle */
#define SLEEP_NS 2000000ull
#define TIME_BITS (64 - LEASE_TAG_BITS)
#define TAG_MASK ((1ull << LEASE_TAG_BITS) - 1)

static uint64_t word_of(uint64_t time, uint64_t tag)
{
	return time >> LEASE_UNIT_BITS << LEASE_TAG_BITS | tag;
}

/* How far the word's time lies before `now`, in ns; negative: behind it. Compared modulo 2^40 units. */
static int64_t past(uint64_t word, uint64_t now)
{
	uint64_t units = (now >> LEASE_UNIT_BITS) - (word >> LEASE_TAG_BITS);
	return ((int64_t)(units << LEASE_TAG_BITS) >> LEASE_TAG_BITS) * (1 << LEASE_UNIT_BITS);
}

static uint64_t tag_of(const struct turn *turn)
{
	return (uint64_t)(turn->entry + 1) << 12 | (slots_number() & 0xfff);
}

static void raise_to(uint64_t *word, uint64_t least)
{
	uint64_t old = LOAD(*word);
	while (old < least && !EXCHANGE(*word, &old, least))
		;
}

static struct lease_tenant *tenant_of(const struct turn *turn)
{
	return &turn->page->tenants[turn->entry];
}

/* Idle time is not saved up, except for a quantum of tokens. Debt stays. */
static void cut_savings(struct lease_tenant *tenant)
{
	uint64_t core = LOAD(tenant->core), now = clock_now();
	uint64_t most = (uint64_t)LOAD(tenant->quantum_us) * 1000 * 100 / (core ? core : 100);
	raise_to(&tenant->paid_until, now > most ? now - most : 0);
}

/* What the tenant may do, as its own process wrote it beside its number; all others read it there. */
static void publish(struct turn *turn)
{
	struct lease_tenant *tenant = tenant_of(turn);
	const struct limits_gpu *limit = &limits->gpus[turn->gpu];
	uint32_t core = LOAD(limit->core), weight = LOAD(limit->weight), quantum = LOAD(limit->quantum_us);
	STORE(tenant->quantum_us, quantum ? quantum : LEASE_QUANTUM_US);
	core = core > 100 ? 100 : core;
	uint32_t before = LOAD(tenant->core);
	if (core != before) {
		/* What was saved at another rate is worth a quantum at most. */
		STORE(tenant->core, core);
		cut_savings(tenant);
	}
	STORE(tenant->weight, weight ? weight : core ? core : 1);
	STORE(tenant->mode, LOAD(limit->mode));
	STORE(slots_own()->generation, LOAD(limits->generation));
}

bool lease_join(struct turn *turn, struct lease_page *page, int gpu)
{
	uint64_t now = clock_now(), number = limits->tenant;
	*turn = (struct turn){.page = page, .gpu = gpu};
	for (int pass = 0; pass < 3; pass++)
		for (unsigned i = 0; i < PAGE_TENANTS; i++) {
			struct lease_tenant *tenant = &page->tenants[i];
			uint64_t there = LOAD(tenant->tenant);
			/* Ours already; else a free one; else one of somebody long gone. */
			bool wanted = pass == 0 ? there == number : pass == 1 ? !there : LOAD(tenant->seen) + LEASE_FORGET_NS < now;
			if (!wanted || (there != number && !EXCHANGE(tenant->tenant, &there, number)))
				continue;
			if (pass) {
				STORE(tenant->virtual_ns, LOAD(page->virtual_ns));
				STORE(tenant->paid_until, 0);
				STORE(tenant->waiting_until, 0);
				STORE(tenant->busy_ns, 0);
				STORE(tenant->turns, 0);
				STORE(tenant->seen, 0);
			}
			turn->entry = i;
			return true;
		}
	return false;
}

/* Two processes of one container may have taken an entry each; the lower one is it. Somebody may also have freed ours. */
static bool rejoin(struct turn *turn)
{
	for (unsigned i = 0; i <= turn->entry; i++)
		if (LOAD(turn->page->tenants[i].tenant) == limits->tenant) {
			uint64_t number = limits->tenant;
			if (i < turn->entry)
				EXCHANGE(tenant_of(turn)->tenant, &number, 0);
			turn->entry = i;
			return true;
		}
	return lease_join(turn, turn->page, turn->gpu);
}

static int64_t tokens(const struct lease_tenant *tenant, uint64_t now)
{
	return (int64_t)(now - LOAD(tenant->paid_until)) / 100 * (int64_t)LOAD(tenant->core);
}

enum { BY_RIGHT, BY_BURST, NOT_NOW };

static int may_run(const struct lease_tenant *tenant, uint64_t now)
{
	uint32_t mode = LOAD(tenant->mode), core = LOAD(tenant->core);
	if (mode == CORE_WEIGHTED || core >= 100 || tokens(tenant, now) >= (int64_t)LOAD(tenant->quantum_us) * 500)
		return BY_RIGHT;
	return mode == CORE_BURST ? BY_BURST : NOT_NOW;
}

/* Whether another tenant waits that comes before us (or, with `any`, that could run at all). */
static bool others_wait(const struct turn *turn, uint64_t now, bool any)
{
	const struct lease_tenant *self = tenant_of(turn);
	int right = may_run(self, now);
	uint64_t virtual_ns = LOAD(self->virtual_ns);
	for (unsigned i = 0; i < PAGE_TENANTS; i++) {
		const struct lease_tenant *other = &turn->page->tenants[i];
		if (i == turn->entry || !LOAD(other->tenant) || LOAD(other->waiting_until) < now)
			continue;
		int theirs = may_run(other, now);
		if (theirs == NOT_NOW)
			continue;
		uint64_t at = LOAD(other->virtual_ns);
		if (any || theirs < right || (theirs == right && (at < virtual_ns || (at == virtual_ns && i < turn->entry))))
			return true;
	}
	return false;
}

/* How long a turn is: what there are tokens for, between half a quantum and a whole one. */
static uint64_t length(const struct turn *turn, uint64_t now)
{
	const struct lease_tenant *tenant = tenant_of(turn);
	int64_t quantum = (int64_t)LOAD(tenant->quantum_us) * 1000, rest = tokens(tenant, now);
	if (LOAD(tenant->mode) != CORE_HARD || LOAD(tenant->core) >= 100 || rest > quantum)
		return (uint64_t)quantum;
	return (uint64_t)(rest > quantum / 2 ? rest : quantum / 2);
}

/* A holder that was killed could not charge its turn. Its container pays for what it made others wait; otherwise one
   whose processes die all the time would always be first. */
static void charge_dead(struct lease_page *page, uint64_t word, int64_t since)
{
	uint64_t entry = (word & TAG_MASK) >> 12;
	if (!entry || entry > PAGE_TENANTS)
		return;
	struct lease_tenant *tenant = &page->tenants[entry - 1];
	uint64_t core = LOAD(tenant->core), weight = LOAD(tenant->weight);
	int64_t late = (int64_t)LEASE_GRACE_NS + since, quantum = (int64_t)LOAD(tenant->quantum_us) * 1000;
	uint64_t time = since >= 0 ? LEASE_GRACE_NS : (uint64_t)(late > quantum ? late : quantum);
	ADD(tenant->virtual_ns, time * 100 / (weight ? weight : 1));
	if (core)
		ADD(tenant->paid_until, time * 100 / core);
}

/* Whether the holder is a process of our own container that is no more: nobody needs to wait until its lease expires. */
static bool holder_gone(struct turn *turn, uint64_t word, uint64_t now)
{
	unsigned slot = (unsigned)word & 0xfff;
	if ((word & TAG_MASK) >> 12 != turn->entry + 1 || now - turn->looked < LOOK_NS)
		return false;
	turn->looked = now;
	/* In our own slot there was somebody before us. */
	return slot == (slots_number() & 0xfff) || slots_gone(slot);
}

bool lease_try(struct turn *turn, uint64_t *ends, uint64_t *wait)
{
	uint64_t now = clock_now();
	if (!rejoin(turn)) {
		*wait = SLEEP_NS;
		return false;
	}
	publish(turn);
	struct lease_tenant *tenant = tenant_of(turn);
	uint64_t quantum = (uint64_t)LOAD(tenant->quantum_us) * 1000;
	if (LOAD(tenant->seen) + IDLE_NS < now) {
		cut_savings(tenant);
		raise_to(&tenant->virtual_ns, LOAD(turn->page->virtual_ns));
	}
	STORE(tenant->seen, now);
	raise_to(&tenant->waiting_until, now + WAIT_NS);
	int right = may_run(tenant, now);
	if (right == NOT_NOW) {
		int64_t missing = (int64_t)quantum / 2 - tokens(tenant, now);
		uint64_t until = (uint64_t)missing * 100 / (LOAD(tenant->core) ? LOAD(tenant->core) : 1) + 1000;
		*wait = until < SLEEP_NS ? until : SLEEP_NS;
		return false;
	}
	uint64_t word = LOAD(turn->page->lease);
	int64_t since = past(word, now);
	bool held = word & TAG_MASK;
	*wait = SLEEP_NS;
	if (held && since <= 0 && !holder_gone(turn, word, now)) {
		*wait = (uint64_t)-since < SLEEP_NS ? (uint64_t)-since + (1 << LEASE_UNIT_BITS) : SLEEP_NS;
		return false;
	}
	if (since >= 0 && since < (int64_t)(held ? EXPIRED_NS : FOREMOST_NS) && others_wait(turn, now, false)) {
		*wait = FOREMOST_NS / 4;
		return false;
	}
	uint64_t own = word_of(now + length(turn, now) + LEASE_GRACE_NS, tag_of(turn));
	if (!EXCHANGE(turn->page->lease, &word, own))
		return false;
	if (held)
		charge_dead(turn->page, word, since);
	turn->word = own;
	turn->charged = now;
	turn->bursting = right == BY_BURST;
	*ends = now + length(turn, now);
	raise_to(&turn->page->virtual_ns, LOAD(tenant->virtual_ns));
	ADD(tenant->turns, 1);
	return true;
}

bool lease_go_on(struct turn *turn, uint64_t *ends)
{
	uint64_t now = clock_now();
	publish(turn);
	lease_charge(turn, now);
	int right = may_run(tenant_of(turn), now);
	if (right == NOT_NOW || !LOAD(limits->gpus[turn->gpu].core) || others_wait(turn, now, true))
		return false;
	turn->bursting = right == BY_BURST;
	*ends = now + length(turn, now);
	return lease_prolong(turn, *ends);
}

bool lease_prolong(struct turn *turn, uint64_t until)
{
	uint64_t fresh = word_of(until + LEASE_GRACE_NS, tag_of(turn)), old = turn->word;
	if (!turn->word || !EXCHANGE(turn->page->lease, &old, fresh)) {
		turn->word = 0;
		return false;
	}
	turn->word = fresh;
	return true;
}

void lease_charge(struct turn *turn, uint64_t until)
{
	struct lease_tenant *tenant = tenant_of(turn);
	uint64_t core = LOAD(tenant->core), weight = LOAD(tenant->weight);
	if (until <= turn->charged)
		return;
	uint64_t time = until - turn->charged;
	turn->charged = until;
	if (!turn->bursting && core)
		ADD(tenant->paid_until, time * 100 / core);
	ADD(tenant->virtual_ns, time * 100 / (weight ? weight : 1));
	ADD(tenant->busy_ns, time);
	STORE(tenant->seen, clock_now());
	ADD(slots_own()->gpus[turn->gpu].busy_ns, time);
	ADD(usage->totals[turn->gpu].busy_ns, time);
}

void lease_give_back(struct turn *turn, bool soon)
{
	uint64_t now = clock_now(), old = turn->word;
	struct lease_tenant *tenant = tenant_of(turn);
	STORE(tenant->seen, now);
	/* Another process of the container may wait all the same; it says so again. */
	STORE(tenant->waiting_until, soon ? now + SOON_NS : now);
	turn->word = 0;
	if (!old || !EXCHANGE(turn->page->lease, &old, word_of(now, 0)))
		return;
	ADD(turn->page->futex, 1);
	syscall(SYS_futex, &turn->page->futex, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

void lease_sleep(struct turn *turn, uint32_t seen, uint64_t nanoseconds)
{
	struct timespec pause = {(time_t)(nanoseconds / 1000000000ull), (long)(nanoseconds % 1000000000ull)};
	syscall(SYS_futex, &turn->page->futex, FUTEX_WAIT, seen, &pause, NULL, 0);
}

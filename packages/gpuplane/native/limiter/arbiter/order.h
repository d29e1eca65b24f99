/*
 * Whose turn it is on a GPU, and what turns cost: pure functions of a state, a message and a time. serve.c carries messages.
 *
 * A *seat* is one process of a tenant on one GPU; a *tenant* is one container. One seat at a time holds the turn.
 *
 * Order: of the tenants that wait and may run, the tenant with the least virtual time is next; of its seats, the one that
 * waits longest. A tenant may run by tokens: (now - paid_until) x core / 100 is at least half a quantum. CORE_WEIGHTED may
 * always run; CORE_BURST may run without tokens while no tenant with tokens waits.
 * A turn without tokens that went on beyond its time while such a tenant waited is paid before the next one.
 *
 * Charge: virtual_ns += time x 100 / weight, and paid_until += time x 100 / core (not while it runs without tokens). A debt
 * stays. Work without a turn is charged alike, by its tenant's own word. A tenant that was idle loses what it saved, down to
 * a quantum of tokens and its saved_ns.
 *
 * Invariants, which order_model.c explores for all short sequences of messages:
 * - One seat holds the turn at most. A message changes only what its sender holds or waits for, whatever it says.
 * - A turn ends ORDER_GRACE_NS after its time, or after the holder's last word that the GPU still works for it, and then
 *   ORDER_PATIENCE_NS after the turn's time at the latest.
 * - While a seat waits, order_next grants a turn or says when to ask again.
 * - A holder pays for all the time that it held the turn, less ORDER_EXCUSED_NS at most, which it may report as idle.
 */
#ifndef GPUPLANE_ORDER_H
#define GPUPLANE_ORDER_H

#include "../page.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef ORDER_TENANTS
#define ORDER_TENANTS 128
#define ORDER_SEATS 16384
#define ORDER_TENANT_SEATS 512
#endif

#define ORDER_GRACE_NS 100000000ull
#define ORDER_PATIENCE_NS 10000000000ull
#define ORDER_EXCUSED_NS 10000000ull
#define ORDER_SOON_NS 1000000ull      /* so long the turn is reserved for a tenant that has just ended one and comes back */
#define ORDER_IDLE_NS 50000000ull     /* a tenant that did not ask for so long was idle */
#define ORDER_FORGET_NS 60000000000ull /* a tenant without a seat for so long is forgotten, with its debt */

enum seat_state { SEAT_FREE, SEAT_IDLE, SEAT_WAITING, SEAT_HOLDING };

struct order_limit {
	uint64_t quantum_ns, saved_ns;
	uint32_t core, weight, mode; /* 1 to 100; 1 or more; enum core_mode */
};

struct order_tenant {
	uint64_t number; /* limits_page.tenant; 0: free */
	struct order_limit limit;
	uint64_t virtual_ns, paid_until;
	uint64_t active; /* when it last waited or held */
	uint64_t soon;   /* until then it is expected back */
	uint64_t burst_from; /* no turn without tokens before */
	uint64_t owed_until; /* the time before has been paid as time without a turn; no GPU works longer than time goes on */
	unsigned seats, waiting;
};

struct order_seat {
	enum seat_state state;
	unsigned tenant;
	uint64_t since; /* when it began to wait */
};

struct order {
	uint64_t turn; /* number of the last turn */
	int holder;    /* -1: none */
	uint64_t granted, charged, ends, expires;
	bool without_tokens;
	uint64_t virtual_ns; /* that of the tenant that had its turn last */
	unsigned top;        /* seats from here on are free */
	struct order_tenant tenants[ORDER_TENANTS];
	struct order_seat seats[ORDER_SEATS];
};

#define ORDER_NEVER UINT64_MAX

void order_begin(struct order *order);
/* The part that limits allow, within the range of the arithmetic. */
struct order_limit order_bounded(const struct limits_gpu *limit);
/* A seat for a process of a tenant; -1: there is no room. */
int order_join(struct order *order, uint64_t tenant, struct order_limit limit, uint64_t now);
void order_leave(struct order *order, int seat, uint64_t now);
void order_resize(struct order *order, int seat, struct order_limit limit, uint64_t now);
void order_want(struct order *order, int seat, uint64_t now);
/* Shortly before the end of a turn: for how long it goes on, 0: it ends then. `used`: so much of the turn since its beginning. */
uint64_t order_more(struct order *order, int seat, uint64_t turn, uint64_t used, uint64_t now);
/* The GPU still works for the holder. */
void order_busy(struct order *order, int seat, uint64_t turn, uint64_t used, uint64_t now);
/* `soon`: it is about to launch more. */
void order_done(struct order *order, int seat, uint64_t turn, uint64_t used, bool soon, uint64_t now);
/* The GPU worked for a seat for so long while it had no turn: its tenant pays, as far as that can be true. */
void order_owe(struct order *order, int seat, uint64_t used, uint64_t now);
/* Ends an expired turn: the seat that lost it, or -1. */
int order_expire(struct order *order, uint64_t now);
/* Grants the next turn: its seat and *length; or -1, and *wake is when to ask again if no message comes. */
int order_next(struct order *order, uint64_t now, uint64_t *length, uint64_t *wake);

#endif

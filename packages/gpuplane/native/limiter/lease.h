/* The lease of a GPU's time, as one process sees it. page.h says how processes agree; nothing here knows of CUDA. */
#ifndef GPUPLANE_LEASE_H
#define GPUPLANE_LEASE_H

#include "limiter.h"

struct turn {
	struct lease_page *page;
	int gpu;
	unsigned entry;    /* of the tenant */
	uint64_t word;     /* what we wrote when we took or prolonged it; 0: not ours */
	uint64_t charged;  /* until when time was charged */
	uint64_t looked;   /* when we last looked whether the holder lives */
	bool bursting;
};

/* False: all entries for tenants are taken. */
bool lease_join(struct turn *turn, struct lease_page *page, int gpu);
/* Takes the lease if it is this tenant's turn, until *ends. If not, *wait is how long to sleep on the futex at most. */
bool lease_try(struct turn *turn, uint64_t *ends, uint64_t *wait);
/* At the end of a turn: whether it may go on, since nobody else waits and the limit allows it. */
bool lease_go_on(struct turn *turn, uint64_t *ends);
/* Keeps the lease from expiring; false: it was taken over. */
bool lease_prolong(struct turn *turn, uint64_t until);
void lease_charge(struct turn *turn, uint64_t until);
/* `soon`: more is about to be launched, so this tenant counts as waiting for a moment. */
void lease_give_back(struct turn *turn, bool soon);
/* Sleeps until somebody gives the lease back, or for so long. `seen` is the futex before lease_try. */
void lease_sleep(struct turn *turn, uint32_t seen, uint64_t nanoseconds);

#endif

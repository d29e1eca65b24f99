/*
 * Two threads for each GPU with a limited time. The keeper ends turns: when their time is over, or early when there is
 * nothing to do. The drainer waits for the GPU on its behalf, so that a long kernel does not keep the keeper from
 * telling the arbiter that the GPU still works.
 */
#include "gate.h"

#include <signal.h>

CUresult cuCtxSynchronize(void);

#define TICK_NS 1500000ull        /* so long without a launch and with an idle GPU, and the turn is given back */
#define FINE_LEAST_NS 100000ull   /* after a turn that ended so, the GPU is looked at so soon after a launch, */
#define FINE_MOST_NS 400000ull    /* or so soon, where more was launched meanwhile, */
#define SPARSE_TURNS 8            /* in so many turns */
#define STEP_NS 20000000ull       /* a long drain is charged, and the arbiter told of it, in such steps */
#define QUICK_NS 200000ull        /* a drain that took no longer found the GPU idle */
#define LEAVE_NS 1000000000ull
#define WATCH_NS 1000000ull       /* so often it is seen whether work that was held back has begun to run */
#define STACK (1u << 20)

/* With the lock held, which it gives up. Waits for all that was launched in the contexts known. While it does, none of
   them ends; more may come, in which nothing is launched. */
static void drain(struct gate *gate)
{
	int count = gate->context_count;
	/* During a capture the driver refuses to wait for contexts. */
	bool whole = gate->whole = !captures_any(), held = false;
	bool settled = false;
	uint64_t busy = 0, started = clock_now();
	gate->syncing = true;
	for (int i = 0; i < count; i++) {
		CUcontext context = gate->contexts[i].context;
		if (!context)
			continue;
		pthread_mutex_unlock(&gate->lock);
		if (REAL(cuCtxSetCurrent)(context) == CUDA_SUCCESS) {
			if (whole && captures_refused(REAL(cuCtxSynchronize)())) {
				streams_mark_default(context, gate->turn.gpu);
				streams_mark_all();
			}
			settled |= waits_any();
			if (waits_any())
				held |= waits_settle(context, &busy);
			else
				streams_wait(context);
		}
		pthread_mutex_lock(&gate->lock);
	}
	pthread_mutex_unlock(&gate->lock);
	if (count)
		REAL(cuCtxSetCurrent)(NULL);
	pthread_mutex_lock(&gate->lock);
	gate->syncing = gate->whole = false;
	gate->parked = held;
	uint64_t paused = LOAD(gate->paused_at), now = clock_now();
	gate->found_idle = settled ? !busy : now - started < QUICK_NS;
	gate->done_at = held && busy && paused > busy ? paused : now;
}

/* With the lock held, which it gives up. The work of the known contexts. */
static enum waits_state look(struct gate *gate)
{
	enum waits_state worst = WAITS_DONE;
	int count = gate->context_count;
	gate->syncing = true;
	for (int i = 0; i < count; i++) {
		CUcontext context = gate->contexts[i].context;
		pthread_mutex_unlock(&gate->lock);
		enum waits_state state = context ? waits_look(context) : WAITS_DONE;
		worst = state > worst ? state : worst;
		pthread_mutex_lock(&gate->lock);
	}
	gate->syncing = false;
	pthread_cond_broadcast(&gate->work);
	return worst;
}

/* While others have turns: if work runs that was held back, a turn is taken for it, and the time before is paid. A turn that
   was asked for is taken in any case, since the arbiter grants it. */
static void watch(struct gate *gate)
{
	gate_deadline(&gate->work, &gate->lock, clock_now() + WATCH_NS);
	if (gate->state != GATE_SHUT || gate->wanted != gate->done || gate->stopping)
		return;
	uint64_t owed = 0, seen = clock_now();
	enum waits_state state = look(gate);
	gate->parked = state != WAITS_DONE;
	if (state != WAITS_BUSY)
		return;
	gate->waiting++;
	while (gate->state == GATE_SHUT && !gate->stopping) {
		gate->loose = state == WAITS_BUSY;
		gate_try_turn(gate);
		uint64_t now = clock_now();
		owed += state == WAITS_BUSY ? now - seen : 0;
		seen = now;
		if (gate->state == GATE_SHUT)
			state = look(gate);
	}
	gate->waiting--;
	gate->loose = false;
	if (!gate->stopping)
		turn_owe(&gate->turn, owed);
}

static void *run_drainer(void *argument)
{
	struct gate *gate = argument;
	captures_relax();
	pthread_mutex_lock(&gate->lock);
	for (;;) {
		while (gate->wanted == gate->done || gate->stopping) {
			if (gate->parked && gate->state == GATE_SHUT && !gate->stopping)
				watch(gate);
			else
				pthread_cond_wait(&gate->work, &gate->lock);
		}
		uint64_t wanted = gate->wanted;
		drain(gate);
		gate->done = wanted;
		pthread_cond_broadcast(&gate->work);
	}
	return NULL;
}

/* The functions below run with the lock held. */

static void ask_drain(struct gate *gate)
{
	gate->wanted++;
	pthread_cond_broadcast(&gate->work);
}

/* Ends the turn: nothing more is launched, what was is waited for, and the time until then is charged. `idle_since` is
   when the GPU had nothing to do any more, if that is known; else 0. */
static void end_turn(struct gate *gate, uint64_t idle_since)
{
	STORE(gate->until, 0);
	gate->state = GATE_CLOSING;
	bool asked = false;
	while (!gate->stopping) {
		if (!gate->launching && (!asked || (gate->resumed && gate->done == gate->wanted))) {
			gate->resumed = false;
			ask_drain(gate);
			asked = true;
		}
		if (!gate->resumed && asked && gate->done == gate->wanted)
			break;
		gate_deadline(&gate->work, &gate->lock, clock_now() + STEP_NS);
		if (!gate->resumed && asked && gate->done == gate->wanted)
			break;
		/* The arbiter does not wait for it for ever. */
		turn_busy(&gate->turn, clock_now());
	}
	bool was_idle = idle_since && gate->found_idle;
	turn_done(&gate->turn, was_idle ? idle_since : gate->done_at, !was_idle && !gate->parked);
	if (gate->waiting && !gate->stopping) /* they may come late on a busy machine */
		turn_want(&gate->turn);
	gate->state = GATE_SHUT;
	pthread_cond_broadcast(&gate->changed);
	if (gate->parked)
		pthread_cond_broadcast(&gate->work);
}

/* A program that leaves the GPU idle between its launches pays for the time until the GPU is found idle. So the drainer is asked
   soon after its last launch, and is there when the GPU has finished. */
static void note_end(struct gate *gate, bool idle)
{
	gate->sparse = idle ? SPARSE_TURNS : gate->sparse ? gate->sparse - 1 : 0;
}

static void *run_keeper(void *argument)
{
	struct gate *gate = argument;
	uint64_t asked = 0; /* the drain behind all that was launched */
	uint64_t fine = FINE_LEAST_NS;
	bool over = false; /* the turn will not go on */
	pthread_mutex_lock(&gate->lock);
	for (;;) {
		while (gate->state != GATE_OPEN || gate->stopping) {
			asked = 0;
			over = false;
			fine = FINE_LEAST_NS;
			pthread_cond_wait(&gate->work, &gate->lock);
		}
		uint64_t now = clock_now(), tick = now + (gate->sparse ? fine : TICK_NS), stop = over ? gate->ends : gate->asks;
		if (now < stop) {
			gate_deadline(&gate->work, &gate->lock, tick < stop ? tick : stop);
			now = clock_now();
		}
		if (gate->state != GATE_OPEN)
			continue;
		bool touched = __atomic_exchange_n(&gate->touched, false, __ATOMIC_SEQ_CST);
		asked = touched ? 0 : asked;
		fine = touched && fine < FINE_MOST_NS ? 2 * fine : fine;
		if (now >= stop) {
			asked = 0;
			if (!over && turn_more(&gate->turn, &gate->ends)) {
				gate_close_at(gate, gate->ends);
				pthread_cond_broadcast(&gate->changed);
			} else if (!over && clock_now() < gate->ends) {
				over = true; /* the rest is still ours */
			} else {
				note_end(gate, false);
				end_turn(gate, 0);
			}
		} else if (!asked && !touched) {
			/* Nothing launched for a while: is the GPU still busy with what was? */
			ask_drain(gate);
			asked = gate->wanted;
		} else if (asked && gate->done >= asked && now - gate->done_at >= TICK_NS) {
			note_end(gate, true);
			end_turn(gate, gate->done_at);
			asked = 0;
		}
	}
	return NULL;
}

bool keeper_start(struct gate *gate)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;
	/* The program's signals are for its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK);
	gate->started = !pthread_create(&thread, &attributes, run_keeper, gate) &&
			!pthread_create(&thread, &attributes, run_drainer, gate);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!gate->started)
		page_lacks(SAY_THREAD, "no thread for keeping to the GPU's time");
	return gate->started;
}

/* A process that ends gives its turn to others at once. */
__attribute__((destructor)) static void leave(void)
{
	for (int i = 0; cuda_active && i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		if (!gate->started)
			continue;
		pthread_mutex_lock(&gate->lock);
		gate->stopping = true;
		STORE(gate->until, 0);
		if (gate->turn.held)
			turn_done(&gate->turn, clock_now(), false);
		/* The driver ends after us: no thread of ours may be in it then, nor enter it again. */
		for (uint64_t until = clock_now() + LEAVE_NS; gate->syncing && clock_now() < until;)
			gate_deadline(&gate->work, &gate->lock, until);
		pthread_cond_broadcast(&gate->changed);
		pthread_mutex_unlock(&gate->lock);
	}
}

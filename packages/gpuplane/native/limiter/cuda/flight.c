/* The contexts that were launched in, and what of them is in flight: bounded, so that a turn does not end with seconds of
   work queued. gate.h explains the whole. */
#include "gate.h"

CUresult cuEventSynchronize(CUevent event);

#define BATCH_MOST 64         /* launches of a thread between two looks; twice that may be in flight */
#define BATCH_NS 2000000ull   /* and so much work, by the measure of the last batch */
#define LONG_NS 5000000ull    /* a single launch from here on is waited for, which costs little compared with it */
#define EVENT_FLAGS 3u        /* sleep while waiting, no timing */

struct gate_context *flight_know(struct gate *gate, CUcontext context)
{
	struct gate_context *empty = NULL;
	for (int i = 0; i < GATE_CONTEXTS; i++) {
		if (gate->contexts[i].context == context)
			return &gate->contexts[i];
		if (!gate->contexts[i].context && !empty)
			empty = &gate->contexts[i];
	}
	if (empty) {
		*empty = (struct gate_context){.context = context};
		for (int i = 0; i < 2; i++)
			if (REAL(cuEventCreate)(&empty->events[i], EVENT_FLAGS) != CUDA_SUCCESS)
				empty->events[i] = NULL;
	}
	return empty;
}

/* Marks the end of a batch in the stream, and waits until the one before it is done. Where a single launch is long, or
   nothing is known yet, it waits for this one: a turn must not end with seconds of work queued. */
void flight_bound(struct gate *gate, CUcontext context, CUstream stream, unsigned launched)
{
	struct gate_context *known = flight_know(gate, context);
	if (!known || !known->events[0] || !known->events[1] || !launched)
		return;
	int current = known->next;
	CUevent event = known->events[current], before = known->recorded[!current] ? known->events[!current] : NULL;
	known->recorded[current] = false;
	if (REAL(cuEventRecord)(event, stream) != CUDA_SUCCESS)
		return;
	/* Another thread may have drawn the stream into a capture meanwhile, and the event with it: it is not asked about. */
	if (captures_any() && captures_hold(stream))
		return;
	known->recorded[current] = true;
	known->next = !current;
	CUevent last = gate->one_by_one ? event : before;
	bool busy = last && REAL(cuEventQuery)(last) == CUDA_NOT_READY;
	pthread_mutex_unlock(&gate->lock);
	if (busy)
		REAL(cuEventSynchronize)(last);
	uint64_t now = clock_now();
	pthread_mutex_lock(&gate->lock);
	uint64_t each = (now - gate->batch_at) / launched;
	uint64_t batch = busy ? BATCH_NS / (each ? each : 1) : (uint64_t)gate->batch * 2;
	gate->batch_at = now;
	gate->one_by_one = each >= LONG_NS;
	gate->batch = gate->one_by_one || !batch ? 1 : batch < BATCH_MOST ? (unsigned)batch : BATCH_MOST;
}

void gate_wait_whole(void)
{
	for (int i = 0; i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		while (gate->whole)
			pthread_cond_wait(&gate->work, &gate->lock);
		pthread_mutex_unlock(&gate->lock);
	}
}

void gate_mark_all(void)
{
	for (int i = 0; i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		CUcontext contexts[GATE_CONTEXTS];
		pthread_mutex_lock(&gate->lock);
		for (int k = 0; k < GATE_CONTEXTS; k++)
			contexts[k] = gate->contexts[k].context;
		pthread_mutex_unlock(&gate->lock);
		for (int k = 0; k < GATE_CONTEXTS; k++)
			if (contexts[k])
				streams_mark_default(contexts[k], i);
	}
	streams_mark_all();
}

void gate_leave(CUcontext context)
{
	for (int i = 0; cuda_active && i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		while (gate->syncing)
			pthread_cond_wait(&gate->work, &gate->lock);
		for (int k = 0; k < GATE_CONTEXTS; k++) {
			struct gate_context *known = &gate->contexts[k];
			if (known->context != context)
				continue;
			for (int n = 0; n < 2; n++)
				if (known->events[n])
					REAL(cuEventDestroy_v2)(known->events[n]);
			*known = (struct gate_context){.context = NULL};
			/* A thread that still launches in it enters it again. */
			STORE(gate->until, 0);
		}
		pthread_mutex_unlock(&gate->lock);
	}
}

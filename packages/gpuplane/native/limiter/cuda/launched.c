/* The contexts that were launched in: what the end of a turn waits for, and what a capture marks before it begins. */
#include "gate.h"

#include <stdlib.h>

struct gate_context *launched_know(struct gate *gate, CUcontext context)
{
	struct gate_context *empty = NULL;
	for (int i = 0; i < gate->context_count; i++) {
		if (gate->contexts[i].context == context)
			return &gate->contexts[i];
		if (!gate->contexts[i].context && !empty)
			empty = &gate->contexts[i];
	}
	if (!empty) {
		struct gate_context *more = realloc(gate->contexts, (size_t)(gate->context_count + 1) * sizeof *more);
		if (!more)
			return NULL;
		gate->contexts = more;
		empty = &more[gate->context_count++];
	}
	*empty = (struct gate_context){.context = context};
	return empty;
}

void gate_wait_whole(void)
{
	int cancel = cancel_put_off();
	for (int i = 0; i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		while (gate->whole)
			pthread_cond_wait(&gate->work, &gate->lock);
		pthread_mutex_unlock(&gate->lock);
	}
	cancel_allow(cancel);
}

void gate_mark_all(void)
{
	for (int i = 0; i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		for (int k = 0; k < gate->context_count; k++) {
			CUcontext context = gate->contexts[k].context;
			pthread_mutex_unlock(&gate->lock);
			if (context)
				streams_mark_default(context, i);
			pthread_mutex_lock(&gate->lock);
		}
		pthread_mutex_unlock(&gate->lock);
	}
	streams_mark_all();
}

void gate_leave(CUcontext context)
{
	int cancel = cancel_put_off();
	for (int i = 0; cuda_active && i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		while (gate->syncing)
			pthread_cond_wait(&gate->work, &gate->lock);
		for (int k = 0; k < gate->context_count; k++) {
			struct gate_context *known = &gate->contexts[k];
			if (known->context != context)
				continue;
			flight_drop(gate, context);
			for (int n = 0; n < FLIGHTS; n++)
				if (known->events[n])
					REAL(cuEventDestroy_v2)(known->events[n]);
			*known = (struct gate_context){.context = NULL};
			measure_forget_events();
			/* A thread that still launches in it enters it again. */
			STORE(gate->until, 0);
		}
		pthread_mutex_unlock(&gate->lock);
	}
	cancel_allow(cancel);
}

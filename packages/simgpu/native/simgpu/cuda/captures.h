/* A capture of streams into a graph, as captures.c (what is refused) and capture_calls.c (begin, end, describe) share it. */
#ifndef SIMGPU_CAPTURES_H
#define SIMGPU_CAPTURES_H

#include "cuda.h"

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

struct capture {
	struct graph *graph;
	bool given; /* the graph is the caller's, and stays when the capture fails */
	bool broken;
	int mode;
	uint64_t id, thread; /* who began it */
	unsigned branches;
	struct stream *origin;
	struct capture *next;
};

/* Called with the guard held. */
void capture_begin(struct capture *capture, struct stream *origin);
bool capture_end(struct capture *capture); /* takes all streams out; whether each had been joined to the origin */
CUresult capture_spoil(struct capture *capture, CUresult reason);
/* Whether the legacy stream would wait for a captured stream; with `spoil` that breaks its capture. */
bool capture_met_by_legacy(const struct context *context, bool spoil);

extern __thread int capture_mode; /* of the calling thread */

#endif

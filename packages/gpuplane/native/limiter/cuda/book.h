/* The book of streams that were launched into: what streams.c and waits.c share. */
#ifndef GPUPLANE_BOOK_H
#define GPUPLANE_BOOK_H

#include "streams.h"

#define BOOK_BUCKETS 64
#define BOOK_EVENT 3u /* flags: sleep while waiting, no timing */

/* Something outside that a stream waits for, or a graph with host functions, lies between two events (waits.c). */
struct hold {
	CUevent before, after;
	struct hosts *hosts; /* of the graph; else NULL */
	void *called;        /* a host function, as calls.c knows it; else NULL */
	struct hold *next;
};

struct stream {
	CUcontext context;
	int gpu;
	CUstream handle;
	uint64_t thread; /* whose own default stream it is; 0: of no thread */
	CUevent mark;    /* NULL before the first */
	bool pending;    /* recorded, and not waited for yet */
	bool ended;
	struct hold *holds; /* oldest first */
	struct stream *next;
};

/* All of it is under the guard. */
extern pthread_mutex_t book_guard;
extern struct stream *book_buckets[BOOK_BUCKETS];

static inline struct stream **book_bucket(CUstream handle)
{
	return &book_buckets[((uintptr_t)handle >> 4 ^ (uintptr_t)handle >> 10) % BOOK_BUCKETS];
}

/* Enters it if it is missing; NULL: there is no memory. */
struct stream *book_find(CUcontext context, CUstream handle, int gpu);

#endif

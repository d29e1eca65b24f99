/*
 * The streams that this process launched into, and marks in them: events behind their last launches.
 *
 * While any stream is captured, the driver refuses to wait for a context, and an attempt spoils the capture. So the end of
 * a turn then waits for marks. Invariants:
 *
 * - A thread marks a stream right behind its own launch, where the program itself has just used it. No other thread of
 *   the limiter touches a stream, so none meets one that has ended or has begun to be captured.
 * - Every launch is marked that began while a capture was open; streams_mark_all marks those before the first capture.
 * - A mark never lies in a captured stream. A launch that cannot be marked is waited for at once: the limit holds.
 */
#ifndef GPUPLANE_STREAMS_H
#define GPUPLANE_STREAMS_H

#include "cuda.h"

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_OWN ((CUstream)2) /* the default stream of the calling thread */
#define STREAMS_SEEN 16          /* that a thread knows to be in the book */

struct seen_stream {
	CUstream stream;
	uint64_t epoch;
	CUcontext context;
	int gpu;
};
extern __thread struct seen_stream streams_seen[STREAMS_SEEN];
extern uint64_t streams_epoch; /* grows when a stream ends: its handle may soon be another stream's */

/* The stream that a call means by a handle. */
static inline CUstream streams_meant(CUstream stream, bool per_thread)
{
	return stream ? stream : per_thread ? STREAM_OWN : STREAM_LEGACY;
}

static inline struct seen_stream *streams_place(CUstream stream)
{
	uintptr_t bits = (uintptr_t)stream;
	return &streams_seen[(bits ^ bits >> 4 ^ bits >> 7) % STREAMS_SEEN];
}

/* Whether this thread has entered the stream in the book. */
static inline bool streams_known(CUstream stream)
{
	const struct seen_stream *seen = streams_place(stream);
	return seen->stream == stream && seen->epoch == __atomic_load_n(&streams_epoch, __ATOMIC_RELAXED);
}

/* The GPU and the context of a stream that this thread has entered, as cuda_of_stream returns them; -1: unknown. */
int streams_remembered(CUstream stream, CUcontext *context, bool *other);
/* A number of the calling thread that no other thread gets. */
uint64_t streams_thread(void);
/* The same for its own default stream; 0 for streams that are of no thread. */
static inline uint64_t streams_owner(CUstream stream)
{
	return stream == STREAM_OWN ? streams_thread() : 0;
}
/* Enters a stream of the current context. False: there is no memory for it. */
bool streams_enter(CUcontext context, CUstream stream, int gpu);
/* Behind a launch of this thread in the current context; does nothing in a captured stream. */
void streams_mark(CUcontext context, CUstream stream, int gpu);
/* Marks what was launched so far: in all streams of the book, and in the default streams of a context. */
void streams_mark_all(void);
void streams_mark_default(CUcontext context, int gpu);
/* Waits until the marks of a context are reached. The caller has made the context current. */
void streams_wait(CUcontext context);
void streams_end(CUstream stream);      /* about to be destroyed */
void streams_drop(CUcontext context);   /* a context has ended, and its streams and events with it */
void streams_forget(void);              /* in a forked child */

/* waits.c: streams that wait for something outside of the GPU. */
extern int waits_open; /* holds that may not be over; each also counts as a capture */
enum waits_state { WAITS_DONE, WAITS_HELD, WAITS_BUSY };

static inline bool waits_any(void)
{
	return __atomic_load_n(&waits_open, __ATOMIC_RELAXED) != 0;
}

/* The state of the streams of a context, or of all: a running one counts more than a held one. */
enum waits_state waits_look(CUcontext context);
/* Waits until nothing of a context runs; returns whether something is held back. *busy: when work was last seen to run, if it was. */
bool waits_settle(CUcontext context, uint64_t *busy);
/* Whether a stream, of this thread where it is a default one, is held at the moment. */
bool waits_held(CUcontext context, CUstream stream, uint64_t owner);
void waits_sweep(void); /* looks from time to time which holds are over */
struct stream;
void waits_drop(struct stream *stream); /* it has ended, and its events with it; with the guard of the book held */
void waits_forget(void);

/* captures.c */
/* From here on launches are marked and no wait for a whole context begins, until captures_close. */
void captures_mark_from_now(void);
void captures_close(unsigned count);
extern int captures_open; /* streams that are being captured, and captures that are about to begin */

static inline bool captures_any(void)
{
	return __atomic_load_n(&captures_open, __ATOMIC_RELAXED) != 0;
}

/* Whether what is put into the stream now is recorded, or refused because of a capture, instead of run. */
bool captures_hold(CUstream stream);
/* The result of waiting for a context: whether an unknown capture refused it. From then on a capture is open for good. */
bool captures_refused(CUresult result);
/* Calls of this thread about events must not spoil a capture: returns the mode to restore afterwards. */
int captures_relax(void);
void captures_restore(int mode);
void captures_drop(CUcontext context);
void captures_forget(void);

#endif

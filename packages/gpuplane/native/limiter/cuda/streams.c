/* The book of streams that were launched into, and their marks. streams.h has the invariants. */
#include "book.h"

#include <stdlib.h>

CUresult cuEventSynchronize(CUevent event), cuStreamSynchronize(CUstream stream);

#define AT_ONCE 32

__thread struct seen_stream streams_seen[STREAMS_SEEN];
uint64_t streams_epoch = 1;

pthread_mutex_t book_guard = PTHREAD_MUTEX_INITIALIZER;
struct stream *book_buckets[BOOK_BUCKETS];
static bool default_used;

uint64_t streams_thread(void)
{
	static uint64_t last;
	static __thread uint64_t own;
	if (!own)
		own = ADD(last, 1);
	return own;
}

/* The functions below, up to streams_enter, are called with the guard held. */

/* Enters it if it is missing; NULL: there is no memory. */
struct stream *book_find(CUcontext context, CUstream handle, int gpu)
{
	uint64_t thread = streams_owner(handle);
	struct stream **bucket = book_bucket(handle);
	for (struct stream *stream = *bucket; stream; stream = stream->next)
		if (stream->handle == handle && stream->context == context && stream->thread == thread && !stream->ended)
			return stream;
	struct stream *fresh = malloc(sizeof *fresh);
	if (fresh) {
		*fresh = (struct stream){.context = context, .gpu = gpu, .handle = handle, .thread = thread, .next = *bucket};
		*bucket = fresh;
	}
	return fresh;
}

/* The context is current. False: the stream has no new mark. */
static bool mark(struct stream *stream)
{
	if (!stream || (!stream->mark && REAL(cuEventCreate)(&stream->mark, BOOK_EVENT) != CUDA_SUCCESS)) {
		if (stream)
			stream->mark = NULL;
		return false;
	}
	if (REAL(cuEventRecord)(stream->mark, stream->handle) != CUDA_SUCCESS)
		return false;
	stream->pending = true;
	if (!captures_hold(stream->handle))
		return true;
	/* Another thread drew the stream into a capture meanwhile, and perhaps the mark too. It is never asked about again,
	   nor destroyed, since a thread may just be waiting for its older self. */
	stream->mark = NULL;
	stream->pending = false;
	return true;
}

/* From another context too. */
static bool mark_in_context(struct stream *stream)
{
	CUcontext before = NULL;
	REAL(cuCtxGetCurrent)(&before);
	bool other = before != stream->context;
	if (other && REAL(cuCtxPushCurrent_v2)(stream->context) != CUDA_SUCCESS)
		return false;
	bool marked = captures_hold(stream->handle) || mark(stream);
	if (other)
		REAL(cuCtxPopCurrent_v2)(&before);
	return marked;
}

bool streams_enter(CUcontext context, CUstream stream, int gpu)
{
	uint64_t epoch = LOAD(streams_epoch);
	bool entered = true;
	pthread_mutex_lock(&book_guard);
	if (stream == STREAM_LEGACY || stream == STREAM_OWN)
		default_used = true;
	else
		entered = book_find(context, stream, gpu) != NULL;
	pthread_mutex_unlock(&book_guard);
	if (entered)
		*streams_place(stream) = (struct seen_stream){stream, epoch, context, gpu};
	return entered;
}

int streams_remembered(CUstream stream, CUcontext *context, bool *other)
{
	CUcontext current = NULL;
	/* Default streams are those of the current context. */
	if ((uintptr_t)stream <= 2 || !streams_known(stream) || REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
		return -1;
	*context = streams_place(stream)->context;
	*other = *context != current;
	return streams_place(stream)->gpu;
}

void streams_mark(CUcontext context, CUstream stream, int gpu)
{
	if (captures_hold(stream))
		return;
	int mode = captures_relax();
	pthread_mutex_lock(&book_guard);
	bool marked = mark(book_find(context, stream, gpu));
	pthread_mutex_unlock(&book_guard);
	if (!marked)
		REAL(cuStreamSynchronize)(stream);
	waits_sweep();
	captures_restore(mode);
}

void streams_mark_all(void)
{
	int mode = captures_relax();
	pthread_mutex_lock(&book_guard);
	for (int i = 0; i < BOOK_BUCKETS; i++)
		for (struct stream *stream = book_buckets[i]; stream; stream = stream->next)
			if (!stream->ended && !stream->thread && !mark_in_context(stream))
				REAL(cuStreamSynchronize)(stream->handle);
	pthread_mutex_unlock(&book_guard);
	captures_restore(mode);
}

/* The legacy stream comes after the default streams of all threads. */
void streams_mark_default(CUcontext context, int gpu)
{
	int mode = captures_relax();
	pthread_mutex_lock(&book_guard);
	struct stream *stream = default_used ? book_find(context, STREAM_LEGACY, gpu) : NULL;
	if (stream)
		mark_in_context(stream);
	pthread_mutex_unlock(&book_guard);
	captures_restore(mode);
}

/* Takes out of the book what has ended, and with `dropped` everything of its context. */
static void sweep(CUcontext context, bool dropped)
{
	for (int i = 0; i < BOOK_BUCKETS; i++)
		for (struct stream **at = &book_buckets[i]; *at;) {
			struct stream *stream = *at;
			bool over = !stream->pending && !stream->holds && (stream->ended || stream->thread);
			if (stream->context != context || !(dropped || over)) {
				at = &stream->next;
				continue;
			}
			*at = stream->next;
			if (stream->mark && !dropped)
				REAL(cuEventDestroy_v2)(stream->mark);
			waits_drop(stream);
			free(stream);
		}
}

/* NB: Without the guard while it waits. Only this takes out streams with marks of a living context, so the marks stay. */
void streams_wait(CUcontext context)
{
	CUevent marks[AT_ONCE];
	int count;
	do {
		count = 0;
		pthread_mutex_lock(&book_guard);
		for (int i = 0; i < BOOK_BUCKETS; i++)
			for (struct stream *stream = book_buckets[i]; stream && count < AT_ONCE; stream = stream->next)
				if (stream->pending && stream->context == context) {
					marks[count++] = stream->mark;
					stream->pending = false;
				}
		pthread_mutex_unlock(&book_guard);
		for (int i = 0; i < count; i++)
			REAL(cuEventSynchronize)(marks[i]);
	} while (count == AT_ONCE);
	pthread_mutex_lock(&book_guard);
	sweep(context, false);
	pthread_mutex_unlock(&book_guard);
}

/* The stream's work goes on without it, so a last mark is waited for where time is limited: there turns end. */
void streams_end(CUstream handle)
{
	int mode = captures_relax();
	pthread_mutex_lock(&book_guard);
	for (int i = 0; i < BOOK_BUCKETS; i++)
		for (struct stream **at = &book_buckets[i]; *at;) {
			struct stream *stream = *at;
			bool ends = stream->handle == handle && !stream->ended;
			if (ends && LOAD(limits->gpus[stream->gpu].core) && !mark_in_context(stream))
				REAL(cuStreamSynchronize)(handle);
			stream->ended |= ends;
			if (ends && !stream->mark && !stream->holds) {
				*at = stream->next;
				free(stream);
			} else {
				at = &stream->next;
			}
		}
	pthread_mutex_unlock(&book_guard);
	captures_restore(mode);
	ADD(streams_epoch, 1);
}

void streams_drop(CUcontext context)
{
	pthread_mutex_lock(&book_guard);
	sweep(context, true);
	pthread_mutex_unlock(&book_guard);
	waits_sweep();
	ADD(streams_epoch, 1);
}

void streams_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	book_guard = fresh;
	for (int i = 0; i < BOOK_BUCKETS; i++)
		book_buckets[i] = NULL;
	default_used = false;
	ADD(streams_epoch, 1);
}

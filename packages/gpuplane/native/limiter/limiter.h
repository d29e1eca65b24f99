/* The common part of the interposed libcuda and libnvidia-ml: the pages of this process and its slot. page.h has the invariants. */
#ifndef GPUPLANE_LIMITER_H
#define GPUPLANE_LIMITER_H

#include "lock.h"
#include "page.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_SEQ_CST)
#define STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_SEQ_CST)
#define ADD(word, value) __atomic_add_fetch(&(word), (value), __ATOMIC_SEQ_CST)
#define EXCHANGE(word, old, fresh) \
	__atomic_compare_exchange_n(&(word), (old), (fresh), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

/* Around what waits, or reads files, with a lock held: a thread that pthread_cancel ends there would leave the lock taken for
   good. It ends at its next cancellation point behind that. */
static inline int cancel_put_off(void)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void cancel_allow(int before)
{
	pthread_setcancelstate(before, NULL);
}

enum attachment {
	ATTACHED,  /* the pages are there, limits hold */
	UNLIMITED, /* something is missing and that is allowed */
	REFUSED,   /* something is missing and that is not: there is no GPU for this process */
};

/* Of this process; written once, by the first page_attach. */
extern const struct limits_page *limits;
extern struct usage_page *usage;

uint64_t clock_now(void);
void clock_pause(uint64_t nanoseconds);

/* One line on stderr, "gpuplane: ...", at most once for each `topic` (below 32) in a process. */
enum topic { SAY_PAGE, SAY_USAGE, SAY_SLOTS, SAY_TURNS, SAY_GPU, SAY_REAL, SAY_THREAD, SAY_CAPTURE, SAY_ATTACH, SAY_FORM, SAY_CONTEXT_WAIT, SAY_DEVICE_LAUNCH };
void say(enum topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum attachment page_attach(void);
/* The state without a part behind the limits page: REFUSED, or UNLIMITED where the page allows it. Reports it. */
enum attachment page_lacks(enum topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Position of a GPU in the limits, -1 if it is not in them. */
int page_gpu(const uint8_t uuid[16]);
/* The 32 hexadecimal digits of a UUID's text; false if there are fewer. */
bool page_uuid(const char *text, uint8_t uuid[16]);
/* A descriptor of the directory of this share (O_PATH); -1 if there is none. */
int page_folder(void);

/* The slot of this process. Claiming it again is free. */
bool slots_claim(void);
extern struct usage_slot *slots_own; /* NULL before slots_claim */
unsigned slots_number(void);
void slots_forget(void); /* in a forked child: the slot is its parent's */
unsigned slots_end(void); /* slots from here on were never taken */
/* Clears the slots of processes that are no more. */
void slots_reap(void);
/* Whether the process that had the slot is no more. */
bool slots_gone(unsigned slot);

/* slots_memory.c. The lock is for the words of this slot that only its process writes, but `asking`, and for the table of
   what the process holds (cuda/track.c). */
extern struct lock slots_lock;
void slots_forget_memory(void);
/* Takes memory in the ledger; `context` says for which word. False: above the limit. */
bool slots_take(int gpu, uint64_t bytes, bool context);
void slots_give(int gpu, uint64_t bytes, bool context);
/* Counts memory that the driver has taken without a call. False: the container is above its limit. */
bool slots_found(int gpu, uint64_t bytes);
void slots_refused(int gpu);
/* Around each call that changes what this process holds (page.h). */
void slots_begin_change(void);
void slots_end_change(void);
/* Changes a word that only this process writes, with the lock held: no atomic instruction. */
static inline void slots_change(uint64_t *word, uint64_t by)
{
	__atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + by, __ATOMIC_RELEASE);
}
/* Two in one. A change has begun also if nothing was taken. */
bool slots_begin_take(int gpu, uint64_t bytes);
void slots_give_end(int gpu, uint64_t bytes);
uint64_t slots_sum(int gpu); /* what the container holds */
uint64_t slots_limit(int gpu); /* 0: none */

#endif

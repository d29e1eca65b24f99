/*
 * A lock of the threads of one process, for a few instructions at a time.
 *
 * It is released by a plain store. So a pair costs one atomic instruction, where a mutex costs two and two calls.
 * A thread that waits sleeps. The thread that releases may miss a waiter that arrives at that moment, so a waiter looks
 * again after LOCK_LOOK_NS.
 */
#ifndef GPUPLANE_LOCK_H
#define GPUPLANE_LOCK_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOCK_LOOK_NS 1000000

struct lock {
	uint32_t held, waiters;
};

static inline bool lock_try(struct lock *lock)
{
	uint32_t free = 0;
	return __atomic_compare_exchange_n(&lock->held, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static __attribute__((noinline, unused)) void lock_wait(struct lock *lock)
{
	const struct timespec look = {0, LOCK_LOOK_NS};
	__atomic_add_fetch(&lock->waiters, 1, __ATOMIC_SEQ_CST);
	while (!lock_try(lock))
		syscall(SYS_futex, &lock->held, FUTEX_WAIT_PRIVATE, 1, &look, NULL, 0);
	__atomic_sub_fetch(&lock->waiters, 1, __ATOMIC_SEQ_CST);
}

static inline void lock_take(struct lock *lock)
{
	if (__builtin_expect(!lock_try(lock), 0))
		lock_wait(lock);
}

static inline void lock_release(struct lock *lock)
{
	__atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
	if (__builtin_expect(__atomic_load_n(&lock->waiters, __ATOMIC_RELAXED) != 0, 0))
		syscall(SYS_futex, &lock->held, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif

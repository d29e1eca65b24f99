/*
 * The processor's counter, which says cheaply whether a turn is over, and its speed.
 *
 * The thread that reads counter and clock may lose its processor between the two. So the clock is read before and after, and where the
 * two lie far apart what follows from the reading is too small and never too large: a launch looks at the clock earlier then.
 */
#ifndef GPUPLANE_COUNTER_H
#define GPUPLANE_COUNTER_H

#include <stdint.h>

struct counter_reading {
	uint64_t before, counter, after; /* the clock in nanoseconds, before and after the counter was read */
};

/* How many of the counter are so many nanoseconds, by two readings: at most as many as there are. */
static inline uint64_t counter_counts(struct counter_reading first, struct counter_reading now, uint64_t nanoseconds)
{
	uint64_t passed = now.after - first.before;
	return passed ? (uint64_t)((double)nanoseconds * (double)(now.counter - first.counter) / (double)passed) : 0;
}

#endif

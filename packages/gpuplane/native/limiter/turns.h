/*
 * The turns of this process on a GPU. Nothing here knows of CUDA.
 *
 * The arbiter (words.h) says when a turn begins. While there is no arbiter, or it says nothing for a second, the process
 * takes turns by itself as far as its container's limit allows: no container waits for another container then, and each
 * is held to `core` percent. CORE_BURST gets no spare time then, and CORE_WEIGHTED is not held. A turn that has begun goes on.
 *
 * Invariants: one thread at a time uses a turn: the one that waits while there is none, else the one with the gate's lock. The
 * socket is only used while its descriptor still is that socket: a program may close descriptors that it did not open.
 */
#ifndef GPUPLANE_TURNS_H
#define GPUPLANE_TURNS_H

#include "limiter.h"

#include <sys/types.h>

enum turn_link { LINK_NONE, LINK_GREETED, LINK_READY };

struct turn {
	int gpu;
	enum turn_link link;
	int socket;
	dev_t device; /* of the socket, */
	ino_t inode;  /* by which it is known again */
	bool waiting; /* the arbiter knows that we wait */
	bool asked;   /* it was tried once to reach it */
	uint64_t heard, next_try;
	bool held, own; /* our turn; taken by ourselves */
	uint64_t number, began, charged; /* of the turn; charged until */
};

void turn_begin(struct turn *turn, int gpu);
/* Asks for a turn, where there is an arbiter: one that a thread will wait for. */
void turn_want(struct turn *turn);
/* Waits for a turn, for some milliseconds at most. True: it is ours until *ends. */
bool turn_wait(struct turn *turn, uint64_t *ends);
/* Shortly before the end of a turn: whether it goes on, until *ends. */
bool turn_more(struct turn *turn, uint64_t *ends);
/* The GPU still works for us: charges the time until now. */
void turn_busy(struct turn *turn, uint64_t now);
/* The GPU worked for us until `until`. `soon`: more is about to be launched. */
void turn_done(struct turn *turn, uint64_t until, bool soon);
/* The GPU worked for us for so long while we had no turn. */
void turn_owe(struct turn *turn, uint64_t nanoseconds);
void turn_forget(struct turn *turn); /* in a forked child */

#endif

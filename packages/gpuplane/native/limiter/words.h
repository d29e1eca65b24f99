/*
 * The messages between a process with limits and the arbiter of the GPUs' time.
 *
 * The arbiter listens on the socket `turns` in the directory of each share (SOCK_SEQPACKET). A process connects once for
 * each GPU. Each message is one `struct word`. The first two members and the size never change, so each side can name the
 * version of the other. All versions of files and messages are PAGE_VERSION.
 *
 *   process     HELLO gpu           WANT            MORE turn used       BUSY turn used    DONE turn used soon, OWES ns
 *   arbiter     WELCOME / REFUSED   GRANT turn ns   GRANT turn ns / OVER turn              -
 *   arbiter, unasked                LOST turn: it has expired; HERE: once in WORD_HERE_NS to all that wait
 *
 * OWES: the GPU worked so long for the process while it had no turn. It pays for that as for its turns.
 *
 * MORE: the turn is about to end. OVER: the turn will not go on, and is the process's until its time is over.
 *
 * Times are durations, since a container may have a clock of its own.
 */
#ifndef GPUPLANE_WORDS_H
#define GPUPLANE_WORDS_H

#include "page.h"

#define WORD_SOCKET "turns"
#define WORD_HERE_NS 200000000ull
/* An arbiter that says nothing to a process that waits for so long is taken to be gone. */
#define WORD_SILENCE_NS 1000000000ull

enum word_kind {
	WORD_HELLO = 1, WORD_WANT, WORD_MORE, WORD_BUSY, WORD_DONE, WORD_OWES,
	WORD_WELCOME = 16, WORD_REFUSED, WORD_GRANT, WORD_OVER, WORD_LOST, WORD_HERE,
};

struct word {
	uint32_t kind, version;
	uint64_t turn;
	uint64_t time_ns;  /* how much of the turn was used; how long it is or goes on */
	uint32_t gpu;      /* position in the limits */
	uint32_t soon;     /* 1: more is about to be launched */
	uint64_t reserved[2];
};
_Static_assert(sizeof(struct word) == 48, "layout");

#endif

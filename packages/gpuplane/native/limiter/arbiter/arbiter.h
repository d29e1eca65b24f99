/*
 * The arbiter of the GPUs' time: one process for all shares below a directory. It listens on a socket in the directory of
 * each share (words.h) and says whose turn it is (order.h).
 *
 * Invariants:
 * - No page that a container can write is mapped, and no message of a container counts beyond its own share.
 * - No call waits for a container: sockets do not block, a container that does not read loses its connection, and no
 *   descriptor that a container sends is received or closed here.
 * - A share has so many messages a second. Messages above that wait in its own sockets.
 * - Of several arbiters of a directory one works, by a lock that the kernel frees; the others wait for it. All state is in
 *   memory: after a restart debts are forgiven, and processes connect again.
 */
#ifndef GPUPLANE_ARBITER_H
#define GPUPLANE_ARBITER_H

#include "../words.h"
#include "order.h"

#include <sys/types.h>

enum source { FROM_OWNER, FROM_FOLDER, FROM_TIMER, FROM_LISTENER, FROM_CONNECTION };

struct share {
	enum source source; /* FROM_LISTENER; first, for epoll */
	char id[256];
	ino_t inode;        /* of its directory */
	int listener, limits_file; /* -1: closed */
	int usage_file, owner_file; /* open, so that no container gets a lease: the agent's next open would wait for it */
	struct limits_page limits;
	uint64_t read_at;
	unsigned users;     /* connections */
	bool listed, silent; /* its directory is there; it has used up its messages */
	uint64_t budget_at;
	int64_t budget;
	uint64_t retry_at;  /* of the socket, where it could not be made; 0: never */
	uint64_t lines_at;  /* log.c */
	unsigned lines;
	unsigned long long left_out;
	struct share *next;
};

struct gpu {
	uint8_t uuid[48];
	struct order order;
	struct connection *seats[ORDER_SEATS];
	bool reached; /* cycles.c */
	struct gpu *next;
};

struct connection {
	enum source source; /* FROM_CONNECTION */
	int socket, seat;   /* -1: closed; has not said HELLO */
	uint32_t position;  /* of the GPU in the limits */
	struct share *share;
	struct gpu *gpu;
	struct connection *next;
};

extern int arbiter_epoll, arbiter_lock;
uint64_t clock_now(void);
bool arbiter_watch(int file, void *source, uint32_t events);

/* log.c */
void arbiter_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_of(struct share *share, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_end(struct share *share); /* says how many lines were left out */

/* shares.c */
bool shares_open(const char *base); /* false, with errno: there is no such directory */
int shares_changes(void);           /* inotify */
void shares_scan(void);             /* begins to listen for new shares, and ends it for those that are gone */
bool shares_limit(struct share *share, uint32_t position, struct order_limit *limit, uint64_t now);
bool shares_spend(struct share *share, unsigned messages, uint64_t now);
void shares_refill(uint64_t now);   /* hears again those that may speak */
void shares_retry(uint64_t now);    /* makes sockets that could not be made */
uint64_t shares_wake(void);         /* when one of the two is to be done; ORDER_NEVER */
void shares_end(void);              /* the arbiter is about to end */
void shares_release(struct share *share); /* one connection less */

/* Whether the holder of a GPU, beyond its time, waits for a tenant that waits for this GPU, over others or not. */
bool cycles_through(struct gpu *gpus, struct gpu *first, uint64_t now);

/* talk.c */
void talk_accept(struct share *share);
void talk_read(struct connection *connection, bool ended); /* ended: by the process */
/* Expires and grants turns, and says that it is there. Returns when it is to be called again. */
uint64_t talk_turns(void);
void talk_silence(struct share *share, bool silent);
void talk_sweep(void); /* frees closed connections: no event of them is left */

/* closing.c */
void closing_add(int socket); /* hangs up now, and closes it soon */
void closing_run(uint64_t now);
uint64_t closing_wake(void);

#endif

/* The shares below the base: their directories, limits and sockets. */
#include "arbiter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 64
#define FRESH_NS 5000000ull      /* so old limits may be that are acted by */
#define BUDGET_PER_SECOND 10000  /* messages of a share; a turn takes three, and lasts a millisecond at least */
#define BUDGET_MOST 4000
#define REFILL_NS 20000000ull
#define RETRY_NS 500000000ull    /* of a socket that could not be made, as on a full disk */
#define OPEN_FLAGS (O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)

static struct share *shares;
static int folder = -1, changes = -1;

bool shares_open(const char *base)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/shares", base);
	folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	changes = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	return folder >= 0 && changes >= 0 &&
	       inotify_add_watch(changes, path, IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_ONLYDIR) >= 0;
}

int shares_changes(void)
{
	return changes;
}

static bool read_limits(struct share *share, uint64_t now)
{
	struct limits_page page;
	if (pread(share->limits_file, &page, sizeof page, 0) != (ssize_t)sizeof page || page.magic != LIMITS_MAGIC ||
	    page.version != PAGE_VERSION || page.gpu_count > PAGE_GPUS || !page.tenant)
		return false;
	share->limits = page;
	share->read_at = now;
	return true;
}

/* By the descriptor of its directory: the path may be longer than an address can be. */
static int listen_in(int place)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener < 0)
		return -1;
	snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" WORD_SOCKET, place);
	unlinkat(place, WORD_SOCKET, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, BACKLOG) == 0)
		return listener;
	close(listener);
	return -1;
}

static void close_file(int file)
{
	if (file >= 0)
		close(file);
}

/* Begins to listen. A page that cannot be read now is mended by the agent, and disks get room again. */
static void begin(struct share *share, int place, uint64_t now)
{
	share->retry_at = now + RETRY_NS;
	if (share->limits_file < 0)
		share->limits_file = openat(place, "limits", O_RDWR | OPEN_FLAGS);
	if (share->limits_file < 0 || !read_limits(share, now))
		return;
	share->listener = listen_in(place);
	if (share->listener >= 0 && arbiter_watch(share->listener, share, EPOLLIN)) {
		share->retry_at = 0;
		return;
	}
	log_of(share, "no socket for a share: share=%s reason=%s", share->id, strerror(errno));
	close_file(share->listener);
	share->listener = -1;
}

static void add(int place, const char *id, ino_t inode)
{
	struct share *share = calloc(1, sizeof *share);
	if (!share)
		return;
	snprintf(share->id, sizeof share->id, "%s", id);
	share->source = FROM_LISTENER;
	share->inode = inode;
	share->listener = -1;
	share->listed = true;
	share->budget = BUDGET_MOST;
	share->budget_at = clock_now();
	share->limits_file = -1;
	share->usage_file = openat(place, "usage", O_RDWR | OPEN_FLAGS);
	share->owner_file = openat(place, "owner.json", O_RDONLY | OPEN_FLAGS);
	begin(share, place, share->budget_at);
	share->next = shares;
	shares = share;
}

static void close_listener(struct share *share)
{
	if (share->listener >= 0)
		closing_add(share->listener); /* with those that have connected and were not accepted */
	share->listener = -1;
}

/* Frees the shares whose directories and connections are gone. */
static void sweep(void)
{
	for (struct share **at = &shares; *at;) {
		struct share *share = *at;
		if (share->listed || share->users) {
			at = &share->next;
			continue;
		}
		*at = share->next;
		log_end(share);
		close_file(share->limits_file);
		close_file(share->usage_file);
		close_file(share->owner_file);
		free(share);
	}
}

void shares_scan(void)
{
	char events[4096];
	while (read(changes, events, sizeof events) > 0)
		;
	for (struct share *share = shares; share; share = share->next)
		share->listed = false;
	int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *listing = copy < 0 ? NULL : fdopendir(copy);
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		struct stat info;
		if (entry->d_name[0] == '.')
			continue;
		int place = openat(folder, entry->d_name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (place < 0 || fstat(place, &info) < 0)
			continue;
		struct share *share = shares;
		while (share && (share->inode != info.st_ino || strcmp(share->id, entry->d_name)))
			share = share->next;
		if (share)
			share->listed = true;
		else
			add(place, entry->d_name, info.st_ino);
		close(place);
	}
	if (listing)
		closedir(listing);
	for (struct share *share = shares; share; share = share->next)
		if (!share->listed)
			close_listener(share);
	sweep();
}

bool shares_limit(struct share *share, uint32_t position, struct order_limit *limit, uint64_t now)
{
	if (now - share->read_at > FRESH_NS)
		read_limits(share, now); /* what cannot be read is as it was */
	if (position >= share->limits.gpu_count)
		return false;
	*limit = order_bounded(&share->limits.gpus[position]);
	return true;
}

static void refill(struct share *share, uint64_t now)
{
	uint64_t passed = now - share->budget_at, fresh = passed / 1000 * BUDGET_PER_SECOND / 1000000;
	if (!fresh)
		return;
	share->budget_at = now;
	share->budget = passed > 1000000000ull || share->budget + (int64_t)fresh > BUDGET_MOST ? BUDGET_MOST :
			share->budget + (int64_t)fresh;
}

bool shares_spend(struct share *share, unsigned messages, uint64_t now)
{
	refill(share, now);
	share->budget -= messages;
	if (share->budget > 0)
		return true;
	if (!share->silent)
		talk_silence(share, true);
	share->silent = true;
	return false;
}

void shares_refill(uint64_t now)
{
	for (struct share *share = shares; share; share = share->next) {
		if (!share->silent)
			continue;
		refill(share, now);
		if (share->budget <= 0)
			continue;
		share->silent = false;
		talk_silence(share, false);
	}
}

uint64_t shares_wake(void)
{
	uint64_t wake = ORDER_NEVER, refill_at = clock_now() + REFILL_NS;
	for (const struct share *share = shares; share; share = share->next) {
		if (share->silent && refill_at < wake)
			wake = refill_at;
		if (share->retry_at && share->listed && share->retry_at < wake)
			wake = share->retry_at;
	}
	return wake;
}

void shares_retry(uint64_t now)
{
	for (struct share *share = shares; share; share = share->next) {
		if (!share->retry_at || !share->listed || now < share->retry_at)
			continue;
		struct stat info;
		int place = openat(folder, share->id, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		share->retry_at = now + RETRY_NS;
		if (place >= 0 && fstat(place, &info) == 0 && info.st_ino == share->inode)
			begin(share, place, now);
		close_file(place);
	}
}

void shares_end(void)
{
	for (struct share *share = shares; share; share = share->next)
		log_end(share);
}

void shares_release(struct share *share)
{
	share->users--;
	sweep();
}

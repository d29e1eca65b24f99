/* What this process holds, by kind and handle: a table with open addressing. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

struct entry {
	uint64_t key;
	uint32_t kind; /* 0: empty; GONE: was one, look further */
	struct held held;
};
#define GONE 0xffffffffu

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct entry *table;
static size_t room, used; /* room is a power of two; used counts what is GONE too */

static size_t place(enum kind kind, uint64_t key)
{
	uint64_t mixed = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15ull;
	return (size_t)(mixed >> 20) & (room - 1);
}

static struct entry *find(enum kind kind, uint64_t key)
{
	if (!room)
		return NULL;
	for (size_t at = place(kind, key); table[at].kind; at = (at + 1) & (room - 1))
		if (table[at].kind == (uint32_t)kind && table[at].key == key)
			return &table[at];
	return NULL;
}

static void put(struct entry entry)
{
	size_t at = place((enum kind)entry.kind, entry.key);
	while (table[at].kind && table[at].kind != GONE)
		at = (at + 1) & (room - 1);
	used += !table[at].kind;
	table[at] = entry;
}

/* Makes room, or only sweeps out what is GONE. */
static bool grow(void)
{
	struct entry *old = table;
	size_t old_room = room, living = 0;
	for (size_t i = 0; i < old_room; i++)
		living += old[i].kind && old[i].kind != GONE;
	size_t wanted = old_room ? old_room : 256;
	while (living * 2 >= wanted)
		wanted *= 2;
	struct entry *fresh = calloc(wanted, sizeof *fresh);
	if (!fresh)
		return false;
	table = fresh;
	room = wanted;
	used = 0;
	for (size_t i = 0; i < old_room; i++)
		if (old[i].kind && old[i].kind != GONE)
			put(old[i]);
	free(old);
	return true;
}

bool track_put(enum kind kind, uint64_t key, struct held held)
{
	pthread_mutex_lock(&guard);
	bool kept = (room && used * 4 < room * 3) || grow();
	struct entry *old = kept ? find(kind, key) : NULL;
	if (old)
		old->held = held;
	else if (kept)
		put((struct entry){key, (uint32_t)kind, held});
	pthread_mutex_unlock(&guard);
	return kept;
}

bool track_get(enum kind kind, uint64_t key, struct held *held)
{
	pthread_mutex_lock(&guard);
	struct entry *entry = find(kind, key);
	if (entry)
		*held = entry->held;
	pthread_mutex_unlock(&guard);
	return entry != NULL;
}

bool track_take(enum kind kind, uint64_t key, struct held *held)
{
	pthread_mutex_lock(&guard);
	struct entry *entry = find(kind, key);
	if (entry) {
		*held = entry->held;
		entry->kind = GONE;
	}
	pthread_mutex_unlock(&guard);
	return entry != NULL;
}

bool track_take_owned(enum kind kind, const void *owner, uint64_t *key, struct held *held)
{
	bool found = false;
	pthread_mutex_lock(&guard);
	for (size_t i = 0; i < room && !found; i++) {
		struct entry *entry = &table[i];
		if (entry->kind != (uint32_t)kind || entry->held.owner != owner)
			continue;
		*key = entry->key;
		*held = entry->held;
		entry->kind = GONE;
		found = true;
	}
	pthread_mutex_unlock(&guard);
	return found;
}

void track_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	guard = fresh;
	table = NULL; /* perhaps in the middle of a change when the process forked: left alone */
	room = used = 0;
}

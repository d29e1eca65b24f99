/* The allocations of this process, by kind and handle: a table with open addressing, under slots_lock. */
#include "cuda.h"

#include <stdlib.h>

struct entry { /* two in a cache line */
	uint64_t key, bytes;
	void *owner;
	int gpu;
	uint32_t kind; /* 0: empty */
};
_Static_assert(sizeof(struct entry) == 32, "two in a cache line");

static struct entry *table;
static size_t room, used; /* room is a power of two */

static size_t place(uint32_t kind, uint64_t key)
{
	uint64_t mixed = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15ull;
	return (size_t)(mixed >> 20) & (room - 1);
}

/* The entry, or the empty place where it would be. There is one, since the table is never full. */
static struct entry *find(uint32_t kind, uint64_t key)
{
	size_t at = place(kind, key);
	while (table[at].kind && (table[at].kind != kind || table[at].key != key))
		at = (at + 1) & (room - 1);
	return &table[at];
}

static struct held held_of(const struct entry *entry)
{
	return (struct held){entry->bytes, entry->owner, entry->gpu};
}

static bool grow(void)
{
	struct entry *old = table, *fresh;
	size_t old_room = room, wanted = room ? room * 2 : 256;
	fresh = calloc(wanted, sizeof *fresh);
	if (!fresh)
		return false;
	table = fresh;
	room = wanted;
	for (size_t i = 0; i < old_room; i++)
		if (old[i].kind)
			*find(old[i].kind, old[i].key) = old[i];
	free(old);
	return true;
}

/* Empties a place, and moves those behind it forward that would not be found any more. */
static void drop(struct entry *entry)
{
	size_t hole = (size_t)(entry - table), mask = room - 1;
	for (size_t at = (hole + 1) & mask; table[at].kind; at = (at + 1) & mask) {
		size_t first = place(table[at].kind, table[at].key);
		if (((at - first) & mask) < ((at - hole) & mask))
			continue; /* its first place lies behind the hole */
		table[hole] = table[at];
		hole = at;
	}
	table[hole].kind = 0;
	used--;
}

static bool put(enum kind kind, uint64_t key, struct held held)
{
	if (used * 4 >= room * 3 && !grow())
		return false;
	struct entry *entry = find(kind, key);
	used += !entry->kind;
	*entry = (struct entry){key, held.bytes, held.owner, held.gpu, kind};
	return true;
}

/* `out`: it leaves the table. */
static bool look_up(enum kind kind, uint64_t key, struct held *held, bool out)
{
	struct entry *entry = room ? find(kind, key) : NULL;
	if (!entry || !entry->kind)
		return false;
	*held = held_of(entry);
	if (out)
		drop(entry);
	return true;
}

bool track_put(enum kind kind, uint64_t key, struct held held)
{
	lock_take(&slots_lock);
	bool kept = put(kind, key, held);
	lock_release(&slots_lock);
	return kept;
}

void track_put_end(enum kind kind, uint64_t key, struct held held)
{
	lock_take(&slots_lock);
	put(kind, key, held);
	slots_change(&slots_own->changes_ended, 1);
	lock_release(&slots_lock);
}

bool track_get(enum kind kind, uint64_t key, struct held *held)
{
	lock_take(&slots_lock);
	bool found = look_up(kind, key, held, false);
	lock_release(&slots_lock);
	return found;
}

bool track_take(enum kind kind, uint64_t key, struct held *held)
{
	lock_take(&slots_lock);
	bool found = look_up(kind, key, held, true);
	lock_release(&slots_lock);
	return found;
}

bool track_begin_take(enum kind kind, uint64_t key, struct held *held)
{
	lock_take(&slots_lock);
	slots_change(&slots_own->changes_begun, 1);
	bool found = look_up(kind, key, held, true);
	lock_release(&slots_lock);
	return found;
}

bool track_take_owned(enum kind kind, const void *owner, uint64_t *key, struct held *held)
{
	bool found = false;
	lock_take(&slots_lock);
	for (size_t i = 0; i < room && !found; i++) {
		struct entry *entry = &table[i];
		if (entry->kind != (uint32_t)kind || entry->owner != owner)
			continue;
		*key = entry->key;
		*held = held_of(entry);
		drop(entry);
		found = true;
	}
	lock_release(&slots_lock);
	return found;
}

void track_forget(void)
{
	table = NULL; /* perhaps in the middle of a change when the process forked: left alone */
	room = used = 0;
}

/*
 * The two files that hold a container to its share: `limits` and `usage`.
 *
 * packages/gpuplane/src/gpuplane/limits/page.py writes the same layout; gpuplane_page_layout() lets a test hold the two together.
 *
 * Where they are. One directory D for each container: D/limits and D/usage, and the socket D/turns (words.h). D is
 * /etc/vcuda when /etc/vcuda/limits exists, so that a variable cannot lead a container away from its page, and
 * $GPUPLANE_LIMITS otherwise. The writer creates both files, whole, with zeros for fields without a value, under another
 * name, and renames them before any process learns of D. After that each is changed in place, never replaced: it is mapped.
 *
 *   limits  root's, read-only to the container. The mapping is PROT_READ.
 *   usage   writable by the processes of this container and by the agent, by no other process. The agent reads it through a
 *           descriptor and never maps it.
 *
 * So no container can write what another container or the agent has mapped.
 *
 * Invariants:
 * - Each part that changes is one naturally aligned word, read and written atomically. Nothing is a lock. A process may be
 *   killed between any two instructions; what it leaves behind is counted too high, never too low, until it is cleared.
 * - All times are CLOCK_MONOTONIC in nanoseconds, unless a comment differs. All sizes are bytes. A reserved field
 *   is zero.
 * - A page whose magic, version or size is another is refused, as if it were not there.
 * - uuid is NVML's text, "GPU-..." or "MIG-...", and ends with a zero. Only its 32 hexadecimal digits are compared.
 */
#ifndef GPUPLANE_PAGE_H
#define GPUPLANE_PAGE_H

#include <stdint.h>

#define PAGE_VERSION 2u /* of the files and of the messages in words.h */
#define PAGE_GPUS 16
#define PAGE_SLOTS 1024

#define LIMITS_MAGIC 0x3154494d494c5047ull /* the bytes "GPLIMIT1" */
#define USAGE_MAGIC 0x3145474153555047ull  /* "GPUSAGE1" */

#define PAGE_FOLDER "/etc/vcuda"
#define PAGE_VARIABLE "GPUPLANE_LIMITS"
/* The behaviour of a process without a usable page: "closed" (the default: there is no GPU for it) or "open" (no limits).
   Either is reported once on stderr. */
#define PAGE_MISSING_VARIABLE "GPUPLANE_LIMITS_MISSING"
/* The names under which the limiter's two libraries need the real ones. They stand next to the limiter or anywhere on
   the loader's search path, as links or mounts; $ORIGIN is searched too. */
#define REAL_CUDA "libcuda.so.gpuplane-real"
#define REAL_NVML "libnvidia-ml.so.gpuplane-real"

/* ---- limits ---------------------------------------------------------------------------------------------------- */

/* How `core` is enforced. */
enum core_mode {
	CORE_HARD = 0,     /* never more than `core` percent of the GPU's time, even when no other container wants it */
	CORE_BURST = 1,    /* `core` percent whenever wanted, and the time that no other container wants */
	CORE_WEIGHTED = 2, /* in proportion to `weight` among those that want it; all of it when alone */
};

#define LIMITS_FAIL_OPEN 1u /* what else is missing (usage) means no limit, not no GPU; stderr has a line about it */

struct limits_gpu {
	char uuid[48];
	uint64_t memory;        /* what all processes of the container may hold together; 0: no limit */
	uint64_t context_bytes; /* taken to be what a context costs until the agent has measured it; 0: unknown */
	uint32_t core;          /* percent of the GPU's time, 1 to 100; 0: not limited */
	uint32_t weight;        /* for CORE_WEIGHTED and for the order among those that wait; 0: like `core` */
	uint32_t mode;          /* enum core_mode */
	uint32_t quantum_us;    /* the longest turn; 0: 20,000 */
	uint32_t saved_ms;      /* time of the GPU that an idle container may save, besides a quantum; 60,000 at most */
	uint32_t padding;
	uint64_t reserved[5];
};

struct limits_page {
	uint64_t magic; /* LIMITS_MAGIC */
	uint32_t version, size;
	/* Resizing a live container: write the new values, then add one. Each value acts by itself as soon as it is written,
	   so a reader between two of them sees limits that are old and new, never one that is neither. The generation that a process
	   has seen is in its slot. A limit below what is held takes nothing back: it refuses until less is held. */
	uint64_t generation;
	uint64_t tenant;    /* names the container to the arbiter; not 0, never used for another container of this machine */
	uint32_t flags, gpu_count;
	char name[128];     /* for people: "namespace/pod:container" */
	uint64_t reserved[11];
	struct limits_gpu gpus[PAGE_GPUS];
};

/* ---- usage ----------------------------------------------------------------------------------------------------- */

/*
 * Memory of a GPU that a slot holds: held + asking + (other if not 0, else context). The container holds the sum over
 * all slots whose owner is not 0.
 *
 * How a process takes memory (slots.c), N bytes, its own threads one after another:
 *   1. asking = N. 2. Sum up, reading `asking` of a slot before its `held`. 3. Within the limit: held += N, then
 *   asking = 0; it may call the driver now, and if that fails, held -= N. 4. Too much even without what others are
 *   asking: asking = 0, refused. 5. Otherwise it is up to others that ask just now: while one in a lower slot asks,
 *   asking = 0, and again from 1 after a moment; with the lowest slot of those that ask, again from 2.
 * So of two that would together go above the limit at least one sees the other, and sums never exceed the limit.
 *
 * Slots. `owner` is one word that names a process for good: its pid in bits 0-21, the low 16 bits of the inode of
 * its pid namespace in bits 22-37, the low 26 bits of its start time in ticks (field 22 of /proc/PID/stat) in bits 38-63.
 * A slot is taken by exchanging 0, or the word of a process that is no more, for one's own, and cleared after that, so a
 * process that dies while it clears one leaves it to the next. A process judges only words with its own namespace's bits; the
 * agent, which sees all of them, finds the process by `pid_namespace` and NSpid of /proc/PID/status. A process whose
 * state is Z and that has no other threads is no more.
 */
#define OWNER_PID_BITS 22
#define OWNER_NAMESPACE_BITS 16
#define OWNER_START_BITS 26

struct usage_gpu { /* one cache line */
	uint64_t held;         /* by allocations, as the driver rounds them up as far as is known */
	uint64_t asking;       /* about to be held */
	uint64_t context;      /* contexts and modules, by the library's own estimate */
	uint64_t other;        /* the agent's: what NVML saw above `held` while `held` did not change; 0 until then */
	uint64_t busy_ns;      /* time of its turns that it used */
	uint64_t throttled_ns; /* time that launches waited */
	uint64_t refused;      /* allocations */
	uint64_t launches;     /* counted in batches, so it lags */
};

struct usage_slot {
	uint64_t owner; /* 0: free */
	uint64_t start_ticks, pid_namespace; /* whole, for the agent; 0 for a moment after `owner` was written */
	uint64_t generation; /* of the limits that it acts by */
	uint64_t image;      /* a number of the program that runs: after execve the process is the same, and holds nothing */
	/* Calls that change what the process holds: begun before the books or the driver change, ended after both have. What NVML
	   says may be compared with the books only if both are equal, and were so before NVML was asked. */
	uint64_t changes_begun, changes_ended;
	uint64_t host_pid; /* the agent's: the process's id on the machine; 0 until it is known */
	struct usage_gpu gpus[PAGE_GPUS];
};

/* The work of all processes together, also of those that are gone; only ever grows, but for paid_until. */
struct usage_total {
	uint64_t busy_ns, throttled_ns, refused, launches;
	uint64_t paid_until; /* without an arbiter: so far the container has paid for its time (turns.c) */
	uint64_t reserved[3];
};

struct usage_page {
	uint64_t magic; /* USAGE_MAGIC */
	uint32_t version, size;
	uint64_t high_water; /* slots from here on were never taken; only ever grows */
	uint64_t reserved[5];
	struct usage_total totals[PAGE_GPUS];
	struct usage_slot slots[PAGE_SLOTS];
};

_Static_assert(sizeof(struct limits_gpu) == 128, "layout");
_Static_assert(sizeof(struct limits_page) == 256 + 128 * PAGE_GPUS, "layout");
_Static_assert(sizeof(struct usage_gpu) == 64, "layout");
_Static_assert(sizeof(struct usage_slot) == 64 + 64 * PAGE_GPUS, "layout");
_Static_assert(sizeof(struct usage_page) == 64 + 64 * PAGE_GPUS + 1088 * PAGE_SLOTS, "layout");

#endif

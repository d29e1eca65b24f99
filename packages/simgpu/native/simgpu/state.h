/*
 * The state of one simulated node's GPUs: a file that every process of the node maps.
 *
 * simulator/gpus/layout.py writes the same layout; simgpu_layout() lets a test hold the two together.
 *
 * Invariants:
 * - Nothing in it is a lock. Exclusive access is by open-file-description locks on bytes of the same file
 *   (LOCK_*), which the kernel drops when the holder dies, however it dies. So nothing ever waits for a dead process.
 * - Memory is charged in the slot of the process that holds it, and nowhere else. A slot whose lock is free belongs to
 *   no process: any process may clear it, and with that its memory is free again.
 * - Charge first, then compare the sum over all slots with the capacity, and take the charge back when it is too much:
 *   two processes may both be refused for a moment, but never together hold more than there is.
 * - All times are CLOCK_MONOTONIC in nanoseconds.
 */
#ifndef SIMGPU_STATE_H
#define SIMGPU_STATE_H

#include <stdbool.h>
#include <stdint.h>

#define SIMGPU_MAGIC 0x0055504740494d53ull
#define SIMGPU_LAYOUT_VERSION 6
#define SIMGPU_GPUS 16
#define SIMGPU_SLOTS 256
#define SIMGPU_MIG_PROFILES 12
#define SIMGPU_MIG_DEVICES 7
#define SIMGPU_EVENTS 256
#define SIMGPU_LIMITS 64          /* cgroups with memory limits */
#define SIMGPU_CGROUPS 8         /* of a process: its own and those above it */
#define SIMGPU_BUCKETS 256       /* of SIMGPU_BUCKET_NS: the utilisation of the last five seconds */
#define SIMGPU_BUCKET_NS 20000000ull
#define SIMGPU_SLOT_BUCKETS 64   /* the same, per process, for a bit more than a second */
#define SIMGPU_LATENCIES 8
#define SIMGPU_NO_INSTANCE 0xffffffffu

/* Bytes of the file that locks are taken on; far behind its end, which is allowed. */
#define LOCK_EVENTS 0x40000000ll /* writers of the event ring */
#define LOCK_MIG 0x40000001ll    /* changes of MIG instances */
#define LOCK_LIMITS 0x40000002ll /* changes of memory limits */
#define LOCK_USERS 0x40001000ll  /* read-locked by each process that uses the driver: rmmod asks for it */
#define LOCK_SLOTS 0x40002000ll  /* + number of the slot, write-locked by the process that owns it */

struct simgpu_mig_profile {
	uint64_t memory_mib;
	uint32_t number; /* NVML_GPU_INSTANCE_PROFILE_* */
	uint32_t id;     /* as nvidia-smi mig -lgip shows it */
	uint32_t slices;
	uint32_t memory_slices;
	uint32_t capacity;
	uint32_t multiprocessors;
	uint32_t placement_count;
	uint32_t copy_engines;
	uint8_t placements[8];
	char name[24]; /* "1g.10gb" */
};

struct simgpu_mig_device {
	uint32_t used;
	uint32_t gpu_instance;
	uint32_t compute_instance; /* 0, or SIMGPU_NO_INSTANCE while there is only the GPU instance */
	uint32_t profile;          /* position in the table of profiles */
	uint32_t start;            /* first memory slice */
	uint32_t reserved;
	char uuid[48];
};

struct simgpu_gpu {
	/* facts */
	uint64_t memory_bytes;
	uint64_t reserved_bytes;  /* what the driver keeps for itself */
	uint64_t context_bytes;   /* what each context takes */
	uint64_t cpus[16];        /* affinity */
	uint32_t minor, pci_domain, pci_bus, pci_device;
	uint32_t pci_device_id, pci_subsystem_id;
	int32_t numa;
	uint32_t compute_major, compute_minor, architecture, brand;
	uint32_t multiprocessors, cores, threads_per_multiprocessor, shared_per_multiprocessor, shared_per_block_optin;
	uint32_t sm_clock_mhz, memory_clock_mhz, idle_clock_mhz, bus_width, l2_bytes, bandwidth_mbps, pcie_mbps;
	uint32_t power_limit_mw, power_min_mw, power_idle_mw;
	uint32_t temperature_idle, temperature_busy, temperature_slowdown, temperature_shutdown, memory_temperature;
	uint32_t pcie_generation, pcie_width;
	uint32_t ecc_supported, ecc_enabled, remap_supported, energy_supported;
	uint32_t mig_supported, mig_profile_count;
	uint32_t nvlinks, nvlink_version, nvlink_switch, module_id;
	/* what changes; single words, written atomically */
	uint32_t mig_enabled, persistence, compute_mode;
	uint32_t lost;            /* fallen off the bus */
	uint32_t wrong_results;   /* 0 right, 1 some stored values wrong, 2 kernels do nothing */
	uint32_t recovery_action; /* nvmlDeviceGpuRecoveryAction_t */
	uint32_t last_xid, remapped_correctable, remapped_uncorrectable, remap_pending, remap_failure;
	uint32_t load_gpu_percent, load_memory_percent, load_encoder_percent, load_decoder_percent, load_pid;
	uint32_t unified_memory;  /* it is the machine's: NVML does not say how much there is */
	uint32_t latency_count; /* of allocation_us: how long allocations and their ends take, each value as likely */
	uint32_t load_draws; /* it is no kernels: NVML lists load_pid among the processes that draw */
	uint32_t allocation_us[SIMGPU_LATENCIES];
	uint64_t load_memory_bytes;
	uint64_t load_since, load_busy_ns; /* when the present load began; busy time of the loads before it */
	uint64_t ecc_corrected_volatile, ecc_uncorrected_volatile, ecc_corrected_aggregate, ecc_uncorrected_aggregate;
	uint64_t pcie_replays, nvlink_bytes, pcie_tx_bytes, pcie_rx_bytes;
	uint64_t loaded_ns;       /* when the driver was loaded */
	uint64_t timeline;        /* when the work that is queued now will be done */
	uint64_t copy_timeline;
	uint64_t busy_ns;         /* all the time that kernels took */
	uint64_t memory_busy_ns;  /* all the time that memory was read or written at full speed */
	uint64_t long_start, long_end;        /* the last work too long for the buckets */
	uint64_t buckets[SIMGPU_BUCKETS];     /* epoch << 32 | microseconds busy in it */
	uint64_t memory_buckets[SIMGPU_BUCKETS];
	uint8_t level[SIMGPU_GPUS];           /* nvmlGpuTopologyLevel_t to each other GPU */
	uint8_t lanes[SIMGPU_GPUS];           /* NVLinks straight to each other GPU */
	char uuid[48];
	char name[96];
	char serial[32];
	char vbios[32];
	char part[32];
	struct simgpu_mig_profile mig_profiles[SIMGPU_MIG_PROFILES];
	struct simgpu_mig_device mig_devices[SIMGPU_MIG_DEVICES];
};

struct simgpu_slot {
	uint64_t pid; /* of its process, as simgpu_host_pid reads it; 0 is free */
	uint64_t mps; /* 1 for a client of the Multi-Process Service */
	uint64_t cgroups[SIMGPU_CGROUPS]; /* inodes of version 2, its own first; 0 behind the last */
	uint64_t memory[SIMGPU_GPUS];
	uint64_t tail[SIMGPU_GPUS]; /* when its last kernel on that GPU ends */
	uint32_t gpu_instance[SIMGPU_GPUS];
	uint32_t contexts[SIMGPU_GPUS];
	uint64_t long_start[SIMGPU_GPUS], long_end[SIMGPU_GPUS]; /* as in struct simgpu_gpu */
	uint64_t buckets[SIMGPU_GPUS][SIMGPU_SLOT_BUCKETS];
};

struct simgpu_event {
	uint64_t number; /* from 1; position is number % SIMGPU_EVENTS */
	uint64_t type, data, time_ns;
	uint32_t gpu, gpu_instance, compute_instance, padding;
};

/* The limits for all processes of a cgroup and of those below it; the nearest cgroup with limits counts. */
struct simgpu_limit {
	uint64_t cgroup; /* inode; 0 is free */
	uint64_t soft[SIMGPU_GPUS], hard[SIMGPU_GPUS]; /* bytes; hard 0 is no limit */
	char path[248];
};

struct simgpu_state {
	uint64_t magic;
	uint32_t layout, gpu_count, cuda_version, event_futex;
	uint64_t event_last; /* number of the newest event */
	uint64_t size;
	char driver_version[32];
	char nvml_version[32];
	struct simgpu_gpu gpus[SIMGPU_GPUS];
	struct simgpu_event events[SIMGPU_EVENTS];
	struct simgpu_slot slots[SIMGPU_SLOTS];
	struct simgpu_limit limits[SIMGPU_LIMITS];
};

enum simgpu_status { SIMGPU_OK, SIMGPU_ABSENT, SIMGPU_DENIED, SIMGPU_MISMATCH, SIMGPU_FULL };

/* One process's view. `visible` are the positions of the GPUs whose device node it can open. */
struct simgpu {
	int fd;
	int slot; /* -1 without one */
	uint32_t visible_count;
	uint32_t visible[SIMGPU_GPUS];
	uint64_t own_limit[SIMGPU_GPUS]; /* bytes that MPS allows this process, 0 for all */
	uint32_t portion; /* percent of the multiprocessors, 0 for all: it runs at the same time as others instead of in turn */
	struct simgpu_state *state;
};

uint64_t simgpu_now(void);
void simgpu_sleep_until(uint64_t when);

enum simgpu_status simgpu_open(struct simgpu *view);
void simgpu_close(struct simgpu *view);
bool simgpu_lock(struct simgpu *view, int64_t byte, bool wait);
void simgpu_unlock(struct simgpu *view, int64_t byte);

/* Slots: the processes that hold contexts. */
unsigned simgpu_host_pid(uint64_t pid); /* a slot's process as it is called in this PID namespace */
enum simgpu_status simgpu_claim_slot(struct simgpu *view);
void simgpu_reap(struct simgpu *view);
bool simgpu_charge(struct simgpu *view, uint32_t gpu, uint32_t instance, uint64_t bytes, uint64_t capacity);
void simgpu_uncharge(struct simgpu *view, uint32_t gpu, uint64_t bytes);
/* The limit that a process is held to on a GPU, NULL for none; and what all its processes hold there. */
const struct simgpu_limit *simgpu_limit_of(const struct simgpu_state *state, const uint64_t *cgroups, uint32_t gpu);
uint64_t simgpu_limit_used(const struct simgpu_state *state, const struct simgpu_limit *limit, uint32_t gpu);
bool simgpu_any_limit(const struct simgpu_state *state);
void simgpu_find_cgroups(uint64_t *cgroups); /* of this process */
/* Bytes that all processes hold; of one GPU instance, or of the whole GPU with SIMGPU_NO_INSTANCE. */
uint64_t simgpu_used(const struct simgpu_state *state, uint32_t gpu, uint32_t instance);

/* Time. */
struct simgpu_span { uint64_t start, end; };
struct simgpu_span simgpu_run(struct simgpu *view, uint32_t gpu, uint64_t ready, uint64_t cost, uint64_t memory_ns);
/* Whether another process had work on this GPU a moment ago. */
bool simgpu_contended(const struct simgpu *view, uint32_t gpu);
struct simgpu_span simgpu_copy(struct simgpu *view, uint32_t gpu, uint64_t ready, uint64_t bytes, bool to_device);
/* Takes back work that an ended process had queued, as far as no other work is queued behind it. */
void simgpu_forget_queued(struct simgpu_state *state, uint32_t number, const struct simgpu_slot *gone);
double simgpu_busy(const struct simgpu_gpu *gpu, uint64_t window);        /* 0 to 1 */
double simgpu_memory_busy(const struct simgpu_gpu *gpu, uint64_t window);
double simgpu_slot_busy(const struct simgpu_slot *slot, uint32_t gpu, uint64_t window);
uint64_t simgpu_total_busy_ns(const struct simgpu_gpu *gpu);

/* Events. */
void simgpu_raise(struct simgpu *view, uint32_t gpu, uint64_t type, uint64_t data);
/* Waits until there is an event after `seen`; false when the time ran out. */
bool simgpu_await(struct simgpu *view, uint64_t seen, uint64_t deadline);

uint64_t simgpu_mig_bytes(const struct simgpu_gpu *gpu, const struct simgpu_mig_device *device);

#endif

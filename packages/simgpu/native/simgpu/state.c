/* Opening the state, slots and the memory charged in them. Its rules stand in state.h. */
#include "state.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

#define PATH 4096

static const char library; /* its address tells which file this is loaded from */

static int lock(int fd, int64_t byte, short type, bool wait)
{
	struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	int result;
	do
		result = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &range);
	while (result < 0 && errno == EINTR);
	return result;
}

bool simgpu_lock(struct simgpu *view, int64_t byte, bool wait)
{
	return lock(view->fd, byte, F_WRLCK, wait) == 0;
}

void simgpu_unlock(struct simgpu *view, int64_t byte)
{
	lock(view->fd, byte, F_UNLCK, false);
}

/* A device can be written on a file system that is mounted read-only. So can the sticky file that stands for one. */
static int open_node(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat info;
	if (fd < 0 && errno == EROFS && stat(path, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & S_ISVTX))
		fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd;
}

static bool reachable(const char *dev, const struct simgpu_gpu *gpu)
{
	char path[PATH];
	snprintf(path, sizeof path, "%s/nvidia%u", dev, gpu->minor);
	int fd = open_node(path);
	struct stat info;
	if (fd < 0) /* a node that we may open without a driver behind it, or on a file system where no device is opened */
		return errno == ENXIO || errno == ENODEV || (errno == EACCES && stat(path, &info) == 0 && S_ISCHR(info.st_mode));
	close(fd);
	return true;
}

/* The state: what a container gets as the persistence daemon's socket; a control node that is a file is the state
   itself, where there is no machine around the GPUs; a sticky file stands for a device, see simhost/tools/gpus.c. */
static int open_state(const char *dev)
{
	char path[PATH];
	struct stat info;
	snprintf(path, sizeof path, "%s/nvidiactl", dev);
	int node = open_node(path);
	if (node < 0 && errno != ENXIO && errno != ENODEV && !(errno == EACCES && !stat(path, &info) && S_ISCHR(info.st_mode)))
		return -1;
	if (node >= 0 && fstat(node, &info) == 0 && S_ISREG(info.st_mode) && !(info.st_mode & S_ISVTX))
		return node;
	if (node >= 0)
		close(node);
	snprintf(path, sizeof path, "%s/../run/nvidia-persistenced/socket", dev);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* Opens the state and finds the directory of the device nodes: $SIMGPU_DEV, or the nearest `dev` above this library that
   has a driver. So a library below /host in a pod belongs to the host, and one in the container's own root to /dev. */
static int find_state(char dev[PATH])
{
	char above[PATH];
	Dl_info self;
	int fd, why = ENOENT;
	const char *given = getenv("SIMGPU_DEV");
	if (given && *given) {
		snprintf(dev, PATH, "%s", given);
		return open_state(dev);
	}
	if (!dladdr((void *)&library, &self) || !realpath(self.dli_fname, above))
		strcpy(above, "/");
	for (char *end; (end = strrchr(above, '/'));) {
		*end = 0;
		snprintf(dev, PATH, "%.*s/dev", PATH - 5, above);
		fd = open_state(dev);
		if (fd >= 0)
			return fd;
		if (errno != ENOENT && errno != ENOTDIR && why == ENOENT)
			why = errno;
	}
	errno = why;
	return -1;
}

enum simgpu_status simgpu_open(struct simgpu *view)
{
	char dev[PATH];
	struct stat info;
	memset(view, 0, sizeof *view);
	view->slot = -1;
	view->fd = find_state(dev);
	if (view->fd < 0)
		return errno == EACCES || errno == EPERM ? SIMGPU_DENIED : SIMGPU_ABSENT;
	/* A device of a real driver, or a file of another release of ours, is not ours to map. */
	if (fstat(view->fd, &info) < 0 || !S_ISREG(info.st_mode) || info.st_size < (off_t)sizeof(struct simgpu_state))
		goto mismatch;
	view->state = mmap(NULL, sizeof(struct simgpu_state), PROT_READ | PROT_WRITE, MAP_SHARED, view->fd, 0);
	if (view->state == MAP_FAILED)
		goto mismatch;
	if (view->state->magic != SIMGPU_MAGIC || view->state->layout != SIMGPU_LAYOUT_VERSION ||
	    view->state->size != sizeof(struct simgpu_state) || view->state->gpu_count > SIMGPU_GPUS) {
		munmap(view->state, sizeof(struct simgpu_state));
		goto mismatch;
	}
	lock(view->fd, LOCK_USERS, F_RDLCK, false);
	for (uint32_t i = 0; i < view->state->gpu_count; i++)
		if (reachable(dev, &view->state->gpus[i]))
			view->visible[view->visible_count++] = i;
	return SIMGPU_OK;
mismatch:
	close(view->fd);
	view->fd = -1;
	view->state = NULL;
	return SIMGPU_MISMATCH;
}

static void clear_slot(struct simgpu_state *state, struct simgpu_slot *slot)
{
	for (uint32_t gpu = 0; gpu < state->gpu_count; gpu++)
		simgpu_forget_queued(state, gpu, slot);
	memset((char *)slot + sizeof slot->pid, 0, sizeof *slot - sizeof slot->pid);
	__atomic_store_n(&slot->pid, 0, __ATOMIC_SEQ_CST);
}

void simgpu_close(struct simgpu *view)
{
	if (!view->state)
		return;
	if (view->slot >= 0)
		clear_slot(view->state, &view->state->slots[view->slot]);
	munmap(view->state, sizeof(struct simgpu_state));
	close(view->fd);
	view->state = NULL;
	view->fd = view->slot = -1;
}

/* Where processes are: in a chroot of a simulated node, whose /proc is files, the kubelet has mounted them elsewhere. */
static const char *process_directory(void)
{
	return access("/proc/self", F_OK) == 0 ? "/proc" : "/run/machine-processes";
}

/* The PID namespace of a process, by its inode, which has 32 bits; 0 where it is not listed. */
static uint64_t pid_namespace(const char *pid)
{
	char path[64];
	struct stat info;
	snprintf(path, sizeof path, "%s/%s/ns/pid", process_directory(), pid);
	return stat(path, &info) == 0 ? (uint32_t)info.st_ino : 0;
}

/* Whether `pid` is what the process `number` of its PID namespace is called here. */
static bool is_called(const char *pid, uint64_t space, unsigned long number)
{
	char path[64], line[256];
	unsigned long inside = 0;
	if (pid_namespace(pid) != space)
		return false;
	snprintf(path, sizeof path, "%s/%s/status", process_directory(), pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	while (fgets(line, sizeof line, file))
		if (!strncmp(line, "NSpid:", 6)) {
			char *last = strrchr(line, '\t');
			inside = last ? strtoul(last, NULL, 10) : 0;
			break;
		}
	fclose(file);
	return inside == number;
}

unsigned simgpu_host_pid(uint64_t pid)
{
	uint64_t space = pid >> 32;
	unsigned long number = (uint32_t)pid, found = number;
	if (!space || space == pid_namespace("self"))
		return (unsigned)number;
	DIR *processes = opendir(process_directory());
	for (struct dirent *entry; processes && (entry = readdir(processes));)
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_called(entry->d_name, space, number)) {
			found = strtoul(entry->d_name, NULL, 10);
			break;
		}
	if (processes)
		closedir(processes);
	return (unsigned)found;
}

enum simgpu_status simgpu_claim_slot(struct simgpu *view)
{
	if (view->slot >= 0)
		return SIMGPU_OK;
	for (int i = 0; i < SIMGPU_SLOTS; i++) {
		struct simgpu_slot *slot = &view->state->slots[i];
		if (!simgpu_lock(view, LOCK_SLOTS + i, false))
			continue;
		clear_slot(view->state, slot);
		for (int gpu = 0; gpu < SIMGPU_GPUS; gpu++)
			slot->gpu_instance[gpu] = SIMGPU_NO_INSTANCE;
		simgpu_find_cgroups(slot->cgroups);
		__atomic_store_n(&slot->pid, pid_namespace("self") << 32 | (uint32_t)getpid(), __ATOMIC_SEQ_CST);
		view->slot = i;
		return SIMGPU_OK;
	}
	return SIMGPU_FULL;
}

void simgpu_reap(struct simgpu *view)
{
	/* File locks do not exclude threads of one process from each other: without this, one could clear a slot that
	   the other has just cleared and given back, and that a new process has claimed meanwhile. */
	static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&threads);
	for (int i = 0; i < SIMGPU_SLOTS; i++) {
		struct simgpu_slot *slot = &view->state->slots[i];
		if (i == view->slot || !__atomic_load_n(&slot->pid, __ATOMIC_SEQ_CST))
			continue;
		if (!simgpu_lock(view, LOCK_SLOTS + i, false))
			continue;
		clear_slot(view->state, slot);
		simgpu_unlock(view, LOCK_SLOTS + i);
	}
	pthread_mutex_unlock(&threads);
}

uint64_t simgpu_used(const struct simgpu_state *state, uint32_t gpu, uint32_t instance)
{
	uint64_t sum = instance == SIMGPU_NO_INSTANCE ? state->gpus[gpu].load_memory_bytes : 0;
	for (int i = 0; i < SIMGPU_SLOTS; i++) {
		const struct simgpu_slot *slot = &state->slots[i];
		if (!__atomic_load_n(&slot->pid, __ATOMIC_SEQ_CST))
			continue;
		if (instance == SIMGPU_NO_INSTANCE || slot->gpu_instance[gpu] == instance)
			sum += __atomic_load_n(&slot->memory[gpu], __ATOMIC_SEQ_CST);
	}
	return sum;
}

/* Whether a process is within what MPS and the limits of its cgroup allow. */
static bool within(const struct simgpu *view, const struct simgpu_slot *slot, uint32_t gpu)
{
	const struct simgpu_limit *limit = simgpu_limit_of(view->state, slot->cgroups, gpu);
	if (view->own_limit[gpu] && __atomic_load_n(&slot->memory[gpu], __ATOMIC_SEQ_CST) > view->own_limit[gpu])
		return false;
	return !limit || simgpu_limit_used(view->state, limit, gpu) <= limit->hard[gpu];
}

bool simgpu_charge(struct simgpu *view, uint32_t gpu, uint32_t instance, uint64_t bytes, uint64_t capacity)
{
	struct simgpu_slot *slot = &view->state->slots[view->slot];
	if (bytes > capacity)
		return false;
	__atomic_store_n(&slot->gpu_instance[gpu], instance, __ATOMIC_SEQ_CST);
	/* Refused more than once, because the first refusal may be due to a dead process's memory, the next ones to
	   a competitor that is about to take its own charge back. */
	for (int attempt = 0; attempt < 4; attempt++) {
		__atomic_add_fetch(&slot->memory[gpu], bytes, __ATOMIC_SEQ_CST);
		if (simgpu_used(view->state, gpu, instance) <= capacity && within(view, slot, gpu))
			return true;
		__atomic_sub_fetch(&slot->memory[gpu], bytes, __ATOMIC_SEQ_CST);
		if (attempt == 0) {
			simgpu_reap(view);
		} else {
			struct timespec pause = {0, 20000 * attempt + 1000 * (view->slot % 16)};
			nanosleep(&pause, NULL);
		}
	}
	return false;
}

void simgpu_uncharge(struct simgpu *view, uint32_t gpu, uint64_t bytes)
{
	__atomic_sub_fetch(&view->state->slots[view->slot].memory[gpu], bytes, __ATOMIC_SEQ_CST);
}

uint64_t simgpu_mig_bytes(const struct simgpu_gpu *gpu, const struct simgpu_mig_device *device)
{
	return gpu->mig_profiles[device->profile].memory_mib << 20;
}

/* For the test that keeps layout.py equal: sizes of the parts, 0 behind the last. */
__attribute__((visibility("default"))) uint64_t simgpu_layout(uint32_t part)
{
	static const uint64_t sizes[] = {
		sizeof(struct simgpu_state), sizeof(struct simgpu_gpu),  sizeof(struct simgpu_slot),
		sizeof(struct simgpu_event), sizeof(struct simgpu_mig_profile), sizeof(struct simgpu_mig_device),
		offsetof(struct simgpu_gpu, mig_enabled), offsetof(struct simgpu_gpu, load_memory_bytes),
		offsetof(struct simgpu_gpu, timeline), offsetof(struct simgpu_gpu, level),
		offsetof(struct simgpu_gpu, mig_profiles), offsetof(struct simgpu_state, events),
		offsetof(struct simgpu_state, slots), sizeof(struct simgpu_limit), offsetof(struct simgpu_state, limits),
	};
	return part < sizeof sizes / sizeof *sizes ? sizes[part] : 0;
}

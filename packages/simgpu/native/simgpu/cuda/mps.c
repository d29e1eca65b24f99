/*
 * A client of the Multi-Process Service. Where its control daemon listens (CUDA_MPS_PIPE_DIRECTORY) cuInit connects and is
 * told the defaults; the variables of the client narrow them further. The connection says who is a client: it stays open.
 *
 * The daemon is packages/simgpu/native/simgpu/mps/control.c; the words between the two are ours, for the real ones are not public.
 */
#include "cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int daemon_fd = -1;

/* NB: a socket's address has room for 107 bytes, so it goes through a handle of the directory. */
static int connect_to(const char *directory)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int place = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC), fd = -1;
	if (place < 0)
		return -1;
	snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/control", place);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
		close(fd);
		fd = -1;
	}
	close(place);
	return fd;
}

static uint64_t amount(const char *text, char **end)
{
	uint64_t value = strtoull(text, end, 10);
	int shift = **end == 'G' ? 30 : **end == 'M' ? 20 : **end == 'K' ? 10 : 0;
	*end += shift ? 1 : 0;
	*end += shift && **end == 'B' ? 1 : 0;
	return value << shift;
}

static void narrow(uint32_t gpu, uint64_t bytes)
{
	uint64_t *limit = &cuda_view.own_limit[gpu];
	if (bytes && (!*limit || bytes < *limit))
		*limit = bytes;
}

/* "0=5G,1=512M", by this process's own numbers of its GPUs. */
static void narrow_by_variable(const char *text)
{
	char *end = (char *)text;
	while (text && *text) {
		unsigned long device = strtoul(text, &end, 10);
		if (end == text || *end != '=')
			return;
		uint64_t bytes = amount(end + 1, &end);
		if (device < cuda_device_count)
			narrow(cuda_devices[device].gpu, bytes);
		if (*end != ',')
			return;
		text = end + 1;
	}
}

CUresult cuda_mps_connect(void)
{
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY"), *portion = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	char words[1024];
	double percent = 100;
	memset(cuda_view.own_limit, 0, sizeof cuda_view.own_limit);
	cuda_view.portion = 0;
	daemon_fd = connect_to(directory && *directory ? directory : "/tmp/nvidia-mps");
	if (daemon_fd < 0)
		return CUDA_SUCCESS; /* no daemon: an ordinary process */
	int size = snprintf(words, sizeof words, "client %d", (int)getpid());
	ssize_t got = send(daemon_fd, words, (size_t)size, MSG_NOSIGNAL) < 0 ? -1 : recv(daemon_fd, words, sizeof words - 1, 0);
	words[got > 0 ? got : 0] = 0;
	if (got <= 0 || !strcmp(words, "full")) {
		cuda_mps_close();
		return got <= 0 ? CUDA_MPS_RPC_FAILURE : CUDA_MPS_MAX_CLIENTS_REACHED;
	}
	char *rest = words;
	percent = strtod(rest, &rest);
	for (uint32_t gpu = 0; gpu < SIMGPU_GPUS && *rest; gpu++)
		narrow(gpu, strtoull(rest, &rest, 10));
	narrow_by_variable(getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
	if (portion && strtod(portion, NULL) > 0 && strtod(portion, NULL) < percent)
		percent = strtod(portion, NULL);
	/* Clients that may use everything still follow each other here, or two would be twice as fast as the GPU. */
	cuda_view.portion = percent < 100 ? (uint32_t)(percent < 1 ? 1 : percent) : 0;
	cuda_view.state->slots[cuda_view.slot].mps = 1;
	return CUDA_SUCCESS;
}

void cuda_mps_close(void)
{
	if (daemon_fd >= 0)
		close(daemon_fd);
	daemon_fd = -1;
}

bool cuda_mps_lost(void)
{
	char byte;
	if (daemon_fd < 0)
		return false;
	ssize_t got = recv(daemon_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

bool cuda_mps_admits(uint32_t number)
{
	const struct simgpu_state *state = cuda_view.state;
	if (state->gpus[number].compute_mode != 3) /* exclusive process */
		return true;
	simgpu_reap(&cuda_view);
	/* The one process is MPS's server, for all its clients. */
	for (int i = 0; i < SIMGPU_SLOTS; i++) {
		const struct simgpu_slot *slot = &state->slots[i];
		if (i != cuda_view.slot && slot->pid && slot->contexts[number] && !(slot->mps && daemon_fd >= 0))
			return false;
	}
	return true;
}

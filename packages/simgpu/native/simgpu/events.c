/* The ring of events (XIDs, ECC errors) and waiting for them without polling. */
#include "state.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* File locks do not exclude the threads of one process from each other. */
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

void simgpu_raise(struct simgpu *view, uint32_t gpu, uint64_t type, uint64_t data)
{
	struct simgpu_state *state = view->state;
	pthread_mutex_lock(&threads);
	bool locked = simgpu_lock(view, LOCK_EVENTS, true);
	uint64_t number = state->event_last + 1;
	state->events[number % SIMGPU_EVENTS] = (struct simgpu_event){
		.number = number, .type = type, .data = data, .time_ns = simgpu_now(), .gpu = gpu,
		.gpu_instance = SIMGPU_NO_INSTANCE, .compute_instance = SIMGPU_NO_INSTANCE,
	};
	__atomic_store_n(&state->event_last, number, __ATOMIC_SEQ_CST);
	__atomic_store_n(&state->event_futex, (uint32_t)number, __ATOMIC_SEQ_CST);
	if (locked)
		simgpu_unlock(view, LOCK_EVENTS);
	pthread_mutex_unlock(&threads);
	syscall(SYS_futex, &state->event_futex, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

bool simgpu_await(struct simgpu *view, uint64_t seen, uint64_t deadline)
{
	struct simgpu_state *state = view->state;
	for (;;) {
		uint32_t word = __atomic_load_n(&state->event_futex, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&state->event_last, __ATOMIC_SEQ_CST) != seen)
			return true;
		uint64_t now = simgpu_now();
		if (now >= deadline)
			return false;
		/* A second at most: should a writer die between the event and the wake-up, it is only late. */
		uint64_t left = deadline - now < 1000000000ull ? deadline - now : 1000000000ull;
		struct timespec pause = {(time_t)(left / 1000000000ull), (long)(left % 1000000000ull)};
		syscall(SYS_futex, &state->event_futex, FUTEX_WAIT, word, &pause, NULL, 0);
	}
}

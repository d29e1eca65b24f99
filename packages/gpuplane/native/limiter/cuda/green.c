/*
 * Green contexts: parts of a primary context, which they hold. Their cost is the primary context, and memory that is allocated in
 * them is its own. Launches into their streams are waited for with the primary context; those into their default streams with
 * the context that a green one is turned into.
 */
#include "gate.h"

#include <stdlib.h>

CUresult cuGreenCtxDestroy(CUgreen handle);

struct green {
	CUcontext context, primary;
	CUgreen handle;
	CUdevice device;
	struct green *next;
};

int green_open; /* how many there are */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct green *greens;

CUcontext green_primary(CUcontext context)
{
	pthread_mutex_lock(&guard);
	for (const struct green *green = greens; green; green = green->next)
		if (green->context == context) {
			context = green->primary;
			break;
		}
	pthread_mutex_unlock(&guard);
	return context;
}

/* The number-th green context of a primary one; NULL: there are no more. */
static CUcontext part_of(CUcontext primary, unsigned number)
{
	CUcontext found = NULL;
	pthread_mutex_lock(&guard);
	for (const struct green *green = greens; green && !found; green = green->next)
		if (green->primary == primary && !number--)
			found = green->context;
	pthread_mutex_unlock(&guard);
	return found;
}

void green_leave(CUcontext primary)
{
	CUcontext part;
	for (unsigned number = 0; LOAD(green_open) && (part = part_of(primary, number)); number++)
		gate_leave(part);
}

/* Takes out those of a primary context, or one handle. Returns the last that was taken out. */
static CUcontext take_out(CUcontext primary, CUgreen handle)
{
	CUcontext gone = NULL;
	pthread_mutex_lock(&guard);
	for (struct green **at = &greens; *at;) {
		struct green *green = *at;
		if (green->primary != primary && green->handle != handle) {
			at = &green->next;
			continue;
		}
		gone = green->context;
		*at = green->next;
		ADD(green_open, -1);
		streams_drop(gone);
		captures_drop(gone);
		free(green);
	}
	pthread_mutex_unlock(&guard);
	return gone;
}

void green_drop(CUcontext primary)
{
	if (LOAD(green_open))
		take_out(primary, NULL);
}

void green_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	guard = fresh;
	greens = NULL;
	green_open = 0;
}

static bool enter(CUgreen handle, CUcontext primary, CUdevice device)
{
	struct green *green = malloc(sizeof *green);
	if (!green || !HAS(cuCtxFromGreenCtx) || REAL(cuCtxFromGreenCtx)(&green->context, handle) != CUDA_SUCCESS) {
		free(green);
		return false;
	}
	green->primary = primary;
	green->handle = handle;
	green->device = device;
	pthread_mutex_lock(&guard);
	green->next = greens;
	greens = green;
	ADD(green_open, 1);
	pthread_mutex_unlock(&guard);
	return true;
}

/* Holds the primary context around the call, so that it begins and ends where it is charged. */
EXPORT CUresult cuGreenCtxCreate(CUgreen *green, void *descriptor, CUdevice device, unsigned flags)
{
	CUcontext primary;
	NEED_REAL(cuGreenCtxCreate);
	if (cuda_forbidden(device))
		return CUDA_DEVICE_UNAVAILABLE;
	if (cuda_gpu(device) < 0 || !green)
		return REAL(cuGreenCtxCreate)(green, descriptor, device, flags);
	CUresult result = context_retain_primary(&primary, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuGreenCtxCreate)(green, descriptor, device, flags);
	if (result == CUDA_SUCCESS && !enter(*green, primary, device)) {
		REAL(cuGreenCtxDestroy)(*green);
		result = CUDA_OUT_OF_MEMORY;
	}
	context_release_primary(device);
	return result;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreen handle)
{
	CUdevice device = -1;
	CUcontext context = NULL, primary = NULL;
	NEED_REAL(cuGreenCtxDestroy);
	pthread_mutex_lock(&guard);
	for (const struct green *green = greens; green && !context; green = green->next)
		if (green->handle == handle) {
			context = green->context;
			device = green->device;
		}
	pthread_mutex_unlock(&guard);
	if (!context || context_retain_primary(&primary, device) != CUDA_SUCCESS)
		return REAL(cuGreenCtxDestroy)(handle);
	gate_leave(context);
	take_out(NULL, handle);
	CUresult result = REAL(cuGreenCtxDestroy)(handle);
	if (result != CUDA_SUCCESS)
		enter(handle, primary, device);
	context_release_primary(device);
	return result;
}

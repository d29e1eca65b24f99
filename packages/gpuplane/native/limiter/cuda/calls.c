/*
 * Host functions in streams. They are called by ours, which wait at their end for a turn if something was launched since they
 * were put into their stream: that may come behind them. The memory of a call lives as long as its hold.
 */
#include "book.h"
#include "gate.h"
#include "holds.h"

#include <stdlib.h>

struct called {
	int gpu;
	uint64_t passed;
	void (*function)(void *);
	void (*callback)(CUstream, CUresult, void *);
	void *data;
};

static void end_call(const struct called *called)
{
	unsigned nothing = 1;
	gate_resume(called->gpu, gate_passed(called->gpu) != called->passed, &nothing);
}

static void run_function(void *data)
{
	const struct called *called = data;
	gate_pause(called->gpu);
	called->function(called->data);
	end_call(called);
}

static void run_callback(CUstream stream, CUresult status, void *data)
{
	const struct called *called = data;
	gate_pause(called->gpu);
	called->callback(stream, status, called->data);
	end_call(called);
}

/* NULL: it is called as it is. */
static struct called *begin_call(struct opening *opening, CUstream stream, struct called own)
{
	struct called *called = own.function || own.callback ? malloc(sizeof *called) : NULL;
	if (!called || !holds_open(opening, stream)) {
		free(called);
		return NULL;
	}
	own.gpu = opening->gpu;
	own.passed = gate_passed(own.gpu);
	*called = own;
	return opening->hold->called = called;
}

#define CALL(symbol, per_thread, kind, parameters, plain, ours)                                                        \
	EXPORT CUresult symbol parameters                                                                               \
	{                                                                                                               \
		struct opening opening;                                                                                 \
		NEED_REAL(symbol);                                                                                      \
		struct called *called = begin_call(&opening, streams_meant(stream, per_thread), (struct called){.kind = kind, .data = data}); \
		return called ? holds_close(&opening, REAL(symbol) ours) : REAL(symbol) plain;                           \
	}
#define CALLS(symbol, kind, parameters, plain, ours)                                                                   \
	CALL(symbol, false, kind, parameters, plain, ours)                                                              \
	CALL(symbol##_ptsz, true, kind, parameters, plain, ours)
CALLS(cuLaunchHostFunc, function, (CUstream stream, void (*function)(void *), void *data), (stream, function, data),
      (stream, run_function, called))
CALLS(cuStreamAddCallback, callback,
      (CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned flags), (stream, callback, data, flags),
      (stream, run_callback, called, flags))

/* What the calls that put a hold into a stream share (waits.c says what a hold is). */
#ifndef GPUPLANE_HOLDS_H
#define GPUPLANE_HOLDS_H

#include "streams.h"

struct hosts;

struct opening {
	CUcontext context;
	CUstream stream;
	struct hold *hold;
	int gpu, mode;
	bool pushed;
};

/* Around the launch of a graph with host functions: before its turn is waited for, right before the call, right after it.
   False: there is no hold, and the graph is waited for as a whole. */
bool holds_prepare_graph(struct opening *opening, CUstream stream);
bool holds_begin_graph(struct opening *opening, struct hosts *hosts);
void holds_end_graph(const struct opening *opening, CUresult result);

#endif

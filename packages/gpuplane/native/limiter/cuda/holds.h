/* Functions for all calls that put a hold into a stream (waits.c describes holds). */
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

/* Right before a call, and right after it. False: it is nothing that a turn would wait for. */
bool holds_open(struct opening *opening, CUstream stream);
CUresult holds_close(const struct opening *opening, CUresult result); /* returns the result */
/* The same for the launch of a graph with host functions, in two steps: before its turn is waited for, and right before the call.
   False: there is no hold, and the graph is waited for as a whole. */
bool holds_prepare_graph(struct opening *opening, CUstream stream);
bool holds_begin_graph(struct opening *opening, struct hosts *hosts);

#endif

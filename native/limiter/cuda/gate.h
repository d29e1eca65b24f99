/* The way to the GPU's time: what every launch passes. */
#ifndef GPUPLANE_GATE_H
#define GPUPLANE_GATE_H

#include "cuda.h"

void gate_pass(CUstream stream, bool per_thread);
void gate_pass_graph(CUstream stream, bool per_thread);
void gate_capture(int change);
void gate_leave(CUcontext context);
void gate_forget(void);

#endif

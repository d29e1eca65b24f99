/* The calls that begin, end and describe captures. */
#include "captures.h"

#include <stdlib.h>

enum { STATUS_NONE, STATUS_ACTIVE, STATUS_INVALIDATED };

static CUresult begin(CUstream handle, struct graph *graph, int mode)
{
	struct context *context;
	struct stream *stream;
	NEED(mode >= MODE_GLOBAL && mode <= MODE_RELAXED);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (stream == &context->legacy)
		return CUDA_CAPTURE_UNSUPPORTED;
	struct capture *capture = calloc(1, sizeof *capture);
	if (!capture)
		return CUDA_OUT_OF_MEMORY;
	*capture = (struct capture){.graph = graph, .given = graph, .mode = mode, .thread = cuda_thread()};
	if (!graph)
		result = cuda_graph_make(&capture->graph);
	pthread_mutex_lock(&cuda_guard);
	if (result == CUDA_SUCCESS && stream->capture)
		result = stream->capture->broken ? CUDA_CAPTURE_INVALIDATED : CUDA_ILLEGAL_STATE;
	if (result == CUDA_SUCCESS)
		capture_begin(capture, stream);
	pthread_mutex_unlock(&cuda_guard);
	if (result != CUDA_SUCCESS) {
		if (!graph && capture->graph)
			cuda_graph_free(capture->graph);
		free(capture);
	}
	return result;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
	return begin(handle, NULL, mode);
}

EXPORT CUresult cuStreamBeginCapture(CUstream handle)
{
	return begin(handle, NULL, MODE_GLOBAL);
}

/* Nodes run in the order in which they were added, so what they depend on is checked for its form only. */
EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode *before, const void *edges,
					    size_t count, int mode)
{
	(void)edges;
	NEED(cuda_graph_valid(graph) && (before || !count));
	return begin(handle, graph, mode);
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	struct context *context;
	struct stream *stream;
	NEED(graph);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	*graph = NULL;
	pthread_mutex_lock(&cuda_guard);
	struct capture *capture = stream->capture;
	if (!capture)
		result = CUDA_ILLEGAL_STATE;
	else if (capture->origin != stream)
		result = capture_spoil(capture, CUDA_CAPTURE_UNMATCHED);
	else if (capture->mode != MODE_RELAXED && capture->thread != cuda_thread())
		result = CUDA_CAPTURE_WRONG_THREAD;
	if (result == CUDA_SUCCESS) {
		bool whole = capture_end(capture);
		result = capture->broken ? CUDA_CAPTURE_INVALIDATED : whole ? CUDA_SUCCESS : CUDA_CAPTURE_UNJOINED;
		if (result == CUDA_SUCCESS)
			*graph = capture->graph;
		else if (!capture->given)
			cuda_graph_free(capture->graph);
		free(capture);
	}
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

static CUresult describe(CUstream handle, int *status, uint64_t *id, CUgraph *graph)
{
	struct context *context;
	struct stream *stream;
	NEED(status);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&cuda_guard);
	const struct capture *capture = stream->capture;
	if (stream == &context->legacy && capture_met_by_legacy(context, false))
		result = CUDA_CAPTURE_IMPLICIT;
	*status = !capture ? STATUS_NONE : capture->broken ? STATUS_INVALIDATED : STATUS_ACTIVE;
	if (*status == STATUS_ACTIVE && id)
		*id = capture->id;
	if (*status == STATUS_ACTIVE && graph)
		*graph = capture->graph;
	pthread_mutex_unlock(&cuda_guard);
	return result;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
	return describe(handle, status, NULL, NULL);
}

/* Which nodes the next one depends on is not answered. */
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
					  size_t *count)
{
	if (nodes)
		*nodes = NULL;
	if (count)
		*count = 0;
	return describe(handle, status, id, graph);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
					  const void **edges, size_t *count)
{
	if (edges)
		*edges = NULL;
	return cuStreamGetCaptureInfo_v2(handle, status, id, graph, nodes, count);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	NEED(mode && *mode >= MODE_GLOBAL && *mode <= MODE_RELAXED);
	int before = capture_mode;
	capture_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

PER_THREAD(cuStreamBeginCapture, _ptsz, (CUstream stream), (stream))
PER_THREAD(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int mode), (stream, mode))
PER_THREAD(cuStreamBeginCaptureToGraph, _ptsz,
	   (CUstream stream, CUgraph graph, const CUgraphNode *before, const void *edges, size_t count, int mode),
	   (stream, graph, before, edges, count, mode))
PER_THREAD(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), (stream, graph))
PER_THREAD(cuStreamIsCapturing, _ptsz, (CUstream stream, int *status), (stream, status))
PER_THREAD(cuStreamGetCaptureInfo_v2, _ptsz,
	   (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count),
	   (stream, status, id, graph, nodes, count))
PER_THREAD(cuStreamGetCaptureInfo_v3, _ptsz,
	   (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, const void **edges,
	    size_t *count),
	   (stream, status, id, graph, nodes, edges, count))

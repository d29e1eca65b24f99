/* The driver API's types as far as they are ours, and what the parts of the interposed libcuda share. */
#ifndef GPUPLANE_CUDA_H
#define GPUPLANE_CUDA_H

#include "../limiter.h"

#include <pthread.h>

typedef int CUresult;
enum {
	CUDA_SUCCESS = 0,
	CUDA_INVALID_VALUE = 1,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_NOT_INITIALIZED = 3,
	CUDA_DEINITIALIZED = 4,
	CUDA_DEVICE_UNAVAILABLE = 46,
	CUDA_INVALID_CONTEXT = 201,
	CUDA_NOT_FOUND = 500,
	CUDA_NOT_READY = 600,
	CUDA_NOT_SUPPORTED = 801,
	CUDA_SYSTEM_NOT_READY = 802,
};

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreen;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef uint64_t CUmemHandle;

struct location {
	int type, id; /* 1: device */
};
#define LOCATION_DEVICE 1

struct pool_properties {
	int type, handle_types;
	struct location location;
	void *security;
	size_t most;
	unsigned short usage;
	unsigned char reserved[54];
};
_Static_assert(sizeof(struct pool_properties) == 88, "ABI");

struct memory_properties {
	int type, handle_types;
	struct location location;
	void *security;
	unsigned char flags[8];
};
_Static_assert(sizeof(struct memory_properties) == 32, "ABI");

struct array_descriptor {
	size_t width, height;
	int format;
	unsigned channels;
};

struct array3d_descriptor {
	size_t width, height, depth;
	int format;
	unsigned channels, flags;
};

struct array_descriptor_v1 {
	unsigned width, height;
	int format;
	unsigned channels;
};

struct array3d_descriptor_v1 {
	unsigned width, height, depth;
	int format;
	unsigned channels, flags;
};

struct alloc_node_parameters {
	struct pool_properties pool;
	const void *access;
	size_t access_count, size;
	CUdeviceptr address;
};

struct host_parameters {
	void (*function)(void *);
	void *data;
};

struct launch_config {
	unsigned grid[3], block[3], shared;
	CUstream stream;
	void *attributes;
	unsigned attribute_count;
};

struct launch_parameters {
	CUfunction function;
	unsigned grid[3], block[3], shared;
	CUstream stream;
	void **parameters;
};

#define DEVICES 64

/* real.c: the functions of hooks.def and uses.def in the real library. */
enum real_index {
#define HOOK(base, version, symbol) INDEX_##symbol,
#define HOOK_STREAM(base, version, symbol, per_thread) INDEX_##symbol, INDEX_##per_thread,
#define USE(symbol, ...) INDEX_##symbol,
#include "hooks.def"
#include "uses.def"
#undef HOOK
#undef HOOK_STREAM
#undef USE
	REAL_COUNT,
};
extern void *real_functions[REAL_COUNT];
bool real_has(const char *symbol); /* of those above */
#define HAS(symbol) (real_functions[INDEX_##symbol] != NULL)
#define REAL(symbol) ((__typeof__(&symbol))real_functions[INDEX_##symbol])
#define USE(symbol, ...) CUresult symbol(__VA_ARGS__);
#include "uses.def"
#undef USE
/* An older driver lacks some; a program that finds the name here gets an error. */
#define NEED_REAL(symbol)                                                                                              \
	if (__builtin_expect(!HAS(symbol), 0))                                                                          \
	return CUDA_NOT_SUPPORTED

/* devices.c */
extern bool cuda_active; /* limits hold in this process */
int cuda_gpu(CUdevice device);            /* position in the limits; -1 where there are none */
bool cuda_forbidden(CUdevice device);     /* limits hold, and this GPU is not among them */
int cuda_current(CUcontext *context);     /* the context that owns what is allocated now, and its GPU, as above */
/* The context in which the work of a stream is waited for, and its GPU, as above. *other: it is not the current one. */
int cuda_of_stream(CUstream stream, CUcontext *context, bool *other);
/* The device of a stream, or the current one; -1 if there is none. */
CUdevice cuda_stream_device(CUstream stream);

/* track.c: what this process holds, by handle. */
enum kind { KIND_ADDRESS = 1, KIND_CONTEXT, KIND_ARRAY, KIND_MIPMAP, KIND_HANDLE, KIND_MAPPING, KIND_EXEC, KIND_STREAM_ORDERED };
struct held {
	uint64_t bytes;
	void *owner; /* the context; a struct block for handles and mappings; a struct pool; a struct hosts of graphs */
	int gpu;
};
bool track_put(enum kind kind, uint64_t key, struct held held);
bool track_get(enum kind kind, uint64_t key, struct held *held);
bool track_take(enum kind kind, uint64_t key, struct held *held);
/* Two in one: the beginning of a change and a take, a put and the end of a change. */
bool track_begin_take(enum kind kind, uint64_t key, struct held *held);
void track_put_end(enum kind kind, uint64_t key, struct held held);
/* Takes out one entry of `kind` whose owner is `owner`. */
bool track_take_owned(enum kind kind, const void *owner, uint64_t *key, struct held *held);
void track_forget(void);

/* memory.c */
uint64_t memory_rounded(uint64_t size);
bool memory_take(int gpu, uint64_t bytes); /* counts the refusal */
/* Second phase: keeps what was taken if `result` is success, gives it back otherwise; returns `result`. */
CUresult memory_settle(CUresult result, enum kind kind, uint64_t key, struct held held);
/* The end of an address, which was taken out of the table if it was `ours`: gives `held` back, or keeps it if the driver
   has refused; returns `result`. */
CUresult memory_freed(CUresult result, bool ours, CUdeviceptr address, struct held held);
void memory_drop_context(CUcontext context);

/* green.c: contexts that are parts of a primary one. */
extern int green_open;
CUcontext green_primary(CUcontext context); /* of a green context, or else the context itself */
void green_leave(CUcontext primary);        /* a primary context may be about to end, and green ones with it */
void green_drop(CUcontext primary);         /* it has ended */
void green_forget(void);

/* context.c */
CUresult context_retain_primary(CUcontext *context, CUdevice device);
CUresult context_release_primary(CUdevice device);
void context_forget(void);

/* handles.c */
void handles_forget(void);

/* pool.c: pools, and the graphs' memory of a device, which is one too, are charged by what they have reserved. */
void pool_refresh(int gpu); /* looks what they have reserved now; -1: on all GPUs */
void pool_freed(CUdeviceptr address); /* what no other part knows was freed */
/* Before a graph is launched or uploaded, and after. False: it does not fit. */
bool pool_take_graph(CUdevice device, uint64_t bytes, uint64_t *granted);
void pool_settle_graph(CUdevice device, uint64_t granted);
void pool_forget(void);

#endif

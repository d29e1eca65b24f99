/*
 * The driver API's types, written down from its documentation, and what the parts of this library share.
 *
 * Work is done when it is asked for, in the caller's thread; only its time is simulated. So results are always those of
 * the program's own order, and what is asynchronous is when a stream or an event says it is done.
 */
#ifndef SIMGPU_CUDA_H
#define SIMGPU_CUDA_H

#include "../ptx/ptx.h"
#include "../state.h"

#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_INVALID_VALUE = 1,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_NOT_INITIALIZED = 3,
	CUDA_DEVICE_UNAVAILABLE = 46,
	CUDA_NO_DEVICE = 100,
	CUDA_INVALID_DEVICE = 101,
	CUDA_INVALID_CONTEXT = 201,
	CUDA_INVALID_IMAGE = 200,
	CUDA_NO_BINARY_FOR_GPU = 209,
	CUDA_ECC_UNCORRECTABLE = 214,
	CUDA_UNSUPPORTED_LIMIT = 215,
	CUDA_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_INVALID_PTX = 218,
	CUDA_UNSUPPORTED_PTX_VERSION = 222,
	CUDA_FILE_NOT_FOUND = 301,
	CUDA_OPERATING_SYSTEM = 304,
	CUDA_INVALID_HANDLE = 400,
	CUDA_NOT_FOUND = 500,
	CUDA_NOT_READY = 600,
	CUDA_ILLEGAL_ADDRESS = 700,
	CUDA_LAUNCH_OUT_OF_RESOURCES = 701,
	CUDA_LAUNCH_TIMEOUT = 702,
	CUDA_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_PEER_ACCESS_NOT_ENABLED = 705,
	CUDA_PRIMARY_CONTEXT_ACTIVE = 708,
	CUDA_CONTEXT_IS_DESTROYED = 709,
	CUDA_ASSERT = 710,
	CUDA_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ILLEGAL_INSTRUCTION = 715,
	CUDA_MISALIGNED_ADDRESS = 716,
	CUDA_LAUNCH_FAILED = 719,
	CUDA_NOT_SUPPORTED = 801,
	CUDA_SYSTEM_DRIVER_MISMATCH = 803,
	CUDA_MPS_RPC_FAILURE = 806,
	CUDA_MPS_MAX_CLIENTS_REACHED = 808,
	CUDA_CAPTURE_UNSUPPORTED = 900,
	CUDA_CAPTURE_INVALIDATED = 901,
	CUDA_CAPTURE_MERGE = 902,
	CUDA_CAPTURE_UNMATCHED = 903,
	CUDA_CAPTURE_UNJOINED = 904,
	CUDA_CAPTURE_ISOLATION = 905,
	CUDA_CAPTURE_IMPLICIT = 906,
	CUDA_CAPTURED_EVENT = 907,
	CUDA_CAPTURE_WRONG_THREAD = 908,
	CUDA_GRAPH_EXEC_UPDATE_FAILURE = 910,
	CUDA_INVALID_RESOURCE_TYPE = 914,
	CUDA_INVALID_RESOURCE_CONFIGURATION = 915,
	CUDA_ILLEGAL_STATE = 401,
	CUDA_UNKNOWN = 999,
} CUresult;

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct pool *CUmemoryPool;
typedef struct graph *CUgraph;
typedef struct graph_node *CUgraphNode;
typedef struct graph_exec *CUgraphExec;

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)
#define STREAM_NON_BLOCKING 1u

/* The device of a CUdevice: a GPU, or the one MIG device of it that this process uses. */
struct device {
	uint32_t gpu;
	int32_t mig; /* -1: the whole GPU */
	struct context *primary;          /* the active one; NULL: it is not active */
	struct context *primary_handle;   /* the same, and what stays of it: its handle never changes */
	int primary_references;
	unsigned primary_flags;
	struct pool *default_pool, *pool;
	uint64_t graph_used, graph_used_high, graph_reserved, graph_reserved_high; /* memory of graphs */
};

/* The operations before the next one of a captured stream: so many operations of each stream of the capture. */
#define CAPTURE_STREAMS 16
struct history {
	uint32_t operations[CAPTURE_STREAMS];
};

#define QUEUE_DEPTH 1022 /* launches that a stream of NVIDIA's driver takes before a launch waits */

struct stream {
	uint32_t magic;
	unsigned flags;
	int priority;
	uint64_t tail, id; /* when all that was queued is done */
	uint64_t ends[QUEUE_DEPTH], launches; /* of the last launches: when each is done; how many there were */
	uint64_t thread; /* whose own default stream it is; 0: of no thread */
	struct context *context;
	struct stream *next;
	struct operation *queue; /* what waits for something outside, and what is behind it (queue.c) */
	unsigned queued;
	bool gone; /* destroyed, while there is something in its queue */
	struct capture *capture; /* which it takes part in, */
	unsigned branch;         /* and its number there */
	struct history before, linked; /* the latter: of what its last node has edges from */
};

struct context {
	uint32_t magic;
	CUdevice device;
	unsigned flags;
	bool primary, destroyed;
	CUresult failed; /* what broke it; every later call says so */
	uint64_t id, ecc_errors;
	struct stream legacy, *streams;
	uint64_t left[2]; /* when the work of streams that are gone is done: blocking ones and others */
	struct context *next;
	struct module *modules;
	uint64_t limits[11];
	struct context *parent; /* of a green context: the primary one; else NULL */
	struct green *green;
	uint32_t multiprocessors; /* of a green context */
	uint32_t peers; /* bit for each device whose memory it may use */
	int cache_config;
	struct local *locals; /* what a runtime stores with it, see tables.c */
	int attached; /* by cuCtxAttach, besides the creator */
};

/* The first three cannot be touched by the CPU. GRAPH is charged by the graphs' pool; MAPPED belongs to a handle. */
enum kind { KIND_DEVICE, KIND_GRAPH, KIND_MAPPED, KIND_MANAGED, KIND_HOST, KIND_REGISTERED };

struct allocation {
	uint64_t start, size, charged;
	uint8_t *host; /* where the bytes really are */
	enum kind kind;
	CUdevice device;
	unsigned flags;
	struct context *context;
	struct pool *pool;
	uint64_t id;
	int shared; /* its memory file for other processes, and one more; 0: none (ipc.c) */
};

struct function {
	uint32_t magic;
	const struct ptx_kernel *kernel;
	struct module *module;
	uint32_t dynamic_shared_limit;
	int carveout;
};

struct module {
	uint32_t magic;
	struct context *context;
	struct ptx_module *ptx;
	struct function *functions;
	uint64_t base;
	struct module *next;
};

struct event_marks {
	uint64_t recorded, reached; /* how often it was recorded; up to which of these that was put on the time line */
	uint64_t time;              /* when the last of those is done */
};

struct event {
	uint32_t magic;
	unsigned flags;
	struct event_marks *marks, own;
	int file;       /* of the marks, for other processes; -1: own */
	unsigned users; /* operations in queues */
	struct context *context;
	uint64_t capture; /* the capture in which it was recorded last; 0: none */
	struct history before;
};

struct pool {
	uint32_t magic;
	CUdevice device;
	uint64_t threshold, used, used_high, settings[4];
};

#define MAGIC_CONTEXT 0x43545843u
#define MAGIC_MODULE 0x4d4f4443u
#define MAGIC_FUNCTION 0x46554e43u
#define MAGIC_STREAM 0x53545243u
#define MAGIC_EVENT 0x45564e43u
#define MAGIC_POOL 0x504f4f4cu
#define MAGIC_LIBRARY 0x4c494243u
#define MAGIC_KERNEL 0x4b524e43u
#define MAGIC_ARRAY 0x41525259u
#define MAGIC_MIPMAP 0x4d49504du
#define MAGIC_BLOCK 0x424c434bu
#define MAGIC_GRAPH 0x47525048u
#define MAGIC_NODE 0x4e4f4445u
#define MAGIC_EXEC 0x45584543u
#define MAGIC_GREEN 0x4752454eu
#define MAGIC_DESCRIPTOR 0x44455343u
#define MAGIC_LINK 0x4c494e4bu

extern struct simgpu cuda_view;
extern pthread_mutex_t cuda_guard; /* contexts, streams, modules; never held while waiting for time */
extern uint32_t cuda_device_count;
extern struct device cuda_devices[SIMGPU_GPUS];
extern __thread unsigned cuda_default_stream; /* what a NULL stream means in this call: 1 legacy, 2 per thread */

CUresult cuda_ready(void); /* initialized, and not in a forked child */
struct simgpu_gpu *cuda_gpu(CUdevice device);
uint32_t cuda_instance(CUdevice device);  /* GPU instance, or SIMGPU_NO_INSTANCE */
uint64_t cuda_capacity(CUdevice device);  /* bytes that programs may use */
uint32_t cuda_multiprocessors(CUdevice device);

/* The Multi-Process Service: asked for at cuInit, and whether its daemon still is there. */
CUresult cuda_mps_connect(void);
void cuda_mps_close(void);
bool cuda_mps_lost(void);
/* Whether the compute mode lets this process have a context on a GPU. */
bool cuda_mps_admits(uint32_t number);
CUresult cuda_valid_device(CUdevice device);

extern struct context *cuda_contexts; /* all there ever were: what is destroyed stays as a shell */
/* The calling thread's context, checked for everything that makes it unusable. */
CUresult cuda_current(struct context **context);
CUresult cuda_usable(struct context *context);
CUresult cuda_set_current(struct context *context);
uint32_t cuda_context_multiprocessors(const struct context *context);

/* The context that owns memory, modules and events: of a green context the primary one. */
static inline struct context *cuda_root(struct context *context)
{
	return context->parent ? context->parent : context;
}

void cuda_end_locals(struct context *context); /* calls their owners back, so without the guard */
struct context *cuda_primary(CUdevice device); /* active or not; NULL: out of memory */

#define ALLOCATE_LOW (1u << 31) /* among the flags of cuda_allocate: at an address of 32 bits */
CUresult cuda_allocate(struct context *context, uint64_t size, enum kind kind, unsigned flags, struct pool *pool, uint64_t *address);
CUresult cuda_release(uint64_t address, bool host);
void cuda_forget(uint64_t address); /* memory of a graph, with its graph */
/* Puts bytes that a handle owns at a reserved address, and takes them away again. */
bool cuda_map(CUdevice device, uint64_t address, uint64_t size, uint8_t *host);
bool cuda_unmap(uint64_t address, uint64_t *size);
/* Moves the bytes of linear memory into a memory file, once; its descriptor, or -1. */
int cuda_share(uint64_t address);
uint64_t cuda_charge_of(uint64_t size);
void cuda_take_allocation_time(CUdevice device); /* latency.c: what is allocated is charged behind it, and freed behind it */
void cuda_release_all(struct context *context);
/* The allocation that holds an address; copied, since the table moves. */
bool cuda_find(uint64_t address, struct allocation *found);
/* Where the bytes of [address, address + size) are; with `host`, memory that CUDA does not know is itself. */
uint8_t *cuda_bytes(uint64_t address, uint64_t size, bool host);
/* For kernels, which hold the table still while they run. */
void cuda_hold_table(bool hold);
bool cuda_window(void *context, uint64_t address, struct ptx_window *window);

CUresult cuda_stream(CUstream handle, struct context **context, struct stream **stream);
CUresult cuda_stream_make(struct context *context, unsigned flags, int priority, CUstream *result);
uint64_t cuda_context_ready(struct context *context); /* when all that is queued is done; with the guard held */
uint64_t cuda_thread(void); /* the number of the calling thread, never used again */
uint64_t cuda_stream_ready(struct stream *stream); /* when what is queued now on it may start */
void cuda_wait_stream(struct stream *stream);
void cuda_wait_queue(struct stream *stream); /* with the guard held, which it gives up meanwhile */
void cuda_wait_queues(struct context *context); /* the same, for all of its streams */
void cuda_stream_free(struct stream *stream); /* with the guard held */
void cuda_wait_context(struct context *context);
void cuda_module_free(struct module *module);
CUresult cuda_function(CUfunction handle, struct function **function);

/* A kernel with its parameters, ready to run. */
struct work {
	struct function *function;
	uint32_t grid[3], block[3], shared;
	uint8_t params[PTX_MAX_PARAMS];
};
CUresult cuda_prepare(struct work *work, CUfunction handle, const uint32_t *grid, const uint32_t *block, uint32_t shared,
		      void **params, void **extra);
CUresult cuda_run(struct context *context, struct stream *stream, const struct work *work);
/* Gives work its time on the GPU, and lets the caller wait where the driver would queue no more. */
void cuda_occupy(struct context *context, struct stream *stream, uint64_t cost, uint64_t memory_ns);

/* A copy or a fill of rows in layers; one row where there is no pitch. */
struct move_side {
	uint64_t base;
	bool host; /* it may be memory that CUDA does not know */
	size_t x, y, z, pitch, height;
};
struct move {
	struct move_side to, from;
	size_t width, height, depth; /* bytes, rows, layers */
	uint32_t element;            /* of a fill: so many bytes of `value` again and again; 0: a copy */
	uint64_t value;
};
void cuda_move(struct context *context, struct stream *stream, const struct move *move);

/* queue.c */
enum operation_kind { OPERATION_KERNEL, OPERATION_MOVE, OPERATION_HOST, OPERATION_WAIT_VALUE, OPERATION_WRITE_VALUE, OPERATION_WAIT_EVENT, OPERATION_RECORD };
struct operation {
	enum operation_kind kind;
	struct work *work; /* it owns it, and the next */
	struct move *move;
	struct event *event;
	uint64_t record; /* which one of the event */
	struct host_operation {
		void (*function)(void *);
		void (*callback)(CUstream, CUresult, void *);
		void *data;
		CUstream handle;
	} host;
	struct memory_operation {
		uint8_t *place;
		uint64_t value;
		unsigned condition; /* CUstreamWaitValue_flags */
		bool wide;          /* 64 bits */
	} memory;
	struct operation *next;
};
bool cuda_queued(struct stream *stream); /* whether new work has to go into its queue */
CUresult cuda_queue(struct stream *stream, struct operation wanted);
CUresult cuda_queue_move(struct stream *stream, const struct move *move);
/* event.c */
bool cuda_event_known(const struct event *event, uint64_t record); /* when it is done */
void cuda_event_reached(struct event *event, uint64_t record, uint64_t ready); /* with the guard held */
void cuda_event_release(struct event *event); /* with the guard held: one user less */

/* graphs.c, for captures; graph_execs.c runs what they make. */
struct graph_exec;
CUresult cuda_graph_make(struct graph **graph);
void cuda_graph_free(struct graph *graph);
bool cuda_graph_valid(const struct graph *graph);
CUresult cuda_add_kernel(struct graph *graph, const struct work *work);
CUresult cuda_add_move(struct graph *graph, const struct move *move);
CUresult cuda_add_host(struct graph *graph, const struct host_operation *host);
CUresult cuda_add_allocation(struct graph *graph, struct context *context, uint64_t size, uint64_t *address);
CUresult cuda_add_free(struct graph *graph, uint64_t address);
CUresult cuda_add_exec(struct graph *graph, const struct graph_exec *exec);
CUresult cuda_graph_link(struct graph *graph, struct graph_node *from, struct graph_node *to);
/* The last node comes from a capture, behind what is `before` it; *linked: what earlier nodes of its stream come behind. */
CUresult cuda_graph_entered(struct graph *graph, uint64_t capture, unsigned branch, const struct history *before, struct history *linked);
bool cuda_graph_freed(uint64_t address); /* by a call instead of a node; false: it is not in use */

/* captures.c. Work is about to be put into a stream: it is refused, recorded (*captured), or still to be run. */
CUresult cuda_capture_kernel(struct stream *stream, const struct work *work, bool *captured);
CUresult cuda_capture_move(struct stream *stream, const struct move *move, bool *captured);
CUresult cuda_capture_host(struct stream *stream, const struct host_operation *host, bool *captured);
CUresult cuda_capture_allocation(struct stream *stream, uint64_t size, uint64_t *address, bool *captured);
CUresult cuda_capture_free(struct stream *stream, uint64_t address, bool *captured);
CUresult cuda_capture_exec(struct stream *stream, const struct graph_exec *exec, bool *captured);
CUresult cuda_capture_none(CUstream handle); /* for work that cannot be recorded here */
/* The program asks whether the work of a stream, of all streams of a context, or before an event is done. */
CUresult cuda_capture_wait(struct stream *stream);
CUresult cuda_capture_wait_all(struct context *context);
CUresult cuda_capture_wait_event(struct event *event);
/* An event is recorded in a captured stream, and a stream waits for one. *captured: nothing else is to be done. */
CUresult cuda_capture_record(struct stream *stream, struct event *event, bool *captured);
CUresult cuda_capture_join(struct stream *stream, struct event *event, bool external, bool *captured);
void cuda_capture_leave(struct stream *stream); /* with the guard held: the stream is about to end */
/* A call that a capture does not see: the modes of this thread and of captures say whether it is refused. */
CUresult cuda_unsafe(void);
/* image.c: the PTX in what a program passes as code, to be freed; and the machine code of a simulated GPU. */
CUresult cuda_image_text(const void *image, CUdevice device, char **text);
void *cuda_image_make(const char *text, size_t *size);
/* module.c. `whole`: nothing may be missing that other texts could bring. *ptx is NULL and the message set on failure. */
CUresult cuda_compile(CUdevice device, const char *text, bool whole, struct ptx_module **ptx, char *message, size_t size);
#define CUDA_JIT_ERROR_LOG_SIZE 6 /* CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES */
void cuda_write_log(unsigned count, const int *options, void **values, const char *text);
char *cuda_read_file(const char *path, size_t *length);
CUresult cuda_load(struct context *context, const char *image, unsigned count, const int *options, void **values, struct module **result);

#define CONTEXT(context)                                                                                               \
	struct context *context;                                                                                        \
	CUresult context##_result = cuda_current(&context);                                                             \
	if (context##_result != CUDA_SUCCESS)                                                                           \
	return context##_result
#define SAFE()                                                                                                         \
	do {                                                                                                            \
		CUresult safe_result = cuda_unsafe();                                                                   \
		if (safe_result != CUDA_SUCCESS)                                                                        \
			return safe_result;                                                                             \
	} while (0)
#define READY()                                                                                                        \
	do {                                                                                                            \
		CUresult ready_result = cuda_ready();                                                                   \
		if (ready_result != CUDA_SUCCESS)                                                                       \
			return ready_result;                                                                            \
	} while (0)
#define NEED(condition)                                                                                                \
	if (!(condition))                                                                                               \
	return CUDA_INVALID_VALUE

/* Defines name_suffix, the form in which a NULL stream is the thread's own. */
#define PER_THREAD(name, suffix, parameters, arguments)                                                                \
	EXPORT CUresult name##suffix parameters;                                                                        \
	CUresult name##suffix parameters                                                                                \
	{                                                                                                               \
		unsigned before_call = cuda_default_stream;                                                             \
		cuda_default_stream = 2;                                                                                \
		CUresult call_result = name arguments;                                                                  \
		cuda_default_stream = before_call;                                                                      \
		return call_result;                                                                                     \
	}

#endif

/*
 * A PTX interpreter for kernels of the size of vectorAdd: text in, decoded kernels out, threads run one after another.
 *
 * Every operand is a slot of a thread's register file: registers first, then the constants of the kernel, then the
 * special registers; so reading an operand is one load, whatever it is. A slot holds the value zero-extended from its
 * width; who reads it as signed extends it.
 *
 * Source: "Parallel Thread Execution ISA", version 8. Unknown PTX is refused when the module is loaded, with
 * its line; a module that loads runs.
 */
#ifndef SIMGPU_PTX_H
#define SIMGPU_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Windows of the generic address space. Far from anything that mmap gives. */
#define PTX_SHARED_WINDOW 0x0100000000000000ull
#define PTX_LOCAL_WINDOW 0x0200000000000000ull
#define PTX_PARAM_WINDOW 0x0300000000000000ull
#define PTX_FUNCTION_WINDOW 0x0400000000000000ull /* + the position of a function in its module */
#define PTX_WINDOW_MASK 0xff00000000000000ull

#define PTX_MAX_SLOTS 65536
#define PTX_MAX_SHARED (227u << 10)
#define PTX_MAX_LOCAL (512u << 10)
#define PTX_MAX_PARAMS 4096
#define PTX_MAX_AREA (64u << 10) /* parameters of a function, and of those that it calls */
#define PTX_MAX_DEPTH 1000 /* calls in calls; a GPU's stack ends sooner or later too */

enum ptx_type {
	PTX_B8, PTX_B16, PTX_B32, PTX_B64, PTX_U8, PTX_U16, PTX_U32, PTX_U64,
	PTX_S8, PTX_S16, PTX_S32, PTX_S64, PTX_F32, PTX_F64, PTX_F16, PTX_BF16, PTX_F16X2, PTX_BF16X2, PTX_PRED,
	PTX_NO_TYPE,
};

enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_LOCAL, PTX_PARAM, PTX_CONST };

enum ptx_special {
	PTX_TID_X, PTX_TID_Y, PTX_TID_Z, PTX_NTID_X, PTX_NTID_Y, PTX_NTID_Z, PTX_CTAID_X, PTX_CTAID_Y, PTX_CTAID_Z,
	PTX_NCTAID_X, PTX_NCTAID_Y, PTX_NCTAID_Z, PTX_LANEID, PTX_WARPID, PTX_NWARPID, PTX_SMID, PTX_NSMID, PTX_GRIDID,
	PTX_LANEMASK_EQ, PTX_LANEMASK_LE, PTX_LANEMASK_LT, PTX_LANEMASK_GE, PTX_LANEMASK_GT, PTX_DYNAMIC_SMEM_SIZE,
	PTX_TOTAL_SMEM_SIZE, PTX_SPECIALS,
	/* these change while a thread runs, so only mov may read them */
	PTX_CLOCK = PTX_SPECIALS, PTX_CLOCK64, PTX_GLOBALTIMER, PTX_NOT_SPECIAL,
};

enum ptx_op {
	OP_ADD, OP_SUB, OP_MUL, OP_MAD, OP_DIV, OP_REM, OP_ABS, OP_NEG, OP_MIN, OP_MAX, OP_FMA, OP_AND, OP_OR, OP_XOR,
	OP_NOT, OP_CNOT, OP_SHL, OP_SHR, OP_POPC, OP_CLZ, OP_BREV, OP_BFIND, OP_BFE, OP_BFI, OP_PRMT, OP_LOP3, OP_SHF,
	OP_SAD, OP_SQRT, OP_RCP, OP_RSQRT, OP_SIN, OP_COS, OP_EX2, OP_LG2, OP_TANH, OP_COPYSIGN, OP_SELP, OP_SLCT,
	OP_CVT, OP_MOV, OP_SETP, OP_SET, OP_TESTP,
	OP_FIRST_SPECIAL, /* from here on an instruction does more than compute a value */
	OP_CVTA = OP_FIRST_SPECIAL, OP_CARRY, OP_CALL, OP_RET, OP_ISSPACEP, OP_LD, OP_ST, OP_ATOM, OP_RED, OP_PACK, OP_UNPACK, OP_CLOCK, OP_NOP,
	OP_BRA, OP_EXIT, OP_TRAP, OP_NANOSLEEP, OP_ACTIVEMASK, OP_BAR, OP_CP_ASYNC, OP_BRX,
	OP_FIRST_WARP, /* from here on all threads of a warp meet */
	OP_WARPSYNC = OP_FIRST_WARP, OP_SHFL, OP_VOTE, OP_REDUX, OP_MATCH, OP_COUNT,
};

/* Further forms of an instruction; `mode` of an instruction is one of these. */
enum ptx_mode {
	M_NONE, M_LO, M_HI, M_WIDE, M_EQ, M_NE, M_LT, M_LE, M_GT, M_GE, M_LS, M_HS, M_EQU, M_NEU, M_LTU, M_LEU, M_GTU,
	M_GEU, M_NUM, M_NAN, M_AND, M_OR, M_XOR, M_ADD, M_MIN, M_MAX, M_INC, M_DEC, M_EXCH, M_CAS, M_RNI, M_RZI, M_RMI,
	M_RPI, M_SAT, M_TO, M_UP, M_DOWN, M_BFLY, M_IDX, M_ALL, M_ANY, M_BALLOT, M_L, M_R, M_CLAMP, M_WRAP,
	M_FINITE, M_INFINITE, M_NUMBER, M_NOTANUMBER, M_NORMAL, M_SUBNORMAL, M_WARP, M_SHIFTAMT, M_POPC, M_RED,
	M_F4E, M_B4E, M_RC8, M_ECL, M_ECR, M_RC16, M_COMMIT, M_WAIT_GROUP, M_WAIT_ALL, M_IGNORED,
};

#define PTX_OPERANDS 9 /* destination, then sources; vectors take four */
#define PTX_NO_SLOT 0xffffu

struct ptx_instruction {
	uint8_t op, type, other_type, mode, second_mode, space, vector, saturate;
	uint8_t guarded, guard_negated, negate; /* `negate` is a bit for each operand that had a ! */
	uint8_t result_type, register_type;     /* what is computed; where it goes, which may be wider */
	uint8_t carry, carry_op;                /* CARRY_*; of OP_CARRY: what is computed with it */
	uint16_t guard;
	uint16_t slot[PTX_OPERANDS];
	uint32_t target; /* of a branch; the number of a call */
	int64_t offset;  /* of an address; what to test for isspacep */
	uint32_t line;
};

enum { CARRY_OUT = 1, CARRY_IN = 2 };

struct ptx_param {
	uint32_t offset, size;
};

#define PTX_BY_ADDRESS 0xffffffffu
/* A call: its arguments and its result lie in the parameter area of the caller. */
struct ptx_call {
	uint32_t function; /* its position in the module; PTX_BY_ADDRESS: slot[1] of the instruction has its address */
	uint32_t argument_count, line;
	struct ptx_param *arguments;
	struct ptx_param result; /* size 0: there is none */
};

/* Functions without a body that the driver brings. */
enum ptx_builtin { PTX_NO_BUILTIN, PTX_VPRINTF, PTX_ASSERTFAIL };

/* The base that is added to a constant when a thread gets its registers. */
enum ptx_relocation { RELOCATE_NONE, RELOCATE_MODULE, RELOCATE_LOCAL, RELOCATE_DYNAMIC_SHARED };

/* A kernel, or a function that kernels call. */
struct ptx_kernel {
	char *name;
	struct ptx_instruction *code;
	uint32_t code_size, line;
	struct ptx_param *params;
	uint32_t param_count, param_bytes;
	uint32_t area_bytes;                /* its parameters, its result and the arguments of its calls */
	struct ptx_param result;            /* of a function; size 0: it has none */
	struct ptx_call *calls;
	uint32_t call_count;
	uint32_t registers, constant_count; /* slots: registers, constants, specials */
	uint64_t *constants;
	uint8_t *relocated;                 /* for each constant: an enum ptx_relocation */
	uint32_t shared_bytes, local_bytes, max_threads;
	bool meets;                         /* threads wait for each other */
	uint64_t cost_ns;                   /* .pragma "simgpu.time_ns N": how long a launch takes, 0 to measure */
};

struct ptx_variable {
	char *name;
	uint64_t offset, size; /* in the module's image */
	bool constant;
};

struct ptx_module {
	struct ptx_kernel *kernels, *functions;
	uint32_t kernel_count, function_count;
	struct ptx_variable *variables;
	uint32_t variable_count;
	uint8_t *image; /* initial contents of .global and .const */
	uint64_t image_size;
	uint64_t *addresses; /* places in the image with addresses of variables, to which the module's base is to be added */
	uint32_t address_count;
	uint32_t version, target; /* 83, 90 */
};

struct ptx_error {
	uint32_t line;
	char message[160];
};

/* NULL when the text is not understood; `error` says where and why. `whole`: every function that is called is there. */
struct ptx_module *ptx_parse(const char *text, size_t length, bool whole, struct ptx_error *error);
void ptx_free(struct ptx_module *module);

enum ptx_result { PTX_OK, PTX_ILLEGAL_ADDRESS, PTX_MISALIGNED, PTX_TRAPPED, PTX_TOO_LONG, PTX_NO_MEMORY, PTX_ASSERTED };

/* The memory of one allocation as a thread sees it. */
struct ptx_window {
	uint64_t start, end;
	uint8_t *host;
};

struct ptx_launch {
	const struct ptx_kernel *kernel;
	const struct ptx_module *module;
	uint64_t base; /* device address of the module's image */
	uint32_t grid[3], block[3];
	uint32_t dynamic_shared, multiprocessors;
	uint32_t clock_mhz, parallel_threads;
	const uint8_t *params;
	bool (*find)(void *context, uint64_t address, struct ptx_window *window);
	void *find_context;
	uint64_t start_ns;
	bool wrong_results;
	/* out */
	uint64_t instructions, bytes, longest_ns, total_ns;
	uint64_t fault_address;
	uint32_t fault_line;
};

enum ptx_result ptx_run(struct ptx_launch *launch);

/* Shared by the parts. */
uint32_t ptx_width(enum ptx_type type); /* bytes */
bool ptx_is_float(enum ptx_type type);
bool ptx_is_signed(enum ptx_type type);
/* Of 16 bits, and pairs of them in 32. */
bool ptx_is_half(enum ptx_type type);
bool ptx_is_pair(enum ptx_type type);
double ptx_from_half(enum ptx_type type, uint64_t bits);
uint64_t ptx_to_half(enum ptx_type type, double value);
uint64_t ptx_mask(enum ptx_type type, uint64_t value);
int64_t ptx_signed(enum ptx_type type, uint64_t value);
/* The value of a computing instruction; `slots` is the register file. */
uint64_t ptx_compute(const struct ptx_instruction *instruction, const uint64_t *slots);
/* add, sub, mad with the carry flag that a thread has between instructions. */
uint64_t ptx_carry(const struct ptx_instruction *instruction, uint64_t a, uint64_t b, uint64_t c, bool *carry);
/* Whether a function has a body, and the parameters that a call passes. */
enum ptx_builtin ptx_builtin_called(const char *name, const struct ptx_call *call);
bool ptx_call_fits(const struct ptx_call *call, const struct ptx_kernel *function);
uint64_t ptx_atomic(const struct ptx_instruction *instruction, uint64_t old, uint64_t b, uint64_t c);

#endif

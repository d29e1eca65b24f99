/* The words of PTX that are known here: instructions, what may follow them with a dot, special registers. */
#include "parser.h"

#include <string.h>

static const struct opcode opcodes[] = {
	{"add", OP_ADD, 2},   {"sub", OP_SUB, 2},     {"mul", OP_MUL, 2},     {"mad", OP_MAD, 3},
	 {"div", OP_DIV, 2},     {"rem", OP_REM, 2},     {"abs", OP_ABS, 1},     {"neg", OP_NEG, 1},
	{"min", OP_MIN, 2},   {"max", OP_MAX, 2},     {"fma", OP_FMA, 3},     {"and", OP_AND, 2},     {"or", OP_OR, 2},
	{"xor", OP_XOR, 2},   {"not", OP_NOT, 1},     {"cnot", OP_CNOT, 1},   {"shl", OP_SHL, 2},     {"shr", OP_SHR, 2},
	{"popc", OP_POPC, 1}, {"clz", OP_CLZ, 1},     {"brev", OP_BREV, 1},   {"bfind", OP_BFIND, 1}, {"bfe", OP_BFE, 3},
	{"bfi", OP_BFI, 4},   {"prmt", OP_PRMT, 3},   {"lop3", OP_LOP3, 4},   {"shf", OP_SHF, 3},     {"sad", OP_SAD, 3},
	{"sqrt", OP_SQRT, 1}, {"rcp", OP_RCP, 1},     {"rsqrt", OP_RSQRT, 1}, {"sin", OP_SIN, 1},     {"cos", OP_COS, 1},
	{"ex2", OP_EX2, 1},   {"lg2", OP_LG2, 1},     {"tanh", OP_TANH, 1},   {"copysign", OP_COPYSIGN, 2},
	{"selp", OP_SELP, 3}, {"slct", OP_SLCT, 3},   {"cvt", OP_CVT, 1},     {"mov", OP_MOV, 1},     {"setp", OP_SETP, 2},
	{"set", OP_SET, 2},   {"testp", OP_TESTP, 1}, {"cvta", OP_CVTA, 1},   {"isspacep", OP_ISSPACEP, 1},
	{"ld", OP_LD, 0},     {"ldu", OP_LD, 0},      {"st", OP_ST, 0},       {"atom", OP_ATOM, 1},   {"red", OP_RED, 1},
	{"bra", OP_BRA, 0},   {"ret", OP_RET, 0},    {"exit", OP_EXIT, 0},   {"trap", OP_TRAP, 0},   {"brkpt", OP_TRAP, 0},
	{"nanosleep", OP_NANOSLEEP, 0},               {"activemask", OP_ACTIVEMASK, 0},               {"bar", OP_BAR, 0},
	{"barrier", OP_BAR, 0},                       {"membar", OP_NOP, 0},  {"fence", OP_NOP, 0},   {"prefetch", OP_NOP, 0},
	{"prefetchu", OP_NOP, 0},                     {"pmevent", OP_NOP, 0}, {"shfl", OP_SHFL, 3},   {"vote", OP_VOTE, 1},
	{"redux", OP_REDUX, 1}, {"match", OP_MATCH, 0}, {"call", OP_CALL, 0}, {"cp", OP_CP_ASYNC, 0}, {"brx", OP_BRX, 0},     {"addc", OP_ADD, 2},    {"subc", OP_SUB, 2},    {"madc", OP_MAD, 3},
};

static const struct { const char *name; enum ptx_mode mode; } modes[] = {
	{"lo", M_LO}, {"hi", M_HI}, {"wide", M_WIDE}, {"eq", M_EQ}, {"ne", M_NE}, {"lt", M_LT}, {"le", M_LE}, {"gt", M_GT},
	{"ge", M_GE}, {"ls", M_LS}, {"hs", M_HS}, {"equ", M_EQU}, {"neu", M_NEU}, {"ltu", M_LTU}, {"leu", M_LEU},
	{"gtu", M_GTU}, {"geu", M_GEU}, {"num", M_NUM}, {"nan", M_NAN}, {"NaN", M_NAN}, {"and", M_AND}, {"or", M_OR},
	{"xor", M_XOR}, {"add", M_ADD}, {"min", M_MIN}, {"max", M_MAX}, {"inc", M_INC}, {"dec", M_DEC}, {"exch", M_EXCH},
	{"cas", M_CAS}, {"rni", M_RNI}, {"rzi", M_RZI}, {"rmi", M_RMI}, {"rpi", M_RPI}, {"sat", M_SAT}, {"to", M_TO},
	{"up", M_UP}, {"down", M_DOWN}, {"bfly", M_BFLY}, {"idx", M_IDX}, {"all", M_ALL}, {"any", M_ANY},
	{"ballot", M_BALLOT}, {"l", M_L}, {"r", M_R}, {"clamp", M_CLAMP}, {"wrap", M_WRAP}, {"finite", M_FINITE},
	{"infinite", M_INFINITE}, {"number", M_NUMBER}, {"notanumber", M_NOTANUMBER}, {"normal", M_NORMAL},
	{"subnormal", M_SUBNORMAL}, {"warp", M_WARP}, {"shiftamt", M_SHIFTAMT}, {"popc", M_POPC}, {"red", M_RED}, {"f4e", M_F4E},
	{"b4e", M_B4E}, {"rc8", M_RC8}, {"ecl", M_ECL}, {"ecr", M_ECR}, {"rc16", M_RC16}, {"commit_group", M_COMMIT},
	{"wait_group", M_WAIT_GROUP}, {"wait_all", M_WAIT_ALL},
};

/* Rounding of the last bit, caches, memory order and scope: threads here run one after another, so all are the same. */
static const char *const ignored[] = {
	"rn", "rz", "rm", "rp", "rna", "ftz", "approx", "full", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "volatile",
	"relaxed", "acquire", "release", "acq_rel", "sc", "weak", "gpu", "sys", "cta", "gl", "cluster", "sync", "aligned",
	"L1", "L2", "L1::no_allocate", "L1::evict_last", "L1::evict_first", "L1::evict_normal", "L1::evict_unchanged",
	"L2::64B", "L2::128B", "L2::256B", "L2::cache_hint", "uni", "mmio", "alias", "proxy", "noftz", "async",
};

static const struct { const char *name; const char *part; uint8_t special; enum ptx_type type; } specials[] = {
	{"%tid", "x", PTX_TID_X, PTX_U32}, {"%tid", "y", PTX_TID_Y, PTX_U32}, {"%tid", "z", PTX_TID_Z, PTX_U32},
	{"%ntid", "x", PTX_NTID_X, PTX_U32}, {"%ntid", "y", PTX_NTID_Y, PTX_U32}, {"%ntid", "z", PTX_NTID_Z, PTX_U32},
	{"%ctaid", "x", PTX_CTAID_X, PTX_U32}, {"%ctaid", "y", PTX_CTAID_Y, PTX_U32}, {"%ctaid", "z", PTX_CTAID_Z, PTX_U32},
	{"%nctaid", "x", PTX_NCTAID_X, PTX_U32}, {"%nctaid", "y", PTX_NCTAID_Y, PTX_U32},
	{"%nctaid", "z", PTX_NCTAID_Z, PTX_U32}, {"%laneid", "", PTX_LANEID, PTX_U32}, {"%warpid", "", PTX_WARPID, PTX_U32},
	{"%nwarpid", "", PTX_NWARPID, PTX_U32}, {"%smid", "", PTX_SMID, PTX_U32}, {"%nsmid", "", PTX_NSMID, PTX_U32},
	{"%gridid", "", PTX_GRIDID, PTX_U64}, {"%lanemask_eq", "", PTX_LANEMASK_EQ, PTX_U32},
	{"%lanemask_le", "", PTX_LANEMASK_LE, PTX_U32}, {"%lanemask_lt", "", PTX_LANEMASK_LT, PTX_U32},
	{"%lanemask_ge", "", PTX_LANEMASK_GE, PTX_U32}, {"%lanemask_gt", "", PTX_LANEMASK_GT, PTX_U32},
	{"%dynamic_smem_size", "", PTX_DYNAMIC_SMEM_SIZE, PTX_U32}, {"%total_smem_size", "", PTX_TOTAL_SMEM_SIZE, PTX_U32},
	{"%clock", "", PTX_CLOCK, PTX_U32}, {"%clock_hi", "", PTX_CLOCK64, PTX_U32}, {"%clock64", "", PTX_CLOCK64, PTX_U64},
	{"%globaltimer", "", PTX_GLOBALTIMER, PTX_U64}, {"%globaltimer_lo", "", PTX_GLOBALTIMER, PTX_U32},
};

const struct opcode *opcode_named(const struct token *word)
{
	for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++)
		if (token_is(word, opcodes[i].name))
			return &opcodes[i];
	return NULL;
}

enum ptx_mode mode_named(const struct token *word)
{
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
		if (token_is(word, modes[i].name))
			return modes[i].mode;
	for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
		if (token_is(word, ignored[i]))
			return M_IGNORED;
	return M_NONE;
}

bool space_named(const struct token *word, uint8_t *space)
{
	static const struct { const char *name; enum ptx_space space; } spaces[] = {
		{"global", PTX_GLOBAL}, {"shared", PTX_SHARED}, {"local", PTX_LOCAL}, {"param", PTX_PARAM},
		{"const", PTX_CONST}, {"shared::cta", PTX_SHARED}, {"param::entry", PTX_PARAM},
	};
	for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
		if (token_is(word, spaces[i].name)) {
			*space = spaces[i].space;
			return true;
		}
	return false;
}

/* `next` is the word behind, the x of %tid.x; `took` says whether it belongs to the name. */
uint8_t special_named(const struct token *name, const struct token *next, enum ptx_type *type, bool *took)
{
	for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
		*took = *specials[i].part;
		if (!token_is(name, specials[i].name) || (*took && !token_is(next, specials[i].part)))
			continue;
		*type = specials[i].type;
		return specials[i].special;
	}
	*took = false;
	return PTX_NOT_SPECIAL;
}

/* Statements of a kernel: labels, guards, instructions and their operands. */
#include "lexer.h"

#include <stdlib.h>
#include <string.h>

#define CONSTANT_SLOT 0x10000u /* while a kernel is read: constants are numbered from here, specials from below */
#define SPECIAL_SLOT 0x20000u

/* `sources` is for those that only compute; the others read their operands themselves. */
static const struct opcode {
	const char *name;
	enum ptx_op op;
	uint8_t sources;
} opcodes[] = {
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
	{"bra", OP_BRA, 0},   {"ret", OP_EXIT, 0},    {"exit", OP_EXIT, 0},   {"trap", OP_TRAP, 0},   {"brkpt", OP_TRAP, 0},
	{"nanosleep", OP_NANOSLEEP, 0},               {"activemask", OP_ACTIVEMASK, 0},               {"bar", OP_BAR, 0},
	{"barrier", OP_BAR, 0},                       {"membar", OP_NOP, 0},  {"fence", OP_NOP, 0},   {"prefetch", OP_NOP, 0},
	{"prefetchu", OP_NOP, 0},                     {"pmevent", OP_NOP, 0}, {"shfl", OP_SHFL, 3},   {"vote", OP_VOTE, 1},
	{"redux", OP_REDUX, 1},
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
	{"subnormal", M_SUBNORMAL}, {"warp", M_WARP}, {"shiftamt", M_SHIFTAMT},
};

/* Rounding of the last bit, caches, memory order and scope: threads here run one after another, so all are the same. */
static const char *const ignored[] = {
	"rn", "rz", "rm", "rp", "rna", "ftz", "approx", "full", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "volatile",
	"relaxed", "acquire", "release", "acq_rel", "sc", "weak", "gpu", "sys", "cta", "gl", "cluster", "sync", "aligned",
	"L1", "L2", "L1::no_allocate", "L1::evict_last", "L1::evict_first", "L1::evict_normal", "L1::evict_unchanged",
	"L2::64B", "L2::128B", "L2::256B", "L2::cache_hint", "uni", "mmio", "alias", "proxy",
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

static struct ptx_instruction *emit(struct parser *parser, uint32_t line)
{
	struct ptx_kernel *kernel = parser->kernel;
	kernel->code = parser_grow(parser, kernel->code, &parser->code_room, kernel->code_size, sizeof *kernel->code, 1u << 20);
	struct ptx_instruction *made = &kernel->code[kernel->code_size++];
	*made = (struct ptx_instruction){.line = line, .type = PTX_NO_TYPE, .other_type = PTX_NO_TYPE, .guard = PTX_NO_SLOT};
	for (int i = 0; i < PTX_OPERANDS; i++)
		made->slot[i] = PTX_NO_SLOT;
	return made;
}

static uint32_t constant(struct parser *parser, uint64_t value, bool relocated)
{
	struct ptx_kernel *kernel = parser->kernel;
	for (uint32_t i = 0; i < kernel->constant_count; i++)
		if (kernel->constants[i] == value && kernel->relocated[i] == relocated)
			return CONSTANT_SLOT + i;
	uint32_t room = parser->constant_room;
	kernel->constants = parser_grow(parser, kernel->constants, &room, kernel->constant_count, sizeof *kernel->constants,
					PTX_MAX_SLOTS / 4);
	kernel->relocated = parser_grow(parser, kernel->relocated, &parser->constant_room, kernel->constant_count, 1,
					PTX_MAX_SLOTS / 4);
	kernel->constants[kernel->constant_count] = value;
	kernel->relocated[kernel->constant_count] = relocated;
	return CONSTANT_SLOT + kernel->constant_count++;
}

/* While a kernel is read, slots need more than 16 bits: they are kept beside the code and folded in at its end. */
struct operand {
	uint32_t slot;
	bool is_register, negated;
	uint8_t special; /* PTX_NOT_SPECIAL, or one that only mov may read */
	enum ptx_type type;
};

static struct token name_of_special(struct parser *parser, struct token name, uint8_t *special, enum ptx_type *type)
{
	*special = PTX_NOT_SPECIAL;
	for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
		if (!token_is(&name, specials[i].name))
			continue;
		if (*specials[i].part && !token_is(&parser->token, specials[i].part))
			continue;
		if (*specials[i].part)
			parser_next(parser);
		*special = specials[i].special;
		*type = specials[i].type;
		break;
	}
	return name;
}

static struct operand literal(struct parser *parser, enum ptx_type type)
{
	bool negative = parser_sign(parser, '-');
	struct token token = parser->token;
	uint64_t value = token.number;
	if (token.kind == TOKEN_FLOAT && type == PTX_F32 && token.is_double) {
		double wide;
		memcpy(&wide, &value, sizeof wide);
		float narrow = (float)(negative ? -wide : wide);
		uint32_t bits;
		memcpy(&bits, &narrow, sizeof bits);
		value = bits;
	} else if (token.kind == TOKEN_FLOAT) {
		value ^= negative ? 1ull << (token.is_double ? 63 : 31) : 0;
	} else if (token.kind == TOKEN_NUMBER) {
		if (ptx_is_float(type))
			parser_fail(parser, token.line, "an integer where a float is needed");
		value = negative ? 0 - value : value;
	} else {
		parser_fail(parser, token.line, "expected an operand");
	}
	parser_next(parser);
	value = type == PTX_PRED ? value != 0 : ptx_mask(type, value);
	return (struct operand){.slot = constant(parser, value, false), .special = PTX_NOT_SPECIAL, .type = type};
}

static struct operand operand(struct parser *parser, enum ptx_type type)
{
	bool negated = parser_sign(parser, '!');
	struct operand result = {.negated = negated, .special = PTX_NOT_SPECIAL, .type = type};
	if (parser->token.kind != TOKEN_NAME) {
		result = literal(parser, type);
		result.negated = negated;
		return result;
	}
	struct token name = parser->token;
	parser_next(parser);
	struct symbol *symbol = find_symbol(parser, &name);
	if (symbol && symbol->kind == SYMBOL_REGISTER) {
		result.is_register = true;
		result.type = symbol->type;
		result.slot = symbol->base;
		for (uint32_t i = symbol->length, number = 0; symbol->count && i < name.length; i++) {
			number = number * 10 + (uint32_t)(name.text[i] - '0');
			result.slot = symbol->base + number;
		}
		return result;
	}
	if (symbol) { /* its address */
		result.slot = constant(parser, symbol->offset, symbol->kind == SYMBOL_VARIABLE);
		return result;
	}
	if (token_is(&name, "WARP_SZ")) {
		result.slot = constant(parser, 32, false);
		return result;
	}
	name_of_special(parser, name, &result.special, &result.type);
	if (result.special == PTX_NOT_SPECIAL)
		parser_fail(parser, name.line, "unknown name %.*s", (int)(name.length < 60 ? name.length : 60), name.text);
	if (result.special < PTX_SPECIALS) {
		result.slot = SPECIAL_SLOT + result.special;
		result.special = PTX_NOT_SPECIAL;
	}
	return result;
}

/* Registers, constants and specials get their places only when all are known; until then 16 bits are enough with the
   kinds in the two highest bits. */
static uint16_t fold(struct parser *parser, const struct operand *from)
{
	uint32_t slot = from->slot;
	if (slot >= SPECIAL_SLOT)
		return (uint16_t)(0xc000 | (slot - SPECIAL_SLOT));
	if (slot >= CONSTANT_SLOT) {
		if (slot - CONSTANT_SLOT >= 0x4000)
			parser_fail(parser, parser->token.line, "too many constants");
		return (uint16_t)(0x8000 | (slot - CONSTANT_SLOT));
	}
	return (uint16_t)slot;
}

static uint16_t unfold(const struct ptx_kernel *kernel, uint16_t slot)
{
	if (slot == PTX_NO_SLOT || slot < 0x8000)
		return slot;
	if ((slot & 0xc000) == 0xc000)
		return (uint16_t)(kernel->registers + kernel->constant_count + (slot & 0x3fff));
	return (uint16_t)(kernel->registers + (slot & 0x3fff));
}

static uint16_t source(struct parser *parser, enum ptx_type type)
{
	struct operand found = operand(parser, type);
	if (found.special != PTX_NOT_SPECIAL)
		parser_fail(parser, parser->token.line, "clocks can only be read by mov");
	return fold(parser, &found);
}

static uint16_t source_maybe_negated(struct parser *parser, struct ptx_instruction *made, int place, enum ptx_type type)
{
	struct operand found = operand(parser, type);
	if (found.special != PTX_NOT_SPECIAL)
		parser_fail(parser, parser->token.line, "clocks can only be read by mov");
	if (found.negated)
		made->negate |= (uint8_t)(1u << place);
	return fold(parser, &found);
}

static uint16_t destination(struct parser *parser, struct ptx_instruction *made)
{
	if (token_is(&parser->token, "_")) {
		parser_next(parser);
		return PTX_NO_SLOT;
	}
	struct operand found = operand(parser, PTX_B64);
	if (!found.is_register)
		parser_fail(parser, parser->token.line, "the result must go to a register");
	made->register_type = (uint8_t)found.type;
	return fold(parser, &found);
}

/* {a, b} or {a, b, c, d}; returns how many. */
static uint32_t vector(struct parser *parser, struct ptx_instruction *made, int first, bool read, enum ptx_type type)
{
	uint32_t count = 0;
	parser_need(parser, '{');
	do {
		if (count == 4)
			parser_fail(parser, parser->token.line, "a vector has at most four parts");
		made->slot[first + (int)count++] = read ? source(parser, type) : destination(parser, made);
	} while (parser_sign(parser, ','));
	parser_need(parser, '}');
	return count;
}

static bool at_sign(const struct parser *parser, char sign)
{
	return parser->token.kind == TOKEN_SIGN && parser->token.sign == sign;
}

/* [register], [register+N], [name], [name+N], [N] */
static uint16_t address(struct parser *parser, struct ptx_instruction *made)
{
	uint16_t slot;
	parser_need(parser, '[');
	if (parser->token.kind == TOKEN_NUMBER) {
		struct operand zero = {.slot = constant(parser, 0, false)};
		made->offset = parser_integer(parser);
		slot = fold(parser, &zero);
	} else {
		slot = source(parser, PTX_U64);
		if (parser_sign(parser, '+'))
			made->offset = parser_integer(parser);
		else if (at_sign(parser, '-'))
			made->offset = parser_integer(parser);
	}
	parser_need(parser, ']');
	return slot;
}

static void modifiers(struct parser *parser, struct ptx_instruction *made)
{
	for (; parser->token.kind == TOKEN_DOT; parser_next(parser)) {
		const struct token *word = &parser->token;
		static const struct { const char *name; enum ptx_space space; } spaces[] = {
			{"global", PTX_GLOBAL}, {"shared", PTX_SHARED}, {"local", PTX_LOCAL}, {"param", PTX_PARAM},
			{"const", PTX_CONST}, {"shared::cta", PTX_SHARED}, {"param::entry", PTX_PARAM},
		};
		enum ptx_type type = type_named(word);
		bool known = type != PTX_NO_TYPE;
		if (known && made->type == PTX_NO_TYPE)
			made->type = type;
		else if (known)
			made->other_type = type;
		for (size_t i = 0; !known && i < sizeof spaces / sizeof *spaces; i++)
			if (token_is(word, spaces[i].name)) {
				made->space = spaces[i].space;
				known = true;
			}
		if (token_is(word, "v2") || token_is(word, "v4")) {
			made->vector = word->text[1] == '2' ? 2 : 4;
			known = true;
		}
		for (size_t i = 0; !known && i < sizeof modes / sizeof *modes; i++)
			if (token_is(word, modes[i].name)) {
				if (modes[i].mode == M_SAT)
					made->saturate = 1;
				else if (made->mode == M_NONE)
					made->mode = modes[i].mode;
				else
					made->second_mode = modes[i].mode;
				known = true;
			}
		for (size_t i = 0; !known && i < sizeof ignored / sizeof *ignored; i++)
			known = token_is(word, ignored[i]);
		if (!known)
			parser_fail(parser, word->line, "unknown .%.*s", (int)(word->length < 60 ? word->length : 60), word->text);
	}
}

static void wants(struct parser *parser, const struct ptx_instruction *made, bool fulfilled)
{
	if (!fulfilled)
		parser_fail(parser, made->line, "this form of the instruction is not known here");
}

static bool among(enum ptx_mode mode, enum ptx_mode first, enum ptx_mode last)
{
	return mode >= first && mode <= last;
}

/* Refuses what ptx_compute could not do. */
static void check(struct parser *parser, const struct ptx_instruction *made)
{
	enum ptx_type type = (enum ptx_type)made->type;
	bool real = ptx_is_float(type), bits = type <= PTX_B64;
	wants(parser, made, made->type != PTX_NO_TYPE);
	switch (made->op) {
	case OP_ADD: case OP_SUB: case OP_ABS: case OP_NEG: case OP_MIN: case OP_MAX: case OP_DIV:
		wants(parser, made, type != PTX_PRED && !bits);
		break;
	case OP_MUL: case OP_MAD:
		wants(parser, made, type != PTX_PRED && !bits && (real || among(made->mode, M_LO, M_WIDE)));
		wants(parser, made, made->mode != M_WIDE || ptx_width(type) <= 4);
		break;
	case OP_FMA: case OP_SQRT: case OP_RCP: case OP_RSQRT: case OP_SIN: case OP_COS: case OP_EX2: case OP_LG2:
	case OP_TANH: case OP_COPYSIGN:
		wants(parser, made, real);
		break;
	case OP_TESTP:
		wants(parser, made, real && among(made->mode, M_FINITE, M_SUBNORMAL));
		break;
	case OP_SETP: case OP_SET:
		wants(parser, made, type != PTX_PRED && among(made->mode, M_LO, M_NAN) && made->mode != M_WIDE);
		wants(parser, made, !made->second_mode || among(made->second_mode, M_AND, M_XOR));
		break;
	case OP_REM: case OP_SAD: case OP_BFE: case OP_BFIND:
		wants(parser, made, !real && type != PTX_PRED);
		break;
	case OP_SHL: case OP_SHR: case OP_POPC: case OP_CLZ: case OP_BREV: case OP_BFI: case OP_CNOT:
		wants(parser, made, !real && type != PTX_PRED);
		break;
	case OP_AND: case OP_OR: case OP_XOR: case OP_NOT:
		wants(parser, made, !real);
		break;
	case OP_SHF:
		wants(parser, made, among(made->mode, M_L, M_R) && ptx_width(type) == 4);
		break;
	case OP_PRMT: case OP_LOP3:
		wants(parser, made, ptx_width(type) == 4 && !made->mode);
		break;
	case OP_CVT:
		wants(parser, made, made->other_type != PTX_NO_TYPE && type != PTX_PRED && made->other_type != PTX_PRED);
		break;
	case OP_SELP:
		wants(parser, made, type != PTX_PRED);
		break;
	case OP_SLCT:
		wants(parser, made, type != PTX_PRED && (made->other_type == PTX_S32 || made->other_type == PTX_F32));
		break;
	default:
		break;
	}
}

static enum ptx_type result_type(const struct ptx_instruction *made)
{
	enum ptx_type type = (enum ptx_type)made->type;
	switch (made->op) {
	case OP_SETP: case OP_TESTP: return PTX_PRED;
	case OP_POPC: case OP_CLZ: case OP_BFIND: return PTX_U32;
	case OP_MUL: case OP_MAD:
		if (made->mode == M_WIDE)
			return type == PTX_S32 ? PTX_S64 : type == PTX_U32 ? PTX_U64 : type == PTX_S16 ? PTX_S32 : PTX_U32;
		return type;
	default: return type;
	}
}

static void compute_operands(struct parser *parser, struct ptx_instruction *made, uint32_t sources)
{
	enum ptx_type type = (enum ptx_type)made->type;
	made->result_type = (uint8_t)result_type(made);
	made->slot[0] = destination(parser, made);
	if (made->op == OP_SETP && parser_sign(parser, '|'))
		made->slot[5] = destination(parser, made);
	for (uint32_t i = 1; i <= sources; i++) {
		enum ptx_type wanted = type;
		bool amount = (made->op == OP_SHL || made->op == OP_SHR) && i == 2;
		if (amount || (made->op == OP_BFE && i > 1) || (made->op == OP_BFI && i > 2) || (made->op == OP_LOP3 && i == 4))
			wanted = PTX_U32;
		if (made->op == OP_SELP && i == 3)
			wanted = PTX_PRED;
		if ((made->op == OP_SLCT && i == 3) || made->op == OP_CVT || made->op == OP_SET)
			wanted = (enum ptx_type)made->other_type;
		/* The sum of a wide product is as wide as the product. */
		if (made->op == OP_MAD && made->mode == M_WIDE && i == 3)
			wanted = result_type(made);
		parser_need(parser, ',');
		made->slot[i] = source_maybe_negated(parser, made, (int)i, wanted);
	}
	if ((made->op == OP_SETP || made->op == OP_SET) && made->second_mode) {
		parser_need(parser, ',');
		made->slot[3] = source_maybe_negated(parser, made, 3, PTX_PRED);
	}
}

static void move_operands(struct parser *parser, struct ptx_instruction *made)
{
	enum ptx_type type = (enum ptx_type)made->type;
	wants(parser, made, type != PTX_NO_TYPE);
	made->result_type = made->type;
	if (at_sign(parser, '{')) { /* {a, b} = c */
		made->op = OP_UNPACK;
		made->vector = (uint8_t)vector(parser, made, 0, false, type);
		parser_need(parser, ',');
		made->slot[4] = source(parser, type);
	} else {
		made->slot[0] = destination(parser, made);
		parser_need(parser, ',');
		if (at_sign(parser, '{')) { /* c = {a, b} */
			made->op = OP_PACK;
			made->vector = (uint8_t)vector(parser, made, 1, true, PTX_U64);
		} else {
			struct operand from = operand(parser, type);
			if (from.special == PTX_NOT_SPECIAL) {
				made->slot[1] = fold(parser, &from);
			} else {
				made->op = OP_CLOCK;
				made->mode = from.special;
			}
		}
	}
	if (made->op == OP_PACK || made->op == OP_UNPACK)
		wants(parser, made, (made->vector == 2 || made->vector == 4) && ptx_width(type) >= made->vector);
}

static void memory_operands(struct parser *parser, struct ptx_instruction *made)
{
	bool load = made->op == OP_LD;
	wants(parser, made, made->type < PTX_PRED);
	if (!load) {
		made->slot[8] = address(parser, made);
		parser_need(parser, ',');
	}
	if (made->vector) {
		uint32_t count = vector(parser, made, 0, !load, (enum ptx_type)made->type);
		wants(parser, made, count == made->vector);
	} else {
		made->vector = 1;
		made->slot[0] = load ? destination(parser, made) : source(parser, (enum ptx_type)made->type);
	}
	if (load) {
		parser_need(parser, ',');
		made->slot[8] = address(parser, made);
	}
	/* A cache policy may follow; it changes nothing. */
	if (parser_sign(parser, ','))
		source(parser, PTX_U64);
}

static void atomic_operands(struct parser *parser, struct ptx_instruction *made)
{
	uint32_t width = made->type < PTX_PRED ? ptx_width((enum ptx_type)made->type) : 0;
	wants(parser, made, (width == 4 || width == 8 || (width == 2 && made->mode == M_CAS)) && among(made->mode, M_AND, M_CAS));
	wants(parser, made, !ptx_is_float((enum ptx_type)made->type) || made->mode == M_ADD || made->mode == M_EXCH);
	wants(parser, made, made->space != PTX_PARAM && made->space != PTX_CONST && !made->vector);
	if (made->op == OP_ATOM) {
		made->slot[0] = destination(parser, made);
		parser_need(parser, ',');
	}
	made->slot[8] = address(parser, made);
	parser_need(parser, ',');
	made->slot[1] = source(parser, (enum ptx_type)made->type);
	if (made->mode == M_CAS) {
		parser_need(parser, ',');
		made->slot[2] = source(parser, (enum ptx_type)made->type);
	}
}

static void warp_operands(struct parser *parser, struct ptx_instruction *made)
{
	parser->kernel->meets = true;
	if (made->op == OP_VOTE) {
		wants(parser, made, among(made->mode, M_ALL, M_BALLOT));
		made->slot[0] = destination(parser, made);
		parser_need(parser, ',');
		made->slot[1] = source_maybe_negated(parser, made, 1, PTX_PRED);
	} else if (made->op == OP_SHFL) {
		wants(parser, made, among(made->mode, M_UP, M_IDX) && made->type < PTX_PRED && ptx_width((enum ptx_type)made->type) == 4);
		made->slot[0] = destination(parser, made);
		if (parser_sign(parser, '|'))
			made->slot[5] = destination(parser, made);
		for (int i = 1; i <= 3; i++) {
			parser_need(parser, ',');
			made->slot[i] = source(parser, i == 1 ? (enum ptx_type)made->type : PTX_U32);
		}
	} else {
		wants(parser, made, made->type < PTX_PRED && ptx_width((enum ptx_type)made->type) == 4 && among(made->mode, M_AND, M_MAX));
		made->slot[0] = destination(parser, made);
		parser_need(parser, ',');
		made->slot[1] = source(parser, (enum ptx_type)made->type);
	}
	/* The mask of members; the old forms have none. */
	if (parser_sign(parser, ','))
		made->slot[4] = source(parser, PTX_U32);
}

static void branch(struct parser *parser)
{
	struct token name = parser_name(parser, "a label");
	parser->jumps = parser_grow(parser, parser->jumps, &parser->jump_room, parser->jump_count, sizeof *parser->jumps, 1u << 20);
	parser->jumps[parser->jump_count++] = (struct label){name.text, name.length, parser->kernel->code_size - 1, name.line};
}

static void instruction(struct parser *parser, const struct token *name, uint32_t guard, bool negated)
{
	const struct opcode *opcode = NULL;
	for (size_t i = 0; !opcode && i < sizeof opcodes / sizeof *opcodes; i++)
		if (token_is(name, opcodes[i].name))
			opcode = &opcodes[i];
	if (!opcode)
		parser_fail(parser, name->line, token_is(name, "call") ? "%.*s: device functions are not known here, only kernels"
								      : "unknown instruction %.*s",
			    (int)(name->length < 60 ? name->length : 60), name->text);
	/* What follows may declare constants but emits nothing, so this pointer stays good. */
	struct ptx_instruction *made = emit(parser, name->line);
	made->op = (uint8_t)opcode->op;
	made->guard = (uint16_t)guard;
	made->guarded = guard != PTX_NO_SLOT;
	made->guard_negated = negated;
	modifiers(parser, made);
	switch (opcode->op) {
	case OP_BRA: branch(parser); break;
	case OP_EXIT: case OP_TRAP: break;
	case OP_NOP:
		while (!at_sign(parser, ';') && parser->token.kind != TOKEN_END)
			parser_next(parser);
		break;
	case OP_BAR:
		parser->kernel->meets = true;
		if (made->mode == M_WARP) {
			made->op = OP_WARPSYNC;
			made->slot[4] = source(parser, PTX_U32);
			break;
		}
		/* Counting or reducing barriers are others; a barrier of a part of the block is taken as one of all. */
		wants(parser, made, made->mode == M_NONE && made->type == PTX_NO_TYPE);
		if (!at_sign(parser, ';')) {
			made->slot[1] = source(parser, PTX_U32);
			if (parser_sign(parser, ','))
				made->slot[2] = source(parser, PTX_U32);
		}
		break;
	case OP_NANOSLEEP: made->slot[1] = source(parser, PTX_U32); break;
	case OP_ACTIVEMASK: made->slot[0] = destination(parser, made); break;
	case OP_LD: case OP_ST: memory_operands(parser, made); break;
	case OP_ATOM: case OP_RED: atomic_operands(parser, made); break;
	case OP_SHFL: case OP_VOTE: case OP_REDUX: warp_operands(parser, made); break;
	case OP_MOV: move_operands(parser, made); break;
	case OP_CVTA: case OP_ISSPACEP:
		made->slot[0] = destination(parser, made);
		parser_need(parser, ',');
		made->slot[1] = source(parser, PTX_U64);
		break;
	default:
		check(parser, made);
		compute_operands(parser, made, opcode->sources);
	}
	parser_need(parser, ';');
}

void parse_statement(struct parser *parser)
{
	uint32_t guard = PTX_NO_SLOT;
	bool negated = false;
	if (parser_sign(parser, ';'))
		return;
	if (parser_sign(parser, '@')) {
		struct operand predicate = operand(parser, PTX_PRED);
		if (!predicate.is_register || predicate.type != PTX_PRED)
			parser_fail(parser, parser->token.line, "a guard must be a predicate");
		guard = fold(parser, &predicate);
		negated = predicate.negated;
	}
	struct token name = parser_name(parser, "an instruction");
	if (guard == PTX_NO_SLOT && parser_sign(parser, ':')) {
		parser->labels = parser_grow(parser, parser->labels, &parser->label_room, parser->label_count,
					     sizeof *parser->labels, 1u << 20);
		parser->labels[parser->label_count++] = (struct label){name.text, name.length, parser->kernel->code_size, name.line};
		return;
	}
	instruction(parser, &name, guard, negated);
}

void finish_kernel(struct parser *parser)
{
	struct ptx_kernel *kernel = parser->kernel;
	emit(parser, kernel->line)->op = OP_EXIT; /* falling off the end is a return */
	for (uint32_t i = 0; i < parser->jump_count; i++) {
		const struct label *jump = &parser->jumps[i];
		uint32_t at = UINT32_MAX;
		for (uint32_t k = 0; k < parser->label_count; k++)
			if (parser->labels[k].length == jump->length && !memcmp(parser->labels[k].name, jump->name, jump->length))
				at = parser->labels[k].at;
		if (at == UINT32_MAX)
			parser_fail(parser, jump->line, "no label %.*s", (int)(jump->length < 60 ? jump->length : 60), jump->name);
		kernel->code[jump->at].target = at;
	}
	for (uint32_t i = 0; i < kernel->code_size; i++) {
		for (int k = 0; k < PTX_OPERANDS; k++)
			kernel->code[i].slot[k] = unfold(kernel, kernel->code[i].slot[k]);
		kernel->code[i].guard = unfold(kernel, kernel->code[i].guard);
	}
}

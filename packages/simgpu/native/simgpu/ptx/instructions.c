/* Statements of a kernel: labels, guards, and each instruction with its operands. */
#include "parser.h"

#include <string.h>

static void branch(struct parser *parser);

static void modifiers(struct parser *parser, struct ptx_instruction *made)
{
	for (; parser->token.kind == TOKEN_DOT; parser_next(parser)) {
		const struct token *word = &parser->token;
		enum ptx_type type = type_named(word);
		enum ptx_mode mode = mode_named(word);
		if (type != PTX_NO_TYPE && made->type == PTX_NO_TYPE)
			made->type = type;
		else if (type != PTX_NO_TYPE)
			made->other_type = type;
		else if (token_is(word, "cc"))
			made->carry = CARRY_OUT;
		else if (token_is(word, "v2") || token_is(word, "v4"))
			made->vector = word->text[1] == '2' ? 2 : 4;
		else if (mode == M_SAT)
			made->saturate = 1;
		else if (mode != M_NONE && mode != M_IGNORED && made->mode == M_NONE)
			made->mode = mode;
		else if (mode != M_NONE && mode != M_IGNORED)
			made->second_mode = mode;
		else if (mode == M_NONE && !space_named(word, &made->space))
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

static bool done_with_halves(const struct ptx_instruction *made)
{
	bool pair = ptx_is_pair((enum ptx_type)made->type);
	switch (made->op) {
	case OP_ADD: case OP_SUB: case OP_MUL: return !made->mode;
	case OP_FMA: case OP_NEG: case OP_ABS: case OP_MIN: case OP_MAX: case OP_EX2: case OP_TANH: return true;
	case OP_CVT: return !pair || made->other_type == PTX_F32;
	case OP_SETP: case OP_SET: return !pair;
	default: return false;
	}
}

/* Refuses what ptx_compute could not do. */
static void check(struct parser *parser, const struct ptx_instruction *made)
{
	enum ptx_type type = (enum ptx_type)made->type;
	bool real = ptx_is_float(type), bits = type <= PTX_B64;
	wants(parser, made, made->type != PTX_NO_TYPE);
	/* Of the numbers of 16 bits, no division, roots or tests. */
	if (ptx_is_half(type))
		wants(parser, made, done_with_halves(made));
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
		wants(parser, made, !real && ptx_width(type) == 4 &&
					   (!made->mode || (made->op == OP_PRMT && among(made->mode, M_F4E, M_RC16))));
		break;
	case OP_CVT:
		wants(parser, made, made->other_type != PTX_NO_TYPE && type != PTX_PRED && made->other_type != PTX_PRED &&
					   !ptx_is_pair((enum ptx_type)made->other_type));
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
	wants(parser, made, !made->carry || (made->op <= OP_MAD && !real && !made->saturate && made->mode != M_WIDE && ptx_width(type) >= 4));
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

/* The predicate of `a|p`. */
static void second_destination(struct parser *parser, struct ptx_instruction *made)
{
	uint8_t type = made->register_type;
	if ((made->op != OP_SETP && made->op != OP_SHFL && made->op != OP_MATCH) || !parser_sign(parser, '|'))
		return;
	made->slot[5] = destination(parser, made);
	if (made->op != OP_SETP)
		made->register_type = type;
}

static void compute_operands(struct parser *parser, struct ptx_instruction *made, uint32_t sources)
{
	enum ptx_type type = (enum ptx_type)made->type;
	made->result_type = (uint8_t)result_type(made);
	made->slot[0] = destination(parser, made);
	second_destination(parser, made);
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
	wants(parser, made, made->type <= PTX_F64);
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
	bool half = ptx_is_half((enum ptx_type)made->type);
	wants(parser, made, (width == 4 || width == 8 || (width == 2 && (made->mode == M_CAS || half))) && among(made->mode, M_AND, M_CAS));
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
	} else if (made->op == OP_MATCH) {
		wants(parser, made, among(made->mode, M_ALL, M_ANY) && (made->type == PTX_B32 || made->type == PTX_B64));
		made->slot[0] = destination(parser, made);
		second_destination(parser, made);
		parser_need(parser, ',');
		made->slot[1] = source(parser, (enum ptx_type)made->type);
	} else if (made->op == OP_SHFL) {
		wants(parser, made, among(made->mode, M_UP, M_IDX) && made->type < PTX_PRED && ptx_width((enum ptx_type)made->type) == 4);
		made->slot[0] = destination(parser, made);
		second_destination(parser, made);
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

/* bar.red: the number of threads with a predicate, or whether all or any have it, comes back to each. */
static void reducing_barrier(struct parser *parser, struct ptx_instruction *made)
{
	bool counts = made->second_mode == M_POPC;
	wants(parser, made, made->type == (counts ? PTX_U32 : PTX_PRED) && (counts || among(made->second_mode, M_AND, M_OR)));
	made->slot[0] = destination(parser, made);
	parser_need(parser, ',');
	made->slot[2] = source(parser, PTX_U32);
	parser_need(parser, ',');
	/* A number of threads may stand before the predicate. */
	struct operand last = operand(parser, PTX_U32);
	if (parser_sign(parser, ','))
		last = operand(parser, PTX_PRED);
	wants(parser, made, last.type == PTX_PRED && last.special == PTX_NOT_SPECIAL);
	made->negate = last.negated;
	made->slot[1] = fold(parser, &last);
}

/* cp.async [to], [from], size{, how many bytes are read; the others become zero}, and what waits for such copies. */
static void copy_operands(struct parser *parser, struct ptx_instruction *made)
{
	if (among(made->mode, M_COMMIT, M_WAIT_ALL)) {
		if (made->mode == M_WAIT_GROUP)
			made->offset = parser_integer(parser);
		return;
	}
	/* .shared.global: the space that was read last. */
	wants(parser, made, made->mode == M_NONE && made->type == PTX_NO_TYPE && made->space == PTX_GLOBAL);
	made->slot[7] = address(parser, made);
	made->target = (uint32_t)made->offset;
	made->offset = 0;
	parser_need(parser, ',');
	made->slot[8] = address(parser, made);
	parser_need(parser, ',');
	int64_t size = parser_integer(parser);
	wants(parser, made, size == 4 || size == 8 || size == 16);
	made->vector = (uint8_t)size;
	if (parser_sign(parser, ','))
		made->slot[1] = source(parser, PTX_U32);
}

/* name: .branchtargets A, B, ...; becomes a run of branches, which is jumped over. */
void branch_targets(struct parser *parser)
{
	if (!parser->label_count || parser->labels[parser->label_count - 1].at != parser->kernel->code_size)
		parser_fail(parser, parser->token.line, "a table of labels needs a name");
	uint32_t table = parser->label_count - 1, over = parser->kernel->code_size;
	emit(parser, parser->token.line)->op = OP_BRA;
	parser->labels[table].at++;
	do {
		emit(parser, parser->token.line)->op = OP_BRA;
		branch(parser);
		parser->labels[table].targets++;
	} while (parser_sign(parser, ','));
	parser->kernel->code[over].target = parser->kernel->code_size;
	parser_need(parser, ';');
}

/* brx.idx register, table */
static void indexed_branch(struct parser *parser, struct ptx_instruction *made)
{
	made->slot[1] = source(parser, PTX_U32);
	parser_need(parser, ',');
	struct token name = parser_name(parser, "a table of labels");
	for (uint32_t i = 0; i < parser->label_count; i++) {
		const struct label *table = &parser->labels[i];
		if (!table->targets || table->length != name.length || memcmp(table->name, name.text, name.length))
			continue;
		made->target = table->at;
		made->offset = table->targets;
		return;
	}
	parser_fail(parser, name.line, "no table %.*s", (int)(name.length < 60 ? name.length : 60), name.text);
}

static void branch(struct parser *parser)
{
	struct token name = parser_name(parser, "a label");
	parser->jumps = parser_grow(parser, parser->jumps, &parser->jump_room, parser->jump_count, sizeof *parser->jumps, 1u << 20);
	parser->jumps[parser->jump_count++] = (struct label){name.text, name.length, parser->kernel->code_size - 1, name.line, 0};
}

static void instruction(struct parser *parser, const struct token *name, uint32_t guard, bool negated)
{
	/* Libraries hold kernels with textures among others. Such a kernel is loaded, and breaks its context when it comes to
	   the texture; binding one has been refused before. */
	if (token_is(name, "tex")) {
		emit(parser, name->line)->op = OP_TRAP;
		parser_skip_to(parser, ';');
		return;
	}
	const struct opcode *opcode = opcode_named(name);
	if (!opcode)
		parser_fail(parser, name->line, "unknown instruction %.*s", (int)(name->length < 60 ? name->length : 60), name->text);
	/* The code below may declare constants but emits nothing, so this pointer stays good. */
	struct ptx_instruction *made = emit(parser, name->line);
	made->op = (uint8_t)opcode->op;
	made->guard = (uint16_t)guard;
	made->guarded = guard != PTX_NO_SLOT;
	made->guard_negated = negated;
	modifiers(parser, made);
	switch (opcode->op) {
	case OP_BRA: branch(parser); break;
	case OP_BRX: indexed_branch(parser, made); break;
	case OP_CP_ASYNC: copy_operands(parser, made); break;
	case OP_EXIT: case OP_TRAP: case OP_RET: break;
	case OP_CALL: call_operands(parser, made); break;
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
		/* A barrier of a part of the block is taken as one of all. */
		if (made->mode == M_RED) {
			reducing_barrier(parser, made);
			break;
		}
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
	case OP_SHFL: case OP_VOTE: case OP_REDUX: case OP_MATCH: warp_operands(parser, made); break;
	case OP_MOV: move_operands(parser, made); break;
	case OP_CVTA: case OP_ISSPACEP:
		made->slot[0] = destination(parser, made);
		parser_need(parser, ',');
		made->slot[1] = source(parser, PTX_U64);
		break;
	default:
		made->carry |= name->text[name->length - 1] == 'c' && opcode->op <= OP_MAD ? CARRY_IN : 0;
		check(parser, made);
		/* A pair is made of two. */
		compute_operands(parser, made, opcode->sources + (made->op == OP_CVT && ptx_is_pair((enum ptx_type)made->type)));
		if (made->carry) {
			made->carry_op = made->op;
			made->op = OP_CARRY;
		}
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
		parser->labels[parser->label_count++] = (struct label){name.text, name.length, parser->kernel->code_size, name.line, 0};
		return;
	}
	instruction(parser, &name, guard, negated);
}

void finish_kernel(struct parser *parser)
{
	struct ptx_kernel *kernel = parser->kernel;
	emit(parser, kernel->line)->op = OP_RET; /* falling off the end is a return */
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

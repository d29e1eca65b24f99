/* Operands of instructions: registers, numbers, names, vectors, addresses, all turned into slots. */
#include "parser.h"

#include <string.h>

#define CONSTANT_SLOT 0x10000u /* while a kernel is read: constants are numbered from here, specials from below */
#define SPECIAL_SLOT 0x20000u

struct ptx_instruction *emit(struct parser *parser, uint32_t line)
{
	struct ptx_kernel *kernel = parser->kernel;
	kernel->code = parser_grow(parser, kernel->code, &parser->code_room, kernel->code_size, sizeof *kernel->code, 1u << 20);
	struct ptx_instruction *made = &kernel->code[kernel->code_size++];
	*made = (struct ptx_instruction){.line = line, .type = PTX_NO_TYPE, .other_type = PTX_NO_TYPE, .guard = PTX_NO_SLOT};
	for (int i = 0; i < PTX_OPERANDS; i++)
		made->slot[i] = PTX_NO_SLOT;
	return made;
}

static uint32_t constant(struct parser *parser, uint64_t value, enum ptx_relocation relocated)
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
	kernel->relocated[kernel->constant_count] = (uint8_t)relocated;
	return CONSTANT_SLOT + kernel->constant_count++;
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
	return (struct operand){.slot = constant(parser, value, RELOCATE_NONE), .special = PTX_NOT_SPECIAL, .type = type};
}

static enum ptx_relocation relocation(const struct symbol *symbol)
{
	if (symbol->kind == SYMBOL_VARIABLE)
		return RELOCATE_MODULE;
	if (symbol->kind == SYMBOL_LOCAL)
		return RELOCATE_LOCAL;
	return symbol->dynamic ? RELOCATE_DYNAMIC_SHARED : RELOCATE_NONE;
}

struct operand operand(struct parser *parser, enum ptx_type type)
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
		result.slot = symbol->kind == SYMBOL_FUNCTION
				      ? constant(parser, PTX_FUNCTION_WINDOW | symbol->base, RELOCATE_NONE)
				      : constant(parser, symbol->offset, relocation(symbol));
		return result;
	}
	if (token_is(&name, "WARP_SZ")) {
		result.slot = constant(parser, 32, RELOCATE_NONE);
		return result;
	}
	bool took;
	result.special = special_named(&name, &parser->token, &result.type, &took);
	if (took)
		parser_next(parser);
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
uint16_t fold(struct parser *parser, const struct operand *from)
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

uint16_t unfold(const struct ptx_kernel *kernel, uint16_t slot)
{
	if (slot == PTX_NO_SLOT || slot < 0x8000)
		return slot;
	if ((slot & 0xc000) == 0xc000)
		return (uint16_t)(kernel->registers + kernel->constant_count + (slot & 0x3fff));
	return (uint16_t)(kernel->registers + (slot & 0x3fff));
}

uint16_t source(struct parser *parser, enum ptx_type type)
{
	struct operand found = operand(parser, type);
	if (found.special != PTX_NOT_SPECIAL)
		parser_fail(parser, parser->token.line, "clocks can only be read by mov");
	return fold(parser, &found);
}

uint16_t source_maybe_negated(struct parser *parser, struct ptx_instruction *made, int place, enum ptx_type type)
{
	struct operand found = operand(parser, type);
	if (found.special != PTX_NOT_SPECIAL)
		parser_fail(parser, parser->token.line, "clocks can only be read by mov");
	if (found.negated)
		made->negate |= (uint8_t)(1u << place);
	return fold(parser, &found);
}

uint16_t destination(struct parser *parser, struct ptx_instruction *made)
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
uint32_t vector(struct parser *parser, struct ptx_instruction *made, int first, bool read, enum ptx_type type)
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

bool at_sign(const struct parser *parser, char sign)
{
	return parser->token.kind == TOKEN_SIGN && parser->token.sign == sign;
}

/* [register], [register+N], [name], [name+N], [N] */
uint16_t address(struct parser *parser, struct ptx_instruction *made)
{
	uint16_t slot;
	parser_need(parser, '[');
	if (parser->token.kind == TOKEN_NUMBER) {
		struct operand zero = {.slot = constant(parser, 0, RELOCATE_NONE)};
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

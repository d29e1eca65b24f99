/* Variables of modules, functions and kernels: their declarations, where they lie, and their initial values. */
#include "parser.h"

#include <stdlib.h>
#include <string.h>

#define MAX_IMAGE (64u << 20)

/* .align N, .ptr, spaces and types, in any order, before a name; returns the type. */
enum ptx_type declaration(struct parser *parser, uint32_t *alignment)
{
	enum ptx_type type = PTX_NO_TYPE;
	for (*alignment = 0; parser->token.kind == TOKEN_DOT;) {
		enum ptx_type found = type_named(&parser->token);
		/* A texture that the host would bind; no instruction here reads it. */
		if (token_is(&parser->token, "texref"))
			found = PTX_B64;
		if (found != PTX_NO_TYPE) {
			if (type != PTX_NO_TYPE)
				parser_fail(parser, parser->token.line, "two types");
			type = found;
			parser_next(parser);
		} else if (token_is(&parser->token, "align")) {
			parser_next(parser);
			int64_t value = parser_integer(parser);
			if (value < 1 || value > 1024 || (value & (value - 1)))
				parser_fail(parser, parser->token.line, "alignment must be a power of two up to 1024");
			*alignment = (uint32_t)value;
		} else if (token_is(&parser->token, "ptr") || token_is(&parser->token, "global") ||
			   token_is(&parser->token, "shared") || token_is(&parser->token, "const") ||
			   token_is(&parser->token, "local")) {
			parser_next(parser);
		} else {
			parser_fail(parser, parser->token.line, "unknown .%.*s in a declaration",
				    (int)parser->token.length, parser->token.text);
		}
	}
	if (type == PTX_NO_TYPE || type == PTX_PRED)
		parser_fail(parser, parser->token.line, "a variable needs a type");
	if (!*alignment)
		*alignment = ptx_width(type);
	return type;
}

/* [N][M]... after a name: how many elements; 0 for [] */
uint64_t dimensions(struct parser *parser)
{
	uint64_t count = 1;
	while (parser_sign(parser, '[')) {
		int64_t size = 0;
		if (!(parser->token.kind == TOKEN_SIGN && parser->token.sign == ']')) {
			size = parser_integer(parser);
			if (size < 1 || (uint64_t)size > MAX_IMAGE / count)
				parser_fail(parser, parser->token.line, "array size out of range");
		}
		count *= (uint64_t)size;
		parser_need(parser, ']');
	}
	return count;
}

/* generic(NAME), NAME, NAME+N: the address of a variable, to which the module's base is added later, or of a function. */
static void initial_address(struct parser *parser, uint8_t *at, enum ptx_type type)
{
	struct ptx_module *module = parser->module;
	struct token name = parser_name(parser, "a name");
	bool generic = token_is(&name, "generic") && parser_sign(parser, '(');
	if (generic)
		name = parser_name(parser, "a name");
	struct symbol *symbol = find_symbol(parser, &name);
	if (!symbol || (symbol->kind != SYMBOL_VARIABLE && symbol->kind != SYMBOL_FUNCTION) || ptx_width(type) != 8)
		parser_fail(parser, name.line, "%.*s cannot be an initial value here", (int)(name.length < 60 ? name.length : 60), name.text);
	uint64_t value = symbol->kind == SYMBOL_FUNCTION ? PTX_FUNCTION_WINDOW | symbol->base : symbol->offset;
	if (symbol->kind == SYMBOL_VARIABLE) {
		module->addresses = parser_grow(parser, module->addresses, &parser->address_room, module->address_count,
						sizeof *module->addresses, 1u << 20);
		module->addresses[module->address_count++] = (uint64_t)(at - module->image);
	}
	if (generic)
		parser_need(parser, ')');
	if (parser_sign(parser, '+'))
		value += (uint64_t)parser_integer(parser);
	memcpy(at, &value, sizeof value);
}

static void initial_value(struct parser *parser, uint8_t *at, const uint8_t *end, enum ptx_type type)
{
	uint32_t width = ptx_width(type);
	if (at + width > end)
		parser_fail(parser, parser->token.line, "more values than elements");
	if (parser->token.kind == TOKEN_NAME) {
		initial_address(parser, at, type);
		return;
	}
	bool negative = parser_sign(parser, '-');
	uint64_t value = parser->token.number;
	if (parser->token.kind == TOKEN_FLOAT && type == PTX_F32 && parser->token.is_double) {
		double wide;
		memcpy(&wide, &value, sizeof wide);
		float narrow = (float)(negative ? -wide : wide);
		memcpy(at, &narrow, sizeof narrow);
	} else if (parser->token.kind == TOKEN_FLOAT || parser->token.kind == TOKEN_NUMBER) {
		if (negative)
			value = parser->token.kind == TOKEN_FLOAT ? value ^ 1ull << (8 * width - 1) : 0 - value;
		memcpy(at, &value, width);
	} else {
		parser_fail(parser, parser->token.line, "expected a number");
	}
	parser_next(parser);
}

/* Shared variables of functions lie behind those of all kernels so far, which may call them. */
static struct ptx_kernel *functions_shared(struct parser *parser)
{
	for (uint32_t i = 0; i < parser->module->kernel_count; i++)
		if (parser->shared.shared_bytes < parser->module->kernels[i].shared_bytes)
			parser->shared.shared_bytes = parser->module->kernels[i].shared_bytes;
	return &parser->shared;
}

/* A variable of the module, in its image; of a kernel, in shared or local memory. */
void variable(struct parser *parser, enum symbol_kind kind, bool constant, bool external)
{
	uint32_t alignment;
	enum ptx_type type = declaration(parser, &alignment);
	do {
		struct token name = parser_name(parser, "the name of a variable");
		uint64_t size = dimensions(parser) * ptx_width(type);
		struct symbol *symbol = add_symbol(parser, kind, &name);
		symbol->type = type;
		if (kind != SYMBOL_VARIABLE) {
			/* Shared variables of the module are laid out as if every kernel used them. */
			struct ptx_kernel *kernel = kind == SYMBOL_SHARED && parser->in_function ? functions_shared(parser) : parser->kernel;
			uint32_t *total = kind == SYMBOL_SHARED ? &kernel->shared_bytes : &kernel->local_bytes;
			symbol->offset = align_to(*total, alignment);
			symbol->dynamic = kind == SYMBOL_SHARED && external && !size;
			if (symbol->dynamic) {
				symbol->offset = 0;
				continue;
			}
			if (symbol->offset + size > (kind == SYMBOL_SHARED ? PTX_MAX_SHARED : PTX_MAX_LOCAL))
				parser_fail(parser, name.line, "too much shared or local memory");
			*total = (uint32_t)(symbol->offset + size);
			continue;
		}
		struct ptx_module *module = parser->module;
		uint32_t room = module->variable_count;
		module->variables = parser_grow(parser, module->variables, &room, module->variable_count,
						sizeof *module->variables, 100000);
		struct ptx_variable *made = &module->variables[module->variable_count];
		*made = (struct ptx_variable){.name = copy_name(parser, &name), .size = size, .constant = constant};
		module->variable_count++;
		made->offset = align_to(module->image_size, alignment);
		if (made->offset + size > MAX_IMAGE || (external && !size))
			parser_fail(parser, name.line, "too much global memory, or a variable of unknown size");
		uint8_t *image = realloc(module->image, made->offset + size);
		if (!image && made->offset + size)
			parser_fail(parser, name.line, "out of memory");
		memset(image + module->image_size, 0, made->offset + size - module->image_size);
		module->image = image;
		module->image_size = made->offset + size;
		symbol->offset = made->offset;
		if (!parser_sign(parser, '='))
			continue;
		uint8_t *at = image + made->offset;
		const uint8_t *end = at + size;
		if (!parser_sign(parser, '{')) {
			initial_value(parser, at, end, type);
			continue;
		}
		do {
			initial_value(parser, at, end, type);
			at += ptx_width(type);
		} while (parser_sign(parser, ','));
		parser_need(parser, '}');
	} while (parser_sign(parser, ','));
	parser_need(parser, ';');
}

/*
 * Functions that kernels call, and the calls: `call (result), name, (arguments)`.
 *
 * Arguments and results are .param variables, as compilers write them. Those of a function and those that it declares for
 * its own calls lie in one area; a call copies arguments from the area of the caller to that of the function. A function
 * may be called before it is defined; what is called and has no body at the end of the module is refused.
 */
#include "parser.h"

#include <stdlib.h>
#include <string.h>

#define NAME(token) (int)((token).length < 60 ? (token).length : 60), (token).text

/* Gives a .param variable its place in the area. */
static struct ptx_param place(struct parser *parser, uint32_t limit)
{
	struct ptx_kernel *kernel = parser->kernel;
	uint32_t alignment;
	enum ptx_type type = declaration(parser, &alignment);
	struct token name = parser_name(parser, "the name of a parameter");
	uint64_t size = dimensions(parser) * ptx_width(type), offset = align_to(kernel->area_bytes, alignment);
	if (offset + size > limit)
		parser_fail(parser, name.line, "more than %u bytes of parameters", limit);
	kernel->area_bytes = (uint32_t)(offset + size);
	struct symbol *symbol = add_symbol(parser, SYMBOL_PARAM, &name);
	symbol->offset = offset;
	symbol->size = size;
	return (struct ptx_param){(uint32_t)offset, (uint32_t)size};
}

static struct ptx_param formal(struct parser *parser)
{
	if (!token_is(&parser->token, "param"))
		parser_fail(parser, parser->token.line, "expected .param");
	parser_next(parser);
	return place(parser, PTX_MAX_PARAMS);
}

void formal_params(struct parser *parser)
{
	struct ptx_kernel *kernel = parser->kernel;
	uint32_t room = 0;
	if (!parser_sign(parser, '(') || parser_sign(parser, ')'))
		return;
	do {
		kernel->params = parser_grow(parser, kernel->params, &room, kernel->param_count, sizeof *kernel->params, 4096);
		kernel->params[kernel->param_count++] = formal(parser);
	} while (parser_sign(parser, ','));
	parser_need(parser, ')');
}

/* .param variables in a body, for arguments and results of calls. */
void call_params(struct parser *parser)
{
	place(parser, PTX_MAX_AREA);
	parser_need(parser, ';');
}

static struct symbol *function_symbol(struct parser *parser, const struct token *name)
{
	struct symbol *known = find_symbol(parser, name);
	if (known && known->kind != SYMBOL_FUNCTION)
		parser_fail(parser, name->line, "%.*s is no function", NAME(*name));
	return known;
}

/* A new function, whose symbol comes before those from `first` on: they belong to its body. */
static uint32_t add_function(struct parser *parser, const struct token *name, uint32_t first)
{
	struct ptx_module *module = parser->module;
	module->functions = parser_grow(parser, module->functions, &parser->function_room, module->function_count,
					sizeof *module->functions, 65536);
	parser->unit_of = parser_grow(parser, parser->unit_of, &parser->unit_room, module->function_count,
				      sizeof *parser->unit_of, 65536);
	module->functions[module->function_count] = (struct ptx_kernel){.name = copy_name(parser, name), .line = name->line};
	add_symbol(parser, SYMBOL_FUNCTION, name)->base = module->function_count;
	struct symbol fresh = parser->symbols[parser->symbol_count - 1];
	memmove(parser->symbols + first + 1, parser->symbols + first, (parser->symbol_count - 1 - first) * sizeof fresh);
	parser->symbols[first] = fresh;
	return module->function_count++;
}

static void attributes(struct parser *parser)
{
	while (parser->token.kind == TOKEN_DOT) {
		struct token word = parser->token;
		parser_next(parser);
		if (token_is(&word, "pragma") || token_is(&word, "unique") || token_is(&word, "attribute"))
			while (!parser_sign(parser, ';') && parser->token.kind != TOKEN_END)
				parser_next(parser);
		else if (!token_is(&word, "noreturn"))
			parser_fail(parser, word.line, "unknown directive .%.*s", NAME(word));
	}
}

/* Which function a body belongs to; false: there is one already, and this weak one is to be skipped. */
static bool position(struct parser *parser, const struct token *name, enum linkage linkage, uint32_t first, uint32_t *found)
{
	struct symbol *known = function_symbol(parser, name);
	if (known && !parser->module->functions[known->base].code) {
		*found = known->base;
		return true;
	}
	if (known && linkage == LINK_WEAK)
		return false;
	if (known && (linkage != LINK_STATIC || parser->unit_of[known->base] == parser->units))
		parser_fail(parser, name->line, "function %.*s is defined twice", NAME(*name));
	*found = add_function(parser, name, first);
	return true;
}

void function(struct parser *parser, enum linkage linkage)
{
	uint32_t first = parser->symbol_count, at;
	struct ptx_kernel *header = parser->kernel = &parser->header;
	*header = (struct ptx_kernel){.line = parser->token.line};
	if (parser_sign(parser, '(')) {
		header->result = formal(parser);
		parser_need(parser, ')');
	}
	struct token name = parser_name(parser, "the name of a function");
	formal_params(parser);
	attributes(parser);
	if (parser_sign(parser, ';')) { /* only declared */
		free(header->params);
		*header = (struct ptx_kernel){0};
		parser->symbol_count = first;
		if (!function_symbol(parser, &name))
			add_function(parser, &name, first);
	} else if (position(parser, &name, linkage, first, &at)) {
		struct ptx_kernel *made = parser->kernel = &parser->module->functions[at];
		char *own = made->name;
		*made = *header;
		made->name = own;
		*header = (struct ptx_kernel){0};
		parser->unit_of[at] = parser->units;
		parser->label_count = parser->jump_count = parser->code_room = parser->constant_room = 0;
		parser->call_room = 0;
		parser->in_function = true;
		body(parser);
		finish_kernel(parser);
		parser->in_function = false;
		parser->symbol_count = first + (parser->symbols[first].kind == SYMBOL_FUNCTION && parser->symbols[first].base == at);
	} else {
		skip_block(parser);
		free(header->params);
		*header = (struct ptx_kernel){0};
		parser->symbol_count = first;
	}
	parser->kernel = NULL;
}

static struct ptx_param argument(struct parser *parser)
{
	struct token name = parser_name(parser, "a .param variable");
	struct symbol *symbol = find_symbol(parser, &name);
	if (!symbol || symbol->kind != SYMBOL_PARAM)
		parser_fail(parser, name.line, "%.*s: arguments and results of calls are .param variables here", NAME(name));
	return (struct ptx_param){(uint32_t)symbol->offset, (uint32_t)symbol->size};
}

/* (result), name, (arguments), prototype: all but the name may be missing. */
void call_operands(struct parser *parser, struct ptx_instruction *made)
{
	struct ptx_kernel *kernel = parser->kernel;
	kernel->calls = parser_grow(parser, kernel->calls, &parser->call_room, kernel->call_count, sizeof *kernel->calls, 1u << 20);
	made->target = kernel->call_count;
	struct ptx_call *call = &kernel->calls[kernel->call_count++];
	uint32_t room = 0;
	*call = (struct ptx_call){.function = PTX_BY_ADDRESS, .line = made->line};
	if (parser_sign(parser, '(')) {
		call->result = argument(parser);
		parser_need(parser, ')');
		parser_need(parser, ',');
	}
	struct token name = parser->token;
	struct symbol *target = name.kind == TOKEN_NAME ? find_symbol(parser, &name) : NULL;
	if (target && target->kind == SYMBOL_FUNCTION) {
		parser_next(parser);
		call->function = target->base;
	} else if (target && target->kind == SYMBOL_REGISTER) {
		made->slot[1] = source(parser, PTX_U64);
	} else {
		parser_fail(parser, name.line, "call of unknown function %.*s", NAME(name));
	}
	if (!parser_sign(parser, ','))
		return;
	parser_need(parser, '(');
	if (!at_sign(parser, ')'))
		do {
			call->arguments = parser_grow(parser, call->arguments, &room, call->argument_count, sizeof *call->arguments,
						      4096);
			call->arguments[call->argument_count++] = argument(parser);
		} while (parser_sign(parser, ','));
	parser_need(parser, ')');
	if (parser_sign(parser, ','))
		parser_name(parser, "a prototype");
}

bool ptx_call_fits(const struct ptx_call *call, const struct ptx_kernel *function)
{
	bool fits = function->code && call->argument_count == function->param_count &&
		    (!call->result.size || call->result.size == function->result.size);
	for (uint32_t i = 0; fits && i < call->argument_count; i++)
		fits = call->arguments[i].size == function->params[i].size;
	return fits;
}

static void check_calls(struct parser *parser, const struct ptx_kernel *caller)
{
	for (uint32_t i = 0; i < caller->call_count; i++) {
		const struct ptx_call *call = &caller->calls[i];
		if (call->function == PTX_BY_ADDRESS)
			continue;
		const struct ptx_kernel *function = &parser->module->functions[call->function];
		if (!function->code && (!parser->whole || ptx_builtin_called(function->name, call)))
			continue; /* the driver has it, or another text of the link may */
		if (!function->code)
			parser_fail(parser, call->line, "Unresolved extern function '%.60s'", function->name);
		if (!ptx_call_fits(call, function))
			parser_fail(parser, call->line, "call of %.60s with other parameters than it has", function->name);
	}
}

/* Whether a caller meets in one of its calls. */
static bool meets_in_calls(const struct ptx_module *module, const struct ptx_kernel *caller)
{
	for (uint32_t i = 0; i < caller->call_count; i++) {
		uint32_t from = caller->calls[i].function, to = from + 1;
		if (from == PTX_BY_ADDRESS) {
			from = 0;
			to = module->function_count;
		}
		for (; from < to; from++)
			if (module->functions[from].meets)
				return true;
	}
	return false;
}

/* Facts of the whole module: bodies of called functions, which functions wait for other threads, and their memory. */
void finish_functions(struct parser *parser)
{
	struct ptx_module *module = parser->module;
	for (bool changed = true; changed;) {
		changed = false;
		for (uint32_t i = 0; i < module->function_count; i++)
			if (!module->functions[i].meets && meets_in_calls(module, &module->functions[i]))
				changed = module->functions[i].meets = true;
	}
	for (uint32_t i = 0; i < module->function_count; i++)
		check_calls(parser, &module->functions[i]);
	for (uint32_t i = 0; i < module->kernel_count; i++) {
		struct ptx_kernel *kernel = &module->kernels[i];
		check_calls(parser, kernel);
		kernel->meets |= meets_in_calls(module, kernel);
		if (kernel->call_count && kernel->shared_bytes < parser->shared.shared_bytes)
			kernel->shared_bytes = parser->shared.shared_bytes;
	}
}

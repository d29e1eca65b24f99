/* Modules: directives, symbols, entries. variables.c reads variables, instructions.c the statements of a kernel's body. */
#include "parser.h"

#include <stdlib.h>
#include <string.h>

uint64_t align_to(uint64_t value, uint64_t alignment)
{
	return (value + alignment - 1) / alignment * alignment;
}

char *copy_name(struct parser *parser, const struct token *name)
{
	char *copy = malloc(name->length + 1);
	if (!copy)
		parser_fail(parser, name->line, "out of memory");
	memcpy(copy, name->text, name->length);
	copy[name->length] = 0;
	return copy;
}

struct symbol *add_symbol(struct parser *parser, enum symbol_kind kind, const struct token *name)
{
	parser->symbols = parser_grow(parser, parser->symbols, &parser->symbol_room, parser->symbol_count,
				      sizeof *parser->symbols, 100000);
	struct symbol *symbol = &parser->symbols[parser->symbol_count++];
	*symbol = (struct symbol){.kind = kind, .name = name->text, .length = name->length};
	return symbol;
}

/* Finds by name, the newest first; `%r7` is the eighth of `%r<10>`. */
struct symbol *find_symbol(struct parser *parser, const struct token *name)
{
	uint32_t stem = name->length;
	while (stem > 1 && name->text[stem - 1] >= '0' && name->text[stem - 1] <= '9')
		stem--;
	for (uint32_t i = parser->symbol_count; i-- > 0;) {
		struct symbol *symbol = &parser->symbols[i];
		if (!symbol->count) {
			if (symbol->length == name->length && !memcmp(symbol->name, name->text, name->length))
				return symbol;
			continue;
		}
		/* The stem of the declaration may itself end in digits. */
		if (symbol->length < stem || symbol->length >= name->length ||
		    memcmp(symbol->name, name->text, symbol->length) || name->length - symbol->length > 7)
			continue;
		uint32_t number = 0;
		for (uint32_t at = symbol->length; at < name->length; at++)
			number = number * 10 + (uint32_t)(name->text[at] - '0');
		if (number < symbol->count)
			return symbol;
	}
	return NULL;
}

static void skip_statement(struct parser *parser)
{
	while (!parser_sign(parser, ';')) {
		if (parser->token.kind == TOKEN_END)
			parser_fail(parser, parser->token.line, "unexpected end");
		parser_next(parser);
	}
}

void skip_block(struct parser *parser)
{
	uint32_t line = parser->token.line, depth = 1;
	parser_need(parser, '{');
	while (depth) {
		if (parser->token.kind == TOKEN_END)
			parser_fail(parser, line, "'{' without '}'");
		if (parser->token.kind == TOKEN_SIGN && parser->token.sign == '{')
			depth++;
		if (parser->token.kind == TOKEN_SIGN && parser->token.sign == '}')
			depth--;
		parser_next(parser);
	}
}

static void registers(struct parser *parser)
{
	enum ptx_type type = type_named(&parser->token);
	if (type == PTX_NO_TYPE)
		parser_fail(parser, parser->token.line, "unknown type of registers");
	parser_next(parser);
	do {
		struct token name = parser_name(parser, "the name of a register");
		struct symbol *symbol = add_symbol(parser, SYMBOL_REGISTER, &name);
		int64_t count = 1;
		symbol->type = type;
		symbol->base = parser->kernel->registers;
		if (parser_sign(parser, '<')) {
			count = parser_integer(parser);
			parser_need(parser, '>');
			if (count < 1 || count > PTX_MAX_SLOTS / 2)
				parser_fail(parser, name.line, "number of registers out of range");
			symbol->count = (uint32_t)count;
		}
		parser->kernel->registers += (uint32_t)count;
		if (parser->kernel->registers > PTX_MAX_SLOTS / 2)
			parser_fail(parser, name.line, "too many registers");
	} while (parser_sign(parser, ','));
	parser_need(parser, ';');
}

static void pragma(struct parser *parser)
{
	static const char word[] = "simgpu.time_ns ";
	struct token text = parser->token;
	if (text.kind != TOKEN_STRING)
		parser_fail(parser, text.line, "expected a string");
	/* Other pragmas are for other compilers, and are to be ignored. */
	if (parser->kernel && text.length > sizeof word - 1 && !memcmp(text.text, word, sizeof word - 1)) {
		char digits[24] = {0};
		uint32_t length = text.length - (uint32_t)(sizeof word - 1);
		memcpy(digits, text.text + sizeof word - 1, length < sizeof digits ? length : sizeof digits - 1);
		parser->kernel->cost_ns = strtoull(digits, NULL, 10);
	}
	skip_statement(parser);
}

void body(struct parser *parser)
{
	/* Each '{' remembers where its names began. */
	uint32_t scopes[64], line = parser->token.line;
	parser->depth = 0;
	parser_need(parser, '{');
	scopes[parser->depth++] = parser->symbol_count;
	while (parser->depth) {
		if (parser->token.kind == TOKEN_END)
			parser_fail(parser, line, "'{' without '}'");
		if (parser_sign(parser, '{')) {
			if (parser->depth == 64)
				parser_fail(parser, parser->token.line, "blocks nested too deeply");
			scopes[parser->depth++] = parser->symbol_count;
		} else if (parser_sign(parser, '}')) {
			parser->symbol_count = scopes[--parser->depth];
		} else if (parser->token.kind != TOKEN_DOT) {
			parse_statement(parser);
		} else if (token_is(&parser->token, "reg")) {
			parser_next(parser);
			registers(parser);
		} else if (token_is(&parser->token, "shared") || token_is(&parser->token, "local")) {
			bool shared = token_is(&parser->token, "shared");
			parser_next(parser);
			variable(parser, shared ? SYMBOL_SHARED : SYMBOL_LOCAL, false, false);
		} else if (token_is(&parser->token, "pragma")) {
			parser_next(parser);
			pragma(parser);
		} else if (token_is(&parser->token, "param")) {
			parser_next(parser);
			call_params(parser);
		} else if (token_is(&parser->token, "branchtargets")) {
			parser_next(parser);
			branch_targets(parser);
		} else if (token_is(&parser->token, "callprototype")) {
			skip_statement(parser); /* a function has its own */
		} else if (token_is(&parser->token, "loc")) {
			/* Numbers, and names with a plus in newer versions, up to the end of the line. */
			uint32_t at = parser->token.line;
			while (parser->token.kind != TOKEN_END && parser->token.line == at)
				parser_next(parser);
		} else {
			parser_fail(parser, parser->token.line, "unknown directive .%.*s", (int)parser->token.length,
				    parser->token.text);
		}
	}
}

static void entry(struct parser *parser)
{
	struct ptx_module *module = parser->module;
	struct token name = parser_name(parser, "the name of a kernel");
	uint32_t room = module->kernel_count, symbols = parser->symbol_count;
	module->kernels = parser_grow(parser, module->kernels, &room, module->kernel_count, sizeof *module->kernels, 65536);
	struct ptx_kernel *kernel = parser->kernel = &module->kernels[module->kernel_count++];
	*kernel = (struct ptx_kernel){.line = name.line, .shared_bytes = parser->shared.shared_bytes};
	kernel->name = copy_name(parser, &name);
	parser->label_count = parser->jump_count = parser->code_room = parser->constant_room = parser->call_room = 0;
	formal_params(parser);
	kernel->param_bytes = kernel->area_bytes;
	while (parser->token.kind == TOKEN_DOT) {
		bool limits = token_is(&parser->token, "maxntid") || token_is(&parser->token, "reqntid");
		if (!limits && !token_is(&parser->token, "minnctapersm") && !token_is(&parser->token, "maxnreg"))
			parser_fail(parser, parser->token.line, "unknown directive .%.*s", (int)parser->token.length,
				    parser->token.text);
		parser_next(parser);
		uint64_t threads = 1;
		do
			threads *= (uint64_t)parser_integer(parser) & 0xffff;
		while (parser_sign(parser, ','));
		if (limits)
			kernel->max_threads = threads > 1024 ? 1024 : (uint32_t)threads;
	}
	if (parser_sign(parser, ';')) { /* only declared */
		free(kernel->name);
		free(kernel->params);
		module->kernel_count--;
	} else {
		body(parser);
		finish_kernel(parser);
	}
	parser->kernel = NULL;
	parser->symbol_count = symbols;
}

static void module_statements(struct parser *parser)
{
	enum linkage linkage = LINK_STATIC;
	if (!token_is(&parser->token, "version"))
		parser_fail(parser, parser->token.line, "a module begins with .version");
	while (parser->token.kind != TOKEN_END) {
		struct token word = parser->token;
		if (word.kind != TOKEN_DOT)
			parser_fail(parser, word.line, "expected a directive");
		parser_next(parser);
		if (token_is(&word, "version")) {
			double version = 0;
			if (parser->token.kind == TOKEN_FLOAT)
				memcpy(&version, &parser->token.number, sizeof version);
			if (version < 1 || version >= 100)
				parser_fail(parser, word.line, "expected a version such as 8.0");
			parser->module->version = (uint32_t)(version * 10 + 0.5);
			parser->units++;
			parser_next(parser);
		} else if (token_is(&word, "target")) {
			do {
				struct token target = parser_name(parser, "a target such as sm_70");
				if (target.length > 3 && target.length < 10 && !memcmp(target.text, "sm_", 3))
					parser->module->target = (uint32_t)strtoul(target.text + 3, NULL, 10);
			} while (parser_sign(parser, ','));
		} else if (token_is(&word, "address_size")) {
			if (parser_integer(parser) != 64)
				parser_fail(parser, word.line, "only .address_size 64");
		} else if (token_is(&word, "visible") || token_is(&word, "common")) {
			linkage = LINK_VISIBLE;
			continue;
		} else if (token_is(&word, "weak")) {
			linkage = LINK_WEAK;
			continue;
		} else if (token_is(&word, "extern")) {
			linkage = LINK_EXTERN;
			continue;
		} else if (token_is(&word, "entry")) {
			entry(parser);
		} else if (token_is(&word, "func")) {
			function(parser, linkage);
		} else if (token_is(&word, "global") || token_is(&word, "const")) {
			variable(parser, SYMBOL_VARIABLE, token_is(&word, "const"), linkage == LINK_EXTERN);
		} else if (token_is(&word, "shared")) {
			parser->kernel = &parser->shared;
			variable(parser, SYMBOL_SHARED, false, linkage == LINK_EXTERN);
			parser->kernel = NULL;
		} else if (token_is(&word, "file") || token_is(&word, "loc")) {
			while (parser->token.kind != TOKEN_END && parser->token.line == word.line)
				parser_next(parser);
		} else if (token_is(&word, "section")) {
			while (parser->token.kind != TOKEN_END &&
			       !(parser->token.kind == TOKEN_SIGN && parser->token.sign == '{'))
				parser_next(parser);
			skip_block(parser);
		} else if (token_is(&word, "pragma")) {
			pragma(parser);
		} else {
			parser_fail(parser, word.line, "unknown directive .%.*s", (int)word.length, word.text);
		}
		linkage = LINK_STATIC;
	}
	if (!parser->module->target)
		parser_fail(parser, parser->token.line, "no .target");
}

/* Apart, because what is changed between setjmp and longjmp must not live in registers. */
static bool parse(struct parser *parser)
{
	if (setjmp(parser->failed))
		return false;
	parser_next(parser);
	module_statements(parser);
	finish_functions(parser);
	return true;
}

struct ptx_module *ptx_parse(const char *text, size_t length, bool whole, struct ptx_error *error)
{
	struct parser *parser = calloc(1, sizeof *parser);
	struct ptx_module *module = calloc(1, sizeof *module);
	bool done = false;
	*error = (struct ptx_error){0};
	if (parser && module) {
		parser->at = text;
		parser->end = text + length;
		parser->line = 1;
		parser->error = error;
		parser->module = module;
		parser->whole = whole;
		done = parse(parser);
		free(parser->symbols);
		free(parser->labels);
		free(parser->jumps);
		free(parser->unit_of);
		free(parser->header.params);
	}
	free(parser);
	if (done)
		return module;
	ptx_free(module);
	return NULL;
}

static void free_kernel(struct ptx_kernel *kernel)
{
	for (uint32_t i = 0; i < kernel->call_count; i++)
		free(kernel->calls[i].arguments);
	free(kernel->calls);
	free(kernel->name);
	free(kernel->code);
	free(kernel->params);
	free(kernel->constants);
	free(kernel->relocated);
}

void ptx_free(struct ptx_module *module)
{
	if (!module)
		return;
	for (uint32_t i = 0; i < module->kernel_count; i++)
		free_kernel(&module->kernels[i]);
	for (uint32_t i = 0; i < module->function_count; i++)
		free_kernel(&module->functions[i]);
	for (uint32_t i = 0; i < module->variable_count; i++)
		free(module->variables[i].name);
	free(module->kernels);
	free(module->functions);
	free(module->variables);
	free(module->image);
	free(module->addresses);
	free(module);
}

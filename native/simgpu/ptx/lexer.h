/* Words of a PTX text, and the state that the two halves of the parser share. */
#ifndef SIMGPU_PTX_LEXER_H
#define SIMGPU_PTX_LEXER_H

#include "ptx.h"

#include <setjmp.h>

enum token_kind { TOKEN_END, TOKEN_NAME, TOKEN_DOT, TOKEN_NUMBER, TOKEN_FLOAT, TOKEN_STRING, TOKEN_SIGN };

struct token {
	enum token_kind kind;
	const char *text; /* of a dotted word without the dot, of a string without the quotes */
	uint32_t length, line;
	uint64_t number; /* an integer, or the bits of a float */
	bool is_double;  /* a float of 64 bits */
	bool decimal;    /* a float written as 1.5: its width follows from the instruction */
	char sign;
};

enum symbol_kind { SYMBOL_REGISTER, SYMBOL_PARAM, SYMBOL_SHARED, SYMBOL_LOCAL, SYMBOL_VARIABLE, SYMBOL_FUNCTION };

struct symbol {
	enum symbol_kind kind;
	const char *name;
	uint32_t length;
	uint32_t count; /* registers declared as name<count>, 0 for a single one */
	uint32_t base;  /* first slot of registers; position of a variable */
	uint64_t offset;
	enum ptx_type type;
};

struct label {
	const char *name;
	uint32_t length, at, line;
};

struct parser {
	const char *at, *end;
	uint32_t line;
	struct token token; /* the one to be read next */
	jmp_buf failed;
	struct ptx_error *error;
	struct ptx_module *module;
	struct symbol *symbols;
	uint32_t symbol_count, symbol_room;
	/* of the kernel being read */
	struct ptx_kernel *kernel;
	struct label *labels, *jumps; /* defined; wanted, `at` is then the instruction */
	uint32_t label_count, label_room, jump_count, jump_room, code_room, constant_room;
	uint32_t depth;
};

void parser_fail(struct parser *parser, uint32_t line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
void parser_next(struct parser *parser);
bool token_is(const struct token *token, const char *text);     /* a name or a dotted word */
bool parser_sign(struct parser *parser, char sign);             /* takes it when it is there */
void parser_need(struct parser *parser, char sign);
struct token parser_name(struct parser *parser, const char *what);
int64_t parser_integer(struct parser *parser);
/* Makes room for one more element; gives up when there are too many. */
void *parser_grow(struct parser *parser, void *array, uint32_t *room, uint32_t count, size_t size, uint32_t limit);
enum ptx_type type_named(const struct token *token);
/* instructions.c */
void parse_statement(struct parser *parser);
void finish_kernel(struct parser *parser);
struct symbol *find_symbol(struct parser *parser, const struct token *name);

#endif

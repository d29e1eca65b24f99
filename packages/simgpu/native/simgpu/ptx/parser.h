/* Words of a PTX text, and the state that the two halves of the parser share. */
#ifndef SIMGPU_PTX_PARSER_H
#define SIMGPU_PTX_PARSER_H

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
	uint64_t offset, size;
	enum ptx_type type;
	bool dynamic; /* shared memory whose size the launch gives */
};

struct label {
	const char *name;
	uint32_t length, at, line;
	uint32_t targets; /* of a table of labels: how many; its first branch is `at` */
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
	uint32_t call_room;
	bool in_function, whole;
	/* of the module */
	struct ptx_kernel header; /* of the function being read, until its body begins */
	struct ptx_kernel shared; /* collects the shared variables of the module and of its functions */
	uint32_t function_room, units; /* .version lines: each begins a unit of what was linked */
	uint32_t *unit_of; /* of each function's definition */
	uint32_t unit_room, address_room;
	uint32_t depth;
};

void parser_fail(struct parser *parser, uint32_t line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
void parser_next(struct parser *parser);
bool token_is(const struct token *token, const char *text);     /* a name or a dotted word */
bool parser_sign(struct parser *parser, char sign);             /* takes it when it is there */
void parser_need(struct parser *parser, char sign);
void parser_skip_to(struct parser *parser, char sign);          /* and takes it */
struct token parser_name(struct parser *parser, const char *what);
int64_t parser_integer(struct parser *parser);
/* Makes room for one more element; gives up when there are too many. */
void *parser_grow(struct parser *parser, void *array, uint32_t *room, uint32_t count, size_t size, uint32_t limit);
enum ptx_type type_named(const struct token *token);
/* `sources` is for instructions that only compute; the others read their operands themselves. */
struct opcode {
	const char *name;
	enum ptx_op op;
	uint8_t sources;
};

/* words.c */
const struct opcode *opcode_named(const struct token *word);
enum ptx_mode mode_named(const struct token *word); /* M_NONE: unknown; M_IGNORED: known and without effect here */
bool space_named(const struct token *word, uint8_t *space);
uint8_t special_named(const struct token *name, const struct token *next, enum ptx_type *type, bool *took);

/* parser.c */
uint64_t align_to(uint64_t value, uint64_t alignment);
char *copy_name(struct parser *parser, const struct token *name);
struct symbol *add_symbol(struct parser *parser, enum symbol_kind kind, const struct token *name);
void skip_block(struct parser *parser);
void body(struct parser *parser);

/* variables.c */
enum ptx_type declaration(struct parser *parser, uint32_t *alignment);
uint64_t dimensions(struct parser *parser);
void variable(struct parser *parser, enum symbol_kind kind, bool constant, bool external);

/* functions.c */
enum linkage { LINK_STATIC, LINK_VISIBLE, LINK_WEAK, LINK_EXTERN };
void formal_params(struct parser *parser);
void function(struct parser *parser, enum linkage linkage);
void call_params(struct parser *parser);
void call_operands(struct parser *parser, struct ptx_instruction *made);
void finish_functions(struct parser *parser);

/* operands.c */
/* While a kernel is read, slots need more than 16 bits: they are stored next to the code and folded in at its end. */
struct operand {
	uint32_t slot;
	bool is_register, negated;
	uint8_t special; /* PTX_NOT_SPECIAL, or one that only mov may read */
	enum ptx_type type;
};

struct ptx_instruction *emit(struct parser *parser, uint32_t line);
bool at_sign(const struct parser *parser, char sign);
struct operand operand(struct parser *parser, enum ptx_type type);
uint16_t source(struct parser *parser, enum ptx_type type);
uint16_t source_maybe_negated(struct parser *parser, struct ptx_instruction *made, int place, enum ptx_type type);
uint16_t destination(struct parser *parser, struct ptx_instruction *made);
/* {a, b} or {a, b, c, d} into the slots from `first` on; returns how many. */
uint32_t vector(struct parser *parser, struct ptx_instruction *made, int first, bool read, enum ptx_type type);
/* [register], [register+N], [name], [name+N], [N] */
uint16_t address(struct parser *parser, struct ptx_instruction *made);
uint16_t fold(struct parser *parser, const struct operand *from);
uint16_t unfold(const struct ptx_kernel *kernel, uint16_t slot);

/* instructions.c */
void parse_statement(struct parser *parser);
void branch_targets(struct parser *parser);
void finish_kernel(struct parser *parser);
struct symbol *find_symbol(struct parser *parser, const struct token *name);

#endif

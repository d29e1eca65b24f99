/* Cutting a PTX text into words. */
#include "parser.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void parser_fail(struct parser *parser, uint32_t line, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(parser->error->message, sizeof parser->error->message, format, arguments);
	va_end(arguments);
	parser->error->line = line;
	longjmp(parser->failed, 1);
}

static bool name_start(char c)
{
	return isalpha((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

static bool name_part(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$';
}

static void skip_blanks(struct parser *parser)
{
	while (parser->at < parser->end) {
		if (*parser->at == '\n') {
			parser->line++;
			parser->at++;
		} else if (isspace((unsigned char)*parser->at)) {
			parser->at++;
		} else if (parser->end - parser->at > 1 && parser->at[0] == '/' && parser->at[1] == '/') {
			while (parser->at < parser->end && *parser->at != '\n')
				parser->at++;
		} else if (parser->end - parser->at > 1 && parser->at[0] == '/' && parser->at[1] == '*') {
			uint32_t line = parser->line;
			for (parser->at += 2;; parser->at++) {
				if (parser->end - parser->at < 2)
					parser_fail(parser, line, "comment without end");
				if (parser->at[0] == '*' && parser->at[1] == '/')
					break;
				parser->line += *parser->at == '\n';
			}
			parser->at += 2;
		} else {
			return;
		}
	}
}

static void read_number(struct parser *parser, struct token *token)
{
	/* The text need not end with NUL, and no number is longer than this. */
	char text[80];
	size_t length = 0;
	const char *from = parser->at;
	bool exponent = false, point = false;
	token->kind = TOKEN_NUMBER;
	if (parser->end - from >= 10 && from[0] == '0' && strchr("fFdD", from[1])) {
		size_t digits = from[1] == 'f' || from[1] == 'F' ? 8 : 16;
		token->kind = TOKEN_FLOAT;
		token->is_double = digits == 16;
		if ((size_t)(parser->end - from) < digits + 2)
			parser_fail(parser, parser->line, "number cut off");
		memcpy(text, from + 2, digits);
		text[digits] = 0;
		for (size_t i = 0; i < digits; i++)
			if (!isxdigit((unsigned char)text[i]))
				parser_fail(parser, parser->line, "0%c needs %zu hexadecimal digits", from[1], digits);
		token->number = strtoull(text, NULL, 16);
		parser->at += digits + 2;
		return;
	}
	bool hexadecimal = parser->end - from > 1 && from[0] == '0' && (from[1] == 'x' || from[1] == 'X');
	for (; parser->at < parser->end && length < sizeof text - 1; parser->at++) {
		char c = *parser->at;
		if (!hexadecimal && c == '.')
			point = true;
		else if (!hexadecimal && (c == 'e' || c == 'E'))
			exponent = true;
		else if ((c == '+' || c == '-') && exponent && strchr("eE", text[length - 1]))
			;
		else if (!isalnum((unsigned char)c))
			break;
		text[length++] = c;
	}
	text[length] = 0;
	char *rest;
	if (point || exponent) {
		double value = strtod(text, &rest);
		token->kind = TOKEN_FLOAT;
		token->is_double = token->decimal = true;
		memcpy(&token->number, &value, sizeof value);
	} else {
		token->number = strtoull(text, &rest, 0);
		if (*rest == 'U')
			rest++;
	}
	if (*rest || rest == text)
		parser_fail(parser, parser->line, "%.20s is no number", text);
}

void parser_next(struct parser *parser)
{
	struct token *token = &parser->token;
	skip_blanks(parser);
	memset(token, 0, sizeof *token);
	token->line = parser->line;
	token->text = parser->at;
	/* A NUL ends the text: images are often passed with one, and without their length. */
	if (parser->at >= parser->end || *parser->at == 0) {
		token->kind = TOKEN_END;
		parser->end = parser->at;
		return;
	}
	char c = *parser->at;
	if (name_start(c)) {
		token->kind = TOKEN_NAME;
		do
			parser->at++;
		while (parser->at < parser->end && name_part(*parser->at));
		token->length = (uint32_t)(parser->at - token->text);
	} else if (c == '.' && parser->end - parser->at > 1 && name_start(parser->at[1])) {
		token->kind = TOKEN_DOT;
		token->text = ++parser->at;
		while (parser->at < parser->end &&
		       (name_part(*parser->at) || (parser->end - parser->at > 2 && parser->at[0] == ':' && parser->at[1] == ':') ||
			(*parser->at == ':' && parser->at[-1] == ':')))
			parser->at++;
		token->length = (uint32_t)(parser->at - token->text);
	} else if (isdigit((unsigned char)c)) {
		read_number(parser, token);
	} else if (c == '"') {
		token->kind = TOKEN_STRING;
		token->text = ++parser->at;
		while (parser->at < parser->end && *parser->at != '"' && *parser->at != '\n')
			parser->at++;
		if (parser->at >= parser->end || *parser->at != '"')
			parser_fail(parser, token->line, "string without end");
		token->length = (uint32_t)(parser->at++ - token->text);
	} else {
		token->kind = TOKEN_SIGN;
		token->sign = c;
		parser->at++;
	}
}

void parser_skip_to(struct parser *parser, char sign)
{
	/* Not by words: what is between need not be words that are known here. */
	while (parser->at < parser->end && *parser->at && *parser->at != sign)
		parser->line += *parser->at++ == '\n';
	parser_next(parser);
	parser_need(parser, sign);
}

bool token_is(const struct token *token, const char *text)
{
	return (token->kind == TOKEN_NAME || token->kind == TOKEN_DOT) && strlen(text) == token->length &&
	       !memcmp(text, token->text, token->length);
}

bool parser_sign(struct parser *parser, char sign)
{
	if (parser->token.kind != TOKEN_SIGN || parser->token.sign != sign)
		return false;
	parser_next(parser);
	return true;
}

void parser_need(struct parser *parser, char sign)
{
	if (!parser_sign(parser, sign))
		parser_fail(parser, parser->token.line, "expected '%c'", sign);
}

struct token parser_name(struct parser *parser, const char *what)
{
	struct token token = parser->token;
	if (token.kind != TOKEN_NAME)
		parser_fail(parser, token.line, "expected %s", what);
	parser_next(parser);
	return token;
}

int64_t parser_integer(struct parser *parser)
{
	bool negative = parser_sign(parser, '-');
	if (parser->token.kind != TOKEN_NUMBER)
		parser_fail(parser, parser->token.line, "expected a number");
	uint64_t value = parser->token.number;
	parser_next(parser);
	return (int64_t)(negative ? 0 - value : value);
}

void *parser_grow(struct parser *parser, void *array, uint32_t *room, uint32_t count, size_t size, uint32_t limit)
{
	if (count < *room)
		return array;
	uint32_t wanted = *room ? *room * 2 : 16;
	if (count >= limit)
		parser_fail(parser, parser->line, "too large: more than %u", limit);
	void *larger = realloc(array, wanted * size);
	if (!larger)
		parser_fail(parser, parser->line, "out of memory");
	memset((char *)larger + *room * size, 0, (wanted - *room) * size);
	*room = wanted;
	return larger;
}

enum ptx_type type_named(const struct token *token)
{
	static const char *const names[] = {"b8",  "b16", "b32", "b64", "u8",  "u16", "u32", "u64",
					    "s8",  "s16", "s32", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "pred"};
	for (int type = 0; type < PTX_NO_TYPE; type++)
		if (token->kind == TOKEN_DOT && token_is(token, names[type]))
			return (enum ptx_type)type;
	return PTX_NO_TYPE;
}

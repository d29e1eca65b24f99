/* --query-gpu and --query-compute-apps: fields of each GPU or process as comma-separated values. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

/* The fields that a list names, NULL behind the last. False after a message about the first unknown one. */
static bool choose(const struct query_field *known, const char *wanted, const struct query_field **chosen, int most)
{
	int found = 0;
	for (const char *word = wanted, *end; word; word = *end ? end + 1 : NULL) {
		word += strspn(word, " ");
		end = strchrnul(word, ',');
		size_t length = (size_t)(end - word);
		while (length && word[length - 1] == ' ')
			length--;
		const struct query_field *field = field_named(known, word, length);
		if (!field || found == most) {
			printf("Field \"%.*s\" is not a valid field to query.\n\n", (int)length, word);
			return false;
		}
		chosen[found++] = field;
	}
	chosen[found] = NULL;
	return true;
}

struct how {
	bool header, units;
};

/* The words of --format: csv, with noheader and nounits. */
static bool read_format(const char *text, struct how *how)
{
	bool csv = false;
	char words[128];
	*how = (struct how){true, true};
	snprintf(words, sizeof words, "%s", text ? text : "");
	for (char *rest = words, *word; (word = strsep(&rest, ", "));) {
		if (!strcmp(word, "csv"))
			csv = true;
		else if (!strcmp(word, "noheader"))
			how->header = false;
		else if (!strcmp(word, "nounits"))
			how->units = false;
		else if (*word) {
			refuse(format("--format=%s", text));
			return false;
		}
	}
	if (!csv)
		puts("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n");
	return csv;
}

static void print_header(const struct query_field **fields)
{
	for (int i = 0; fields[i]; i++) {
		printf("%s%.*s", i ? ", " : "", (int)(strchrnul(fields[i]->names, ' ') - fields[i]->names), fields[i]->names);
		if (*fields[i]->unit)
			printf(" [%s]", fields[i]->unit);
	}
	putchar('\n');
}

static void print_row(const struct query_field **fields, const struct subject *subject, bool units)
{
	for (int i = 0; fields[i]; i++) {
		const char *value = fields[i]->value(subject);
		printf("%s%s", i ? ", " : "", value ? value : node.major >= 500 ? "[N/A]" : "[Not Supported]");
		if (value && units && *fields[i]->unit)
			printf(" %s", fields[i]->unit);
	}
	putchar('\n');
}

int query_gpus(const char *wanted, const char *format_words)
{
	const struct query_field *fields[256];
	struct how how;
	if (!read_format(format_words, &how) || !choose(gpu_fields, wanted, fields, 255))
		return EXIT_INVALID;
	if (how.header)
		print_header(fields);
	for (unsigned i = 0; i < node.count; i++)
		print_row(fields, &(struct subject){&node.gpus[i], node.gpus[i].handle, NULL}, how.units);
	return EXIT_OK;
}

int query_processes(const char *wanted, const char *format_words)
{
	static struct process list[MAX_PROCESSES];
	const struct query_field *fields[256];
	struct how how;
	if (!read_format(format_words, &how) || !choose(process_fields, wanted, fields, 255))
		return EXIT_INVALID;
	if (how.header)
		print_header(fields);
	for (unsigned i = 0; i < node.count; i++) {
		unsigned found = list_processes(node.gpus[i].handle, list);
		for (unsigned p = 0; p < found; p++)
			print_row(fields, &(struct subject){&node.gpus[i], node.gpus[i].handle, &list[p]}, how.units);
	}
	return EXIT_OK;
}

void list_fields(bool processes)
{
	puts("List of valid properties to query for the switch:\n");
	for (const struct query_field *field = processes ? process_fields : gpu_fields; field->names; field++) {
		char names[256];
		snprintf(names, sizeof names, "%s", field->names);
		for (char *rest = names, *word, *between = ""; (word = strsep(&rest, " ")); between = " or ")
			printf("%s\"%s\"", between, word);
		printf("\n%s%s%s\n\n", field->help, *field->unit ? ", in " : "", field->unit);
	}
}

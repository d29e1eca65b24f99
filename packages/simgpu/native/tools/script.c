/*
 * Scripts of sh, as far as operands write them on a machine: one command a line, `if [ ... ]; then` and `fi` without
 * nesting, tests for programs and for root, echo to standard error, exit and exec with the script's arguments. Anything
 * else is refused, so a script that needs more is never taken for one that ran.
 */
#include "tools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_WORDS 256

/* The words of `exec WORD... "$@"`, then those of the script. */
static int replace_by(char *words, int argc, char **argv)
{
    char *next[MOST_WORDS] = {NULL};
    int count = 0;
    for (char *word; (word = strsep(&words, " "));) {
        int all = !strcmp(word, "\"$@\"");
        for (int i = 1; all && i < argc && count + 1 < MOST_WORDS; i++)
            next[count++] = argv[i];
        if (!all && *word && count + 1 < MOST_WORDS)
            next[count++] = word;
    }
    if (count && !strcmp(next[0], "chroot"))
        return change_root(count, next);
    return count ? start_program(next) : 0;
}

/* Returns whether the test of `if [ TEST ]; then` holds; -1 for a test that is unknown here. */
static int holds(const char *test)
{
    char program[PATH], path[PATH];
    if (!strcmp(test, "if [ \"$(id -u)\" != 0 ]; then"))
        return geteuid() != 0;
    if (sscanf(test, "if [ -x %4000s ]; then", program) == 1)
        return access(at(path, program), X_OK) == 0;
    if (sscanf(test, "if [ ! -x %4000s ]; then", program) == 1)
        return access(at(path, program), X_OK) != 0;
    return -1;
}

/* `argv` is that of the script, whose name comes first. */
int run_script(int argc, char **argv)
{
    static char text[65536];
    char *rest = read_file(argv[0], text, sizeof text);
    int active = 1;
    for (char *line; (line = strsep(&rest, "\n"));) {
        line += strspn(line, " \t");
        if (!strcmp(line, "fi"))
            active = 1;
        else if (!active || !*line || *line == '#' || !strncmp(line, "PATH=", 5))
            continue;
        else if (!strncmp(line, "if ", 3) && (active = holds(line)) >= 0)
            continue;
        else if (!strncmp(line, "echo \"", 6) && strstr(line, "\" >&2"))
            fprintf(stderr, "%.*s\n", (int)(strstr(line, "\" >&2") - line - 6), line + 6);
        else if (!strncmp(line, "exit ", 5))
            return atoi(line + 5);
        else if (!strncmp(line, "exec ", 5))
            return replace_by(line + 5, argc, argv);
        else
            return complain("%s: this machine does not know `%s`", argv[0], line) + 125;
    }
    return 0;
}

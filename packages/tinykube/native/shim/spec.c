/* Reading a specification: a file of NUL-terminated words, see main.c. Also how every part fails. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_WORDS 65536

int error_fd = 2;

void fail(const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text)
        length = sizeof text - 1;
    if (write(error_fd, text, (size_t)length) < 0)
        _exit(127);
    _exit(126);
}

struct spec read_spec(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) < 0)
        fail("%s: %s", path, strerror(errno));
    char *text = malloc((size_t)facts.st_size + 1);
    struct spec spec = {calloc(MAX_WORDS, sizeof(char *)), 0};
    if (!text || !spec.words)
        fail("out of memory");
    ssize_t have = 0;
    while (have < facts.st_size) {
        ssize_t got = read(fd, text + have, (size_t)(facts.st_size - have));
        if (got <= 0)
            fail("%s: short read", path);
        have += got;
    }
    text[have] = 0;
    close(fd);
    for (char *word = text; word < text + have && spec.count < MAX_WORDS; word += strlen(word) + 1)
        spec.words[spec.count++] = word;
    return spec;
}

int arity(const char *op)
{
    static const struct { const char *op; int arguments; } table[] = {
        {"log", 1}, {"exit", 1}, {"unshare", 1}, {"map", 3}, {"stage", 1}, {"skeleton", 1}, {"pivot", 0}, {"bind", 3},
        {"below", 4},
        {"dir", 1}, {"tmpfs", 2}, {"terminals", 1}, {"symlink", 2}, {"readonly", 1}, {"cwd", 1}, {"user", 2},
        {"group", 1}, {"tty", 0}, {"env", 1}, {"arg", 1}, {"hostname", 1}, {"processes", 1}, {"capabilities", 1}, {"join", 1}, {"cgroup", 1},
        {"nonewprivileges", 0}, {"address", 1}, {"detach", 1}, {"ipc", 1}, {"sysctl", 2},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].op, op))
            return table[i].arguments;
    fail("unknown operation %s", op);
}

static const char *find_word(struct spec spec, const char *op)
{
    for (size_t i = 0; i < spec.count; i += 1 + (size_t)arity(spec.words[i]))
        if (!strcmp(spec.words[i], op))
            return spec.words[i + 1];
    return NULL;
}

const char *word_after(struct spec spec, const char *op)
{
    const char *found = find_word(spec, op);
    if (!found)
        fail("the specification lacks %s", op);
    return found;
}

int has_word(struct spec spec, const char *op)
{
    return find_word(spec, op) != NULL;
}

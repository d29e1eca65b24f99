/* Just enough JSON: one string out of the state on standard input, one out of the bundle's config.json. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LARGEST (16 << 20)

/* All that can be read, ended by a zero; NULL when there is too much or nothing. */
static char *read_all(int handle)
{
    size_t size = 1 << 16, used = 0;
    char *text = malloc(size);
    while (text) {
        ssize_t got = read(handle, text + used, size - used - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
        if (used + 1 == size) {
            if (size >= LARGEST) {
                used = 0;
                break;
            }
            size *= 2;
            char *larger = realloc(text, size);
            if (!larger) {
                used = 0;
                break;
            }
            text = larger;
        }
    }
    if (!text || !used) {
        free(text);
        return NULL;
    }
    text[used] = 0;
    return text;
}

static const char *blank(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* Past the string that begins at `at`; into `into` (PATH bytes), when that is not NULL, its characters. NULL when it has
 * no end, is too long, or has an escape that no path needs. */
static const char *string(const char *at, char *into)
{
    size_t used = 0;
    for (at++; *at && *at != '"'; at++) {
        char letter = *at;
        if (letter == '\\') {
            letter = *++at;
            const char *plain = strchr("\"\\/", letter);
            if (!letter || (into && !plain))
                return NULL;
        }
        if (into) {
            if (used + 1 >= PATH)
                return NULL;
            into[used++] = letter;
        }
    }
    if (into)
        into[used] = 0;
    return *at ? at + 1 : NULL;
}

/* Past any value. */
static const char *value(const char *at)
{
    int depth = 0;
    do {
        at = blank(at);
        if (*at == '"') {
            at = string(at, NULL);
            if (!at)
                return NULL;
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (*at == '}' || *at == ']') {
            depth--;
            at++;
        } else if (*at == ',' || *at == ':') {
            at++;
        } else if (*at) {
            at += strcspn(at, ",:{}[]\" \t\r\n");
        } else {
            return NULL;
        }
    } while (depth > 0);
    return at;
}

/* The value of `key` in the object at `at`; NULL when it has none. */
static const char *member(const char *at, const char *key)
{
    char name[PATH];
    at = at ? blank(at) : NULL;
    if (!at || *at != '{')
        return NULL;
    at = blank(at + 1);
    while (*at == '"') {
        const char *after = string(at, name);
        if (!after && !(after = string(at, NULL)))
            return NULL;
        int found = string(at, name) && !strcmp(name, key);
        at = blank(after);
        if (*at != ':')
            return NULL;
        at = blank(at + 1);
        if (found)
            return at;
        at = value(at);
        if (!at)
            return NULL;
        at = blank(at);
        if (*at == ',')
            at = blank(at + 1);
    }
    return NULL;
}

static int text_at(const char *at, char *into)
{
    return !at || *at != '"' || !string(at, into);
}

int container_root(char *path)
{
    char bundle[PATH], file[PATH + 16], root[PATH];
    char *state = read_all(STDIN_FILENO);
    int bad = !state || text_at(member(state, "bundle"), bundle);
    free(state);
    errno = 0;
    if (bad)
        return complain("standard input is no state of a container", "");
    snprintf(file, sizeof file, "%s/config.json", bundle);
    int handle = open(file, O_RDONLY | O_CLOEXEC);
    char *config = handle < 0 ? NULL : read_all(handle);
    if (handle >= 0)
        close(handle);
    bad = !config || text_at(member(member(config, "root"), "path"), root);
    free(config);
    if (bad)
        return complain("it does not say where the container's root is", file);
    int length = *root == '/' ? snprintf(path, PATH, "%s", root) : snprintf(path, PATH, "%s/%s", bundle, root);
    if (length >= PATH || !strcmp(path, "/"))
        return complain("this is no container's root", path);
    return 0;
}

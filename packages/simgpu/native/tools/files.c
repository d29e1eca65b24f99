/* Files of the node's root. */
#include "tools.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *root = "";
const char *tool;

int complain(const char *format, const char *a, const char *b)
{
    fprintf(stderr, "%s: ", tool);
    fprintf(stderr, format, a, b);
    fputc('\n', stderr);
    return 1;
}

char *at(char *buffer, const char *relative)
{
    snprintf(buffer, PATH, "%s/%s", root, relative);
    return buffer;
}

int exists(const char *relative)
{
    char path[PATH];
    return access(at(path, relative), F_OK) == 0;
}

void make_directories(const char *relative)
{
    char path[PATH];
    at(path, relative);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    mkdir(path, 0755);
}

int write_file(const char *relative, const char *text)
{
    char path[PATH], new[PATH + 8];
    at(path, relative);
    char directory[PATH];
    snprintf(directory, sizeof directory, "%s", relative);
    char *slash = strrchr(directory, '/');
    if (slash) {
        *slash = 0;
        make_directories(directory);
    }
    snprintf(new, sizeof new, "%s.new", path);
    FILE *file = fopen(new, "w");
    if (!file)
        return complain("ERROR: could not write %s: %s", path, strerror(errno));
    fputs(text, file);
    if (fclose(file) != 0 || rename(new, path) != 0)
        return complain("ERROR: could not write %s: %s", path, strerror(errno));
    return 0;
}

char *read_file(const char *relative, char *buffer, size_t size)
{
    char path[PATH];
    FILE *file = fopen(at(path, relative), "r");
    size_t got = file ? fread(buffer, 1, size - 1, file) : 0;
    if (file)
        fclose(file);
    buffer[got] = 0;
    return buffer;
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *where)
{
    (void)facts, (void)kind, (void)where;
    return remove(path);
}

void remove_tree(const char *relative)
{
    char path[PATH];
    nftw(at(path, relative), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *release(void)
{
    static char text[256];
    read_file("proc/sys/kernel/osrelease", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    return text;
}

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
const char *machine = "";
const char *tool;

int complain(const char *format, const char *a, const char *b)
{
    fprintf(stderr, "%s: ", tool);
    fprintf(stderr, format, a, b);
    fputc('\n', stderr);
    return 1;
}

/* The driver's root has these of the machine: they are bound there. The last is the hardware, and no file of any root. */
static int is_bound(const char *relative)
{
    static const char *const bound[] = {"proc/", "sys/", "dev/", "run/", "var/lib/simgpu/"};
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++)
        if (!strncmp(relative, bound[i], strlen(bound[i])))
            return 1;
    return 0;
}

char *at(char *buffer, const char *relative)
{
    relative += strspn(relative, "/");
    snprintf(buffer, PATH, "%s/%s", is_bound(relative) ? machine : root, relative);
    return buffer;
}

char *readable(char *buffer, const char *relative)
{
    if (access(at(buffer, relative), F_OK) != 0 && strcmp(root, machine))
        snprintf(buffer, PATH, "%s/%s", machine, relative + strspn(relative, "/"));
    return buffer;
}

int exists(const char *relative)
{
    char path[PATH];
    return access(readable(path, relative), F_OK) == 0;
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
    FILE *file = fopen(readable(path, relative), "r");
    size_t got = file ? fread(buffer, 1, size - 1, file) : 0;
    if (file)
        fclose(file);
    buffer[got] = 0;
    return buffer;
}

int copy_file(const char *from, const char *to, unsigned mode)
{
    char path[PATH], buffer[65536];
    FILE *in = fopen(readable(path, from), "r");
    if (!in)
        return complain("cannot stat '%s': %s", from, strerror(errno));
    unlink(at(path, to));
    FILE *out = fopen(path, "w");
    if (!out) {
        fclose(in);
        return complain("cannot create regular file '%s': %s", to, strerror(errno));
    }
    int bad = 0;
    for (size_t got; !bad && (got = fread(buffer, 1, sizeof buffer, in)) > 0;)
        bad = fwrite(buffer, 1, got, out) != got;
    bad |= ferror(in);
    fclose(in);
    bad |= fclose(out) != 0;
    return bad || chmod(path, mode) != 0 ? complain("error writing '%s': %s", to, strerror(errno)) : 0;
}

char *setting(const char *path, const char *name, char *value, size_t size)
{
    char line[512];
    size_t length = strlen(name);
    FILE *stream = fopen(path, "r");
    *value = 0;
    while (stream && fgets(line, sizeof line, stream))
        if (!strncmp(line, name, length) && line[length] == '=')
            snprintf(value, size, "%.*s", (int)strcspn(line + length + 1, "\r\n"), line + length + 1);
    if (stream)
        fclose(stream);
    return value;
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

/* mkdir -p PATH... */
int make_directory(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-')
            make_directories(argv[i] + strspn(argv[i], "/"));
    return 0;
}

/* rm -rf [--one-file-system] PATH... */
int remove_files(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-')
            remove_tree(argv[i]);
    return 0;
}

/* mv FROM TO */
int move_file(int argc, char **argv)
{
    char from[PATH], to[PATH];
    if (argc != 3)
        return complain("missing file operand%s%s", "", "");
    if (rename(at(from, argv[1]), at(to, argv[2])) != 0)
        return complain("cannot stat '%s': %s", argv[1], strerror(errno));
    return 0;
}

/* install -D -m MODE -t DIRECTORY FILE... */
int install_files(int argc, char **argv)
{
    const char *directory = NULL;
    char target[PATH];
    unsigned mode = 0755;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-t") && i + 1 < argc) {
            directory = argv[++i];
            make_directories(directory + strspn(directory, "/"));
        } else if (!strcmp(argv[i], "-m") && i + 1 < argc)
            mode = (unsigned)strtoul(argv[++i], NULL, 8);
        else if (argv[i][0] != '-') {
            const char *slash = strrchr(argv[i], '/');
            if (!directory)
                return complain("missing destination file operand after '%s'%s", argv[i], "");
            snprintf(target, sizeof target, "%s/%s", directory, slash ? slash + 1 : argv[i]);
            if (copy_file(argv[i], target, mode))
                return 1;
        }
    }
    return 0;
}

/*
 * mount and umount: proc/1/mounts has what is mounted. The place of an overlay is a link to its upper layer, and the
 * programs here look in the machine's root for what that lacks (see readable); a bind mount is a link, too. So a layer
 * has what was written, whenever a process or the machine dies.
 */
#include "tools.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAILED 32

static const char table[] = "proc/1/mounts";

static int failed(const char *format, const char *a, const char *b)
{
    complain(format, a, b);
    return FAILED;
}

static int add_line(const char *device, const char *place, const char *kind, const char *options)
{
    char text[65536], line[2 * PATH];
    read_file(table, text, sizeof text);
    snprintf(line, sizeof line, "%s %s %s rw%s%s 0 0\n", device, place, kind, *options ? "," : "", options);
    if (strlen(text) + strlen(line) >= sizeof text)
        return FAILED;
    strcat(text, line);
    return write_file(table, text) ? FAILED : 0;
}

static void option(const char *options, const char *name, char *value, size_t size)
{
    const char *found = strstr(options, name);
    found = found ? found + strlen(name) : "";
    snprintf(value, size, "%.*s", (int)strcspn(found, ", "), found);
}

/* Where the content of a directory waits that something is mounted on. */
static const char *beneath(const char *path)
{
    static char hidden[PATH + 16];
    snprintf(hidden, sizeof hidden, "%s.beneath", path);
    return hidden;
}

/* Makes `place` a link that leads to `what`, both paths of the machine, wherever the machine's root is seen. */
static int lead(const char *place, const char *what)
{
    char path[PATH], real[PATH], above[PATH] = "", target[PATH] = "";
    at(path, place);
    char *name = strrchr(path, '/');
    *name = 0;
    if (!realpath(*path ? path : "/", real) || (*machine && !realpath(machine, above)))
        return 1;
    *name = '/';
    for (const char *slash = real + strlen(above); (slash = strchr(slash, '/')) && slash[1]; slash++)
        strcat(target, "../");
    strncat(target, what + strspn(what, "/"), sizeof target - strlen(target) - 1);
    if (unlink(path) != 0 && rmdir(path) != 0 && errno != ENOENT && rename(path, beneath(path)) != 0)
        return 1;
    return symlink(target, path) != 0;
}

/* The machine's own links, as lib -> usr/lib: paths through them have to lead to the same folder in the layer. */
static int copy_links(const char *lower, const char *upper)
{
    char from[PATH], to[PATH], target[PATH];
    DIR *directory = opendir(at(from, lower));
    int bad = directory == NULL;
    for (struct dirent *entry; !bad && (entry = readdir(directory));) {
        snprintf(from, sizeof from, "%s/%s/%.200s", root, lower + strspn(lower, "/"), entry->d_name);
        ssize_t length = readlink(from, target, sizeof target - 1);
        if (length <= 0)
            continue;
        target[length] = 0;
        snprintf(from, sizeof from, "%s/%.200s", upper, entry->d_name);
        bad = symlink(target, at(to, from)) != 0 && errno != EEXIST;
        snprintf(from, sizeof from, "%s/%.3900s", upper, target);
        if (*target != '/')
            make_directories(from + strspn(from, "/"));
    }
    if (directory)
        closedir(directory);
    return bad;
}

/* Hooks of container runtimes start it from the driver's root, by themselves. */
static int lead_to_ldconfig(const char *upper, const char *place)
{
    static const char program[] = "usr/sbin/ldconfig";
    char path[PATH], folder[PATH], from[PATH];
    if (access(at(path, program), F_OK) != 0)
        return 0;
    snprintf(folder, sizeof folder, "%s/usr/sbin", upper + strspn(upper, "/"));
    make_directories(folder);
    snprintf(from, sizeof from, "%.4000s/%s", place, program);
    return lead(from, program);
}

static int overlay(const char *device, const char *options, const char *place)
{
    char lower[PATH], upper[PATH];
    option(options, "lowerdir=", lower, sizeof lower);
    option(options, "upperdir=", upper, sizeof upper);
    if (!exists(upper) || !exists(place))
        return failed("%s: special device %s does not exist.", place, device);
    if (copy_links(lower, upper) || lead(place, upper) || lead_to_ldconfig(upper, place))
        return failed("%s: mount failed: %s.", place, strerror(errno));
    return add_line(device, place, "overlay", options);
}

static int bind_mount(const char *what, const char *place)
{
    return lead(place, what) ? failed("%s: mount failed: %s.", place, strerror(errno)) : add_line("none", place, "none", "");
}

/* A layer of this machine sees each new file below it already. */
static int mount_again(const char *place)
{
    char text[65536], wanted[PATH + 2];
    read_file(table, text, sizeof text);
    snprintf(wanted, sizeof wanted, " %s ", place);
    return strstr(text, wanted) ? 0 : failed("%s: mount point not mounted or bad option%s.", place, "");
}

int mount_tool(int argc, char **argv)
{
    const char *kind = "", *options = "", *words[2] = {"", ""};
    int bind = 0, count = 0;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--make-", 7))
            return 0;
        if (!strcmp(argv[i], "-t") && i + 1 < argc)
            kind = argv[++i];
        else if (!strcmp(argv[i], "-o") && i + 1 < argc)
            options = argv[++i];
        else if (!strcmp(argv[i], "--bind") || !strcmp(argv[i], "--rbind"))
            bind = 1;
        else if (argv[i][0] != '-' && count < 2)
            words[count++] = argv[i];
    }
    if (count == 1 && strstr(options, "remount"))
        return mount_again(words[0]);
    if (count != 2 || (!bind && strcmp(kind, "overlay")))
        return failed("bad usage%s%s", "", "");
    return bind ? bind_mount(words[0], words[1]) : overlay(words[0], options, words[1]);
}

/* umount [-R] [-l] PLACE */
int umount_tool(int argc, char **argv)
{
    static char text[65536], rest[65536], *lines[512];
    const char *place = argv[argc - 1];
    size_t length = strlen(place);
    int count = 0, found = 0;
    for (char *line = strtok(read_file(table, text, sizeof text), "\n"); line && count < 512; line = strtok(NULL, "\n"))
        lines[count++] = line;
    for (int i = count; i--;) { /* the newest lie inside the others */
        char where[PATH], kept[2 * PATH], path[PATH];
        if (sscanf(lines[i], "%*s %4095s", where) != 1)
            continue;
        if (!strncmp(where, place, length) && (!where[length] || where[length] == '/')) {
            unlink(at(path, where));
            if (rename(beneath(path), path) != 0)
                mkdir(path, 0755);
            found = 1;
            continue;
        }
        snprintf(kept, sizeof kept, "%s\n", lines[i]);
        size_t size = strlen(kept);
        memmove(rest + size, rest, strlen(rest) + 1);
        memcpy(rest, kept, size);
    }
    if (!found)
        return failed("%s: not mounted.%s", place, "");
    return write_file(table, rest) ? FAILED : 0;
}

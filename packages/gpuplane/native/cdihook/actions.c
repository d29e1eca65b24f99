/* Links to the driver's libraries, and the forward compatibility of CUDA. */
#include "hook.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int create_symlink(int root, const char *link)
{
    char target[PATH], name[PATH], found[PATH];
    const char *middle = strstr(link, "::");
    errno = 0;
    if (!middle || middle == link || !middle[2] || (size_t)(middle - link) >= sizeof target)
        return complain("this is no TARGET::PATH", link);
    snprintf(target, sizeof target, "%.*s", (int)(middle - link), link);
    const char *path = middle + 2;
    int directory = make_parents(root, path, name);
    if (directory < 0)
        return complain("its directory cannot be made", path);
    ssize_t length = readlinkat(directory, name, found, sizeof found - 1);
    int there = length >= 0 && (size_t)length == strlen(target) && !memcmp(found, target, (size_t)length);
    int bad = !there && ((unlinkat(directory, name, 0) != 0 && errno != ENOENT) || symlinkat(target, directory, name) != 0);
    close(directory);
    return bad ? complain("the link cannot be made", path) : 0;
}

int create_symlinks(int root, const struct words *links)
{
    for (int i = 0; i < links->count; i++)
        if (create_symlink(root, links->of[i]))
            return 1;
    return 0;
}

/* The major version of the container's own driver library, 0 when it has none or several. */
static long compat_major(int root, const char *directory)
{
    int handle = open_inside(root, directory, O_RDONLY | O_DIRECTORY);
    DIR *entries = handle < 0 ? NULL : fdopendir(handle);
    long found = 0;
    if (!entries)
        return 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        static const char prefix[] = "libcuda.so.";
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) || !strchr(entry->d_name + sizeof prefix - 1, '.'))
            continue;
        if (found) {
            found = 0; /* it is ambiguous which one is meant */
            break;
        }
        found = strtol(entry->d_name + sizeof prefix - 1, NULL, 10);
    }
    closedir(entries);
    return found;
}

/* A container may bring the driver library of a newer CUDA than the host's; its directory then goes before all others.
 * The name sorts before that of update_ldcache's file. */
int enable_cuda_compat(int root, const char *host_driver, const char *directory)
{
    char line[PATH + 2];
    long host = strtol(host_driver, NULL, 10);
    if (host <= 0 || compat_major(root, directory) <= host)
        return 0;
    snprintf(line, sizeof line, "%s\n", directory);
    return write_inside(root, "/etc/ld.so.conf.d/00-compat-gpuplane.conf", line);
}

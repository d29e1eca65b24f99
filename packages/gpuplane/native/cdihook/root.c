/* Files of the container, never of the host: the kernel resolves every link as if the container's root were the root. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int open_root(const char *path)
{
    return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* For kernels before 5.6: component by component, and no link on the way is followed. */
static int walk_inside(int root, const char *path, int flags)
{
    char way[PATH];
    if (snprintf(way, sizeof way, "%s", path) >= PATH) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int handle = openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (char *rest, *part = strtok_r(way, "/", &rest); part && handle >= 0; part = strtok_r(NULL, "/", &rest)) {
        int next = -1;
        if (strcmp(part, ".."))
            next = openat(handle, part, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        else
            errno = EINVAL;
        close(handle);
        handle = next;
    }
    if (handle < 0 || !(flags & O_DIRECTORY))
        return handle;
    int directory = openat(handle, ".", flags | O_NOFOLLOW | O_CLOEXEC);
    close(handle);
    return directory;
}

int open_inside(int root, const char *path, int flags)
{
    struct open_how how = {
        .flags = (unsigned long long)(flags | O_CLOEXEC),
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
    };
    int handle = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    return handle < 0 && errno == ENOSYS ? walk_inside(root, path, flags) : handle;
}

int make_parents(int root, const char *path, char *name)
{
    char way[PATH];
    if (snprintf(way, sizeof way, "%s", path) >= PATH) {
        errno = ENAMETOOLONG;
        return -1;
    }
    char *last = strrchr(way, '/');
    snprintf(name, PATH, "%s", last ? last + 1 : way);
    if (!*name || !strcmp(name, ".") || !strcmp(name, "..")) {
        errno = EINVAL;
        return -1;
    }
    if (last)
        *last = 0;
    else
        *way = 0;
    int handle = open_inside(root, "/", O_PATH | O_DIRECTORY);
    char so_far[PATH] = "";
    for (char *part = strtok(way, "/"); part && handle >= 0; part = strtok(NULL, "/")) {
        strcat(so_far, "/"); /* never longer than `way` */
        strcat(so_far, part);
        int next = open_inside(root, so_far, O_PATH | O_DIRECTORY);
        if (next < 0 && errno == ENOENT && mkdirat(handle, part, 0755) == 0)
            next = open_inside(root, so_far, O_PATH | O_DIRECTORY);
        close(handle);
        handle = next;
    }
    return handle;
}

int write_inside(int root, const char *path, const char *text)
{
    char name[PATH];
    int directory = make_parents(root, path, name);
    if (directory < 0)
        return complain("its directory cannot be made", path);
    /* a new file: an existing one may be a link to anywhere */
    if (unlinkat(directory, name, 0) != 0 && errno != ENOENT)
        return complain("it cannot be replaced", path);
    int handle = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    close(directory);
    size_t size = strlen(text);
    /* readable for all, whatever the umask: the container may run as any user */
    int bad = handle < 0 || write(handle, text, size) != (ssize_t)size || fchmod(handle, 0644) != 0;
    if (handle >= 0)
        close(handle);
    return bad ? complain("it cannot be written", path) : 0;
}

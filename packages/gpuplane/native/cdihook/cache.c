/* The loader's cache: the host's ldconfig, run with the container's root as its root and nothing of the host in sight. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CONFIG "/etc/ld.so.conf"

/* Where distributions keep their libraries. ldconfig knows those of the host's distribution only, which may be of
 * another family than the container's. */
static const char *const usual[] = {
    "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/lib64",                "/usr/lib64",
};

static int is_there(int root, const char *path)
{
    int handle = open_inside(root, path, O_PATH);
    if (handle >= 0)
        close(handle);
    return handle >= 0;
}

static int configure(int root, const struct words *folders)
{
    char text[MANY * 128] = "";
    size_t used = 0;
    for (int i = 0; i < folders->count; i++) {
        errno = 0;
        if (strchr(folders->of[i], '\n') || used + strlen(folders->of[i]) + 2 > sizeof text)
            return complain("this is no folder", folders->of[i]);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\n", folders->of[i]);
    }
    if (write_inside(root, "/etc/ld.so.conf.d/00-nvcr-gpuplane.conf", text))
        return 1;
    used = 0;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (is_there(root, usual[i]))
            used += (size_t)snprintf(text + used, sizeof text - used, "%s\n", usual[i]);
    if (used && write_inside(root, "/etc/ld.so.conf.d/zz-nvcr-gpuplane.conf", text))
        return 1;
    return is_there(root, CONFIG) ? 0 : write_inside(root, CONFIG, "include /etc/ld.so.conf.d/*.conf\n");
}

/* Make the container's root ours, in mounts of our own; 0, or -1. */
static int move_in(int root)
{
    char name[64], path[PATH];
    snprintf(name, sizeof name, "/proc/self/fd/%d", root);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length <= 0 || unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        return -1;
    path[length] = 0;
    /* only a mount can become the root */
    if (mount(path, path, NULL, MS_BIND | MS_REC, NULL) != 0 || chdir(path) != 0)
        return -1;
    if (syscall(SYS_pivot_root, ".", ".") == 0)
        return umount2(".", MNT_DETACH) != 0 || chdir("/") != 0 ? -1 : 0;
    /* a machine that runs from its initial file system cannot exchange it */
    return chroot(".") != 0 || chdir("/") != 0 ? -1 : 0;
}

int update_ldcache(int root, const struct words *folders, const char *ldconfig)
{
    /* Debian's ldconfig is a script around the program */
    char real[PATH];
    snprintf(real, sizeof real, "%s.real", ldconfig);
    int program = open(real, O_RDONLY | O_CLOEXEC);
    if (program < 0)
        program = open(ldconfig, O_RDONLY | O_CLOEXEC);
    if (program < 0)
        return complain("the host has no such program", ldconfig);
    if (configure(root, folders))
        return 1;
    if (move_in(root) != 0)
        return complain("its root cannot be moved into", "update-ldcache");
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    char *words[] = {"ldconfig", "-f", CONFIG, "-C", "/etc/ld.so.cache", NULL}, *none[] = {NULL};
    syscall(SYS_execveat, program, "", words, none, AT_EMPTY_PATH);
    return complain("it cannot be run", ldconfig);
}

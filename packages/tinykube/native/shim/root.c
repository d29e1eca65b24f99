/*
 * The file system of a container: a private tmpfs as its root, overlays of the machine's directories, and its mounts.
 *
 * Everything is made in the container's own mount namespace, so the end of its last process takes it all back.
 */
#include "shim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#define ALL_BELOW 0x8000 /* AT_RECURSIVE */

static char old_root[64] = "";
static char stage[4096];
static int in_user_namespace;

void make_parents(const char *path)
{
    char copy[4096];
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy)
        fail("path too long: %.100s", path);
    for (char *at = strchr(copy + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(copy, 0755); /* what cannot be made shows at the last step, with its own message */
        *at = '/';
    }
}

static void join(char *buffer, size_t size, const char *directory, const char *name)
{
    if (snprintf(buffer, size, "%s/%s", directory, name) >= (int)size)
        fail("path too long: %.100s/%s", directory, name);
}

/*
 * Puts a tmpfs over a directory, with everything in it mounted from where it was: then more can be added. That is how a
 * library gets into /usr/lib in a user namespace, where no process may write to files of the machine's root.
 * Earlier mounts below it stay: the descriptor leads to the directory that the tmpfs covers.
 */
static void open_up(const char *directory)
{
    char original[4096], from[4400], to[4400], link[4096];
    struct stat facts;
    DIR *entries = opendir(directory);
    if (!entries || mount("tinykube", directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755") < 0)
        fail("open up %s: %s", directory, strerror(errno));
    snprintf(original, sizeof original, "%s/proc/self/fd/%d", old_root, dirfd(entries));
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        join(from, sizeof from, original, entry->d_name);
        join(to, sizeof to, directory, entry->d_name);
        if (lstat(from, &facts) < 0)
            continue;
        if (S_ISLNK(facts.st_mode)) {
            ssize_t length = readlink(from, link, sizeof link - 1);
            link[length < 0 ? 0 : length] = 0;
            if (symlink(link, to) < 0)
                fail("symlink %s: %s", to, strerror(errno));
            continue;
        }
        int fd = S_ISDIR(facts.st_mode) ? mkdir(to, 0755) : open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        if (fd > 0)
            close(fd);
        if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) < 0)
            fail("mount %s on %s: %s", from, to, strerror(errno));
    }
    closedir(entries);
}

/* Makes sure that something can be made at `path`: its deepest directory that exists is opened up if it has to be. */
void make_room(const char *path)
{
    char copy[4096];
    if (!*old_root || access(path, F_OK) == 0)
        return;
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy)
        fail("path too long: %.100s", path);
    for (char *slash; (slash = strrchr(copy, '/')) && slash != copy;) {
        *slash = 0;
        if (access(copy, F_OK) == 0) {
            if (access(copy, W_OK) != 0)
                open_up(copy);
            return;
        }
    }
}

void make_directory(const char *path)
{
    make_room(path);
    make_parents(path);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        fail("mkdir %s: %s", path, strerror(errno));
}

/* Adds flags to a mount. Those that the owner of the machine locked must be named again. */
static void add_flags(const char *path, unsigned long flags)
{
    struct statvfs facts;
    if (statvfs(path, &facts) == 0) {
        if (facts.f_flag & ST_RDONLY) flags |= MS_RDONLY;
        if (facts.f_flag & ST_NOSUID) flags |= MS_NOSUID;
        if (facts.f_flag & ST_NODEV) flags |= MS_NODEV;
        if (facts.f_flag & ST_NOEXEC) flags |= MS_NOEXEC;
        if (facts.f_flag & ST_NOATIME) flags |= MS_NOATIME;
        if (facts.f_flag & ST_RELATIME) flags |= MS_RELATIME;
    }
    if (mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | flags, NULL) < 0)
        fail("remount %s%s: %s", path, flags & MS_RDONLY ? " read-only" : "", strerror(errno));
}

void remount_readonly(const char *path)
{
    add_flags(path, MS_RDONLY);
}

/* A field of mountinfo: blanks and their like are octal numbers. */
static void decode(char *text)
{
    char *to = text;
    for (const char *at = text; *at; to++) {
        unsigned value;
        if (*at == '\\' && sscanf(at + 1, "%3o", &value) == 1) {
            *to = (char)value;
            at += 4;
        } else {
            *to = *at++;
        }
    }
    *to = 0;
}

/* With everything mounted below it: of the machine's directories the other disks too. Without devices, as all that a container
   may write: a program with CAP_MKNOD would make the machine's disk there. Devices of containers are mounts of their own. */
static void remount_all_readonly(const char *path)
{
    const struct { uint64_t set, clear, propagation, users; } attributes = {.set = 1 | 4 /* MOUNT_ATTR_RDONLY, MOUNT_ATTR_NODEV */};
    char table[80], line[16384], point[8192];
    if (syscall(SYS_mount_setattr, AT_FDCWD, path, ALL_BELOW, &attributes, sizeof attributes) == 0)
        return;
    /* Kernels before 5.12: each mount by itself. */
    add_flags(path, MS_RDONLY | MS_NODEV);
    snprintf(table, sizeof table, "%s/proc/self/mountinfo", old_root);
    FILE *mounts = fopen(table, "re");
    size_t length = strlen(path);
    if (!mounts)
        fail("%s: %s", table, strerror(errno));
    while (fgets(line, sizeof line, mounts)) {
        if (sscanf(line, "%*s %*s %*s %*s %8191s", point) != 1)
            continue;
        decode(point);
        if (!strncmp(point, path, length) && point[length] == '/')
            add_flags(point, MS_RDONLY | MS_NODEV);
    }
    fclose(mounts);
}

/*
 * A descriptor of a path below a directory, which no symbolic link on the way leads elsewhere: containers write there, so it
 * may have changed since the kubelet looked. -1 where the kernel cannot tell (before 5.6).
 */
static int open_below(const char *directory, const char *path)
{
    char top[8192];
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    snprintf(top, sizeof top, "%s%s", old_root, directory);
    int from = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (from < 0)
        fail("mount source %s: %s", directory, strerror(errno));
    int found = (int)syscall(SYS_openat2, from, *path ? path : ".", &how, sizeof how);
    int reason = errno;
    close(from);
    if (found < 0 && reason != ENOSYS && reason != EPERM)
        fail("mount source %s/%s: %s", directory, path, strerror(reason));
    return found;
}

void bind_below(const char *directory, const char *path, const char *target, const char *mode)
{
    char source[8192];
    int fd = open_below(directory, path);
    if (fd < 0)
        snprintf(source, sizeof source, "%s%s%s", directory, *path ? "/" : "", path);
    else
        snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    bind_mount(source, target, mode);
    add_flags(target, MS_NODEV);
    if (fd >= 0)
        close(fd);
}

void bind_mount(const char *source, const char *target, const char *mode)
{
    char from[8192];
    struct stat facts;
    snprintf(from, sizeof from, "%s%s", old_root, source);
    if (stat(from, &facts) < 0)
        fail("mount source %s: %s", source, strerror(errno));
    if (S_ISDIR(facts.st_mode)) {
        make_directory(target);
    } else {
        struct stat there;
        make_room(target);
        make_parents(target);
        if (lstat(target, &there) == 0 && S_ISLNK(there.st_mode))
            unlink(target); /* a library's link in the machine's own directory must not lead the mount astray */
        int fd = open(target, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        if (fd >= 0)
            close(fd);
        else if (lstat(target, &there) != 0)
            fail("create a place to mount on at %s", target);
    }
    if (mount(from, target, NULL, MS_BIND | MS_REC, NULL) < 0)
        fail("mount %s on %s: %s", source, target, strerror(errno));
    if (!strcmp(mode, "ro"))
        remount_readonly(target);
    else if (!strcmp(mode, "all-ro"))
        remount_all_readonly(target);
}

void mount_processes(const char *path)
{
    make_directory(path);
    if (mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        fail("mount %s: %s", path, strerror(errno));
}

void leave_machine(const char *how)
{
    if (!strcmp(how, "user")) {
        in_user_namespace = 1;
        leave_users();
    } else if (unshare(CLONE_NEWNS) < 0) {
        fail("unshare mount namespace: %s", strerror(errno));
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        fail("make / private: %s", strerror(errno));
}

void start_stage(const char *directory)
{
    char path[4200];
    snprintf(stage, sizeof stage, "%s", directory);
    /* By the source of its root, `down` knows the containers of a cluster. */
    if (mount(stage, stage, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755") < 0)
        fail("mount tmpfs on %s: %s", stage, strerror(errno));
    snprintf(path, sizeof path, "%s/root", stage);
    make_directory(path);
    snprintf(path, sizeof path, "%s/layers", stage);
    make_directory(path);
}

void overlay(const char *directory)
{
    static int layers;
    char upper[4200], work[4200], target[8400], options[17000];
    int number = layers++;
    snprintf(upper, sizeof upper, "%s/layers/u%d", stage, number);
    snprintf(work, sizeof work, "%s/layers/w%d", stage, number);
    snprintf(target, sizeof target, "%s/root%s", stage, directory);
    make_directory(upper);
    make_directory(work);
    make_directory(target);
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s%s", directory, upper, work,
             in_user_namespace ? ",userxattr" : "");
    if (mount("tinykube", target, "overlay", MS_NODEV, options) == 0)
        return;
    /* Kernels before 5.11 have no overlays in a user namespace: show it as it is, read-only. */
    if (mount(directory, target, NULL, MS_BIND | MS_REC, NULL) < 0)
        fail("mount %s on %s: %s", directory, target, strerror(errno));
    remount_all_readonly(target);
}

void pivot(void)
{
    char root[4200], put_old[4400], name[48];
    unsigned long long random[2];
    /* A volume may have a symbolic link at which something is to be mounted. It must not lead to the machine's root, so no
       container knows this name. */
    if (syscall(SYS_getrandom, random, sizeof random, 0) != (long)sizeof random)
        fail("getrandom: %s", strerror(errno));
    snprintf(name, sizeof name, ".old-%016llx%016llx", random[0], random[1]);
    snprintf(root, sizeof root, "%s/root", stage);
    snprintf(put_old, sizeof put_old, "%s/%s", root, name);
    if (mount(root, root, NULL, MS_BIND | MS_REC, NULL) < 0)
        fail("bind %s: %s", root, strerror(errno));
    make_directory(put_old);
    if (chdir(root) < 0 || syscall(SYS_pivot_root, ".", name) < 0)
        fail("pivot_root %s: %s", root, strerror(errno));
    if (chdir("/") < 0)
        fail("chdir /: %s", strerror(errno));
    snprintf(old_root, sizeof old_root, "/%s", name);
}

void detach_mount(const char *path)
{
    if (umount2(path, MNT_DETACH) < 0 && errno != EINVAL) /* in a user namespace, mounts of the machine stay together */
        fail("unmount %s: %s", path, strerror(errno));
}

void drop_old_root(void)
{
    if (!*old_root)
        return;
    if (umount2(old_root, MNT_DETACH) < 0)
        fail("unmount the machine's root: %s", strerror(errno));
    rmdir(old_root);
}

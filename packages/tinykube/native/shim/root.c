/*
 * What a container sees: a private tmpfs as its root, overlays of the machine's directories, mounts of what it was given.
 *
 * Everything is made in the container's own mount namespace, so the end of its last process takes it all back.
 */
#include "shim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *old_root = "";
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
 * library gets into /usr/lib in a user namespace, where nobody may write to what the machine's root owns.
 * What was mounted below it before stays: the descriptor leads to the directory that the tmpfs covers.
 */
static void open_up(const char *directory)
{
    char original[4096], from[4400], to[4400], link[4096];
    struct stat facts;
    DIR *entries = opendir(directory);
    if (!entries || mount("tinykube", directory, "tmpfs", MS_NOSUID, "mode=0755") < 0)
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

void remount_readonly(const char *path)
{
    struct statvfs facts;
    unsigned long keep = 0;
    if (statvfs(path, &facts) == 0) { /* flags locked by the owner of the machine must be named again */
        if (facts.f_flag & ST_NOSUID) keep |= MS_NOSUID;
        if (facts.f_flag & ST_NODEV) keep |= MS_NODEV;
        if (facts.f_flag & ST_NOEXEC) keep |= MS_NOEXEC;
        if (facts.f_flag & ST_NOATIME) keep |= MS_NOATIME;
        if (facts.f_flag & ST_RELATIME) keep |= MS_RELATIME;
    }
    if (mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | keep, NULL) < 0)
        fail("remount %s read-only: %s", path, strerror(errno));
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
    if (mount(stage, stage, "tmpfs", MS_NOSUID, "mode=0755") < 0)
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
    if (mount("tinykube", target, "overlay", 0, options) == 0)
        return;
    /* Kernels before 5.11 have no overlays in a user namespace: show it as it is, read-only. */
    if (mount(directory, target, NULL, MS_BIND | MS_REC, NULL) < 0)
        fail("mount %s on %s: %s", directory, target, strerror(errno));
    remount_readonly(target);
}

void pivot(void)
{
    char root[4200], put_old[4200];
    snprintf(root, sizeof root, "%s/root", stage);
    snprintf(put_old, sizeof put_old, "%s/root/.old", stage);
    if (mount(root, root, NULL, MS_BIND | MS_REC, NULL) < 0)
        fail("bind %s: %s", root, strerror(errno));
    make_directory(put_old);
    if (chdir(root) < 0 || syscall(SYS_pivot_root, ".", ".old") < 0)
        fail("pivot_root %s: %s", root, strerror(errno));
    if (chdir("/") < 0)
        fail("chdir /: %s", strerror(errno));
    old_root = "/.old";
}

void drop_old_root(void)
{
    if (!*old_root)
        return;
    if (umount2("/.old", MNT_DETACH) < 0)
        fail("unmount the machine's root: %s", strerror(errno));
    rmdir("/.old");
}

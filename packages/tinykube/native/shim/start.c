/* Carries out the words of a specification one after the other, and becomes the command they end in. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

/* Root gets at exec what the bounding set leaves, and another user gets nothing by itself. */
static void drop_capabilities(unsigned long long wanted)
{
    for (unsigned long one = 0; prctl(PR_CAPBSET_READ, one, 0, 0, 0) >= 0; one++)
        if (!(one < 64 && wanted >> one & 1) && prctl(PR_CAPBSET_READ, one, 0, 0, 0) == 1 &&
            prctl(PR_CAPBSET_DROP, one, 0, 0, 0) < 0)
            fail("drop capability %lu: %s", one, strerror(errno));
}

void start(struct command *command)
{
    if (command->tty) {
        setsid();
        ioctl(0, TIOCSCTTY, 0);
    }
    if (command->cwd && chdir(command->cwd) < 0) {
        make_directory(command->cwd);
        if (chdir(command->cwd) < 0)
            fail("working directory %s: %s", command->cwd, strerror(errno));
    }
    enter_groups(); /* not before: with a small share of CPU the steps up to here would take long */
    if (command->group_count && geteuid() == 0 && setgroups((size_t)command->group_count, command->groups) < 0)
        fail("set groups: %s", strerror(errno));
    if (command->gid >= 0 && (gid_t)command->gid != getegid() && setgid((gid_t)command->gid) < 0)
        fail("set group %ld: %s", command->gid, strerror(errno));
    if (command->few_capabilities)
        drop_capabilities(command->capabilities);
    if (command->uid >= 0 && (uid_t)command->uid != geteuid() && setuid((uid_t)command->uid) < 0)
        fail("set user %ld: %s", command->uid, strerror(errno));
    if (command->dies_with_shim)
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* the kernel forgets it when the user changes */
    if (command->no_new_privileges && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        fail("set no_new_privs: %s", strerror(errno));
    if (!command->argv[0])
        fail("no command specified");
    signal(SIGPIPE, SIG_DFL);
    environ = command->envp;
    execvp(command->argv[0], command->argv);
    if (errno == ENOENT && !strchr(command->argv[0], '/'))
        fail("exec: \"%s\": executable file not found in $PATH", command->argv[0]);
    fail("exec: \"%s\": %s", command->argv[0], errno == ENOENT ? "no such file or directory" : strerror(errno));
}

/* A new IPC namespace for "0", else that of a process. */
static void enter_ipc(const char *pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.16s/ns/ipc", pid);
    int fd = strcmp(pid, "0") ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0 ? unshare(CLONE_NEWIPC) : setns(fd, CLONE_NEWIPC))
        fail("make an IPC namespace: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
}

static void set_sysctl(const char *path, const char *value)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, value, strlen(value)) < 0)
        fail("write sysctl %s: %s", path, strerror(errno));
    close(fd);
}

/* Carries out the words one after the other; returns when they are done. `log` and `exit` are the parent's. */
void carry_out(struct spec spec, struct command *command)
{
    size_t arguments = 0, variables = 0;
    command->argv = calloc(spec.count + 1, sizeof(char *));
    command->envp = calloc(spec.count + 1, sizeof(char *));
    command->uid = command->gid = -1;
    for (size_t i = 0; i < spec.count; i += 1 + (size_t)arity(spec.words[i])) {
        char *op = spec.words[i], **a = spec.words + i + 1;
        if (i + (size_t)arity(op) >= spec.count)
            fail("%s lacks arguments", op);
        if (!strcmp(op, "unshare")) leave_machine(a[0]);
        else if (!strcmp(op, "stage")) start_stage(a[0]);
        else if (!strcmp(op, "skeleton")) overlay(a[0]);
        else if (!strcmp(op, "pivot")) pivot();
        else if (!strcmp(op, "bind")) bind_mount(a[0], a[1], a[2]);
        else if (!strcmp(op, "below")) bind_below(a[0], a[1], a[2], a[3]);
        else if (!strcmp(op, "dir")) make_directory(a[0]);
        else if (!strcmp(op, "tmpfs")) {
            char mode[32];
            snprintf(mode, sizeof mode, "mode=%.8s", a[1]);
            make_directory(a[0]);
            if (mount("tinykube", a[0], "tmpfs", MS_NOSUID | MS_NODEV, mode) < 0)
                fail("mount tmpfs on %s: %s", a[0], strerror(errno));
        } else if (!strcmp(op, "terminals")) {
            make_directory(a[0]);
            if (mount("tinykube", a[0], "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") < 0)
                bind_mount("/dev/pts", a[0], "rw"); /* the machine's own, where the kernel gives no other */
        } else if (!strcmp(op, "symlink")) {
            make_room(a[1]);
            make_parents(a[1]);
            if (unlink(a[1]) < 0 && errno != ENOENT)
                fail("replace %s: %s", a[1], strerror(errno));
            if (symlink(a[0], a[1]) < 0)
                fail("symlink %s: %s", a[1], strerror(errno));
        }
        else if (!strcmp(op, "hostname")) {
            if (unshare(CLONE_NEWUTS) < 0 || sethostname(a[0], strlen(a[0])) < 0)
                fail("set the host name: %s", strerror(errno));
        }
        else if (!strcmp(op, "detach")) detach_mount(a[0]);
        else if (!strcmp(op, "ipc")) enter_ipc(a[0]);
        else if (!strcmp(op, "sysctl")) set_sysctl(a[0], a[1]);
        else if (!strcmp(op, "processes")) mount_processes(a[0]);
        else if (!strcmp(op, "capabilities")) {
            command->few_capabilities = 1;
            command->capabilities = strtoull(a[0], NULL, 16);
        }
        else if (!strcmp(op, "nonewprivileges")) command->no_new_privileges = 1;
        else if (!strcmp(op, "readonly")) remount_readonly(a[0]);
        else if (!strcmp(op, "cwd")) command->cwd = a[0];
        else if (!strcmp(op, "user")) { command->uid = atol(a[0]); command->gid = atol(a[1]); }
        else if (!strcmp(op, "group")) {
            if (command->group_count < 64)
                command->groups[command->group_count++] = (gid_t)atol(a[0]);
        }
        else if (!strcmp(op, "tty")) command->tty = 1;
        else if (!strcmp(op, "env")) command->envp[variables++] = a[0];
        else if (!strcmp(op, "arg")) command->argv[arguments++] = a[0];
    }
    drop_old_root();
}

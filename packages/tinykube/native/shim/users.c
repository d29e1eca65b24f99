/*
 * User namespaces: who makes one is in it alone until a process outside has said which users of the machine it knows.
 *
 * Without privileges that is one user, oneself. More of them may be mapped by newuidmap, which knows the ids that the
 * administrator gave, or by a process with CAP_SETUID.
 */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_MAP_WORDS 1024

int outside_fd = -1;
static int born_in_users; /* the user namespace was made with the process, as its PID namespace belongs to it */

pid_t fork_into(struct spec spec)
{
    unsigned long flags = SIGCHLD;
    if (!has_word(spec, "processes"))
        return fork();
    if (has_word(spec, "join")) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%.16s/ns/pid", word_after(spec, "join"));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, CLONE_NEWPID) < 0)
            fail("join the processes of %.16s: %s", word_after(spec, "join"), strerror(errno));
        close(fd);
        return fork();
    }
    born_in_users = !strcmp(word_after(spec, "unshare"), "user");
    flags |= CLONE_NEWPID | (born_in_users ? CLONE_NEWUSER : 0);
    pid_t pid = (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0);
    if (pid < 0)
        fail("make a PID namespace: %s", strerror(errno));
    return pid;
}

void leave_users(void)
{
    char byte = 'u';
    if (unshare((born_in_users ? 0 : CLONE_NEWUSER) | CLONE_NEWNS) < 0)
        fail("unshare user and mount namespace: %s", strerror(errno));
    if (write(outside_fd, &byte, 1) != 1 || read(outside_fd, &byte, 1) != 1)
        fail("no users are mapped"); /* the process outside says why */
    close(outside_fd);
}

static void write_map(pid_t pid, const char *file, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail("write %s: %s", file, strerror(errno));
    close(fd);
}

static void run_mapper(pid_t pid, char *program, char *text)
{
    static char number[16];
    char *argv[MAX_MAP_WORDS] = {program, number}, said[512];
    int count = 2, status = 0, out[2];
    snprintf(number, sizeof number, "%d", (int)pid);
    for (char *word = strtok(text, " "); word && count < MAX_MAP_WORDS - 1; word = strtok(NULL, " "))
        argv[count++] = word;
    if (pipe2(out, O_CLOEXEC) < 0)
        fail("pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child < 0)
        fail("fork: %s", strerror(errno));
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        dup2(out[1], 2);
        execv(program, argv);
        dprintf(2, "%s", strerror(errno));
        _exit(127);
    }
    close(out[1]);
    ssize_t got = 0, more;
    while ((more = read(out[0], said + got, sizeof said - 1 - (size_t)got)) > 0)
        got += more;
    said[got] = 0;
    said[strcspn(said, "\n")] = 0;
    close(out[0]);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("%s: %s", program, *said ? said : "failed");
}

void map_users(struct spec spec, pid_t pid, int fd)
{
    char byte;
    if (read(fd, &byte, 1) != 1) {
        close(fd);
        return; /* it has no namespace, and says why */
    }
    for (size_t i = 0; i < spec.count; i += 1 + (size_t)arity(spec.words[i])) {
        char **a = spec.words + i + 1;
        if (strcmp(spec.words[i], "map"))
            continue;
        if (!strcmp(a[1], "-"))
            write_map(pid, a[0], a[2]);
        else
            run_mapper(pid, a[1], a[2]);
    }
    if (write(fd, &byte, 1) != 1)
        fail("container process %d: %s", (int)pid, strerror(errno));
    close(fd);
}

/*
 * The process between the kubelet and one container, as containerd-shim is on a real node.
 *
 * Why it exists: a container outlives its kubelet, so another process has to own its pipes, its exit status and its orphans.
 * It is C, because thousands of starts in a test run must not each cost the start of an interpreter.
 *
 *   shim run SPEC      fd 3 gets "ok PID\n" or what went wrong; then logs until the container ends and writes its exit file
 *   shim exec PID SPEC runs a command where PID's container is
 *   shim pause         waits for a signal
 *
 * SPEC is a file of NUL-terminated words, an operation followed by its arguments, in the order they are carried out:
 *
 *   log PATH | exit PATH | cgroup DIR (a control group that the command enters)
 *   unshare root|user | map FILE PROGRAM|- TEXT (who is mapped, see users.c)
 *   stage DIR | skeleton DIR (overlay of the machine's DIR) | pivot
 *   bind SRC DST rw|ro   | dir DST | tmpfs DST MODE | terminals DST (devpts) | symlink TARGET DST | readonly DST
 *   detach DST (what is mounted there)
 *   processes DST (a PID namespace, and its /proc) | join PID (that of this process instead)
 *   capabilities HEX (none but these) | nonewprivileges
 *   address IP (of the pod: servers listen there, see address.c)
 *   ipc PID|0 (the IPC namespace of that process, or a new one) | sysctl PATH VALUE
 *   hostname NAME | cwd DIR | user UID GID | group GID | tty | env K=V | arg A
 *
 * Invariants: sources of binds are paths of the machine and are resolved before the word is written (after `pivot` they are
 * reached through /.old, which is unmounted before the command starts). Every mount is made in the container's own
 * namespace, so the end of its last process takes them all back. When the main process ends, its descendants are killed:
 * with a PID namespace by the kernel, also when this process was killed; else by this process.
 */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REPORT_FD 3

static void kill_descendants(void)
{
    for (;;) {
        char path[64], text[4096];
        snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return;
        ssize_t got = read(fd, text, sizeof text - 1);
        close(fd);
        if (got <= 0)
            return;
        text[got] = 0;
        for (char *at = text, *next; ; at = next) {
            long pid = strtol(at, &next, 10);
            if (next == at)
                break;
            if (pid > 0)
                kill((pid_t)pid, SIGKILL);
        }
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        poll(NULL, 0, 1);
    }
}

static void write_exit(const char *path, int status, int oom)
{
    char temporary[4200], text[128];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    int code = number ? 128 + number : WEXITSTATUS(status);
    int length = snprintf(text, sizeof text, "%d %d %lld.%09ld%s\n", code, number, (long long)now.tv_sec, now.tv_nsec,
                          oom ? " oom" : "");
    snprintf(temporary, sizeof temporary, "%s.new", path);
    int fd = open(temporary, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, (size_t)length) != length || close(fd) < 0 || rename(temporary, path) < 0)
        fail("%s: %s", path, strerror(errno));
}

static int run(const char *path)
{
    error_fd = REPORT_FD;
    struct spec spec = read_spec(path);
    const char *exit_path = word_after(spec, "exit");
    struct log log = open_log(word_after(spec, "log"));
    const char *address = has_word(spec, "address") ? word_after(spec, "address") : NULL;
    int out[2], err[2], problem[2], sync[2], binds[2], listener = -1;
    if (log.fd < 0 || pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 || pipe2(problem, O_CLOEXEC) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, binds) < 0)
        fail("open the log: %s", strerror(errno));
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t all, child;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, NULL, &child);
    sigprocmask(SIG_SETMASK, &all, NULL);

    pid_t pid = fork_into(spec);
    if (pid < 0)
        fail("fork: %s", strerror(errno));
    if (pid == 0) {
        struct command command = {0};
        close(REPORT_FD);
        error_fd = problem[1];
        sigemptyset(&child);
        sigprocmask(SIG_SETMASK, &child, NULL);
        open_groups(spec);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setsid();
        int null = open("/dev/null", O_RDONLY);
        if (null < 0 || dup2(null, 0) < 0 || dup2(out[1], 1) < 0 || dup2(err[1], 2) < 0)
            fail("redirect output: %s", strerror(errno));
        if (null > 2)
            close(null);
        close(sync[0]);
        outside_fd = sync[1];
        carry_out(spec, &command);
        if (address)
            stop_binds(binds[1]);
        command.dies_with_shim = 1;
        start(&command);
    }
    close(sync[1]);
    map_users(spec, pid, sync[0]); /* a failure ends this process, and the child with it */
    close(out[1]);
    close(err[1]);
    close(problem[1]);
    char text[4096];
    ssize_t got = 0, more;
    while ((more = read(problem[0], text + got, sizeof text - 1 - (size_t)got)) > 0)
        got += more;
    if (got > 0) {
        text[got] = 0;
        waitpid(pid, NULL, 0);
        fail("%s", text);
    }
    close(binds[1]);
    if (address)
        listener = receive_listener(binds[0]);
    close(binds[0]);
    if (dprintf(REPORT_FD, "ok %d\n", (int)pid) < 0)
        return 1;
    close(REPORT_FD);
    close(problem[0]);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);

    static struct stream streams[2];
    streams[0].fd = out[0], streams[0].name = "stdout";
    streams[1].fd = err[0], streams[1].name = "stderr";
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    int signals = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    int ended = 0, status = 0;
    while (!ended) {
        struct pollfd fds[4] = {
            {signals, POLLIN, 0}, {streams[0].fd, POLLIN, 0}, {streams[1].fd, POLLIN, 0}, {listener, POLLIN, 0}};
        if (poll(fds, 4, -1) < 0 && errno != EINTR)
            break;
        if (fds[3].revents && !((fds[3].revents & POLLIN) && answer_bind(listener, address))) {
            close(listener);
            listener = -1;
        }
        for (int i = 0; i < 2; i++)
            if (fds[1 + i].revents && !pump(&streams[i], &log)) {
                close(streams[i].fd);
                streams[i].fd = -1; /* poll leaves negative descriptors out */
            }
        if (fds[0].revents) {
            struct signalfd_siginfo info;
            while (read(signals, &info, sizeof info) > 0)
                ;
            int one;
            for (pid_t who; (who = waitpid(-1, &one, WNOHANG)) > 0;)
                if (who == pid)
                    ended = 1, status = one;
        }
    }
    kill_descendants();
    for (int i = 0; i < 2; i++) {
        while (streams[i].fd >= 0) {
            struct pollfd rest = {streams[i].fd, POLLIN, 0};
            if (poll(&rest, 1, 0) <= 0 || !pump(&streams[i], &log))
                break;
        }
        end_line(&streams[i], &log);
    }
    write_exit(exit_path, status, killed_for_memory(spec));
    remove_groups(spec);
    return 0;
}

/* ---- exec, pause ---------------------------------------------------------------------------------------- */

static int entered;

static void enter(const char *pid, const char *space)
{
    char path[128], own[128];
    struct stat theirs, ours;
    snprintf(path, sizeof path, "/proc/%s/ns/%s", pid, space);
    snprintf(own, sizeof own, "/proc/self/ns/%s", space);
    if (stat(path, &theirs) < 0)
        fail("container process %s: %s\n", pid, strerror(errno));
    if (stat(own, &ours) == 0 && ours.st_ino == theirs.st_ino)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, 0) < 0)
        fail("enter the %s namespace of %s: %s\n", space, pid, strerror(errno));
    close(fd);
    entered = 1;
}

/* Only a child is in the PID namespace that was entered: returns there, and this process ends as that one does. */
static void become_a_child(void)
{
    int status = 0;
    pid_t child = fork();
    if (child < 0)
        fail("fork: %s\n", strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return;
    }
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static int execute(const char *pid, const char *path)
{
    struct command command = {0};
    struct spec spec = read_spec(path);
    open_groups(spec);
    enter(pid, "user");
    enter(pid, "uts");
    enter(pid, "ipc");
    entered = 0;
    enter(pid, "pid");
    int own_processes = entered;
    enter(pid, "mnt");
    if (own_processes) {
        become_a_child();
        command.dies_with_shim = 1;
    }
    carry_out(spec, &command);
    start(&command);
}

static void quit(int number)
{
    (void)number;
    _exit(0);
}

static int pause_until_signal(void)
{
    signal(SIGTERM, quit);
    signal(SIGINT, quit);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "run") && argc == 3)
        return run(argv[2]);
    if (!strcmp(what, "exec") && argc == 4)
        return execute(argv[2], argv[3]);
    if (!strcmp(what, "pause"))
        return pause_until_signal();
    fprintf(stderr, "usage: shim run SPEC | exec PID SPEC | pause\n");
    return 2;
}

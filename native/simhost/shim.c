/*
 * The process between the kubelet and one container, as containerd-shim is on a real node.
 *
 * Why it exists: a container outlives its kubelet, so somebody else has to own its pipes, its exit status and its orphans.
 * It is C, because thousands of starts in a test run must not each cost the start of an interpreter.
 *
 *   shim run SPEC      fd 3 gets "ok PID\n" or what went wrong; then logs until the container ends and writes its exit file
 *   shim exec PID SPEC runs a command where PID's container is
 *   shim pause         waits for a signal
 *   shim probe DIR     exit 0 when mount namespaces work here (in a user namespace where we are not root)
 *
 * SPEC is a file of NUL-terminated words, an operation followed by its arguments, in the order they are carried out:
 *
 *   log PATH | exit PATH | unshare root|user | stage DIR | skeleton DIR (overlay of the machine's DIR) | pivot
 *   bind SRC DST rw|ro   | dir DST | tmpfs DST | symlink TARGET DST | readonly DST
 *   hostname NAME | cwd DIR | user UID GID | group GID | tty | env K=V | arg A
 *
 * Invariants: sources of binds are paths of the machine and are resolved before the word is written (after `pivot` they are
 * reached through /.old, which is unmounted before the command starts). Every mount is made in the container's own
 * namespace, so the end of its last process takes them all back. When the main process ends, its descendants are killed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REPORT_FD 3
#define LINE_MAX_BYTES 16384
#define MAX_WORDS 65536

extern char **environ;

static int error_fd = 2;

static void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static void fail(const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text)
        length = sizeof text - 1;
    if (write(error_fd, text, (size_t)length) < 0)
        _exit(127);
    _exit(126);
}

/* ---- the specification ------------------------------------------------------------------------------------- */

struct spec {
    char **words;
    size_t count;
};

static struct spec read_spec(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) < 0)
        fail("%s: %s", path, strerror(errno));
    char *text = malloc((size_t)facts.st_size + 1);
    struct spec spec = {calloc(MAX_WORDS, sizeof(char *)), 0};
    if (!text || !spec.words)
        fail("out of memory");
    ssize_t have = 0;
    while (have < facts.st_size) {
        ssize_t got = read(fd, text + have, (size_t)(facts.st_size - have));
        if (got <= 0)
            fail("%s: short read", path);
        have += got;
    }
    text[have] = 0;
    close(fd);
    for (char *word = text; word < text + have && spec.count < MAX_WORDS; word += strlen(word) + 1)
        spec.words[spec.count++] = word;
    return spec;
}

static int arity(const char *op)
{
    static const struct { const char *op; int arguments; } table[] = {
        {"log", 1}, {"exit", 1}, {"unshare", 1}, {"stage", 1}, {"skeleton", 1}, {"pivot", 0}, {"bind", 3},
        {"dir", 1}, {"tmpfs", 1}, {"symlink", 2}, {"readonly", 1}, {"cwd", 1}, {"user", 2}, {"group", 1},
        {"tty", 0}, {"env", 1}, {"arg", 1}, {"hostname", 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].op, op))
            return table[i].arguments;
    fail("unknown operation %s", op);
}

/* ---- the file system of a container ------------------------------------------------------------------------- */

static const char *old_root = "";
static char stage[4096];

static void make_parents(const char *path)
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

static void make_directory(const char *path)
{
    make_parents(path);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        fail("mkdir %s: %s", path, strerror(errno));
}

static void remount_readonly(const char *path)
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

static void bind_mount(const char *source, const char *target, const char *mode)
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
        make_parents(target);
        if (lstat(target, &there) == 0 && S_ISLNK(there.st_mode))
            unlink(target); /* a library's link in the machine's own directory must not lead the mount astray */
        int fd = open(target, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        if (fd >= 0)
            close(fd);
        else if (access(target, F_OK) != 0)
            fail("create %s: %s", target, strerror(errno));
    }
    if (mount(from, target, NULL, MS_BIND | MS_REC, NULL) < 0)
        fail("mount %s on %s: %s", source, target, strerror(errno));
    if (!strcmp(mode, "ro"))
        remount_readonly(target);
}

static void write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail("%s: %s", path, strerror(errno));
    close(fd);
}

static void leave_machine(const char *how)
{
    if (!strcmp(how, "user")) {
        char map[64];
        unsigned uid = geteuid(), gid = getegid();
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
            fail("unshare user and mount namespace: %s", strerror(errno));
        write_text("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "0 %u 1", uid);
        write_text("/proc/self/uid_map", map);
        snprintf(map, sizeof map, "0 %u 1", gid);
        write_text("/proc/self/gid_map", map);
    } else if (unshare(CLONE_NEWNS) < 0) {
        fail("unshare mount namespace: %s", strerror(errno));
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        fail("make / private: %s", strerror(errno));
}

static void start_stage(const char *directory)
{
    char path[4200];
    snprintf(stage, sizeof stage, "%s", directory);
    if (mount("gpuplane", stage, "tmpfs", MS_NOSUID, "mode=0755") < 0)
        fail("mount tmpfs on %s: %s", stage, strerror(errno));
    snprintf(path, sizeof path, "%s/root", stage);
    make_directory(path);
    snprintf(path, sizeof path, "%s/layers", stage);
    make_directory(path);
}

static void overlay(const char *directory)
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
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s", directory, upper, work);
    if (mount("gpuplane", target, "overlay", 0, options) == 0)
        return;
    /* What holds other file systems cannot be a lower layer in a user namespace: show it as it is, read-only. */
    if (mount(directory, target, NULL, MS_BIND | MS_REC, NULL) < 0)
        fail("mount %s on %s: %s", directory, target, strerror(errno));
    remount_readonly(target);
}

static void pivot(void)
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

static void drop_old_root(void)
{
    if (!*old_root)
        return;
    if (umount2("/.old", MNT_DETACH) < 0)
        fail("unmount the machine's root: %s", strerror(errno));
    rmdir("/.old");
}

/* ---- becoming the container ---------------------------------------------------------------------------------- */

struct command {
    char **argv, **envp;
    const char *cwd;
    long uid, gid;
    gid_t groups[64];
    int group_count, tty;
};

static void start(struct command *command) __attribute__((noreturn));

static void start(struct command *command)
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
    if (command->group_count && geteuid() == 0 && setgroups((size_t)command->group_count, command->groups) < 0)
        fail("set groups: %s", strerror(errno));
    if (command->gid >= 0 && (gid_t)command->gid != getegid() && setgid((gid_t)command->gid) < 0)
        fail("set group %ld: %s", command->gid, strerror(errno));
    if (command->uid >= 0 && (uid_t)command->uid != geteuid() && setuid((uid_t)command->uid) < 0)
        fail("set user %ld: %s", command->uid, strerror(errno));
    if (!command->argv[0])
        fail("no command specified");
    signal(SIGPIPE, SIG_DFL);
    environ = command->envp;
    execvp(command->argv[0], command->argv);
    if (errno == ENOENT && !strchr(command->argv[0], '/'))
        fail("exec: \"%s\": executable file not found in $PATH", command->argv[0]);
    fail("exec: \"%s\": %s", command->argv[0], errno == ENOENT ? "no such file or directory" : strerror(errno));
}

/* Carries out the words one after the other; returns when they are done. `log` and `exit` are the parent's. */
static void carry_out(struct spec spec, struct command *command)
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
        else if (!strcmp(op, "dir")) make_directory(a[0]);
        else if (!strcmp(op, "tmpfs")) {
            make_directory(a[0]);
            if (mount("gpuplane", a[0], "tmpfs", MS_NOSUID, "mode=1777") < 0)
                fail("mount tmpfs on %s: %s", a[0], strerror(errno));
        } else if (!strcmp(op, "symlink")) {
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

static const char *word_after(struct spec spec, const char *op)
{
    for (size_t i = 0; i < spec.count; i += 1 + (size_t)arity(spec.words[i]))
        if (!strcmp(spec.words[i], op))
            return spec.words[i + 1];
    fail("the specification lacks %s", op);
}

/* ---- logs: the format of the container runtime interface, one line "TIME STREAM F|P TEXT" -------------------- */

struct stream {
    int fd;
    const char *name;
    size_t have;
    char line[LINE_MAX_BYTES];
};

static void write_line(int log, const char *name, const char *text, size_t length, int partial)
{
    char head[96];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t at = strftime(head, sizeof head, "%Y-%m-%dT%H:%M:%S", &parts);
    at += (size_t)snprintf(head + at, sizeof head - at, ".%09ldZ %s %c ", now.tv_nsec, name, partial ? 'P' : 'F');
    static char whole[LINE_MAX_BYTES + 128];
    memcpy(whole, head, at);
    memcpy(whole + at, text, length);
    whole[at + length] = '\n';
    if (write(log, whole, at + length + 1) < 0)
        return; /* a full disk must not stop the container */
}

/* Returns 0 when the stream has ended. */
static int pump(struct stream *stream, int log)
{
    ssize_t got = read(stream->fd, stream->line + stream->have, sizeof stream->line - stream->have);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (got == 0) {
        if (stream->have)
            write_line(log, stream->name, stream->line, stream->have, 1);
        stream->have = 0;
        return 0;
    }
    stream->have += (size_t)got;
    size_t from = 0;
    for (char *end; (end = memchr(stream->line + from, '\n', stream->have - from));) {
        size_t length = (size_t)(end - stream->line) - from;
        write_line(log, stream->name, stream->line + from, length, 0);
        from += length + 1;
    }
    if (from == 0 && stream->have == sizeof stream->line) {
        write_line(log, stream->name, stream->line, stream->have, 1);
        from = stream->have;
    }
    memmove(stream->line, stream->line + from, stream->have - from);
    stream->have -= from;
    return 1;
}

/* ---- the end -------------------------------------------------------------------------------------------------- */

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

static void write_exit(const char *path, int status)
{
    char temporary[4200], text[128];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    int code = number ? 128 + number : WEXITSTATUS(status);
    int length = snprintf(text, sizeof text, "%d %d %lld.%09ld\n", code, number, (long long)now.tv_sec, now.tv_nsec);
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
    int log = open(word_after(spec, "log"), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0640);
    int out[2], err[2], problem[2];
    if (log < 0 || pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 || pipe2(problem, O_CLOEXEC) < 0)
        fail("open the log: %s", strerror(errno));
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t all, child;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, NULL, &child);
    sigprocmask(SIG_SETMASK, &all, NULL);

    pid_t pid = fork();
    if (pid < 0)
        fail("fork: %s", strerror(errno));
    if (pid == 0) {
        struct command command = {0};
        close(REPORT_FD);
        error_fd = problem[1];
        sigemptyset(&child);
        sigprocmask(SIG_SETMASK, &child, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setsid();
        int null = open("/dev/null", O_RDONLY);
        if (null < 0 || dup2(null, 0) < 0 || dup2(out[1], 1) < 0 || dup2(err[1], 2) < 0)
            fail("redirect output: %s", strerror(errno));
        if (null > 2)
            close(null);
        carry_out(spec, &command);
        start(&command);
    }
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
        struct pollfd fds[3] = {{signals, POLLIN, 0}, {streams[0].fd, POLLIN, 0}, {streams[1].fd, POLLIN, 0}};
        if (poll(fds, 3, -1) < 0 && errno != EINTR)
            break;
        for (int i = 0; i < 2; i++)
            if (fds[1 + i].revents && !pump(&streams[i], log)) {
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
    for (int i = 0; i < 2; i++)
        while (streams[i].fd >= 0) {
            struct pollfd rest = {streams[i].fd, POLLIN, 0};
            if (poll(&rest, 1, 0) <= 0 || !pump(&streams[i], log))
                break;
        }
    write_exit(exit_path, status);
    return 0;
}

/* ---- exec, pause, probe ---------------------------------------------------------------------------------------- */

static void enter(const char *pid, const char *space, int required)
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
    if (fd < 0 || (setns(fd, 0) < 0 && required))
        fail("enter the %s namespace of %s: %s\n", space, pid, strerror(errno));
    close(fd);
}

static int execute(const char *pid, const char *path)
{
    struct command command = {0};
    struct spec spec = read_spec(path);
    enter(pid, "user", 1);
    enter(pid, "mnt", 1);
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

static int probe(const char *directory)
{
    leave_machine(geteuid() == 0 ? "root" : "user");
    start_stage(directory);
    overlay("/usr");
    pivot();
    drop_old_root();
    return access("/usr", F_OK) == 0 ? 0 : 1;
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
    if (!strcmp(what, "probe") && argc == 3)
        return probe(argv[2]);
    fprintf(stderr, "usage: shim run SPEC | exec PID SPEC | pause | probe DIR\n");
    return 2;
}

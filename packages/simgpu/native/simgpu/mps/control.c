/*
 * nvidia-cuda-mps-control of the simulated driver: the daemon (-d, or -f in the foreground), and without a flag the front end
 * that passes commands of its standard input on. Asked by libcuda, it returns defaults and clients.
 *
 * CUDA_MPS_PIPE_DIRECTORY has the pid and the socket, CUDA_MPS_LOG_DIRECTORY control.log; SIMHOST_ROOT stands before both
 * where chroot is not allowed. Commands, messages and files are those of the manual page nvidia-cuda-mps-control(1).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define GPUS 16
#define CLIENTS 48 /* of one server, since Volta */
#define CONNECTIONS (CLIENTS + 16)
#define PID_FILE "nvidia-cuda-mps-control.pid"

static double percentage = 100;
static uint64_t limits[GPUS];
static struct pollfd connections[CONNECTIONS + 1];
static long clients[CONNECTIONS + 1]; /* pid, 0 for a front end */
static int count = 1;
static FILE *log_file;
static volatile sig_atomic_t ended;

static void on_signal(int number)
{
    (void)number;
    ended = 1;
}

static void note(const char *text)
{
    char when[32];
    time_t now = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime(&now));
    if (log_file) {
        fprintf(log_file, "[%s Control %d] %s\n", when, (int)getpid(), text);
        fflush(log_file);
    }
}

static int enter(const char *variable, const char *otherwise, bool make)
{
    const char *root = getenv("SIMHOST_ROOT"), *path = getenv(variable);
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", root ? root : "", path && *path ? path : otherwise);
    if (make)
        mkdir(whole, 0755);
    return open(whole, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static uint64_t amount(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    return value << (*end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0);
}

/* Answers one command; unknown ones in the words of the real one. */
static void answer(char *line, char *said, size_t size)
{
    char word[64] = "", value[64] = "";
    unsigned gpu = GPUS;
    *said = 0;
    if (sscanf(line, "set_default_device_pinned_mem_limit %u %63s", &gpu, value) == 2 && gpu < GPUS) {
        limits[gpu] = amount(value);
    } else if (sscanf(line, "get_default_device_pinned_mem_limit %u", &gpu) == 1 && gpu < GPUS) {
        snprintf(said, size, "%lluM\n", (unsigned long long)limits[gpu] >> 20);
    } else if (sscanf(line, "set_default_active_thread_percentage %63s", value) == 1 && atof(value) > 0 && atof(value) <= 100) {
        percentage = atof(value);
        snprintf(said, size, "%.1f\n", percentage);
    } else if (sscanf(line, "%63s", word) == 1 && !strcmp(word, "get_default_active_thread_percentage")) {
        snprintf(said, size, "%.1f\n", percentage);
    } else if (!strcmp(word, "get_server_list")) {
        for (int i = 1; i < count && !*said; i++)
            if (clients[i])
                snprintf(said, size, "%d\n", (int)getpid());
    } else if (!strcmp(word, "get_client_list")) {
        for (int i = 1; i < count; i++)
            if (clients[i])
                snprintf(said + strlen(said), size - strlen(said), "%ld\n", clients[i]);
    } else if (!strcmp(word, "quit")) {
        ended = 1;
    } else if (*word) {
        snprintf(said, size, "Invalid command\n");
    }
    note(line);
}

static void drop(int at)
{
    close(connections[at].fd);
    connections[at] = connections[--count];
    clients[at] = clients[count];
}

static void hear(int at)
{
    char line[512], said[4096];
    ssize_t got = recv(connections[at].fd, line, sizeof line - 1, 0);
    if (got <= 0) {
        drop(at);
        return;
    }
    line[got] = 0;
    if (sscanf(line, "client %ld", &clients[at]) == 1) {
        int others = 0, length = snprintf(said, sizeof said, "%.1f", percentage);
        for (int i = 1; i < count; i++)
            others += clients[i] != 0;
        for (int i = 0; i < GPUS; i++)
            length += snprintf(said + length, sizeof said - (size_t)length, " %llu", (unsigned long long)limits[i]);
        if (others > CLIENTS) {
            snprintf(said, sizeof said, "full");
            clients[at] = 0;
        }
        note("new client");
    } else {
        answer(line, said, sizeof said - 1);
        if (!*said)
            strcpy(said, " ");
    }
    send(connections[at].fd, said, strlen(said), MSG_NOSIGNAL);
}

static int serve(bool background)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int pipes = enter("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps", true);
    int logs = enter("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps", true);
    int fd = pipes < 0 ? -1 : openat(pipes, PID_FILE, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        fprintf(stderr, "Failed to create the pipe directory: %s\n", strerror(errno));
        return 1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        fputs("An instance of this daemon is already running\n", stderr);
        return 1;
    }
    if (background && daemon(1, 0) < 0)
        return 1;
    if (ftruncate(fd, 0) < 0 || dprintf(fd, "%d\n", (int)getpid()) < 0)
        return 1;
    int log = logs < 0 ? -1 : openat(logs, "control.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    log_file = log < 0 ? NULL : fdopen(log, "a");
    unlinkat(pipes, "control", 0);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    strcpy(address.sun_path, "control");
    if (fchdir(pipes) < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 64) < 0) {
        fprintf(stderr, "Failed to make the control socket: %s\n", strerror(errno));
        return 1;
    }
    chmod("control", 0666);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    note("MPS control daemon started");
    connections[0] = (struct pollfd){listener, POLLIN, 0};
    while (!ended) {
        if (poll(connections, (nfds_t)count, -1) < 0)
            continue;
        for (int i = count - 1; i > 0; i--)
            if (connections[i].revents)
                hear(i);
        if (connections[0].revents) {
            int new = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (new >= 0 && count <= CONNECTIONS) {
                clients[count] = 0;
                connections[count++] = (struct pollfd){new, POLLIN, 0};
            } else if (new >= 0) {
                close(new);
            }
        }
    }
    note("Exit");
    unlink("control");
    unlink(PID_FILE);
    return 0;
}

static int front_end(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char line[512], said[4096];
    int pipes = enter("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps", false), fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, "control");
    if (pipes < 0 || fchdir(pipes) < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        fputs("Cannot find MPS control daemon process\n", stderr);
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!*line)
            continue;
        if (send(fd, line, strlen(line), MSG_NOSIGNAL) < 0)
            return 1;
        ssize_t got = recv(fd, said, sizeof said - 1, 0);
        if (got <= 0)
            return strcmp(line, "quit") != 0;
        said[got] = 0;
        if (strcmp(said, " "))
            fputs(said, stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    bool background = argc > 1 && !strcmp(argv[1], "-d"), foreground = argc > 1 && !strcmp(argv[1], "-f");
    if (argc > 1 && !background && !foreground) {
        fprintf(stderr, "usage: %s [-d | -f]\n", argv[0]);
        return 1;
    }
    return background || foreground ? serve(background) : front_end();
}

/* A container's log: one line "TIME STREAM F|P TEXT" for each line it writes, P for a part of a longer one. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_BYTES (10ll << 20) /* as containerLogMaxSize of a kubelet */

struct log open_log(const char *path)
{
    struct stat facts;
    struct log log = {.path = path, .fd = open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0640)};
    if (log.fd >= 0 && fstat(log.fd, &facts) == 0)
        log.size = facts.st_size;
    return log;
}

/* A log that is full becomes PATH.1, and the one before that goes: a container fills no disk with what it says. */
static void begin_again(struct log *log)
{
    char before[4200];
    if (snprintf(before, sizeof before, "%s.1", log->path) >= (int)sizeof before || rename(log->path, before) < 0)
        return;
    struct log fresh = open_log(log->path);
    if (fresh.fd < 0)
        return; /* it goes on in the old one */
    close(log->fd);
    *log = fresh;
}

static void write_line(struct log *log, const char *name, const char *text, size_t length, int partial)
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
    if (log->size > LOG_BYTES)
        begin_again(log);
    ssize_t written = write(log->fd, whole, at + length + 1); /* a full disk must not stop the container */
    log->size += written > 0 ? written : 0;
}

void end_line(struct stream *stream, struct log *log)
{
    if (stream->have)
        write_line(log, stream->name, stream->line, stream->have, 1);
    stream->have = 0;
}

/* Returns 0 when the stream has ended. */
int pump(struct stream *stream, struct log *log)
{
    ssize_t got = read(stream->fd, stream->line + stream->have, sizeof stream->line - stream->have);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (got == 0) {
        end_line(stream, log);
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

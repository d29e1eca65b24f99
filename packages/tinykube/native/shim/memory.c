/* The control group that limits a container's memory: entered by its processes, read and removed at its end. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_file(struct spec spec, const char *name, int flags)
{
    char path[4200];
    snprintf(path, sizeof path, "%.4000s/%s", word_after(spec, "memory"), name);
    return open(path, flags | O_CLOEXEC);
}

void enter_group(struct spec spec)
{
    if (!has_word(spec, "memory"))
        return;
    int fd = open_file(spec, "cgroup.procs", O_WRONLY);
    if (fd < 0 || write(fd, "0", 1) != 1)
        fail("enter the memory group: %s", strerror(errno));
    close(fd);
}

int killed_for_memory(struct spec spec)
{
    char text[4096];
    if (!has_word(spec, "memory"))
        return 0;
    int fd = open_file(spec, "memory.events", O_RDONLY); /* version 2 */
    if (fd < 0)
        fd = open_file(spec, "memory.oom_control", O_RDONLY);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got < 0 ? 0 : got] = 0;
    char *found = strstr(text, "\noom_kill ");
    return found && atol(found + strlen("\noom_kill ")) > 0;
}

void remove_group(struct spec spec)
{
    if (!has_word(spec, "memory"))
        return;
    for (int i = 0; i < 100 && rmdir(word_after(spec, "memory")) < 0 && errno == EBUSY; i++)
        poll(NULL, 0, 5); /* the last process has ended, and is still being cleared away */
}

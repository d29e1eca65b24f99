/* The control groups that limit a container: entered by its processes, read and removed at its end. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_GROUPS 4

static int entries[MOST_GROUPS], entry_count;

static int open_file(const char *group, const char *name, int flags)
{
    char path[4200];
    snprintf(path, sizeof path, "%.4000s/%s", group, name);
    return open(path, flags | O_CLOEXEC);
}

/* Calls `each` with the directory of every group of a specification. */
static void visit_groups(struct spec spec, void (*each)(const char *group))
{
    for (size_t i = 0; i < spec.count; i += 1 + (size_t)arity(spec.words[i]))
        if (!strcmp(spec.words[i], "cgroup"))
            each(spec.words[i + 1]);
}

static void open_group(const char *group)
{
    int fd = open_file(group, "cgroup.procs", O_WRONLY);
    if (fd < 0 || entry_count == MOST_GROUPS)
        fail("open the control group %s: %s", group, strerror(errno));
    entries[entry_count++] = fd;
}

void open_groups(struct spec spec)
{
    visit_groups(spec, open_group);
}

void enter_groups(void)
{
    for (int i = 0; i < entry_count; i++) {
        if (write(entries[i], "0", 1) != 1)
            fail("enter the control group: %s", strerror(errno));
        close(entries[i]);
    }
}

static int kills;

static void count_kills(const char *group)
{
    char text[4096];
    int fd = open_file(group, "memory.events", O_RDONLY); /* version 2 */
    if (fd < 0)
        fd = open_file(group, "memory.oom_control", O_RDONLY);
    if (fd < 0)
        return;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got < 0 ? 0 : got] = 0;
    char *found = strstr(text, "\noom_kill ");
    kills += found && atol(found + strlen("\noom_kill ")) > 0;
}

int killed_for_memory(struct spec spec)
{
    visit_groups(spec, count_kills);
    return kills > 0;
}

static void remove_group(const char *group)
{
    for (int i = 0; i < 100 && rmdir(group) < 0 && errno == EBUSY; i++)
        poll(NULL, 0, 5); /* the last process has ended, and is still being cleared away */
}

void remove_groups(struct spec spec)
{
    visit_groups(spec, remove_group);
}

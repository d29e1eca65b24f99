/* systemctl: a runtime is reached through the process behind its socket, other units are a marker file. */
#include "tools.h"

#include <fcntl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *socket_of(const char *unit)
{
    if (!strcmp(unit, "containerd"))
        return "run/containerd/containerd.sock";
    if (!strcmp(unit, "docker"))
        return "run/docker.sock";
    return !strcmp(unit, "crio") || !strcmp(unit, "cri-o") ? "run/crio/crio.sock" : NULL;
}

/* The process behind a runtime's socket, 0 without an answer. A long path is reached through its directory. */
static pid_t peer(const char *relative)
{
    char path[PATH], directory[PATH];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred credentials = {0};
    socklen_t size = sizeof credentials;
    snprintf(directory, sizeof directory, "%s", at(path, relative));
    char *slash = strrchr(directory, '/');
    *slash = 0;
    int home = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%.60s", home, slash + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int connected = connect(fd, (struct sockaddr *)&address, sizeof address);
    if (connected != 0 && strlen(path) < sizeof address.sun_path) { /* no /proc in this root */
        strcpy(address.sun_path, path);
        connected = connect(fd, (struct sockaddr *)&address, sizeof address);
    }
    if (connected != 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
        credentials.pid = 0;
    close(fd);
    if (home >= 0)
        close(home);
    return credentials.pid;
}

static int on_unit(const char *verb, const char *name)
{
    char unit[128], marker[256], path[PATH];
    snprintf(unit, sizeof unit, "%s", name);
    char *suffix = strstr(unit, ".service");
    if (suffix)
        *suffix = 0;
    const char *socket_path = socket_of(unit);
    pid_t pid = socket_path ? peer(socket_path) : 0;
    snprintf(marker, sizeof marker, "run/systemd/units/%s", unit);
    if (!strcmp(verb, "is-active")) {
        int active = pid > 0 || exists(marker);
        puts(active ? "active" : "inactive");
        return active ? 0 : 3;
    }
    if (socket_path && (!strcmp(verb, "restart") || !strcmp(verb, "reload") || !strcmp(verb, "try-restart"))) {
        if (pid <= 0)
            return complain("Unit %s.service not found.%s", unit, "") * 5;
        if (kill(pid, SIGHUP) != 0)
            return complain("Job for %s.service failed: %s", unit, strerror(errno));
        return 0;
    }
    snprintf(path, sizeof path, "usr/lib/systemd/system/%s.service", unit);
    if (!exists(path))
        return complain("Unit %s.service could not be found.%s", unit, "") * 4;
    if (!strcmp(verb, "start") || !strcmp(verb, "restart"))
        return write_file(marker, "active\n");
    if (!strcmp(verb, "stop"))
        unlink(at(path, marker));
    return 0;
}

int systemctl(int argc, char **argv)
{
    const char *verb = NULL;
    int result = 0, units = 0;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-')
            continue;
        if (!verb) {
            verb = argv[i];
            continue;
        }
        units++;
        result = on_unit(verb, argv[i]);
        if (result)
            break;
    }
    if (verb && !strcmp(verb, "daemon-reload"))
        return 0;
    return verb && units ? result : complain("Too few arguments.%s%s", "", "");
}

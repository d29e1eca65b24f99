/* Programs that start others: chroot, env, sh; and kill. */
#include "tools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void start_in(const char *below, char **argv)
{
    char path[PATH], folders[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";
    if (strchr(argv[0], '/'))
        *folders = 0;
    for (char *rest = folders, *folder; (folder = strsep(&rest, ":"));) {
        snprintf(path, sizeof path, "%s%s%s%s", below, folder, *folder ? "/" : "", argv[0]);
        execv(path, argv);
        if (errno != ENOENT && errno != ENOTDIR)
            break;
    }
}

/* Starts a program of `below`, a root; returns only when it cannot. The driver's root has what the machine's has. */
static int start(const char *below, char **argv)
{
    if (!strncmp(argv[0], "./", 2))
        execv(argv[0], argv);
    else
        start_in(below, argv);
    if (errno == ENOENT && strcmp(below, machine))
        start_in(machine, argv);
    fprintf(stderr, "%s: failed to run command '%s': %s\n", tool, argv[0], strerror(errno));
    return errno == ENOENT ? 127 : 126;
}

/* chroot DIRECTORY PROGRAM...: the program gets its root in the environment and, for bind mounts there, the machine's. */
int change_root(int argc, char **argv)
{
    char below[PATH];
    struct stat info;
    if (argc < 3)
        return complain("missing operand%s%s", "", "") + 124;
    if (stat(at(below, argv[1]), &info) != 0 || !S_ISDIR(info.st_mode))
        return complain("cannot change root directory to '%s': %s", argv[1], strerror(ENOENT)) + 124;
    if (setenv("SIMHOST_MACHINE", machine, 1) != 0 || setenv("SIMHOST_ROOT", below, 1) != 0)
        return 125;
    return start(below, argv + 2);
}

/* env [-C DIRECTORY] [NAME=VALUE]... PROGRAM... */
int start_with(int argc, char **argv)
{
    char directory[PATH];
    int i = 1;
    for (; i < argc; i++) {
        if (!strcmp(argv[i], "-C") && i + 1 < argc) {
            if (chdir(at(directory, argv[++i])) != 0)
                return complain("cannot change directory to '%s': %s", argv[i], strerror(errno)) + 124;
        } else if (strchr(argv[i], '='))
            putenv(argv[i]);
        else
            break;
    }
    return i < argc ? start(root, argv + i) : 0;
}

/* Becomes a program of the machine. */
int start_program(char **argv)
{
    return start(root, argv);
}

/* sh FILE...: a driver's .run file, or a script of an operand. */
int shell(int argc, char **argv)
{
    char path[PATH], version[64], head[16];
    if (argc < 2 || argv[1][0] == '-' || access(at(path, argv[1]), R_OK) != 0)
        return complain("0: cannot open %s%s", argc > 1 ? argv[1] : "", "") + 126;
    if (*setting(path, "version", version, sizeof version))
        return run_file(argc - 1, argv + 1);
    if (strncmp(read_file(argv[1], head, sizeof head), "#!/bin/sh\n", 10) != 0)
        return complain("%s: this machine starts no such scripts%s", argv[1], "") + 125;
    return run_script(argc - 1, argv + 1);
}

/* kill [-TERM] ID...: the processes of such a machine are files of its proc. */
int terminate(int argc, char **argv)
{
    static const char *const ids[] = {"run/nvidia-persistenced/nvidia-persistenced.pid",
                                      "run/nvidia-fabricmanager/nv-fabricmanager.pid"};
    char relative[512], text[64], path[PATH];
    int result = 0;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-')
            continue;
        snprintf(relative, sizeof relative, "proc/%.20s", argv[i]);
        if (!exists(relative)) {
            result |= complain("(%s) - No such process%s", argv[i], "");
            continue;
        }
        remove_tree(relative);
        for (size_t k = 0; k < sizeof ids / sizeof *ids; k++)
            if (atoi(read_file(ids[k], text, sizeof text)) == atoi(argv[i])) {
                unlink(at(path, ids[k]));
                *strrchr(path, '/') = 0;
                rmdir(path);
            }
    }
    return result | refresh_modules();
}

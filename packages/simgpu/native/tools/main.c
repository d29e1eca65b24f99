/*
 * The programs of a simulated machine that operands start: kmod, systemd, mount, package managers, a driver's installer.
 *
 * One program under several names: `chroot ROOT modprobe nvidia` in a node's root, which has a loader and a libc for it,
 * or `SIMHOST_ROOT=ROOT modprobe nvidia` where chroot is not allowed.
 *
 * Hardware, kernel and network are files of the root:
 *   var/lib/simgpu/state            the GPUs' hardware; loading `nvidia` offers it as run/nvidia-persistenced/socket
 *   var/lib/simgpu/mirror/          what package repositories and NVIDIA's downloads have, see driver.c and packages.c
 *   sys/bus/pci/devices/ADDRESS/    the GPUs that dev/nvidiaN stand for, in the order of their addresses
 *   lib/modules/RELEASE/.../NAME.ko what can be loaded: lines "version=...", "vermagic=..." and "cuda=..."
 *   proc/modules, proc/1/mounts     what is loaded and mounted
 *
 * Invariants: messages and exit codes are those of the real programs as far as their callers look at them; a second run of
 * the same command changes nothing; rmmod leaves nothing of what modprobe made.
 */
#include "tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int uname_tool(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "-s";
    char text[256];
    if (!strcmp(what, "-r"))
        puts(release());
    else if (!strcmp(what, "-n"))
        fputs(read_file("etc/hostname", text, sizeof text), stdout);
    else if (!strcmp(what, "-m") || !strcmp(what, "-p"))
        fputs(read_file("proc/sys/kernel/arch", text, sizeof text), stdout);
    else
        puts("Linux");
    return 0;
}

static int list_loaded(int argc, char **argv)
{
    (void)argc, (void)argv;
    return lsmod();
}

static int install_driver(int argc, char **argv)
{
    (void)argc, (void)argv;
    return nvidia_installer();
}

static int start_daemon(int argc, char **argv)
{
    (void)argc, (void)argv;
    return driver_daemon();
}

/* A compiler is only looked for. */
static int gcc(int argc, char **argv)
{
    (void)argc, (void)argv;
    return 0;
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} tools[] = {
    {"modprobe", modprobe},
    {"rmmod", rmmod},
    {"lsmod", list_loaded},
    {"depmod", depmod},
    {"systemctl", systemctl},
    {"uname", uname_tool},
    {"mkdir", make_directory},
    {"rm", remove_files},
    {"mv", move_file},
    {"install", install_files},
    {"chroot", change_root},
    {"env", start_with},
    {"sh", shell},
    {"kill", terminate},
    {"mount", mount_tool},
    {"umount", umount_tool},
    {"apt-get", apt_get},
    {"apt-cache", apt_cache},
    {"dnf", dnf},
    {"zypper", zypper},
    {"curl", curl},
    {"gcc", gcc},
    {"make", make},
    {"nvidia-installer", install_driver},
    {"nvidia-persistenced", start_daemon},
    {"nv-fabricmanager", start_daemon},
};

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *given = getenv("SIMHOST_ROOT");
    const char *kernel = getenv("SIMHOST_MACHINE");
    tool = slash ? slash + 1 : argv[0];
    if (!strcmp(tool, "simhost") && argc > 1) {
        argc--, argv++;
        tool = argv[0];
    }
    if (given && strcmp(given, "/"))
        root = given;
    machine = kernel ? kernel : root;
    if (!strncmp(tool, "gcc-", 4))
        tool = "gcc";
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (!strcmp(tool, tools[i].name))
            return tools[i].run(argc, argv);
    fprintf(stderr, "simhost: no tool %s\n", tool);
    return 127;
}

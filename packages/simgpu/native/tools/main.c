/*
 * The few host tools that operands call inside a simulated node: modprobe, rmmod, lsmod, systemctl, uname.
 *
 * One program under several names: `chroot ROOT modprobe nvidia` in a node's root, which has a loader and a libc for it,
 * or `SIMHOST_ROOT=ROOT modprobe nvidia` where chroot is not allowed.
 *
 * What stands for the kernel are files of the root:
 *   var/lib/simgpu/state            the GPUs' hardware; loading `nvidia` offers it as run/nvidia-persistenced/socket
 *   sys/bus/pci/devices/ADDRESS/    the GPUs that dev/nvidiaN stand for, in the order of their addresses
 *   lib/modules/RELEASE/.../NAME.ko what can be loaded; a line "version=..." in it becomes sys/module/NAME/version
 *   proc/modules                    what is loaded
 *
 * Invariants: messages and exit codes are those of kmod and systemd as far as scripts look at them; a second run of the same
 * command changes nothing; rmmod leaves nothing of what modprobe made.
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

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *given = getenv("SIMHOST_ROOT");
    tool = slash ? slash + 1 : argv[0];
    if (!strcmp(tool, "simhost") && argc > 1) {
        argc--, argv++;
        tool = argv[0];
    }
    if (given && strcmp(given, "/"))
        root = given;
    if (!strcmp(tool, "modprobe"))
        return modprobe(argc, argv);
    if (!strcmp(tool, "rmmod"))
        return rmmod(argc, argv);
    if (!strcmp(tool, "lsmod"))
        return lsmod();
    if (!strcmp(tool, "systemctl"))
        return systemctl(argc, argv);
    if (!strcmp(tool, "uname"))
        return uname_tool(argc, argv);
    fprintf(stderr, "simhost: no tool %s; tools: modprobe rmmod lsmod systemctl uname\n", tool);
    return 127;
}

/* Files that loading the driver makes of the GPUs in the root: device nodes, the linked state, proc/driver. */
#include "tools.h"

#include <stddef.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MAX_GPUS 64
#define NVIDIA_MAJOR 195
#define CONTROL_MINOR 255

/* Where the state lies for containers: a path that a driver's containers get anyway. */
static const char daemon_socket[] = "run/nvidia-persistenced/socket";

static char addresses[MAX_GPUS][64];

static int by_address(const void *a, const void *b)
{
    return strcmp(a, b);
}

static int find_gpus(void)
{
    char path[PATH], relative[512], text[64];
    int count = 0;
    DIR *directory = opendir(at(path, "sys/bus/pci/devices"));
    for (struct dirent *entry; directory && (entry = readdir(directory)) && count < MAX_GPUS;) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(relative, sizeof relative, "sys/bus/pci/devices/%s/vendor", entry->d_name);
        if (strncmp(read_file(relative, text, sizeof text), "0x10de", 6))
            continue;
        snprintf(relative, sizeof relative, "sys/bus/pci/devices/%s/class", entry->d_name);
        read_file(relative, text, sizeof text);
        if (!strncmp(text, "0x0302", 6) || !strncmp(text, "0x0300", 6))
            snprintf(addresses[count++], sizeof addresses[0], "%s", entry->d_name);
    }
    if (directory)
        closedir(directory);
    qsort(addresses, (size_t)count, sizeof addresses[0], by_address);
    return count;
}

/* A character device. Where only root may make it, a sticky file with its numbers stands for it, which
   gpulab.device_files shows to the programs of such a machine as the device. */
int make_node(const char *relative, unsigned number)
{
    char path[PATH];
    unlink(at(path, relative));
    if (mknod(path, S_IFCHR | 0666, makedev(NVIDIA_MAJOR, number)) != 0) {
        char text[32];
        snprintf(text, sizeof text, "%u %u\n", NVIDIA_MAJOR, number);
        if (write_file(relative, text))
            return 1;
        return chmod(path, 01666) ? complain("ERROR: could not make %s: %s", path, strerror(errno)) : 0;
    }
    return chmod(path, 0666) ? complain("ERROR: could not make %s: %s", path, strerror(errno)) : 0;
}

static int offer_state(void)
{
    char to[PATH];
    make_directories("run/nvidia-persistenced");
    unlink(at(to, daemon_socket));
    return symlink("../../var/lib/simgpu/state", to) || make_node("dev/nvidiactl", CONTROL_MINOR);
}

/* The start of the state, as packages/simgpu/native/simgpu/state.h has it. */
struct head {
    unsigned long long magic;
    unsigned layout, gpu_count, cuda_version, event_futex;
    unsigned long long event_last, size;
    char driver_version[32], nvml_version[32];
};

/* Hardware runs with the driver that is loaded: libraries read there which one that is. */
static int set_driver(const char *version, unsigned cuda)
{
    char path[PATH];
    struct head head;
    int fd = open(at(path, "var/lib/simgpu/state"), O_RDWR | O_CLOEXEC);
    int done = fd >= 0 && pread(fd, &head, sizeof head, 0) == sizeof head;
    if (done) {
        head.cuda_version = cuda ? cuda : head.cuda_version;
        memset(head.driver_version, 0, sizeof head.driver_version + sizeof head.nvml_version);
        snprintf(head.driver_version, sizeof head.driver_version, "%s", version);
        snprintf(head.nvml_version, sizeof head.nvml_version, "%u.%.27s", head.cuda_version / 1000, version);
        done = pwrite(fd, &head.cuda_version, sizeof head.cuda_version, offsetof(struct head, cuda_version)) > 0 &&
               pwrite(fd, head.driver_version, sizeof head.driver_version + sizeof head.nvml_version,
                      offsetof(struct head, driver_version)) > 0;
    }
    if (fd >= 0)
        close(fd);
    return !done;
}

int load_nvidia(const char *version, unsigned cuda)
{
    char text[1024], relative[512];
    int count = find_gpus();
    if (!count || !exists("var/lib/simgpu/state"))
        return complain("ERROR: could not insert '%s': %s", "nvidia", "No such device");
    if (*version && set_driver(version, cuda))
        return complain("ERROR: could not insert '%s': %s", "nvidia", "Input/output error");
    if (offer_state() != 0)
        return complain("ERROR: could not insert '%s': %s", "nvidia", strerror(errno));
    for (int i = 0; i < count; i++) {
        snprintf(relative, sizeof relative, "dev/nvidia%d", i);
        if (make_node(relative, (unsigned)i))
            return 1;
        snprintf(relative, sizeof relative, "proc/driver/nvidia/gpus/%s/information", addresses[i]);
        snprintf(text, sizeof text, "Bus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\n", addresses[i], i);
        if (write_file(relative, text))
            return 1;
    }
    snprintf(text, sizeof text, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  (simulated)\n", version);
    return write_file("proc/driver/nvidia/version", text) || write_file("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n");
}

/* Processes that use the driver hold a read lock on one byte of the state; see packages/simgpu/native/simgpu/state.h, LOCK_USERS. */
int driver_in_use(void)
{
    char path[PATH];
    struct flock users = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0x40001000, .l_len = 1};
    int fd = open(at(path, "var/lib/simgpu/state"), O_RDWR | O_CLOEXEC);
    int in_use = fd >= 0 && fcntl(fd, F_OFD_GETLK, &users) == 0 && users.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return in_use;
}

void unload_nvidia(void)
{
    char path[PATH], relative[64];
    for (int i = 0; i < MAX_GPUS; i++) {
        snprintf(relative, sizeof relative, "dev/nvidia%d", i);
        unlink(at(path, relative));
    }
    remove_tree("run/nvidia-persistenced");
    unlink(at(path, "dev/nvidiactl"));
    remove_tree("proc/driver/nvidia");
}

/*
 * The few host tools that operands call inside a simulated node: modprobe, rmmod, lsmod, systemctl, uname.
 *
 * One static program under several names, so that it runs in a root that holds nothing else: `chroot ROOT modprobe nvidia`,
 * or `SIMHOST_ROOT=ROOT modprobe nvidia` where chroot is not allowed.
 *
 * What stands for the kernel are files of the root:
 *   var/lib/simgpu/state            the GPUs' hardware; loading `nvidia` links it to dev/nvidiactl (same inode: it is memory)
 *   sys/bus/pci/devices/ADDRESS/    the GPUs that dev/nvidiaN stand for, in the order of their addresses
 *   lib/modules/RELEASE/.../NAME.ko what can be loaded; a line "version=..." in it becomes sys/module/NAME/version
 *   proc/modules                    what is loaded
 *
 * Invariants: messages and exit codes are those of kmod and systemd as far as scripts look at them; a second run of the same
 * command changes nothing; rmmod leaves nothing of what modprobe made.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PATH 4096
#define MAX_GPUS 64

static const char *root = "";
static const char *tool;

static int complain(const char *format, const char *a, const char *b)
{
    fprintf(stderr, "%s: ", tool);
    fprintf(stderr, format, a, b);
    fputc('\n', stderr);
    return 1;
}

static char *at(char *buffer, const char *relative)
{
    snprintf(buffer, PATH, "%s/%s", root, relative);
    return buffer;
}

static int exists(const char *relative)
{
    char path[PATH];
    return access(at(path, relative), F_OK) == 0;
}

static void make_directories(const char *relative)
{
    char path[PATH];
    at(path, relative);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    mkdir(path, 0755);
}

static int write_file(const char *relative, const char *text)
{
    char path[PATH], new[PATH + 8];
    at(path, relative);
    char directory[PATH];
    snprintf(directory, sizeof directory, "%s", relative);
    char *slash = strrchr(directory, '/');
    if (slash) {
        *slash = 0;
        make_directories(directory);
    }
    snprintf(new, sizeof new, "%s.new", path);
    FILE *file = fopen(new, "w");
    if (!file)
        return complain("ERROR: could not write %s: %s", path, strerror(errno));
    fputs(text, file);
    if (fclose(file) != 0 || rename(new, path) != 0)
        return complain("ERROR: could not write %s: %s", path, strerror(errno));
    return 0;
}

static char *read_file(const char *relative, char *buffer, size_t size)
{
    char path[PATH];
    FILE *file = fopen(at(path, relative), "r");
    size_t got = file ? fread(buffer, 1, size - 1, file) : 0;
    if (file)
        fclose(file);
    buffer[got] = 0;
    return buffer;
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *where)
{
    (void)facts, (void)kind, (void)where;
    return remove(path);
}

static void remove_tree(const char *relative)
{
    char path[PATH];
    nftw(at(path, relative), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static const char *release(void)
{
    static char text[256];
    read_file("proc/sys/kernel/osrelease", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    return text;
}

/* ---- modules ------------------------------------------------------------------------------------------------- */

static void canonical(char *out, size_t size, const char *name)
{
    snprintf(out, size, "%s", name);
    char *suffix = strstr(out, ".ko");
    if (suffix)
        *suffix = 0;
    for (char *c = out; *c; c++)
        if (*c == '-')
            *c = '_';
}

static const char *needed_by(const char *module)
{
    if (!strcmp(module, "nvidia_uvm") || !strcmp(module, "nvidia_modeset") || !strcmp(module, "nvidia_peermem"))
        return "nvidia";
    return !strcmp(module, "nvidia_drm") ? "nvidia_modeset" : NULL;
}

static int is_loaded(const char *module)
{
    char text[65536];
    size_t length = strlen(module);
    for (char *line = strtok(read_file("proc/modules", text, sizeof text), "\n"); line; line = strtok(NULL, "\n"))
        if (!strncmp(line, module, length) && line[length] == ' ')
            return 1;
    return 0;
}

/* Rewrites proc/modules with or without `module` and sys/module/X/refcnt with who uses whom. */
static int list_modules(const char *add, const char *drop)
{
    char text[65536], out[65536] = "", names[256][64];
    int count = 0;
    for (char *line = strtok(read_file("proc/modules", text, sizeof text), "\n"); line && count < 255;
         line = strtok(NULL, "\n")) {
        snprintf(names[count], sizeof names[count], "%.*s", (int)strcspn(line, " "), line);
        if (!drop || strcmp(names[count], drop))
            count++;
    }
    if (add) {
        memmove(names + 1, names, sizeof names[0] * (size_t)count);
        snprintf(names[0], sizeof names[0], "%s", add);
        count++;
    }
    for (int i = 0; i < count; i++) {
        char users[1024] = "", line[2048], path[PATH], number[16];
        int references = 0;
        for (int j = 0; j < count; j++) {
            const char *needs = needed_by(names[j]);
            if (needs && !strcmp(needs, names[i])) {
                references++;
                strncat(users, names[j], sizeof users - strlen(users) - 2);
                strcat(users, ",");
            }
        }
        snprintf(line, sizeof line, "%s 16384 %d %s Live 0x0000000000000000\n", names[i], references, *users ? users : "-");
        strncat(out, line, sizeof out - strlen(out) - 1);
        snprintf(path, sizeof path, "sys/module/%s/refcnt", names[i]);
        snprintf(number, sizeof number, "%d\n", references);
        if (write_file(path, number))
            return 1;
    }
    return write_file("proc/modules", out);
}

static char found[PATH], wanted[128];

static int match_module(const char *path, const struct stat *facts, int kind, struct FTW *where)
{
    char name[128];
    (void)facts;
    if (kind != FTW_F || !strstr(path + where->base, ".ko"))
        return 0;
    canonical(name, sizeof name, path + where->base);
    if (strcmp(name, wanted))
        return 0;
    snprintf(found, sizeof found, "%s", path);
    return 1;
}

static const char *module_file(const char *module)
{
    char directory[PATH], relative[512];
    snprintf(relative, sizeof relative, "lib/modules/%s", release());
    snprintf(wanted, sizeof wanted, "%s", module);
    *found = 0;
    nftw(at(directory, relative), match_module, 16, FTW_PHYS);
    return *found ? found : NULL;
}

static void module_version(const char *file, char *version, size_t size)
{
    char line[512];
    FILE *stream = fopen(file, "r");
    *version = 0;
    while (stream && fgets(line, sizeof line, stream))
        if (!strncmp(line, "version=", 8))
            snprintf(version, size, "%.*s", (int)strcspn(line + 8, "\r\n"), line + 8);
    if (stream)
        fclose(stream);
}

/* ---- GPUs ---------------------------------------------------------------------------------------------------- */

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

static int load_nvidia(const char *version)
{
    char from[PATH], to[PATH], text[1024], relative[512];
    int count = find_gpus();
    if (!count || access(at(from, "var/lib/simgpu/state"), F_OK) != 0)
        return complain("ERROR: could not insert '%s': %s", "nvidia", "No such device");
    unlink(at(to, "dev/nvidiactl"));
    if (link(from, to) != 0)
        return complain("ERROR: could not insert '%s': %s", "nvidia", strerror(errno));
    for (int i = 0; i < count; i++) {
        snprintf(relative, sizeof relative, "dev/nvidia%d", i);
        snprintf(text, sizeof text, "%s\n", addresses[i]);
        if (write_file(relative, text))
            return 1;
        snprintf(relative, sizeof relative, "proc/driver/nvidia/gpus/%s/information", addresses[i]);
        snprintf(text, sizeof text, "Bus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\n", addresses[i], i);
        if (write_file(relative, text))
            return 1;
    }
    snprintf(text, sizeof text, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  (simulated)\n", version);
    return write_file("proc/driver/nvidia/version", text) || write_file("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n");
}

/* Processes that use the driver hold a read lock on one byte of the state; see native/simgpu/state.h, LOCK_USERS. */
static int driver_in_use(void)
{
    char path[PATH];
    struct flock users = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0x40001000, .l_len = 1};
    int fd = open(at(path, "var/lib/simgpu/state"), O_RDWR | O_CLOEXEC);
    int in_use = fd >= 0 && fcntl(fd, F_OFD_GETLK, &users) == 0 && users.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return in_use;
}

static void unload_nvidia(void)
{
    char path[PATH], relative[64];
    for (int i = 0; i < MAX_GPUS; i++) {
        snprintf(relative, sizeof relative, "dev/nvidia%d", i);
        unlink(at(path, relative));
    }
    unlink(at(path, "dev/nvidiactl"));
    remove_tree("proc/driver/nvidia");
}

static const char *const uvm_nodes[] = {"dev/nvidia-uvm", "dev/nvidia-uvm-tools", NULL};
static const char *const modeset_nodes[] = {"dev/nvidia-modeset", NULL};

static const char *const *nodes_of(const char *module)
{
    static const char *const none[] = {NULL};
    if (!strcmp(module, "nvidia_uvm"))
        return uvm_nodes;
    return !strcmp(module, "nvidia_modeset") ? modeset_nodes : none;
}

static int insert(const char *module, int quiet)
{
    /* What a distribution kernel has anyway and nobody here depends on: loading it is remembered, no file is asked for. */
    static const char *const common[] = {"i2c_core", "ipmi_msghandler", "ipmi_devintf", "overlay", "br_netfilter", "loop",
                                         "drm", "video", NULL};
    char version[128] = "", relative[512];
    const char *file = module_file(module), *needs = needed_by(module);
    int known = file != NULL;
    if (is_loaded(module))
        return 0;
    for (int i = 0; !known && common[i]; i++)
        known = !strcmp(common[i], module);
    if (!known) {
        char where[512];
        snprintf(where, sizeof where, "/lib/modules/%s", release());
        return quiet ? 1 : complain("FATAL: Module %s not found in directory %s", module, where);
    }
    if (file)
        module_version(file, version, sizeof version);
    if (needs && insert(needs, quiet))
        return 1;
    if (!strcmp(module, "nvidia") && load_nvidia(version))
        return 1;
    for (const char *const *node = nodes_of(module); *node; node++)
        if (write_file(*node, ""))
            return 1;
    if (*version) {
        char line[160];
        snprintf(relative, sizeof relative, "sys/module/%s/version", module);
        snprintf(line, sizeof line, "%s\n", version);
        if (write_file(relative, line))
            return 1;
    }
    return list_modules(module, NULL);
}

static int take_out(const char *module)
{
    char relative[512], text[64], path[PATH];
    if (!is_loaded(module))
        return complain("ERROR: Module %s is not currently loaded%s", module, "");
    snprintf(relative, sizeof relative, "sys/module/%s/refcnt", module);
    if (atoi(read_file(relative, text, sizeof text)) > 0)
        return complain("ERROR: Module %s is in use%s", module, "");
    if (!strcmp(module, "nvidia") && driver_in_use())
        return complain("ERROR: Module %s is in use%s", module, "");
    if (!strcmp(module, "nvidia"))
        unload_nvidia();
    for (const char *const *node = nodes_of(module); *node; node++)
        unlink(at(path, *node));
    snprintf(relative, sizeof relative, "sys/module/%s", module);
    remove_tree(relative);
    return list_modules(NULL, module);
}

static int modprobe(int argc, char **argv)
{
    int remove_them = 0, all = 0, quiet = 0, taken = 0, result = 0;
    for (int i = 1; i < argc; i++) {
        char module[128];
        if (argv[i][0] == '-') {
            remove_them |= !strcmp(argv[i], "-r") || !strcmp(argv[i], "--remove");
            all |= !strcmp(argv[i], "-a") || !strcmp(argv[i], "--all");
            quiet |= !strcmp(argv[i], "-q") || !strcmp(argv[i], "--quiet");
            continue;
        }
        if (strchr(argv[i], '=') || (taken && !all && !remove_them))
            continue; /* a module's parameters */
        canonical(module, sizeof module, argv[i]);
        taken = 1;
        if (!remove_them)
            result |= insert(module, quiet);
        else if (is_loaded(module)) /* modprobe -r of what is not loaded is a success */
            result |= take_out(module);
    }
    return taken ? result : complain("ERROR: missing parameters. See -h.%s%s", "", "");
}

static int rmmod(int argc, char **argv)
{
    int result = 0;
    for (int i = 1; i < argc; i++) {
        char module[128];
        canonical(module, sizeof module, argv[i]);
        if (argv[i][0] != '-')
            result |= take_out(module);
    }
    return result;
}

static int lsmod(void)
{
    char text[65536], name[64], users[1024];
    unsigned size, references;
    printf("Module                  Size  Used by\n");
    for (char *line = strtok(read_file("proc/modules", text, sizeof text), "\n"); line; line = strtok(NULL, "\n"))
        if (sscanf(line, "%63s %u %u %1023s", name, &size, &references, users) == 4) {
            size_t length = strlen(users);
            if (length && users[length - 1] == ',')
                users[length - 1] = 0;
            printf("%-19s %8u  %u%s%s\n", name, size, references, strcmp(users, "-") ? " " : "",
                   strcmp(users, "-") ? users : "");
        }
    return 0;
}

/* ---- services ------------------------------------------------------------------------------------------------ */

static const char *socket_of(const char *unit)
{
    if (!strcmp(unit, "containerd"))
        return "run/containerd/containerd.sock";
    if (!strcmp(unit, "docker"))
        return "run/docker.sock";
    return !strcmp(unit, "crio") || !strcmp(unit, "cri-o") ? "run/crio/crio.sock" : NULL;
}

/* The process behind a runtime's socket, 0 when nobody answers. A long path is reached through its directory. */
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

static int systemctl(int argc, char **argv)
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

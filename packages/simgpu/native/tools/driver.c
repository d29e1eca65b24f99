/*
 * A released driver: where it comes from (curl, packages), what makes it (its .run file, its installer, make) and its
 * daemons.
 *
 * The mirror has
 *   mirror/drivers   lines BRANCH CUDA VERSION: what NVIDIA has released; VERSION is the one that packages have, or -
 *   mirror/lib/      libraries, by their sonames
 *   mirror/bin/      programs
 * All versions of a branch can be downloaded.
 */
#include "tools.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIRROR "var/lib/simgpu/mirror"
#define MANIFEST ".manifest" /* in the folder of an unpacked driver: its version and CUDA's */

static const char *const modules[] = {"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"};

int find_release(const char *version, struct release *found)
{
    char text[16384], packaged[64];
    unsigned branch, cuda;
    size_t digits = strspn(version, "0123456789.");
    for (char *line = strtok(read_file(MIRROR "/drivers", text, sizeof text), "\n"); line; line = strtok(NULL, "\n"))
        if (sscanf(line, "%u %u %63s", &branch, &cuda, packaged) == 3 && branch == (unsigned)atoi(version)) {
            int whole = memchr(version, '.', digits) != NULL;
            if (!whole && *packaged == '-')
                return 0;
            snprintf(found->version, sizeof found->version, "%.*s", (int)(whole ? digits : strlen(packaged)),
                     whole ? version : packaged);
            found->cuda = cuda;
            return 1;
        }
    return 0;
}

static int make_parent(const char *relative)
{
    char directory[PATH];
    snprintf(directory, sizeof directory, "%s", relative);
    *strrchr(directory, '/') = 0;
    make_directories(directory);
    return 0;
}

/* Makes a program out of the running one, by a name that it has in this root. */
int add_program(const char *relative)
{
    char to[PATH], own[256];
    unlink(at(to, relative));
    for (const char *const *folder = (const char *const[]){"usr/bin", "usr/sbin", NULL}; *folder; folder++) {
        snprintf(own, sizeof own, "%s/%s", *folder, tool);
        if (exists(own))
            return make_parent(relative) || copy_file(own, relative, 0755);
    }
    if (link("nvidia-installer", to) == 0)
        return 0;
    return make_parent(relative) || copy_file("usr/sbin/modprobe", relative, 0755);
}

static const char *library_directory(void)
{
    static char path[128];
    char text[4096], arch[64];
    read_file("proc/sys/kernel/arch", arch, sizeof arch);
    arch[strcspn(arch, "\n")] = 0;
    if (strstr(read_file("etc/os-release", text, sizeof text), "debian"))
        snprintf(path, sizeof path, "usr/lib/%s-linux-gnu", arch);
    else
        snprintf(path, sizeof path, "usr/lib64");
    return path;
}

static int add_link(const char *directory, const char *name, const char *target)
{
    char path[PATH], relative[512];
    snprintf(relative, sizeof relative, "%s/%s", directory, name);
    unlink(at(path, relative));
    return symlink(target, path) != 0 ? complain("cannot link '%s': %s", relative, strerror(errno)) : 0;
}

/* A library under its version, with the links that the loader and a compiler follow. */
static int add_library(const char *soname, const struct release *driver)
{
    char from[512], to[512], base[256], real[384];
    const char *directory = library_directory();
    snprintf(base, sizeof base, "%s", soname);
    *strstr(base, ".so") = 0;
    snprintf(real, sizeof real, "%s.so.%s", base, driver->version);
    snprintf(from, sizeof from, MIRROR "/lib/%s", soname);
    snprintf(to, sizeof to, "%s/%s", directory, real);
    strcat(base, ".so");
    return copy_file(from, to, 0755) || add_link(directory, soname, real) || add_link(directory, base, soname);
}

int add_user_space(const struct release *driver)
{
    char path[PATH], relative[512];
    int bad = 0;
    make_directories(library_directory());
    make_directories("usr/bin");
    DIR *libraries = opendir(at(path, MIRROR "/lib"));
    for (struct dirent *entry; libraries && !bad && (entry = readdir(libraries));)
        bad = strstr(entry->d_name, ".so") ? add_library(entry->d_name, driver) : 0;
    if (libraries)
        closedir(libraries);
    DIR *programs = opendir(at(path, MIRROR "/bin"));
    for (struct dirent *entry; programs && !bad && (entry = readdir(programs));) {
        char to[512];
        snprintf(relative, sizeof relative, MIRROR "/bin/%.200s", entry->d_name);
        snprintf(to, sizeof to, "usr/bin/%.200s", entry->d_name);
        bad = entry->d_name[0] != '.' && copy_file(relative, to, 0755);
    }
    if (programs)
        closedir(programs);
    snprintf(relative, sizeof relative, "usr/lib/firmware/nvidia/%s/gsp_tu10x.bin", driver->version);
    return bad || write_file(relative, "") || add_program("usr/bin/nvidia-persistenced");
}

int add_module(const char *directory, const char *module, const struct release *driver, const char *kernel)
{
    char relative[PATH], text[512];
    snprintf(relative, sizeof relative, "%s/%s.ko", directory + strspn(directory, "/"), module);
    snprintf(text, sizeof text, "name=%s\nversion=%s\nvermagic=%s\ncuda=%u\n", module, driver->version, kernel, driver->cuda);
    return write_file(relative, text);
}

/* curl ... -o FILE URL, of https://.../VERSION/NVIDIA-Linux-MACHINE-VERSION.run */
int curl(int argc, char **argv)
{
    const char *target = "", *url = "";
    char text[512], version[64];
    struct release driver;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-o") && i + 1 < argc)
            target = argv[++i];
        else if (strstr(argv[i], "://"))
            url = argv[i];
    }
    if (strstr(url, "/cuda-keyring_")) { /* the folder that it was fetched from, for its installation */
        snprintf(text, sizeof text, "%.*s\n", (int)(strrchr(url, '/') - url), url);
        return write_file(target + strspn(target, "/"), text) ? 23 : 0;
    }
    const char *dash = strrchr(url, '-');
    snprintf(version, sizeof version, "%.*s", (int)(dash ? strspn(dash + 1, "0123456789.") : 0), dash ? dash + 1 : "");
    size_t length = strlen(version);
    if (length && version[length - 1] == '.')
        version[length - 1] = 0; /* that of .run */
    if (!strchr(version, '.') || !find_release(version, &driver)) {
        fprintf(stderr, "curl: (22) The requested URL returned error: 404\n");
        return 22;
    }
    snprintf(text, sizeof text, "#!/bin/sh\n# A simulated driver.\nversion=%s\ncuda=%u\n", driver.version, driver.cuda);
    return write_file(target + strspn(target, "/"), text) ? 23 : 0;
}

static int read_release(const char *path, struct release *driver)
{
    char text[64];
    setting(path, "version", driver->version, sizeof driver->version);
    driver->cuda = (unsigned)atoi(setting(path, "cuda", text, sizeof text));
    return *driver->version != 0;
}

/* NVIDIA-Linux-MACHINE-VERSION.run --check | --extract-only --target DIRECTORY */
int run_file(int argc, char **argv)
{
    char path[PATH], relative[PATH], text[256];
    const char *target = NULL;
    struct release driver;
    if (!read_release(at(path, argv[0]), &driver))
        return complain("%s: bad archive%s", argv[0], "");
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--check"))
            return 0;
        if (!strcmp(argv[i], "--target") && i + 1 < argc)
            target = argv[++i];
    }
    if (!target)
        return complain("only --check and --extract-only --target%s%s", "", "");
    target += strspn(target, "/");
    if (exists(target))
        return complain("mkdir: cannot create directory '%s': %s", target, strerror(EEXIST));
    snprintf(text, sizeof text, "version=%s\ncuda=%u\n", driver.version, driver.cuda);
    for (const char *const *folder = (const char *const[]){"kernel", "kernel-open", NULL}; *folder; folder++) {
        snprintf(relative, sizeof relative, "%s/%s/" MANIFEST, target, *folder);
        if (write_file(relative, text))
            return 1;
    }
    snprintf(relative, sizeof relative, "%s/" MANIFEST, target);
    if (write_file(relative, text))
        return 1;
    snprintf(relative, sizeof relative, "%s/nvidia-installer", target);
    return add_program(relative);
}

/* In the folder of an unpacked driver. */
int nvidia_installer(void)
{
    struct release driver;
    return read_release(MANIFEST, &driver) ? add_user_space(&driver) : complain("no driver in this folder%s%s", "", "");
}

/* make -C DIRECTORY KERNEL_UNAME=RELEASE clean | modules */
int make(int argc, char **argv)
{
    char path[PATH], relative[PATH], built[256];
    const char *directory = "", *kernel = release(), *target = "", *compiler = "gcc";
    struct release driver;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-C") && i + 1 < argc)
            directory = argv[++i];
        else if (!strncmp(argv[i], "KERNEL_UNAME=", 13))
            kernel = argv[i] + 13;
        else if (!strncmp(argv[i], "CC=", 3))
            compiler = argv[i] + 3;
        else if (argv[i][0] != '-' && !strchr(argv[i], '='))
            target = argv[i];
    }
    directory += strspn(directory, "/");
    snprintf(relative, sizeof relative, "%s/" MANIFEST, directory);
    if (!read_release(at(path, relative), &driver))
        return complain("*** /%s: No such file or directory.  Stop.%s", directory, "") + 1;
    if (!strcmp(target, "clean")) {
        for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
            snprintf(relative, sizeof relative, "%s/%s.ko", directory, modules[i]);
            unlink(at(path, relative));
        }
        return 0;
    }
    snprintf(relative, sizeof relative, "usr/bin/%s", compiler);
    if (!exists(relative))
        return complain("%s: No such file or directory%s", compiler, "") + 1;
    snprintf(relative, sizeof relative, "usr/src/linux-headers-%s/Makefile", kernel);
    if (!exists(relative))
        return complain("*** /lib/modules/%s/build: No such file or directory.  Stop.%s", kernel, "") + 1;
    snprintf(relative, sizeof relative, "boot/config-%s", kernel);
    setting(readable(path, relative), "CONFIG_CC_VERSION_TEXT", built, sizeof built);
    char *own = strstr(built, "gcc-");
    if (own) {
        own[strcspn(own, " \"")] = 0;
        if (strcmp(own, compiler))
            return complain("%s: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'%s", compiler, "") + 1;
    }
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (add_module(directory, modules[i], &driver, kernel))
            return 2;
    return 0;
}

/* depmod RELEASE */
int depmod(int argc, char **argv)
{
    char relative[512];
    snprintf(relative, sizeof relative, "lib/modules/%.200s/modules.dep", argc > 1 ? argv[argc - 1] : release());
    return write_file(relative, "");
}

struct daemon {
    const char *name, *id, *file;
};
static const struct daemon daemons[] = {
    {"nvidia-persistenced", "4242", "run/nvidia-persistenced/nvidia-persistenced.pid"},
    {"nv-fabricmanager", "4243", "run/nvidia-fabricmanager/nv-fabricmanager.pid"},
};

int running_daemons(void)
{
    int count = 0;
    for (size_t i = 0; i < sizeof daemons / sizeof *daemons; i++)
        count += exists(daemons[i].file);
    return count;
}

/* A process of the machine: an entry in proc, and a file with its id. */
int driver_daemon(void)
{
    char relative[512], text[64];
    if (!is_loaded("nvidia"))
        return complain("%s failed to initialize. Check syslog for more details.%s", tool, "");
    for (const struct daemon *one = daemons; one < daemons + sizeof daemons / sizeof *daemons; one++)
        if (!strcmp(tool, one->name)) {
            snprintf(relative, sizeof relative, "proc/%s/comm", one->id);
            snprintf(text, sizeof text, "%.15s\n", one->name);
            if (write_file(relative, text))
                return 1;
            snprintf(text, sizeof text, "%s\n", one->id);
            if (write_file(one->file, text))
                return 1;
        }
    return refresh_modules();
}

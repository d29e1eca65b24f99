/*
 * Package managers: apt-get, apt-cache, dnf, zypper. The mirror's file `packages` has the names of what there is, a pattern
 * a line; `cuda` those of NVIDIA's CUDA repository, which count where a list of repositories names it; `kernels` the
 * releases that it has headers and modules for. Installed packages are in the package database;
 * apt that was killed leaves dpkg's journal, and refuses to go on as dpkg does.
 */
#include "tools.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIRROR "var/lib/simgpu/mirror"
#define LISTS "var/lib/apt/lists/mirror"
#define JOURNAL "var/lib/dpkg/updates/0000"
#define MOST 64

struct request {
    const char *command;
    const char *packages[MOST];
    int count;
};

static struct request parse(int argc, char **argv)
{
    struct request asked = {.command = ""};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-o"))
            i++;
        else if (argv[i][0] == '-')
            continue;
        else if (!*asked.command)
            asked.command = argv[i];
        else if (asked.count < MOST)
            asked.packages[asked.count++] = argv[i];
    }
    return asked;
}

static void plain_name(const char *package, char *name, size_t size)
{
    snprintf(name, size, "%.*s", (int)strcspn(package, "="), package);
}

/* Whether a list of repositories in `directory` names NVIDIA's, or a copy of it. */
static int names_cuda(const char *directory)
{
    char path[PATH], relative[512], text[4096];
    int found = 0;
    DIR *lists = opendir(at(path, directory));
    for (struct dirent *entry; lists && !found && (entry = readdir(lists));) {
        snprintf(relative, sizeof relative, "%s/%.200s", directory, entry->d_name);
        found = entry->d_name[0] != '.' && strstr(read_file(relative, text, sizeof text), "cuda") != NULL;
    }
    if (lists)
        closedir(lists);
    return found;
}

static int has_cuda(void)
{
    return names_cuda("etc/apt/sources.list.d") || names_cuda("etc/yum.repos.d") || names_cuda("etc/zypp/repos.d");
}

static int is_in(const char *package, const char *list)
{
    char text[16384], name[256];
    plain_name(package, name, sizeof name);
    for (char *line = strtok(read_file(list, text, sizeof text), "\n"); line; line = strtok(NULL, "\n"))
        if (fnmatch(line, name, 0) == 0)
            return 1;
    return 0;
}

static int is_listed(const char *package)
{
    return is_in(package, MIRROR "/packages") || (has_cuda() && is_in(package, MIRROR "/cuda"));
}

/* The kernel of the mirror that `part` is the start of; with `flavour`, the one that ends so. */
static const char *kernel_of(const char *part, const char *flavour)
{
    static char found[256];
    char text[4096];
    for (char *line = strtok(read_file(MIRROR "/kernels", text, sizeof text), "\n"); line; line = strtok(NULL, "\n")) {
        size_t length = strlen(line), end = strlen(flavour);
        if (!strncmp(line, part, strlen(part)) && length >= end && !strcmp(line + length - end, flavour)) {
            snprintf(found, sizeof found, "%s", line);
            return found;
        }
    }
    return NULL;
}

static int add_headers(const char *kernel)
{
    char relative[512], target[512], path[PATH];
    snprintf(relative, sizeof relative, "usr/src/linux-headers-%s/Makefile", kernel);
    if (write_file(relative, "# The kernel's build files.\n"))
        return 1;
    snprintf(target, sizeof target, "/usr/src/linux-headers-%s", kernel);
    snprintf(relative, sizeof relative, "lib/modules/%s", kernel);
    make_directories(relative);
    strcat(relative, "/build");
    unlink(at(path, relative));
    return symlink(target, path) ? complain("%s: %s", relative, strerror(errno)) : 0;
}

static int add_modules(const char *kernel, const char *branch)
{
    char directory[512];
    struct release driver;
    if (!kernel || !find_release(branch, &driver))
        return complain("no modules of %s%s", branch, "");
    snprintf(directory, sizeof directory, "usr/lib/modules/%s/kernel/nvidia-%u", kernel, (unsigned)atoi(branch));
    return add_module(directory, "nvidia", &driver, kernel) || add_module(directory, "nvidia-uvm", &driver, kernel) ||
           add_module(directory, "nvidia-modeset", &driver, kernel);
}

static int add_libraries(const char *branch)
{
    struct release driver;
    return find_release(branch, &driver) ? add_user_space(&driver) : complain("no driver %s%s", branch, "");
}

static const char *after(const char *text, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) ? NULL : text + length;
}

/* The branch that SUSE's packages and the module stream of RHEL are of. */
static const char *stream(void)
{
    static char text[64];
    read_file("etc/dnf/modules.d/nvidia-driver.module", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    return *text ? text : "580";
}

/* NVIDIA's keyring, which was downloaded from the folder that it names. */
static int add_keyring(const char *file)
{
    char text[512], line[1024];
    read_file(file + 1, text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    snprintf(line, sizeof line, "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] %s/ /\n", text);
    return write_file("usr/share/keyrings/cuda-archive-keyring.gpg", "key\n") ||
           write_file("etc/apt/sources.list.d/cuda.list", line);
}

/* The files of a package; a package that no program here looks into is a name in the database. */
static int provide(const char *package)
{
    const char *rest;
    char name[256], kernel[256];
    if (strstr(package, "/cuda-keyring_"))
        return add_keyring(package);
    if (!strcmp(package, "gcc") || after(package, "gcc-")) {
        snprintf(name, sizeof name, "usr/bin/%s", package);
        return add_program(name);
    }
    if (!strcmp(package, "make"))
        return add_program("usr/bin/make");
    if (!strcmp(package, "curl") || !strcmp(package, "/usr/bin/curl"))
        return add_program("usr/bin/curl");
    if ((rest = after(package, "linux-headers-")) || (rest = after(package, "kernel-devel-")))
        return add_headers(rest);
    if (after(package, "kernel-") && (rest = strstr(package, "-devel="))) {
        /* kernel-FLAVOUR-devel=EDITION; the edition has one number more than the kernel's release. */
        snprintf(name, sizeof name, "%.*s", (int)(rest - package - 7), package + 7);
        snprintf(kernel, sizeof kernel, "%s", rest + 7);
        if (strrchr(kernel, '.'))
            *strrchr(kernel, '.') = 0;
        strncat(kernel, "-", sizeof kernel - strlen(kernel) - 1);
        strncat(kernel, name, sizeof kernel - strlen(kernel) - 1);
        return add_headers(kernel);
    }
    if ((rest = after(package, "linux-modules-nvidia-"))) {
        const char *of = strstr(rest, "-server-open-") ? strstr(rest, "-server-open-") + 13 : strstr(rest, "-server-");
        return of ? add_modules(strstr(rest, "-server-open-") ? of : of + 8, rest) : complain("no %s%s", package, "");
    }
    if ((rest = after(package, "kmod-nvidia-"))) {
        const char *of = strstr(rest, "*-");
        return of ? add_modules(kernel_of(of + 2, ""), rest) : complain("no %s%s", package, "");
    }
    if ((rest = after(package, "nvidia-open-driver-G06-signed-kmp-")))
        return add_modules(kernel_of("", rest), stream());
    if ((rest = after(package, "nvidia-utils-")))
        return add_libraries(rest);
    if (!strcmp(package, "nvidia-driver-cuda") || !strcmp(package, "nvidia-compute-utils-G06"))
        return add_libraries(stream());
    return after(package, "nvidia-fabricmanager") || after(package, "nvidia-fabric-manager") ? add_program("usr/bin/nv-fabricmanager") : 0;
}

static int add_all(const struct request *asked, const char *database)
{
    char text[32768];
    read_file(database, text, sizeof text);
    for (int i = 0; i < asked->count; i++) {
        size_t size = strlen(text);
        if (provide(asked->packages[i]))
            return 1;
        snprintf(text + size, sizeof text - size, "%s\n", asked->packages[i]);
    }
    return write_file(database, text);
}

int apt_get(int argc, char **argv)
{
    struct request asked = parse(argc, argv);
    char path[PATH], text[16384];
    if (exists(JOURNAL)) {
        fputs("E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.\n", stderr);
        return 100;
    }
    if (!strcmp(asked.command, "update")) {
        size_t size = strlen(read_file(MIRROR "/packages", text, sizeof text));
        if (has_cuda())
            read_file(MIRROR "/cuda", text + size, sizeof text - size);
        return write_file(LISTS, text) ? 100 : 0;
    }
    if (strcmp(asked.command, "install"))
        return 0;
    for (int i = 0; i < asked.count; i++)
        if (!(*asked.packages[i] == '/' && exists(asked.packages[i] + 1)) && !is_in(asked.packages[i], LISTS)) {
            fprintf(stderr, "E: Unable to locate package %s\n", asked.packages[i]);
            return 100;
        }
    if (write_file(JOURNAL, "") || add_all(&asked, "var/lib/dpkg/status"))
        return 100;
    unlink(at(path, JOURNAL));
    return 0;
}

int apt_cache(int argc, char **argv)
{
    const char *package = argc > 2 ? argv[argc - 1] : "", *kernel = after(package, "linux-headers-");
    if (!is_in(package, LISTS)) {
        fputs("E: No packages found\n", stderr);
        return 100;
    }
    printf("Package: %s\nVersion: %s.1\n", package, kernel ? kernel : "1");
    return 0;
}

int dnf(int argc, char **argv)
{
    struct request asked = parse(argc, argv);
    const char *of;
    if (!strcmp(asked.command, "module") && asked.count == 2 && !strcmp(asked.packages[0], "enable") &&
        (of = after(asked.packages[1], "nvidia-driver:")))
        return write_file("etc/dnf/modules.d/nvidia-driver.module", of);
    const char *last = asked.count ? asked.packages[asked.count - 1] : "";
    int listing = !strcmp(asked.command, "list");
    if (listing || (!strcmp(asked.command, "module") && asked.count == 2)) {
        if (is_listed(listing ? last : "nvidia-driver-cuda"))
            return 0;
        fprintf(stderr, "Error: No matching %s to list\n", listing ? "Packages" : "Modules");
        return 1;
    }
    if (strcmp(asked.command, "install"))
        return 0;
    for (int i = 0; i < asked.count; i++)
        if (!is_listed(asked.packages[i])) {
            fprintf(stderr, "No match for argument: %s\nError: Unable to find a match: %s\n", asked.packages[i],
                    asked.packages[i]);
            return 1;
        }
    return add_all(&asked, "var/lib/rpm/installed");
}

/* The kernels' packages have one number more in their editions than their releases; NVIDIA's have all versions. */
static int search(const char *package)
{
    char text[4096], flavour[128];
    int found = 0;
    if (strstr(package, "nvidia-")) {
        for (char *line = strtok(read_file(MIRROR "/drivers", text, sizeof text), "\n"); line; line = strtok(NULL, "\n")) {
            char version[64] = "";
            sscanf(line, "%*u %*u %63s", version);
            printf("<solvable name=\"%s\" edition=\"%s-1\"/>\n", package, version);
        }
        return 1;
    }
    snprintf(flavour, sizeof flavour, "-%s", package + (after(package, "kernel-") ? 7 : 0));
    char *devel = strstr(flavour, "-devel");
    if (devel)
        *devel = 0;
    for (char *line = strtok(read_file(MIRROR "/kernels", text, sizeof text), "\n"); line; line = strtok(NULL, "\n")) {
        size_t length = strlen(line), end = strlen(flavour);
        if (length <= end || strcmp(line + length - end, flavour))
            continue;
        printf("<solvable name=\"%s\" edition=\"%.*s.1\"/>\n", package, (int)(length - end), line);
        found = 1;
    }
    return found;
}

int zypper(int argc, char **argv)
{
    struct request asked = parse(argc, argv);
    const char *last = asked.count ? asked.packages[asked.count - 1] : "";
    if (!strcmp(asked.command, "search")) {
        if (is_listed(last) && search(last))
            return 0;
        fputs("No matching items found.\n", stderr);
        return 104;
    }
    if (strcmp(asked.command, "install"))
        return 0;
    for (int i = 0; i < asked.count; i++)
        if (!is_listed(asked.packages[i])) {
            fprintf(stderr, "'%s' not found in package names. Trying capabilities.\nNo provider of '%s' found.\n",
                    asked.packages[i], asked.packages[i]);
            return 104;
        }
    return add_all(&asked, "var/lib/rpm/installed");
}

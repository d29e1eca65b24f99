/* Kernel modules: modprobe, rmmod and lsmod over proc/modules and lib/modules of the root. */
#include "tools.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

int is_loaded(const char *module)
{
    char text[65536];
    size_t length = strlen(module);
    for (char *line = strtok(read_file("proc/modules", text, sizeof text), "\n"); line; line = strtok(NULL, "\n"))
        if (!strncmp(line, module, length) && line[length] == ' ')
            return 1;
    return 0;
}

/* Rewrites proc/modules with or without `module` and sys/module/X/refcnt with the users of each module. */
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
        int references = strcmp(names[i], "nvidia") ? 0 : running_daemons();
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

int refresh_modules(void)
{
    return list_modules(NULL, NULL);
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
    if (!*found && strcmp(root, machine)) {
        snprintf(directory, sizeof directory, "%s/%s", machine, relative);
        nftw(directory, match_module, 16, FTW_PHYS);
    }
    return *found ? found : NULL;
}

/* NB: uvm has a major of its own on real machines, given by the kernel; here all are minors of one. */
#define FIRST_OTHER_MINOR 250
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
    /* Built into these kernels: loading them is a success that no list shows. */
    static const char *const built_in[] = {"i2c_core", "ipmi_msghandler", "ipmi_devintf", "overlay", "br_netfilter", "loop",
                                           "drm", "video", NULL};
    char version[128] = "", text[128] = "", relative[512];
    const char *file = module_file(module), *needs = needed_by(module);
    if (is_loaded(module))
        return 0;
    for (int i = 0; !file && built_in[i]; i++)
        if (!strcmp(built_in[i], module))
            return 0;
    if (!file) {
        char where[512];
        snprintf(where, sizeof where, "/lib/modules/%s", release());
        return quiet ? 1 : complain("FATAL: Module %s not found in directory %s", module, where);
    }
    if (*setting(file, "vermagic", text, sizeof text) && strcmp(text, release()))
        return complain("ERROR: could not insert '%s': %s", module, "Exec format error");
    setting(file, "version", version, sizeof version);
    if (needs && insert(needs, quiet))
        return 1;
    if (!strcmp(module, "nvidia") && load_nvidia(version, (unsigned)atoi(setting(file, "cuda", text, sizeof text))))
        return 1;
    for (const char *const *node = nodes_of(module), *const *first = node; *node; node++)
        if (make_node(*node, FIRST_OTHER_MINOR + (unsigned)(node - first) + (first == modeset_nodes ? 2 : 0)))
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

int modprobe(int argc, char **argv)
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

int rmmod(int argc, char **argv)
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

int lsmod(void)
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

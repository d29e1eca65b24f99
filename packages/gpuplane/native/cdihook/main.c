/* gpuplane's CDI hook: what a container with GPUs needs done to its root before it starts.
 *
 *     nvidia-cdi-hook create-symlinks --link TARGET::PATH ...
 *     nvidia-cdi-hook enable-cuda-compat --host-driver-version=VERSION [--cuda-compat-container-root DIR]
 *     nvidia-cdi-hook update-ldcache [--ldconfig-path PATH] --folder DIR ...
 *
 * It runs on hosts where NVIDIA's program of that name is missing, takes the same words, and is started by the container
 * runtime as an OCI hook (createContainer: the container's mounts stand, its root is not yet the root), with the
 * container's state on standard input (opencontainers/runtime-spec, config.md and runtime.md). One static program, since
 * nothing is known of the host but its kernel.
 */
#include "hook.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int complain(const char *what, const char *which)
{
    fprintf(stderr, "nvidia-cdi-hook: %s%s%s%s%s\n", what, *which ? ": " : "", which, errno ? ": " : "",
            errno ? strerror(errno) : "");
    return 1;
}

/* The value of `--name value` or `--name=value` at *index, which is moved past it; NULL when it is another flag. */
static const char *value_of(char **argv, int argc, int *index, const char *name)
{
    const char *word = argv[*index];
    size_t length = strlen(name);
    if (strncmp(word, name, length))
        return NULL;
    if (word[length] == '=')
        return word + length + 1;
    if (word[length] || *index + 1 >= argc)
        return NULL;
    return argv[++*index];
}

int main(int argc, char **argv)
{
    struct words links = {.count = 0}, folders = {.count = 0};
    const char *ldconfig = "/sbin/ldconfig", *driver = "", *compat = "/usr/local/cuda/compat";
    const char *action = argc > 1 ? argv[1] : "";
    for (int i = 2; i < argc; i++) {
        const char *value;
        if ((value = value_of(argv, argc, &i, "--link")) && links.count < MANY)
            links.of[links.count++] = value;
        else if ((value = value_of(argv, argc, &i, "--folder")) && folders.count < MANY)
            folders.of[folders.count++] = value;
        else if ((value = value_of(argv, argc, &i, "--ldconfig-path")))
            ldconfig = value;
        else if ((value = value_of(argv, argc, &i, "--host-driver-version")))
            driver = value;
        else if ((value = value_of(argv, argc, &i, "--cuda-compat-container-root")))
            compat = value;
        else
            return complain("this is not understood", argv[i]);
    }
    int which = !strcmp(action, "create-symlinks")      ? 1
                : !strcmp(action, "enable-cuda-compat") ? 2
                : !strcmp(action, "update-ldcache")     ? 3
                                                        : 0;
    if (!which)
        return complain("there is no such action", action);
    char path[PATH];
    if (container_root(path))
        return 1;
    int root = open_root(path);
    if (root < 0)
        return complain("the container's root cannot be opened", path);
    if (which == 1)
        return create_symlinks(root, &links);
    if (which == 2)
        return enable_cuda_compat(root, driver, compat);
    return update_ldcache(root, &folders, ldconfig);
}

/* The functions that the parts of the CDI hook share; main.c describes the hook. */
#ifndef HOOK_H
#define HOOK_H

#include <stddef.h>

#define PATH 4096
#define MANY 256

struct words {
    const char *of[MANY];
    int count;
};

/* main.c: prints what is wrong, with errno's words when it is set, and returns 1. */
int complain(const char *what, const char *which);

/* state.c: the container's root directory as the state on standard input says; 0, or 1 after a complaint. */
int container_root(char *path);

/* root.c: everything below is done inside the root, whatever links lie in it. */
int open_root(const char *path);                              /* a handle, or -1 */
int open_inside(int root, const char *path, int flags);       /* a handle, or -1 */
int make_parents(int root, const char *path, char *name);     /* a handle of the directory, and the last component */
int write_inside(int root, const char *path, const char *text); /* 0, or 1 after a complaint */

/* actions.c, cache.c */
int create_symlinks(int root, const struct words *links);
int enable_cuda_compat(int root, const char *host_driver, const char *directory);
int update_ldcache(int root, const struct words *folders, const char *ldconfig);

#endif

/* What the parts of the host tools know of each other; what they are for stands in main.c. */
#ifndef TOOLS_H
#define TOOLS_H

#include <stddef.h>

#define PATH 4096

extern const char *root; /* "" inside a chroot */
extern const char *tool; /* the name it was called by */

/* files.c: paths are relative to the root. */
int complain(const char *format, const char *a, const char *b); /* prints and returns 1 */
char *at(char *buffer, const char *relative);
int exists(const char *relative);
int write_file(const char *relative, const char *text); /* 0, or 1 after a complaint */
char *read_file(const char *relative, char *buffer, size_t size);
void remove_tree(const char *relative);
void make_directories(const char *relative);
const char *release(void);

/* gpus.c */
int load_nvidia(const char *version);
int make_node(const char *relative, unsigned number); /* 0, or 1 after a complaint */
int driver_in_use(void);
void unload_nvidia(void);

/* modules.c, services.c */
int modprobe(int argc, char **argv);
int rmmod(int argc, char **argv);
int lsmod(void);
int systemctl(int argc, char **argv);

#endif

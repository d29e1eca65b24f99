/* The functions that the parts of the host tools share; main.c describes the tools. */
#ifndef TOOLS_H
#define TOOLS_H

#include <stddef.h>

#define PATH 4096

extern const char *root;    /* what the program sees as /; "" inside a chroot */
extern const char *machine; /* the machine's own root, where its kernel is: another for programs in the driver's root */
extern const char *tool; /* the name it was called by */

/* files.c: paths are relative to the root. */
int complain(const char *format, const char *a, const char *b); /* prints and returns 1 */
char *at(char *buffer, const char *relative);
char *readable(char *buffer, const char *relative); /* in an overlay, also of the machine's root */
int exists(const char *relative);
int write_file(const char *relative, const char *text); /* 0, or 1 after a complaint */
char *read_file(const char *relative, char *buffer, size_t size);
void remove_tree(const char *relative);
void make_directories(const char *relative);
int copy_file(const char *from, const char *to, unsigned mode); /* 0, or 1 after a complaint */
const char *release(void);
char *setting(const char *path, const char *name, char *value, size_t size); /* of a file of lines NAME=VALUE */

/* gpus.c */
int load_nvidia(const char *version, unsigned cuda);
int make_node(const char *relative, unsigned number); /* 0, or 1 after a complaint */
int driver_in_use(void);
void unload_nvidia(void);

/* files of the machine, by the name of the program */
int make_directory(int argc, char **argv);
int remove_files(int argc, char **argv);
int move_file(int argc, char **argv);
int install_files(int argc, char **argv);

/* programs.c: programs that start others */
int change_root(int argc, char **argv);
int start_with(int argc, char **argv);
int shell(int argc, char **argv);
int terminate(int argc, char **argv);
int start_program(char **argv); /* returns only when it cannot */

/* script.c */
int run_script(int argc, char **argv);

/* mounts.c */
int mount_tool(int argc, char **argv);
int umount_tool(int argc, char **argv);

/* packages.c */
int apt_get(int argc, char **argv);
int apt_cache(int argc, char **argv);
int dnf(int argc, char **argv);
int zypper(int argc, char **argv);

/* driver.c: what a released driver consists of, and what makes it */
struct release {
    char version[64];
    unsigned cuda;
};
int find_release(const char *version, struct release *found); /* of a version or a branch; 0 for none */
int add_program(const char *relative); /* 0, or 1 after a complaint */
int add_user_space(const struct release *driver);
int add_module(const char *directory, const char *module, const struct release *driver, const char *kernel);
int curl(int argc, char **argv);
int run_file(int argc, char **argv);
int nvidia_installer(void);
int make(int argc, char **argv);
int depmod(int argc, char **argv);
int driver_daemon(void);
int running_daemons(void);

/* modules.c, services.c */
int is_loaded(const char *module);
int refresh_modules(void);
int modprobe(int argc, char **argv);
int rmmod(int argc, char **argv);
int lsmod(void);
int systemctl(int argc, char **argv);

#endif

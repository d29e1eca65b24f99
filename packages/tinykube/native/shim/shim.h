/* The functions that the parts of the shim share; main.c describes it. */
#ifndef SHIM_H
#define SHIM_H

#include <stddef.h>
#include <sys/types.h>

/* The descriptor for a failure: its text goes there and the process ends. */
extern int error_fd;
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* spec.c: the words of a specification. */
struct spec {
    char **words;
    size_t count;
};
struct spec read_spec(const char *path);
int arity(const char *op); /* how many arguments an operation has; fails for an unknown one */
const char *word_after(struct spec spec, const char *op);
int has_word(struct spec spec, const char *op);

/* users.c: a user namespace, which its maker cannot map users into: the process that stayed outside does. */
extern int outside_fd;            /* in the process that leaves: to the one that stays */
pid_t fork_into(struct spec spec); /* fork; the child is in the user and PID namespaces that the words ask for */
void leave_users(void);           /* makes a user namespace, unless it is in one; returns when users are mapped */
void map_users(struct spec spec, pid_t pid, int fd); /* in the process that stays: carries out the `map` words */

/* groups.c: the control groups of a container, whose limits stand before it starts. */
void open_groups(struct spec spec); /* while their files can be seen; nothing where the specification names none */
void enter_groups(void);            /* those that were opened */
int killed_for_memory(struct spec spec);
void remove_groups(struct spec spec);

/* root.c: the file system of a container. Paths before `pivot` are the machine's, after it the container's. */
void make_parents(const char *path);
void make_directory(const char *path);
void make_room(const char *path); /* after `pivot`: something can be made at `path` */
void remount_readonly(const char *path);
/* `mode`: rw, ro, or all-ro for everything mounted below it too. */
void bind_mount(const char *source, const char *target, const char *mode);
/* The source is `path` below `directory` ("": itself), without a symbolic link on the way. */
void bind_below(const char *directory, const char *path, const char *target, const char *mode);
void mount_processes(const char *path); /* a /proc of the own PID namespace */
void leave_machine(const char *how);
void start_stage(const char *directory);
void overlay(const char *directory);
void pivot(void);
void detach_mount(const char *path); /* and what is mounted below it, where the kernel permits it */
void drop_old_root(void);

/* address.c: servers listen on the address of their pod. */
void stop_binds(int socket);
int receive_listener(int socket);
int answer_bind(int listener, const char *address);

/* start.c: from words to a process. */
struct command {
    char **argv, **envp;
    const char *cwd;
    long uid, gid;
    gid_t groups[64];
    int group_count, tty, dies_with_shim;
    int few_capabilities, no_new_privileges;
    unsigned long long capabilities; /* a bit for each, where there are few: see capabilities(7) */
};
void carry_out(struct spec spec, struct command *command); /* all words but `log` and `exit`, which are the parent's */
void start(struct command *command) __attribute__((noreturn));

/* logs.c: what a container writes, as the container runtime interface has it. */
#define LINE_MAX_BYTES 16384
struct stream {
    int fd;
    const char *name;
    size_t have;
    char line[LINE_MAX_BYTES];
};
struct log {
    const char *path;
    int fd;
    long long size;
};
struct log open_log(const char *path);
int pump(struct stream *stream, struct log *log); /* 0 when the stream has ended */
void end_line(struct stream *stream, struct log *log); /* writes what has no newline yet */

#endif

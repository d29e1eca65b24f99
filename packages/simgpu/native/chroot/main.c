/*
 * chroot for containers without a root of their own, whose user may not change it: chroot ROOT PROGRAM [ARGUMENT]...
 *
 * Where the kernel allows it this is chroot(1). Else it starts the program that lies below ROOT and passes ROOT to it as
 * SIMHOST_ROOT: the programs of a simulated machine take that for their `/`. Exit codes and messages are those of coreutils.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH 4096
#define FAILED 125
#define CANNOT_RUN 126
#define NOT_FOUND 127

static int no_program(const char *program)
{
	int why = errno;
	fprintf(stderr, "chroot: failed to run command '%s': %s\n", program, strerror(why));
	return why == ENOENT ? NOT_FOUND : CANNOT_RUN;
}

/* Returns only when there is no such program, or it cannot be started. */
static int run_below(const char *root, char **argv)
{
	char path[PATH], folders[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	if (setenv("SIMHOST_ROOT", root, 1) != 0)
		return FAILED;
	if (*argv[0] == '/')
		*folders = 0;
	for (char *rest = folders, *folder; (folder = strsep(&rest, ":"));) {
		snprintf(path, sizeof path, "%s%s/%s", root, folder, argv[0]);
		execv(path, argv);
		if (errno != ENOENT && errno != ENOTDIR)
			break;
		errno = ENOENT;
	}
	return no_program(argv[0]);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fputs("usage: chroot ROOT PROGRAM [ARGUMENT]...\n", stderr);
		return FAILED;
	}
	if (chroot(argv[1]) == 0 && chdir("/") == 0) {
		unsetenv("SIMGPU_DEV"); /* a directory outside: the new root has its own /dev */
		execvp(argv[2], argv + 2);
		return no_program(argv[2]);
	}
	if (errno == EPERM)
		return run_below(argv[1], argv + 2);
	fprintf(stderr, "chroot: cannot change root directory to '%s': %s\n", argv[1], strerror(errno));
	return FAILED;
}

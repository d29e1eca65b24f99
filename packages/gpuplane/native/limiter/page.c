/* Finding and mapping the pages, and saying aloud what is wrong with them. */
#include "limiter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const struct limits_page *limits;
struct usage_page *usage;

static const char *folder;
static uint8_t uuids[PAGE_GPUS][16];

uint64_t clock_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void clock_pause(uint64_t nanoseconds)
{
	struct timespec pause = {(time_t)(nanoseconds / 1000000000ull), (long)(nanoseconds % 1000000000ull)};
	nanosleep(&pause, NULL);
}

static void say_line(enum topic topic, const char *format, va_list arguments, const char *end)
{
	static uint32_t said;
	char line[600] = "gpuplane: ";
	if (__atomic_fetch_or(&said, 1u << topic, __ATOMIC_SEQ_CST) >> topic & 1)
		return;
	size_t length = strlen(line);
	vsnprintf(line + length, sizeof line - length, format, arguments);
	length = strlen(line);
	snprintf(line + length, sizeof line - length, "%s\n", end);
	/* One write, so that lines of several processes stay whole. */
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		return;
}

void say(enum topic topic, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	say_line(topic, format, arguments, "");
	va_end(arguments);
}

enum attachment page_lacks(enum topic topic, const char *format, ...)
{
	const char *wanted = getenv(PAGE_MISSING_VARIABLE);
	bool open = limits ? limits->flags & LIMITS_FAIL_OPEN : wanted && !strcmp(wanted, "open");
	va_list arguments;
	va_start(arguments, format);
	say_line(topic, format, arguments, open ? "; this process runs without limits" : "; there is no GPU for this process");
	va_end(arguments);
	return open ? UNLIMITED : REFUSED;
}

bool page_uuid(const char *text, uint8_t uuid[16])
{
	int digits = 0;
	const char *dash = strchr(text, '-');
	memset(uuid, 0, 16);
	for (const char *at = dash ? dash + 1 : text; *at && digits < 32; at++) {
		int value = *at >= '0' && *at <= '9' ? *at - '0' :
			    *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 :
			    *at >= 'A' && *at <= 'F' ? *at - 'A' + 10 : -1;
		if (value < 0)
			continue;
		uuid[digits / 2] |= (uint8_t)(digits % 2 ? value : value << 4);
		digits++;
	}
	return digits == 32;
}

int page_gpu(const uint8_t uuid[16])
{
	for (uint32_t gpu = 0; gpu < limits->gpu_count; gpu++)
		if (!memcmp(uuids[gpu], uuid, 16))
			return (int)gpu;
	return -1;
}

/* Maps a page; NULL with a reason when it is not there or not one of this version. */
static void *map(const char *path, uint64_t magic, size_t size, bool writable, const char **reason)
{
	struct stat info;
	void *page = NULL;
	*reason = NULL;
	int file = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (file < 0) {
		*reason = strerror(errno);
		return NULL;
	}
	if (fstat(file, &info) < 0 || !S_ISREG(info.st_mode) || info.st_size < 16)
		*reason = "is not one of gpuplane's pages";
	else
		page = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (page == MAP_FAILED) {
		*reason = strerror(errno);
		page = NULL;
	}
	if (!page)
		return NULL;
	/* Both begin alike. The size says whether what lies behind the header may be touched. */
	const struct limits_page *head = page;
	if (head->magic != magic)
		*reason = "is not one of gpuplane's pages";
	else if (head->version != PAGE_VERSION)
		*reason = "is a page of another version of gpuplane";
	else if (head->size != size || (uint64_t)info.st_size < size)
		*reason = "is a page of another size than this version's";
	if (!*reason)
		return page;
	munmap(page, size);
	return NULL;
}

static enum attachment attach(void)
{
	char path[4096];
	const char *reason, *variable = getenv(PAGE_VARIABLE);
	folder = access(PAGE_FOLDER "/limits", F_OK) == 0 || !variable || !*variable ? PAGE_FOLDER : strdup(variable);
	snprintf(path, sizeof path, "%s/limits", folder);
	const struct limits_page *page = map(path, LIMITS_MAGIC, sizeof *page, false, &reason);
	if (!page)
		return page_lacks(SAY_PAGE, "no limits: %s: %s", path, reason);
	if (page->gpu_count > PAGE_GPUS || !page->tenant)
		return page_lacks(SAY_PAGE, "no limits: %s: has impossible values", path);
	for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
		char text[sizeof page->gpus->uuid + 1] = "";
		memcpy(text, page->gpus[gpu].uuid, sizeof page->gpus->uuid);
		if (!page_uuid(text, uuids[gpu]))
			return page_lacks(SAY_PAGE, "no limits: %s: entry %u has no UUID", path, gpu);
	}
	limits = page;
	snprintf(path, sizeof path, "%s/usage", folder);
	usage = map(path, USAGE_MAGIC, sizeof *usage, true, &reason);
	return usage ? ATTACHED : page_lacks(SAY_USAGE, "no usage page: %s: %s", path, reason);
}

enum attachment page_attach(void)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	static bool tried;
	static enum attachment result;
	int cancel = cancel_put_off();
	pthread_mutex_lock(&once);
	if (!tried)
		result = attach();
	tried = true;
	pthread_mutex_unlock(&once);
	cancel_allow(cancel);
	return result;
}

int page_folder(void)
{
	return open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* For the test that keeps page.py equal: sizes and offsets of the parts, 0 behind the last. */
EXPORT uint64_t gpuplane_page_layout(uint32_t part)
{
	static const uint64_t sizes[] = {
		sizeof(struct limits_page), sizeof(struct limits_gpu), sizeof(struct usage_page), sizeof(struct usage_slot),
		sizeof(struct usage_gpu), sizeof(struct usage_total), PAGE_VERSION,
		offsetof(struct limits_page, generation), offsetof(struct limits_page, name),
		offsetof(struct limits_page, gpus), offsetof(struct limits_gpu, core), offsetof(struct usage_page, high_water),
		offsetof(struct usage_page, totals), offsetof(struct usage_page, slots), offsetof(struct usage_slot, gpus),
		offsetof(struct usage_gpu, other), offsetof(struct usage_total, paid_until),
	};
	return part < sizeof sizes / sizeof *sizes ? sizes[part] : 0;
}

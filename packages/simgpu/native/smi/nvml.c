/* Loads NVML, chooses GPUs, and turns answers into words. */
#include "smi.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvml nvml;
struct node node;

static result missing(void)
{
	return FUNCTION_NOT_FOUND;
}

/* NVML as the loader finds it; then where the driver's packages put it, for a machine whose loader has no cache. */
static void *load(void)
{
	static const char *const folders[] = {"", "/usr/lib64/", "/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib/"};
	const char *root = getenv("SIMHOST_ROOT");
	char path[4096];
	for (size_t i = root ? 1 : 0; i < sizeof folders / sizeof *folders; i++) {
		snprintf(path, sizeof path, "%s%slibnvidia-ml.so.1", root ? root : "", folders[i]);
		void *library = dlopen(path, RTLD_NOW);
		if (library)
			return library;
	}
	return NULL;
}

static int failed(result why)
{
	switch (why) {
	case DRIVER_NOT_LOADED:
		puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
		     "driver is installed and running.\n");
		return EXIT_NO_DRIVER;
	case NO_PERMISSION: puts("Failed to initialize NVML: Insufficient Permissions"); return EXIT_PERMISSION;
	case MISMATCH: puts("Failed to initialize NVML: Driver/library version mismatch"); return MISMATCH;
	}
	puts("Failed to initialize NVML: Unknown Error");
	return EXIT_OTHER;
}

int open_nvml(void)
{
	void *library = load();
	if (!library) {
		puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver "
		     "is properly installed and present in your system.\nPlease also try adding directory that contains "
		     "libnvidia-ml.so to your system PATH.");
		return EXIT_NO_LIBRARY;
	}
#define F(name, arguments)                                                                                             \
	*(void **)&nvml.name = dlsym(library, "nvml" #name);                                                            \
	if (!nvml.name)                                                                                                 \
		nvml.name = (result(*) arguments)(void *)missing;
	NVML_FUNCTIONS(F)
#undef F
	*(void **)&node.reset = dlsym(library, "simgpuDeviceReset");
	result started = nvml.Init_v2();
	if (started != OK)
		return failed(started);
	nvml.SystemGetDriverVersion(node.driver, sizeof node.driver);
	nvml.SystemGetNVMLVersion(node.library, sizeof node.library);
	nvml.SystemGetCudaDriverVersion_v2(&node.cuda);
	node.major = atoi(node.driver);
	nvml.DeviceGetCount_v2(&node.all);
	if (node.all > MAX_GPUS)
		node.all = MAX_GPUS;
	return EXIT_OK;
}

static bool named(const struct gpu *gpu, const char *word)
{
	char *end;
	struct pci pci;
	unsigned long wanted = strtoul(word, &end, 10);
	if (*word && !*end)
		return wanted == gpu->index;
	const char *uuid = text_of(nvml.DeviceGetUUID, gpu->handle);
	if (uuid && !strcmp(uuid, word))
		return true;
	/* A domain may be written with four digits, as in 0000:00:1E.0. */
	return nvml.DeviceGetPciInfo_v3(gpu->handle, &pci) == OK &&
	       (!strcasecmp(pci.bus_id, word) || !strcasecmp(pci.legacy, word) || !strcasecmp(pci.bus_id + 4, word));
}

int choose_gpus(const char *selection)
{
	char words[1024];
	struct gpu all[MAX_GPUS];
	for (unsigned i = 0; i < node.all; i++) {
		all[i] = (struct gpu){NULL, i};
		if (nvml.DeviceGetHandleByIndex_v2(i, &all[i].handle) == GPU_IS_LOST) {
			printf("Unable to determine the device handle for GPU%u: GPU is lost.  Reboot the system to recover this GPU\n", i);
			return EXIT_LOST;
		}
	}
	if (!*selection) {
		memcpy(node.gpus, all, sizeof all);
		node.count = node.all;
		if (!node.count)
			puts("No devices were found");
		return node.count ? EXIT_OK : EXIT_NOT_FOUND;
	}
	snprintf(words, sizeof words, "%s", selection);
	for (char *rest = words, *word; (word = strsep(&rest, ","));) {
		unsigned before = node.count;
		for (unsigned i = 0; i < node.all && node.count < MAX_GPUS; i++)
			if (named(&all[i], word))
				node.gpus[node.count++] = all[i];
		if (node.count == before) {
			puts("No devices were found");
			return EXIT_NOT_FOUND;
		}
	}
	return EXIT_OK;
}

const char *format(const char *pattern, ...)
{
	static char ring[64][256];
	static unsigned next;
	char *text = ring[next++ % 64];
	va_list arguments;
	va_start(arguments, pattern);
	vsnprintf(text, sizeof ring[0], pattern, arguments);
	va_end(arguments);
	return text;
}

const char *text_of(result (*ask)(device, char *, unsigned), device gpu)
{
	char text[128];
	return ask(gpu, text, sizeof text) == OK ? format("%s", text) : NULL;
}

const char *process_name(unsigned pid)
{
	char name[256];
	return nvml.SystemGetProcessName(pid, name, sizeof name) == OK && *name ? format("%s", name) : "[Not Found]";
}

unsigned list_processes(device gpu, struct process *list)
{
	unsigned count = MAX_PROCESSES;
	return nvml.DeviceGetComputeRunningProcesses_v3(gpu, &count, list) == OK ? count : 0;
}

bool mig_enabled(device gpu)
{
	unsigned current = 0, pending;
	return nvml.DeviceGetMigMode(gpu, &current, &pending) == OK && current;
}

bool field_value(device gpu, unsigned id, unsigned long long *value)
{
	struct field field = {.field = id};
	if (nvml.DeviceGetFieldValues(gpu, 1, &field) != OK || field.result != OK)
		return false;
	*value = field.type == 3 ? field.value.ull : field.value.u; /* 3: unsigned long long */
	return true;
}

const char *compute_mode(device gpu)
{
	static const char *const modes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
	unsigned mode;
	return nvml.DeviceGetComputeMode(gpu, &mode) == OK && mode < 4 ? modes[mode] : NULL;
}

const char *mig_name(device instance)
{
	const char *name = text_of(nvml.DeviceGetName, instance), *mig = name ? strstr(name, "MIG ") : NULL;
	return mig ? mig + 4 : "";
}

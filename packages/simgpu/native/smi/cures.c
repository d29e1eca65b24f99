/* -r and nvlink -e: the commands that messages about broken GPUs and links name. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

#define LINKS 18
#define COUNTERS 3
#define IN_USE 19

/* GPUs without processes become as they were; the others are named, and stay. */
int reset_gpus(void)
{
	unsigned used = 0;
	for (unsigned i = 0; i < node.count; i++) {
		struct pci pci = {0};
		nvml.DeviceGetPciInfo_v3(node.gpus[i].handle, &pci);
		result status = node.reset ? node.reset(node.gpus[i].handle) : NOT_SUPPORTED;
		if (status == OK) {
			printf("GPU %s was successfully reset.\n", pci.bus_id);
		} else if (status == IN_USE) {
			if (!used++)
				puts("The following GPUs could not be reset:");
			printf("  GPU %s: In use by another client\n", pci.bus_id);
		} else {
			printf("Resetting GPU %s is not supported.\n", pci.bus_id);
			return EXIT_NOT_SUPPORTED;
		}
	}
	if (used) {
		printf("\n%u device%s currently being used by one or more other processes. Please first kill all processes using "
		       "%s and all compute applications running in the system.\n",
		       used, used > 1 ? "s are" : " is", used > 1 ? "these devices" : "this device");
		return EXIT_OTHER;
	}
	puts("All done.");
	return EXIT_OK;
}

static void show_errors(device gpu)
{
	static const char *const names[COUNTERS] = {"Replay", "Recovery", "CRC"};
	for (unsigned link = 0; link < LINKS; link++)
		for (unsigned counter = 0; counter < COUNTERS; counter++) {
			unsigned long long errors;
			if (nvml.DeviceGetNvLinkErrorCounter(gpu, link, counter, &errors) == OK)
				printf("\t Link %u: %s Errors: %llu\n", link, names[counter], errors);
		}
}

int nvlink_command(int argc, char **argv)
{
	const char *gpus = "";
	bool errors = false;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-i") && i + 1 < argc)
			gpus = argv[++i];
		else if (!strcmp(argv[i], "-e") || !strcmp(argv[i], "--errorcounters"))
			errors = true;
		else
			return refuse(argv[i]), EXIT_INVALID;
	}
	if (!errors)
		return refuse("nvlink"), EXIT_INVALID;
	int code = open_nvml();
	if (code == EXIT_OK)
		code = choose_gpus(gpus);
	for (unsigned i = 0; code == EXIT_OK && i < node.count; i++) {
		device gpu = node.gpus[i].handle;
		const char *name = text_of(nvml.DeviceGetName, gpu), *uuid = text_of(nvml.DeviceGetUUID, gpu);
		printf("GPU %u: %s (UUID: %s)\n", node.gpus[i].index, name ? name : "N/A", uuid ? uuid : "N/A");
		show_errors(gpu);
	}
	return code;
}

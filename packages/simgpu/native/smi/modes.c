/* The modes that -pm, -c and -mig set. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

static int set_compute_mode(const struct gpu *at, const char *bus, const char *value)
{
	static const char *const modes[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
	for (unsigned mode = 0; mode < 4; mode++) {
		if (strcasecmp(value, modes[mode]) && strcmp(value, format("%u", mode)))
			continue;
		result status = nvml.DeviceSetComputeMode(at->handle, mode);
		if (status != OK)
			return complain(format("Unable to set the compute mode for GPU %s", bus), status);
		printf("Set compute mode to %s for GPU %s.\n", modes[mode], bus);
		return EXIT_OK;
	}
	refuse(format("--compute-mode=%s", value));
	return EXIT_INVALID;
}

static int set_switch(const struct gpu *at, const char *bus, char kind, const char *value)
{
	const char *name = kind == 'm' ? "MIG Mode" : "persistence mode";
	result activation = OK;
	if (strcmp(value, "0") && strcmp(value, "1")) {
		refuse(value);
		return EXIT_INVALID;
	}
	unsigned mode = *value == '1';
	result status = kind == 'm' ? nvml.DeviceSetMigMode(at->handle, mode, &activation) : nvml.DeviceSetPersistenceMode(at->handle, mode);
	if (status != OK)
		return complain(format("Unable to %s %s for GPU %s", mode ? "enable" : "disable", name, bus), status);
	printf("%s %s for GPU %s%s\n", mode ? "Enabled" : "Disabled", name, bus, kind == 'm' ? "" : ".");
	return EXIT_OK;
}

int set_mode(char kind, const char *value)
{
	for (unsigned i = 0; i < node.count; i++) {
		struct pci pci = {0};
		nvml.DeviceGetPciInfo_v3(node.gpus[i].handle, &pci);
		int code = kind == 'c' ? set_compute_mode(&node.gpus[i], pci.bus_id, value) : set_switch(&node.gpus[i], pci.bus_id, kind, value);
		if (code != EXIT_OK)
			return code;
	}
	puts("All done.");
	return EXIT_OK;
}

/* mig: GPU instances and their compute instances, listed, made and removed; and the modes that -pm, -c and -mig set. */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROFILES 0x12 /* NVML_GPU_INSTANCE_PROFILE_*: numbers, not ids */
#define COMPUTE_PROFILES 8
#define INSTANCES 16

struct instance {
	unsigned gpu;
	device handle;
	struct gi_info info;
	struct gi_profile profile;
};

static bool profile_of(device gpu, unsigned number, struct gi_profile *profile)
{
	*profile = (struct gi_profile){.version = sizeof *profile | 2u << 24};
	return nvml.DeviceGetGpuInstanceProfileInfoV(gpu, number, profile) == OK;
}

/* All GPU instances of a GPU; returns how many. */
static unsigned instances_of(const struct gpu *at, struct instance *list)
{
	unsigned found = 0;
	for (unsigned number = 0; number < PROFILES; number++) {
		struct gi_profile profile;
		device handles[INSTANCES];
		unsigned count = 0;
		if (!profile_of(at->handle, number, &profile) ||
		    nvml.DeviceGetGpuInstances(at->handle, profile.id, handles, &count) != OK)
			continue;
		for (unsigned i = 0; i < count && found < INSTANCES; i++) {
			struct instance *new = &list[found++];
			*new = (struct instance){at->index, handles[i], {0}, profile};
			nvml.GpuInstanceGetInfo(handles[i], &new->info);
		}
	}
	return found;
}

static void rule(char fill, char ends, int width)
{
	printf("%c", ends);
	while (width-- > 0)
		putchar(fill);
	printf("%c\n", ends);
}

static int list_profiles(void)
{
	const int width = 77;
	rule('-', '+', width);
	puts("| GPU instance profiles:                                                      |\n"
	     "| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
	     "|                              Free/Total   GiB              CE    JPEG  OFA  |");
	rule('=', '|', width);
	for (unsigned i = 0; i < node.count; i++)
		for (unsigned number = 0; number < PROFILES; number++) {
			struct gi_profile p;
			unsigned left = 0;
			if (!mig_enabled(node.gpus[i].handle) || !profile_of(node.gpus[i].handle, number, &p))
				continue;
			nvml.DeviceGetGpuInstanceRemainingCapacity(node.gpus[i].handle, p.id, &left);
			printf("|%4u  %-16s%4u     %u/%-9u%-11.2f%-3s%6u%6u%6u   |\n", node.gpus[i].index, p.name, p.id, left, p.instances,
			       (double)p.memory_mib / 1024, p.p2p ? "Yes" : "No", p.multiprocessors, p.decoders, p.encoders);
			printf("|%62u%6u%6u   |\n", p.copy_engines, p.jpeg, p.ofa);
			rule('-', '+', width);
		}
	return EXIT_OK;
}

static int list_placements(void)
{
	for (unsigned i = 0; i < node.count; i++)
		for (unsigned number = 0; number < PROFILES; number++) {
			struct gi_profile p;
			struct placement places[INSTANCES];
			unsigned count = INSTANCES;
			if (!profile_of(node.gpus[i].handle, number, &p) ||
			    nvml.DeviceGetGpuInstancePossiblePlacements_v2(node.gpus[i].handle, p.id, places, &count) != OK || !count)
				continue;
			printf("GPU %2u Profile ID %2u Placement%s: {", node.gpus[i].index, p.id, count > 1 ? "s" : " ");
			for (unsigned at = 0; at < count; at++)
				printf("%s%u", at ? "," : "", places[at].start);
			printf("}:%u\n", places[0].size);
		}
	return EXIT_OK;
}

static int list_instances(void)
{
	const int width = 55;
	struct instance list[INSTANCES];
	bool any = false;
	for (unsigned i = 0; i < node.count; i++)
		any |= instances_of(&node.gpus[i], list) > 0;
	if (!any) {
		puts("No GPU instances found: Not Found");
		return EXIT_NOT_FOUND;
	}
	rule('-', '+', width);
	puts("| GPU instances:                                        |\n"
	     "| GPU   Name             Profile  Instance   Placement  |\n"
	     "|                          ID       ID       Start:Size |");
	rule('=', '|', width);
	for (unsigned i = 0; i < node.count; i++) {
		unsigned count = instances_of(&node.gpus[i], list);
		for (unsigned at = 0; at < count; at++) {
			const struct instance *one = &list[at];
			printf("|%4u  %-16s%6u%9u%11u:%-5u |\n", one->gpu, one->profile.name, one->info.profile, one->info.id,
			       one->info.placement.start, one->info.placement.size);
			rule('-', '+', width);
		}
	}
	return EXIT_OK;
}

/* The compute instance of a GPU instance, and its profile. NULL when it has none. */
static device compute_of(device instance, struct ci_profile *profile)
{
	for (unsigned number = 0; number < COMPUTE_PROFILES; number++) {
		device handles[INSTANCES];
		unsigned count = 0;
		if (nvml.GpuInstanceGetComputeInstanceProfileInfo(instance, number, 0, profile) == OK &&
		    nvml.GpuInstanceGetComputeInstances(instance, profile->id, handles, &count) == OK && count)
			return handles[0];
	}
	return NULL;
}

static int list_compute_instances(void)
{
	const int width = 68;
	struct instance list[INSTANCES];
	bool any = false;
	for (unsigned i = 0; i < node.count; i++) {
		unsigned count = instances_of(&node.gpus[i], list);
		for (unsigned at = 0; at < count; at++) {
			struct ci_profile profile;
			struct ci_info info = {0};
			device compute = compute_of(list[at].handle, &profile);
			if (!compute || nvml.ComputeInstanceGetInfo_v2(compute, &info) != OK)
				continue;
			if (!any) {
				rule('-', '+', width);
				puts("| Compute instances:                                                 |\n"
				     "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
				     "|       Instance                       ID        ID       Start:Size |\n"
				     "|         ID                                                         |");
				rule('=', '|', width);
			}
			any = true;
			printf("|%4u%7u       %-16s%6u%10u%11u:%-5u |\n", list[at].gpu, list[at].info.id, list[at].profile.name, info.profile,
			       info.id, info.placement.start, info.placement.size);
			rule('-', '+', width);
		}
	}
	if (!any)
		puts("No compute instances found: Not Found");
	return any ? EXIT_OK : EXIT_NOT_FOUND;
}

static int complain(const char *what, result why)
{
	static const struct { result why; const char *text; int code; } reasons[] = {
		{NOT_SUPPORTED, "Not Supported", EXIT_NOT_SUPPORTED}, {NO_PERMISSION, "Insufficient Permissions", EXIT_PERMISSION},
		{NOT_FOUND, "Not Found", EXIT_NOT_FOUND}, {19, "In use by another client", 19}, {23, "Insufficient Resources", 19},
	};
	for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
		if (reasons[i].why == why)
			return printf("%s: %s\n", what, reasons[i].text), reasons[i].code;
	printf("%s: Unknown Error\n", what);
	return EXIT_OTHER;
}

static int create_compute(unsigned gpu, device instance, const struct gi_info *info, const char *name)
{
	struct ci_profile profile;
	device compute;
	result status = NOT_SUPPORTED;
	for (unsigned number = COMPUTE_PROFILES; number-- && status != OK;)
		if (nvml.GpuInstanceGetComputeInstanceProfileInfo(instance, number, 0, &profile) == OK)
			status = nvml.GpuInstanceCreateComputeInstance(instance, profile.id, &compute);
	if (status != OK)
		return complain(format("Unable to create a compute instance on GPU %2u GPU instance ID %2u", gpu, info->id), status);
	printf("Successfully created compute instance ID  0 on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n", gpu, info->id,
	       name, profile.id);
	return EXIT_OK;
}

/* Makes one GPU instance; `word` is a profile's id, or its name with or without "MIG ". */
static int create(const struct gpu *at, const char *word, bool compute)
{
	struct gi_profile profile;
	struct gi_info info = {0};
	device made;
	for (unsigned number = 0; number < PROFILES; number++) {
		if (!profile_of(at->handle, number, &profile))
			continue;
		if (strcmp(word, profile.name) && strcmp(word, profile.name + 4) && strcmp(word, format("%u", profile.id)))
			continue;
		result status = nvml.DeviceCreateGpuInstance(at->handle, profile.id, &made);
		if (status != OK)
			return complain(format("Unable to create a GPU instance on GPU %2u using profile %u", at->index, profile.id), status);
		nvml.GpuInstanceGetInfo(made, &info);
		printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", info.id, at->index, profile.name,
		       profile.id);
		return compute ? create_compute(at->index, made, &info, profile.name) : EXIT_OK;
	}
	printf("Unable to find profile %s on GPU %2u: Not Found\n", word, at->index);
	return EXIT_NOT_FOUND;
}

static int create_all(const char *profiles, bool compute)
{
	for (unsigned i = 0; i < node.count; i++) {
		char words[512];
		snprintf(words, sizeof words, "%s", profiles);
		for (char *rest = words, *word; (word = strsep(&rest, ","));) {
			int code = create(&node.gpus[i], word, compute);
			if (code != EXIT_OK)
				return code;
		}
	}
	return EXIT_OK;
}

static int destroy(bool compute)
{
	struct instance list[INSTANCES];
	bool any = false;
	for (unsigned i = 0; i < node.count; i++) {
		unsigned count = instances_of(&node.gpus[i], list);
		for (unsigned at = 0; at < count; at++) {
			struct ci_profile profile;
			device gone = compute ? compute_of(list[at].handle, &profile) : list[at].handle;
			if (!gone)
				continue;
			result status = compute ? nvml.ComputeInstanceDestroy(gone) : nvml.GpuInstanceDestroy(gone);
			const char *what = compute ? format("compute instance ID  0 from GPU %2u GPU instance ID %2u", list[at].gpu, list[at].info.id)
						   : format("GPU instance ID %2u from GPU %2u", list[at].info.id, list[at].gpu);
			if (status != OK)
				return complain(format("Unable to destroy %s", what), status);
			printf("Successfully destroyed %s\n", what);
			any = true;
		}
	}
	if (!any)
		printf("No %s instances found: Not Found\n", compute ? "compute" : "GPU");
	return any ? EXIT_OK : EXIT_NOT_FOUND;
}

int mig_command(int argc, char **argv)
{
	const char *verb = NULL, *profiles = NULL, *gpus = "";
	bool compute = false;
	for (int i = 1; i < argc; i++) {
		const char *word = argv[i];
		if (!strcmp(word, "-i") && i + 1 < argc)
			gpus = argv[++i];
		else if (!strcmp(word, "-C"))
			compute = true;
		else if (!strcmp(word, "-cgi") && i + 1 < argc)
			verb = word, profiles = argv[++i];
		else if (strstr(" -lgip -lgipp -lgi -lci -dci -dgi ", format(" %s ", word)))
			verb = word;
		else
			return refuse(word), EXIT_INVALID;
	}
	if (!verb)
		return refuse("mig"), EXIT_INVALID;
	int code = open_nvml();
	if (code == EXIT_OK)
		code = choose_gpus(gpus);
	if (code != EXIT_OK)
		return code;
	bool enabled = false;
	for (unsigned i = 0; i < node.count; i++)
		enabled |= mig_enabled(node.gpus[i].handle);
	if (!enabled) {
		puts("No MIG-enabled devices found.");
		return EXIT_NOT_FOUND;
	}
	if (profiles)
		return create_all(profiles, compute);
	if (verb[1] == 'd')
		return destroy(verb[2] == 'c');
	if (!strcmp(verb, "-lgip"))
		return list_profiles();
	if (!strcmp(verb, "-lgipp"))
		return list_placements();
	return verb[2] == 'c' ? list_compute_instances() : list_instances();
}

/* -- modes ----------------------------------------------------------------------------------------------------------- */

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

/* mig: GPU instances and their compute instances, made and removed. */
#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *chosen_instances, *chosen_computes;

bool has_id(const char *chosen, unsigned id)
{
	for (const char *at = chosen; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (strtoul(at, NULL, 10) == id)
			return true;
	return !chosen;
}

bool profile_of(device gpu, unsigned number, struct gi_profile *profile)
{
	*profile = (struct gi_profile){.version = sizeof *profile | 2u << 24};
	return nvml.DeviceGetGpuInstanceProfileInfoV(gpu, number, profile) == OK;
}

unsigned instances_of(const struct gpu *at, struct instance *list)
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
			struct instance *new = &list[found];
			*new = (struct instance){at->index, handles[i], {0}, profile};
			nvml.GpuInstanceGetInfo(handles[i], &new->info);
			found += has_id(chosen_instances, new->info.id);
		}
	}
	return found;
}

device compute_of(device instance, struct ci_profile *profile)
{
	for (unsigned number = 0; number < COMPUTE_PROFILES && has_id(chosen_computes, 0); number++) {
		device handles[INSTANCES];
		unsigned count = 0;
		if (nvml.GpuInstanceGetComputeInstanceProfileInfo(instance, number, 0, profile) == OK &&
		    nvml.GpuInstanceGetComputeInstances(instance, profile->id, handles, &count) == OK && count)
			return handles[0];
	}
	return NULL;
}

/* The profile that takes all of a GPU instance. */
bool default_compute_profile(device instance, struct ci_profile *profile)
{
	for (unsigned number = COMPUTE_PROFILES; number--;)
		if (nvml.GpuInstanceGetComputeInstanceProfileInfo(instance, number, 0, profile) == OK)
			return true;
	return false;
}

int complain(const char *what, result why)
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

/* Whether a word is the profile's id, or its name with or without "MIG ". */
static bool names_profile(const char *word, const char *name, unsigned id)
{
	return !strcmp(word, name) || !strcmp(word, name + strlen("MIG ")) || !strcmp(word, format("%u", id));
}

/* Makes a compute instance of the profile that `word` names; NULL for the default one. */
static int create_compute(const struct instance *in, const char *word)
{
	struct ci_profile profile;
	device compute;
	const char *name = in->profile.name;
	if (!default_compute_profile(in->handle, &profile))
		return complain(format("Unable to create a compute instance on GPU %2u GPU instance ID %2u", in->gpu, in->info.id), NOT_SUPPORTED);
	if (word && !names_profile(word, name, profile.id)) {
		/* A part of the instance, as 1c.3g.20gb, is one that the simulated GPUs do not make. */
		result why = strstr(word, name + strlen("MIG ")) || strtoul(word, NULL, 10) < profile.id ? NOT_SUPPORTED : NOT_FOUND;
		return complain(format("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s", in->gpu,
				       in->info.id, word), why);
	}
	result status = nvml.GpuInstanceCreateComputeInstance(in->handle, profile.id, &compute);
	if (status != OK)
		return complain(format("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %u", in->gpu,
				       in->info.id, profile.id), status);
	printf("Successfully created compute instance ID  0 on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n", in->gpu,
	       in->info.id, name, profile.id);
	return EXIT_OK;
}

/* Makes one GPU instance; `word` is a profile, and behind a colon where it begins. */
static int create(const struct gpu *at, char *word, bool compute)
{
	struct instance made = {.gpu = at->index};
	char *name = strsep(&word, ":");
	for (unsigned number = 0; number < PROFILES; number++) {
		if (!profile_of(at->handle, number, &made.profile) || !names_profile(name, made.profile.name, made.profile.id))
			continue;
		struct placement places[INSTANCES] = {0}, place;
		unsigned count = INSTANCES;
		nvml.DeviceGetGpuInstancePossiblePlacements_v2(at->handle, made.profile.id, places, &count);
		place = (struct placement){word ? (unsigned)strtoul(word, NULL, 10) : 0, places[0].size};
		result status = word ? nvml.DeviceCreateGpuInstanceWithPlacement(at->handle, made.profile.id, &place, &made.handle)
				     : nvml.DeviceCreateGpuInstance(at->handle, made.profile.id, &made.handle);
		if (status != OK)
			return complain(format("Unable to create a GPU instance on GPU %2u using profile %u", at->index, made.profile.id), status);
		nvml.GpuInstanceGetInfo(made.handle, &made.info);
		printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", made.info.id, at->index,
		       made.profile.name, made.profile.id);
		return compute ? create_compute(&made, NULL) : EXIT_OK;
	}
	printf("Unable to find profile %s on GPU %2u: Not Found\n", name, at->index);
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

/* Makes compute instances in the chosen GPU instances; `profiles` is "" for the default one. */
static int create_computes(const char *profiles)
{
	struct instance list[INSTANCES];
	bool any = false;
	for (unsigned i = 0; i < node.count; i++) {
		unsigned count = instances_of(&node.gpus[i], list);
		for (unsigned at = 0; at < count; at++) {
			char words[512];
			snprintf(words, sizeof words, "%s", profiles);
			for (char *rest = words, *word; (word = strsep(&rest, ","));) {
				int code = create_compute(&list[at], *word ? word : NULL);
				if (code != EXIT_OK)
					return code;
				any = true;
			}
		}
	}
	if (!any)
		puts("No GPU instances found: Not Found");
	return any ? EXIT_OK : EXIT_NOT_FOUND;
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

/* -lgip and its long name, and so on. */
static const char *const verbs[][2] = {
	{"-lgip", "--list-gpu-instance-profiles"}, {"-lgipp", "--list-gpu-instance-possible-placements"},
	{"-lgi", "--list-gpu-instances"}, {"-cgi", "--create-gpu-instance"}, {"-dgi", "--destroy-gpu-instance"},
	{"-lcip", "--list-compute-instance-profiles"}, {"-lci", "--list-compute-instances"},
	{"-cci", "--create-compute-instance"}, {"-dci", "--destroy-compute-instance"},
	{"-C", "--default-compute-instance"}, {"-i", "--id"}, {"-gi", "--gpu-instance-id"}, {"-ci", "--compute-instance-id"},
};

static const char *short_name(const char *word)
{
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		if (!strcmp(word, verbs[i][0]) || !strcmp(word, verbs[i][1]))
			return verbs[i][0];
	return NULL;
}

int mig_command(int argc, char **argv)
{
	const char *verb = NULL, *profiles = NULL, *gpus = "";
	bool compute = false;
	for (int i = 1; i < argc; i++) {
		const char *word = short_name(argv[i]), **value = NULL;
		bool given = i + 1 < argc && argv[i + 1][0] != '-';
		if (!word)
			return refuse(argv[i]), EXIT_INVALID;
		if (!strcmp(word, "-C"))
			compute = true;
		else if (!strcmp(word, "-i"))
			value = &gpus;
		else if (!strcmp(word, "-gi"))
			value = &chosen_instances;
		else if (!strcmp(word, "-ci"))
			value = &chosen_computes;
		else {
			verb = word;
			value = word[1] == 'c' ? &profiles : NULL;
		}
		if (value && !given && strcmp(word, "-cci")) /* -cci alone is the default profile */
			return refuse(word), EXIT_INVALID;
		if (value)
			*value = given ? argv[++i] : "";
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
	if (verb[1] == 'c')
		return verb[2] == 'c' ? create_computes(profiles) : create_all(profiles, compute);
	return verb[1] == 'd' ? destroy(verb[2] == 'c') : list_mig(verb);
}

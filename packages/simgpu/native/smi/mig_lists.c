/* mig: the tables of profiles, placements, GPU instances and compute instances. */
#include "mig.h"

#include <stdio.h>
#include <string.h>

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

static int list_compute_profiles(void)
{
	const int width = 86;
	struct instance list[INSTANCES];
	bool any = false;
	for (unsigned i = 0; i < node.count; i++) {
		unsigned count = instances_of(&node.gpus[i], list);
		for (unsigned at = 0; at < count; at++) {
			struct ci_profile profile, held;
			if (!default_compute_profile(list[at].handle, &profile))
				continue;
			if (!any) {
				rule('-', '+', width);
				puts("| Compute instance profiles:                                                           |\n"
				     "| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |\n"
				     "|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |\n"
				     "|         ID                                                          CE    JPEG       |");
				rule('=', '|', width);
			}
			any = true;
			unsigned left = compute_of(list[at].handle, &held) ? 0 : 1;
			printf("|%4u%7u       %-16s%6u*%6u/%-5u%9u%9u%6u%6u   |\n", list[at].gpu, list[at].info.id, list[at].profile.name,
			       profile.id, left, profile.instances, profile.multiprocessors, profile.decoders, profile.encoders, profile.ofa);
			printf("|%71u%6u%9s|\n", profile.copy_engines, profile.jpeg, "");
			rule('-', '+', width);
		}
	}
	if (!any)
		puts("No GPU instances found: Not Found");
	return any ? EXIT_OK : EXIT_NOT_FOUND;
}

int list_mig(const char *verb)
{
	if (!strcmp(verb, "-lgip"))
		return list_profiles();
	if (!strcmp(verb, "-lgipp"))
		return list_placements();
	if (!strcmp(verb, "-lcip"))
		return list_compute_profiles();
	return verb[2] == 'c' ? list_compute_instances() : list_instances();
}

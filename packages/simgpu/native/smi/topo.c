/* topo -m: how GPUs are connected to each other, and to processors and memory. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

#define WORDS 16 /* of 64 processors */
#define LINKS 18

/* NVLinks between two GPUs: those that end at the other one, or all where both hang on the same switches. */
static unsigned links_between(device one, device other)
{
	struct pci target = {0}, end;
	unsigned found = 0, active, type;
	nvml.DeviceGetPciInfo_v3(other, &target);
	for (unsigned link = 0; link < LINKS; link++) {
		if (nvml.DeviceGetNvLinkState(one, link, &active) != OK || !active)
			continue;
		bool has_switch = nvml.DeviceGetNvLinkRemoteDeviceType(one, link, &type) == OK && type == 2;
		if (has_switch)
			found += nvml.DeviceGetNvLinkState(other, link, &active) == OK && active;
		else
			found += nvml.DeviceGetNvLinkRemotePciInfo_v2(one, link, &end) == OK && !strcmp(end.bus_id, target.bus_id);
	}
	return found;
}

static const char *connection(device one, device other)
{
	unsigned links = one == other ? 0 : links_between(one, other), level = 0;
	if (one == other)
		return " X ";
	if (links)
		return format("NV%u", links);
	if (nvml.DeviceGetTopologyCommonAncestor(one, other, &level) != OK)
		return "N/A";
	return level <= 10 ? "PIX" : level <= 20 ? "PXB" : level <= 30 ? "PHB" : level <= 40 ? "NODE" : "SYS";
}

/* Ranges of the set bits, as in 0-23,48-71. */
static const char *ranges(result status, const unsigned long *set)
{
	char text[256] = "";
	size_t length = 0;
	for (int bit = 0; status == OK && bit < 64 * WORDS; bit++) {
		int first = bit;
		while (bit < 64 * WORDS && set[bit / 64] >> bit % 64 & 1)
			bit++;
		if (bit > first && length < sizeof text - 24)
			length += (size_t)snprintf(text + length, sizeof text - length, bit - 1 > first ? "%s%d-%d" : "%s%d",
						   length ? "," : "", first, bit - 1);
	}
	return length ? format("%s", text) : "N/A";
}

int show_topology(int argc, char **argv)
{
	if (argc != 2 || (strcmp(argv[1], "-m") && strcmp(argv[1], "--matrix"))) {
		refuse(argc > 1 ? argv[1] : "topo");
		return EXIT_INVALID;
	}
	int code = open_nvml();
	if (code == EXIT_OK)
		code = choose_gpus("");
	if (code != EXIT_OK)
		return code;
	for (unsigned i = 0; i < node.count; i++)
		printf("\tGPU%u", node.gpus[i].index);
	puts("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID");
	for (unsigned i = 0; i < node.count; i++) {
		unsigned long cpus[WORDS] = {0}, nodes[WORDS] = {0};
		device gpu = node.gpus[i].handle;
		printf("GPU%u", node.gpus[i].index);
		for (unsigned j = 0; j < node.count; j++)
			printf("\t%s", connection(gpu, node.gpus[j].handle));
		const char *near = ranges(nvml.DeviceGetCpuAffinity(gpu, WORDS, cpus), cpus);
		printf("\t%s\t%s\t\tN/A\n", near, ranges(nvml.DeviceGetMemoryAffinity(gpu, WORDS, nodes, 0), nodes));
	}
	puts("\nLegend:\n\n"
	     "  X    = Self\n"
	     "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
	     "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
	     "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
	     "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
	     "  PIX  = Connection traversing at most a single PCIe bridge\n"
	     "  NV#  = Connection traversing a bonded set of # NVLinks");
	return EXIT_OK;
}

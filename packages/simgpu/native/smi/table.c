/* The table that nvidia-smi prints without arguments, and the list of -L. Its columns depend on the driver's version. */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct layout {
	int columns[3];      /* between the bars */
	int title[3];        /* versions of program, driver and CUDA */
	int name, gap, power, limit, bus, used, total;
	int pid;             /* where it ends in the table of processes */
	int mig_memory, mig_end; /* of the table of MIG devices */
	const char *heads[2][2];
	const char *mig_heads[2];
};

/* From driver 545 on, from 530 on, before. */
static const struct layout layouts[] = {
	{{41, 24, 22}, {23, 15, 9}, 27, 4, 14, 4, 19, 8, 6, 16, 34, 4,
	 {{" GPU  Name                 Persistence-M ", " Bus-Id          Disp.A "},
	  {" Fan  Temp   Perf          Pwr:Usage/Cap ", "           Memory-Usage "}},
	 {"        Shared         ", " CE ENC  DEC  OFA  JPG "}},
	{{41, 22, 22}, {23, 13, 9}, 27, 4, 15, 3, 17, 7, 5, 10, 32, 2,
	 {{" GPU  Name                 Persistence-M ", " Bus-Id        Disp.A "},
	  {" Fan  Temp   Perf          Pwr:Usage/Cap ", "         Memory-Usage "}},
	 {"      Shared           ", " CE ENC DEC OFA JPG    "}},
	{{31, 22, 22}, {13, 13, 9}, 18, 2, 5, 3, 17, 7, 5, 10, 22, 1,
	 {{" GPU  Name        Persistence-M", " Bus-Id        Disp.A "},
	  {" Fan  Temp  Perf  Pwr:Usage/Cap", "         Memory-Usage "}},
	 {"         Shared        ", " CE  ENC  DEC  OFA  JPG"}},
};
static const struct layout *layout;
static int width; /* between the outer bars */

static void repeat(char what, int count)
{
	while (count-- > 0)
		putchar(what);
}

/* A line of `fill`; `marks` are its left end, what stands between columns, and its right end. */
static void rule(const int *columns, int count, char fill, const char *marks)
{
	for (int i = 0; i < count; i++) {
		putchar(marks[i > 0]);
		repeat(fill, columns[i]);
	}
	printf("%c\n", marks[2]);
}

static void whole_rule(char fill, const char *marks)
{
	rule(&width, 1, fill, marks);
}

static void cells(const char *first, const char *second, const char *third)
{
	printf("|%-*s|%-*s|%*s|\n", layout->columns[0], first, layout->columns[1], second, layout->columns[2], third);
}

static const char *or_na(const char *text)
{
	return text ? text : "N/A";
}

static const char *shortened(const char *name, int size)
{
	return (int)strlen(name) > size ? format("%.*s...", size - 3, name) : name;
}

static const char *errors(device gpu)
{
	unsigned current, pending;
	unsigned long long count;
	if (mig_enabled(gpu))
		return "On";
	if (nvml.DeviceGetEccMode(gpu, &current, &pending) != OK)
		return "N/A";
	return current ? or_na(number(nvml.DeviceGetTotalEccErrors(gpu, 1, 0, &count), "%llu", count)) : "Off";
}

static void show_gpu(const struct gpu *at)
{
	device gpu = at->handle;
	struct pci pci = {0};
	struct memory_v2 memory = {.version = sizeof memory | 2u << 24};
	struct utilization busy = {0};
	unsigned value = 0, degrees = 0, state = 0, power = 0, limit = 0, mode, pending;
	const char *name = or_na(text_of(nvml.DeviceGetName, gpu));
	const char *persistence = or_na(on(nvml.DeviceGetPersistenceMode(gpu, &value), value, "On", "Off"));
	const char *display = or_na(on(nvml.DeviceGetDisplayActive(gpu, &value), value, "On", "Off"));
	nvml.DeviceGetPciInfo_v3(gpu, &pci);
	cells(format("%4u  %-*s%*s%-3s ", at->index, layout->name, shortened(name, layout->name), layout->gap, "", persistence),
	      format("%*s %-3s ", layout->bus, pci.bus_id, display), format("%s ", errors(gpu)));
	const char *fan = or_na(number(nvml.DeviceGetFanSpeed(gpu, &value), "%llu%%", value));
	const char *heat = or_na(number(nvml.DeviceGetTemperature(gpu, 0, &degrees), "%lluC", degrees));
	const char *level = or_na(number(nvml.DeviceGetPerformanceState(gpu, &state), "P%llu", state));
	const char *draw = or_na(number(nvml.DeviceGetPowerUsage(gpu, &power), "%lluW", (power + 500) / 1000));
	const char *cap = or_na(number(nvml.DeviceGetEnforcedPowerLimit(gpu, &limit), "%lluW", (limit + 500) / 1000));
	bool known = nvml.DeviceGetMemoryInfo_v2(gpu, &memory) == OK;
	const char *rate = or_na(number(nvml.DeviceGetUtilizationRates(gpu, &busy), "%llu%%", busy.gpu));
	const char *compute = or_na(compute_mode(gpu));
	cells(format(" %-3s%6s    %-3s%*s / %*s ", fan, heat, level, layout->power + 1, draw, layout->limit + 1, cap),
	      known ? format("%*lluMiB / %*lluMiB ", layout->used, memory.used / MIB, layout->total, memory.total / MIB) : "N/A ",
	      format("%8s %12s ", rate, strncmp(compute, "Exclusive", 9) ? compute : "E. Process"));
	cells("", "", format("%s ", or_na(on(nvml.DeviceGetMigMode(gpu, &mode, &pending), mode, "Enabled", "Disabled"))));
	rule(layout->columns, 3, '-', "+++");
}

static void show_mig_device(unsigned gpu, unsigned number, device mig)
{
	struct memory_v2 memory = {.version = sizeof memory | 2u << 24};
	struct attributes parts = {0};
	unsigned instance = 0, compute = 0, end = (unsigned)layout->mig_end;
	unsigned long long window = 1;
	nvml.DeviceGetGpuInstanceId(mig, &instance);
	nvml.DeviceGetComputeInstanceId(mig, &compute);
	nvml.DeviceGetAttributes_v2(mig, &parts);
	nvml.DeviceGetMemoryInfo_v2(mig, &memory);
	while (window * 2 <= memory.total / MIB * 3 / 2)
		window *= 2;
	int used = layout->mig_memory - (int)end - 14;
	printf("|%3u %4u %3u %3u  |%*lluMiB / %5lluMiB%*s|%3u %6u |", gpu, instance, compute, number, used, memory.used / MIB,
	       memory.total / MIB, (int)end, "", parts.multiprocessors, 0u);
	printf(" %2u %3u %4u %4u %4u |\n", parts.copy_engines, parts.encoders, parts.decoders, parts.ofa, parts.jpeg);
	printf("|                  |%*lluMiB / %5lluMiB%*s|           |                       |\n", used, 0ull, window - 1, (int)end, "");
}

static void show_mig(void)
{
	const int columns[] = {18, layout->mig_memory, 11, 23};
	bool any = false, enabled = false;
	for (unsigned i = 0; i < node.count; i++)
		enabled |= mig_enabled(node.gpus[i].handle);
	if (!enabled)
		return;
	putchar('\n');
	whole_rule('-', "+++");
	printf("| %-*s|\n", width - 1, "MIG devices:");
	rule(columns, 4, '-', "+++");
	printf("| GPU  GI  CI  MIG |%*s |        Vol|%s|\n", columns[1] - 1, "Memory-Usage", layout->mig_heads[0]);
	printf("|      ID  ID  Dev |%*s | SM     Unc|%s|\n", columns[1] - 1, "BAR1-Usage", layout->mig_heads[1]);
	printf("|                  |%*s |        ECC|                       |\n", columns[1] - 1, "");
	rule(columns, 4, '=', "|+|");
	for (unsigned i = 0; i < node.count; i++) {
		unsigned most = 0;
		nvml.DeviceGetMaxMigDeviceCount(node.gpus[i].handle, &most);
		for (unsigned m = 0; m < most; m++) {
			device mig;
			if (nvml.DeviceGetMigDeviceHandleByIndex(node.gpus[i].handle, m, &mig) != OK)
				continue;
			show_mig_device(node.gpus[i].index, m, mig);
			rule(columns, 4, '-', "+++");
			any = true;
		}
	}
	if (!any) {
		printf("|%-*s|\n", width, "  No MIG devices found");
		whole_rule('-', "+++");
	}
}

static const char *instance(unsigned id)
{
	return id == NO_INSTANCE ? "N/A" : format("%u", id);
}

static void show_processes(void)
{
	static struct process list[MAX_PROCESSES];
	int pid = node.major >= 545 && node.major < 560 ? 10 : layout->pid, room = width - 10 - pid - 16 - 11;
	bool any = false;
	printf("%*s\n", width, "");
	whole_rule('-', "+++");
	printf("| %-*s|\n", width - 1, "Processes:");
	printf("|  GPU   GI   CI%*s   Type   %-*s GPU Memory |\n", pid + 1, "PID", room - 1, "Process name");
	printf("|        ID   ID%*s          %-*s Usage      |\n", pid + 1, "", room - 1, "");
	whole_rule('=', "|||");
	for (unsigned i = 0; i < node.count; i++) {
		unsigned count = list_processes(node.gpus[i].handle, list);
		for (unsigned p = 0; p < count; p++) {
			const char *name = process_name(list[p].pid);
			int size = (int)strlen(name), most = room - 2;
			if (size > most)
				name = format("...%s", name + size - most + 3);
			printf("|%5u   %3s  %3s%*u      C   %-*s%*lluMiB |\n", node.gpus[i].index, instance(list[p].gpu_instance),
			       instance(list[p].compute_instance), pid, list[p].pid, room, name, 7, list[p].used / MIB);
			any = true;
		}
	}
	if (!any)
		printf("|%-*s|\n", width, "  No running processes found");
	whole_rule('-', "+++");
}

int show_table(void)
{
	char when[64];
	time_t now = time(NULL);
	layout = &layouts[node.major >= 545 ? 0 : node.major >= 530 ? 1 : 2];
	width = layout->columns[0] + layout->columns[1] + layout->columns[2] + 2;
	strftime(when, sizeof when, "%a %b %e %H:%M:%S %Y", localtime(&now));
	printf("%s       \n", when);
	whole_rule('-', "+++");
	printf("| NVIDIA-SMI %-*sDriver Version: %-*sCUDA Version: %-*s|\n", layout->title[0], node.driver, layout->title[1], node.driver,
	       layout->title[2], format("%d.%d", node.cuda / 1000, node.cuda % 1000 / 10));
	rule(layout->columns, 3, '-', node.major >= 580 ? "+++" : "|++");
	cells(layout->heads[0][0], layout->heads[0][1], " Volatile Uncorr. ECC ");
	cells(layout->heads[1][0], layout->heads[1][1], " GPU-Util  Compute M. ");
	cells("", "", "MIG M. ");
	rule(layout->columns, 3, '=', "|+|");
	for (unsigned i = 0; i < node.count; i++)
		show_gpu(&node.gpus[i]);
	show_mig();
	show_processes();
	return EXIT_OK;
}

int list_gpus(void)
{
	for (unsigned i = 0; i < node.count; i++) {
		device gpu = node.gpus[i].handle, mig;
		unsigned most = 0;
		printf("GPU %u: %s (UUID: %s)\n", node.gpus[i].index, or_na(text_of(nvml.DeviceGetName, gpu)),
		       or_na(text_of(nvml.DeviceGetUUID, gpu)));
		if (mig_enabled(gpu))
			nvml.DeviceGetMaxMigDeviceCount(gpu, &most);
		for (unsigned m = 0; m < most; m++)
			if (nvml.DeviceGetMigDeviceHandleByIndex(gpu, m, &mig) == OK)
				printf("  MIG %-12sDevice %2u: (UUID: %s)\n", mig_name(mig), m, or_na(text_of(nvml.DeviceGetUUID, mig)));
	}
	return EXIT_OK;
}

/* pmon and dmon: a line for each process or GPU, again and again. */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOREVER (-1)

struct monitor {
	const char *gpus, *columns;
	long count, seconds;
};

static int read_arguments(int argc, char **argv, const char *help, struct monitor *wanted)
{
	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;
		if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) {
			fputs(help, stdout);
			exit(EXIT_OK);
		} else if (!strcmp(argv[i], "-i") && value)
			wanted->gpus = value;
		else if (!strcmp(argv[i], "-s") && value)
			wanted->columns = value;
		else if (!strcmp(argv[i], "-c") && value && atol(value) > 0)
			wanted->count = atol(value);
		else if (!strcmp(argv[i], "-d") && value && atol(value) > 0)
			wanted->seconds = atol(value);
		else {
			refuse(argv[i]);
			return EXIT_INVALID;
		}
	}
	int code = open_nvml();
	return code == EXIT_OK ? choose_gpus(wanted->gpus) : code;
}

/* The header comes again after a screen of samples. */
static int repeat(const struct monitor *wanted, void (*header)(const char *), void (*sample)(const char *))
{
	for (long i = 0; wanted->count == FOREVER || i < wanted->count; i++) {
		if (i % 20 == 0)
			header(wanted->columns);
		sample(wanted->columns);
		fflush(stdout);
		if (i + 1 != wanted->count)
			sleep((unsigned)wanted->seconds);
	}
	return EXIT_OK;
}

static void cell(const char *text)
{
	printf(" %6s", text ? text : "-");
}

/* -- pmon ------------------------------------------------------------------------------------------------------------ */

static void process_header(const char *columns)
{
	bool usage = strchr(columns, 'u'), memory = strchr(columns, 'm');
	printf("# gpu         pid   type%s%s    command \n", usage ? "     sm    mem    enc    dec    jpg    ofa" : "",
	       memory ? "     fb   ccpm" : "");
	printf("# Idx           #    C/G%s%s    name \n", usage ? "      %      %      %      %      %      %" : "",
	       memory ? "     MB     MB" : "");
}

static void process_line(unsigned gpu, const struct process *process, const struct process_sample *busy, const char *columns)
{
	printf("%5u %10s %5s", gpu, process ? format("%u", process->pid) : "-", process ? "C" : "-");
	if (strchr(columns, 'u')) {
		cell(busy && busy->sm ? format("%u", busy->sm) : NULL);
		cell(busy && busy->memory ? format("%u", busy->memory) : NULL);
		for (int i = 0; i < 4; i++)
			cell(NULL);
	}
	if (strchr(columns, 'm')) {
		cell(process ? format("%llu", process->used / MIB) : NULL);
		cell(process ? "0" : NULL);
	}
	const char *name = process ? process_name(process->pid) : "-", *slash = strrchr(name, '/');
	printf("    %-15.15s\n", slash ? slash + 1 : name);
}

static void process_sample(const char *columns)
{
	static struct process list[MAX_PROCESSES];
	static struct process_sample samples[MAX_PROCESSES];
	for (unsigned i = 0; i < node.count; i++) {
		unsigned count = list_processes(node.gpus[i].handle, list), sampled = MAX_PROCESSES;
		if (nvml.DeviceGetProcessUtilization(node.gpus[i].handle, samples, &sampled, 0) != OK)
			sampled = 0;
		for (unsigned p = 0; p < count; p++) {
			const struct process_sample *busy = NULL;
			for (unsigned s = 0; s < sampled; s++)
				if (samples[s].pid == list[p].pid)
					busy = &samples[s];
			process_line(node.gpus[i].index, &list[p], busy, columns);
		}
		if (!count)
			process_line(node.gpus[i].index, NULL, NULL, columns);
	}
}

int monitor_processes(int argc, char **argv)
{
	static const char help[] = "nvidia-smi pmon [-i GPUS] [-d SECONDS] [-c COUNT] [-s um]\n\n"
				   "-s    u: utilization, m: memory\n";
	struct monitor wanted = {"", "u", FOREVER, 1};
	int code = read_arguments(argc, argv, help, &wanted);
	return code == EXIT_OK ? repeat(&wanted, process_header, process_sample) : code;
}

/* -- dmon ------------------------------------------------------------------------------------------------------------ */

static const struct {
	char letter;
	const char *names, *units;
} groups[] = {
	{'p', "    pwr  gtemp  mtemp", "      W      C      C"},
	{'u', "     sm    mem    enc    dec    jpg    ofa", "      %      %      %      %      %      %"},
	{'c', "   mclk   pclk", "    MHz    MHz"},
	{'m', "     fb   bar1   ccpm", "     MB     MB     MB"},
	{'e', "  sbecc  dbecc    pci", "   errs   errs   errs"},
	{'t', "  rxpci  txpci", "   MB/s   MB/s"},
};
#define GROUPS (sizeof groups / sizeof *groups)

static void device_header(const char *columns)
{
	printf("# gpu");
	for (size_t i = 0; i < GROUPS; i++)
		printf("%s", strchr(columns, groups[i].letter) ? groups[i].names : "");
	printf(" \n# Idx");
	for (size_t i = 0; i < GROUPS; i++)
		printf("%s", strchr(columns, groups[i].letter) ? groups[i].units : "");
	printf(" \n");
}

#define CELL(...) cell(number(nvml.__VA_ARGS__, "%llu", v))

static void device_cells(device gpu, char group)
{
	unsigned v, period;
	unsigned long long large;
	struct utilization busy = {0};
	struct memory_v2 memory = {.version = sizeof memory | 2u << 24};
	struct memory bar = {0};
	result status;
	switch (group) {
	case 'p':
		status = nvml.DeviceGetPowerUsage(gpu, &v);
		cell(number(status, "%llu", (v + 500) / 1000));
		CELL(DeviceGetTemperature(gpu, 0, &v));
		cell(field_value(gpu, 82, &large) ? format("%llu", large) : NULL);
		break;
	case 'u':
		status = nvml.DeviceGetUtilizationRates(gpu, &busy);
		cell(number(status, "%llu", busy.gpu));
		cell(number(status, "%llu", busy.memory));
		CELL(DeviceGetEncoderUtilization(gpu, &v, &period));
		CELL(DeviceGetDecoderUtilization(gpu, &v, &period));
		CELL(DeviceGetJpgUtilization(gpu, &v, &period));
		CELL(DeviceGetOfaUtilization(gpu, &v, &period));
		break;
	case 'c':
		CELL(DeviceGetClockInfo(gpu, 2, &v));
		CELL(DeviceGetClockInfo(gpu, 0, &v));
		break;
	case 'm':
		cell(nvml.DeviceGetMemoryInfo_v2(gpu, &memory) == OK ? format("%llu", memory.used / MIB) : NULL);
		cell(nvml.DeviceGetBAR1MemoryInfo(gpu, &bar) == OK ? format("%llu", bar.used / MIB) : NULL);
		cell("0");
		break;
	case 'e':
		cell(number(nvml.DeviceGetTotalEccErrors(gpu, 0, 0, &large), "%llu", large));
		cell(number(nvml.DeviceGetTotalEccErrors(gpu, 1, 0, &large), "%llu", large));
		CELL(DeviceGetPcieReplayCounter(gpu, &v));
		break;
	case 't':
		cell(nvml.DeviceGetPcieThroughput(gpu, 1, &v) == OK ? format("%u", v / 1000) : NULL);
		cell(nvml.DeviceGetPcieThroughput(gpu, 0, &v) == OK ? format("%u", v / 1000) : NULL);
		break;
	}
}

static void device_sample(const char *columns)
{
	for (unsigned i = 0; i < node.count; i++) {
		printf("%5u", node.gpus[i].index);
		for (size_t g = 0; g < GROUPS; g++)
			if (strchr(columns, groups[g].letter))
				device_cells(node.gpus[i].handle, groups[g].letter);
		puts(" ");
	}
}

int monitor_devices(int argc, char **argv)
{
	static const char help[] = "nvidia-smi dmon [-i GPUS] [-d SECONDS] [-c COUNT] [-s pucmet]\n\n"
				   "-s    p: power and temperature, u: utilization, c: clocks, m: memory, e: ECC errors, t: PCIe throughput\n";
	struct monitor wanted = {"", "puc", FOREVER, 1};
	int code = read_arguments(argc, argv, help, &wanted);
	return code == EXIT_OK ? repeat(&wanted, device_header, device_sample) : code;
}

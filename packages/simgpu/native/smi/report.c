/* -q: all that is known of each GPU, in sections that -d chooses. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define COLUMN 42 /* of the colon */

static int depth;

static void line(const char *key, const char *value)
{
	printf("%*s%-*s: %s\n", 4 * depth, "", COLUMN - 4 * depth, key, value ? value : "N/A");
}

static void open_section(const char *name)
{
	printf("%*s%s\n", 4 * depth++, "", name);
}

static void close_section(void)
{
	depth--;
}

#define SWITCH(ask) (nvml.ask(gpu, &v) == OK ? v ? "Enabled" : "Disabled" : NULL)
#define NUMBER(pattern, ...) (v = 0, nvml.__VA_ARGS__ == OK ? format(pattern, v) : NULL)
#define WATTS(...) (v = 0, nvml.__VA_ARGS__ == OK ? format("%.2f W", v / 1000.0) : NULL)

const char *architecture(device gpu)
{
	static const char *const names[] = {NULL, NULL, "Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"};
	unsigned v;
	return nvml.DeviceGetArchitecture(gpu, &v) == OK && v < sizeof names / sizeof *names ? names[v] : NULL;
}

const char *brand(device gpu)
{
	unsigned v;
	if (nvml.DeviceGetBrand(gpu, &v) != OK)
		return NULL;
	return v == 2 ? "Tesla" : v == 5 ? "GeForce" : v == 1 ? "Quadro" : "NVIDIA";
}

static void identity(device gpu)
{
	unsigned v;
	struct pci pci = {0};
	line("Product Name", text_of(nvml.DeviceGetName, gpu));
	line("Product Brand", brand(gpu));
	line("Product Architecture", architecture(gpu));
	line("Display Mode", SWITCH(DeviceGetDisplayMode));
	line("Display Active", SWITCH(DeviceGetDisplayActive));
	line("Persistence Mode", SWITCH(DeviceGetPersistenceMode));
	line("Serial Number", text_of(nvml.DeviceGetSerial, gpu));
	line("GPU UUID", text_of(nvml.DeviceGetUUID, gpu));
	line("Minor Number", NUMBER("%u", DeviceGetMinorNumber(gpu, &v)));
	line("VBIOS Version", text_of(nvml.DeviceGetVbiosVersion, gpu));
	line("GPU Part Number", text_of(nvml.DeviceGetBoardPartNumber, gpu));
	bool known = nvml.DeviceGetPciInfo_v3(gpu, &pci) == OK;
	open_section("PCI");
	line("Bus", known ? format("0x%02X", pci.bus) : NULL);
	line("Device", known ? format("0x%02X", pci.device) : NULL);
	line("Domain", known ? format("0x%04X", pci.domain) : NULL);
	line("Device Id", known ? format("0x%08X", pci.pci_device_id) : NULL);
	line("Bus Id", known ? pci.bus_id : NULL);
	line("Sub System Id", known ? format("0x%08X", pci.pci_subsystem_id) : NULL);
	open_section("GPU Link Info");
	open_section("PCIe Generation");
	line("Max", NUMBER("%u", DeviceGetMaxPcieLinkGeneration(gpu, &v)));
	line("Current", NUMBER("%u", DeviceGetCurrPcieLinkGeneration(gpu, &v)));
	close_section();
	open_section("Link Width");
	line("Max", NUMBER("%ux", DeviceGetMaxPcieLinkWidth(gpu, &v)));
	line("Current", NUMBER("%ux", DeviceGetCurrPcieLinkWidth(gpu, &v)));
	close_section();
	close_section();
	line("Replays Since Reset", NUMBER("%u", DeviceGetPcieReplayCounter(gpu, &v)));
	line("Tx Throughput", NUMBER("%u KB/s", DeviceGetPcieThroughput(gpu, 0, &v)));
	line("Rx Throughput", NUMBER("%u KB/s", DeviceGetPcieThroughput(gpu, 1, &v)));
	close_section();
	line("Fan Speed", NUMBER("%u %%", DeviceGetFanSpeed(gpu, &v)));
}

static void mig(device gpu)
{
	unsigned now = 0, later = 0;
	result status = nvml.DeviceGetMigMode(gpu, &now, &later);
	open_section("MIG Mode");
	line("Current", on(status, now, "Enabled", "Disabled"));
	line("Pending", on(status, later, "Enabled", "Disabled"));
	close_section();
}

static void performance(device gpu)
{
	static const struct { const char *name; unsigned long long bit; } reasons[] = {
		{"Idle", 0x1}, {"Applications Clocks Setting", 0x2}, {"SW Power Cap", 0x4}, {"HW Slowdown", 0x8},
		{"Sync Boost", 0x10}, {"SW Thermal Slowdown", 0x20}, {"HW Thermal Slowdown", 0x40},
		{"HW Power Brake Slowdown", 0x80}, {"Display Clock Setting", 0x100},
	};
	unsigned v;
	unsigned long long active = 0;
	line("Performance State", NUMBER("P%u", DeviceGetPerformanceState(gpu, &v)));
	result status = nvml.DeviceGetCurrentClocksThrottleReasons(gpu, &active);
	open_section(node.major >= 535 ? "Clocks Event Reasons" : "Clocks Throttle Reasons");
	for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
		line(reasons[i].name, on(status, (active & reasons[i].bit) != 0, "Active", "Not Active"));
	close_section();
}

static void memory(device gpu)
{
	struct memory_v2 all = {.version = sizeof all | 2u << 24};
	struct memory bar = {0};
	bool known = nvml.DeviceGetMemoryInfo_v2(gpu, &all) == OK, mapped = nvml.DeviceGetBAR1MemoryInfo(gpu, &bar) == OK;
#define MEMORY(has, bytes) ((has) ? format("%llu MiB", (bytes) / MIB) : NULL)
	open_section("FB Memory Usage");
	line("Total", MEMORY(known, all.total));
	line("Reserved", MEMORY(known, all.reserved));
	line("Used", MEMORY(known, all.used));
	line("Free", MEMORY(known, all.free));
	close_section();
	open_section("BAR1 Memory Usage");
	line("Total", MEMORY(mapped, bar.total));
	line("Used", MEMORY(mapped, bar.used));
	line("Free", MEMORY(mapped, bar.free));
	close_section();
}

static void mode(device gpu)
{
	line("Compute Mode", compute_mode(gpu));
}

static void utilization(device gpu)
{
	struct utilization u = {0};
	unsigned v, period;
	result status = nvml.DeviceGetUtilizationRates(gpu, &u);
	open_section("Utilization");
	line(node.major >= 570 ? "GPU" : "Gpu", number(status, "%llu %%", u.gpu));
	line("Memory", number(status, "%llu %%", u.memory));
	line("Encoder", NUMBER("%u %%", DeviceGetEncoderUtilization(gpu, &v, &period)));
	line("Decoder", NUMBER("%u %%", DeviceGetDecoderUtilization(gpu, &v, &period)));
	line("JPEG", NUMBER("%u %%", DeviceGetJpgUtilization(gpu, &v, &period)));
	line("OFA", NUMBER("%u %%", DeviceGetOfaUtilization(gpu, &v, &period)));
	close_section();
}

static void ecc(device gpu)
{
	unsigned now = 0, later = 0;
	unsigned long long v;
	result status = nvml.DeviceGetEccMode(gpu, &now, &later);
	open_section("ECC Mode");
	line("Current", on(status, now, "Enabled", "Disabled"));
	line("Pending", on(status, later, "Enabled", "Disabled"));
	close_section();
	open_section("ECC Errors");
	for (unsigned counter = 0; counter < 2; counter++) {
		open_section(counter ? "Aggregate" : "Volatile");
		line("DRAM Correctable", NUMBER("%llu", DeviceGetTotalEccErrors(gpu, 0, counter, &v)));
		line("DRAM Uncorrectable", NUMBER("%llu", DeviceGetTotalEccErrors(gpu, 1, counter, &v)));
		close_section();
	}
	close_section();
}

static void row_remapper(device gpu)
{
	unsigned corrected = 0, uncorrected = 0, pending = 0, failure = 0;
	result status = nvml.DeviceGetRemappedRows(gpu, &corrected, &uncorrected, &pending, &failure);
	if (status != OK) {
		line("Remapped Rows", NULL);
		return;
	}
	open_section("Remapped Rows");
	line("Correctable Error", format("%u", corrected));
	line("Uncorrectable Error", format("%u", uncorrected));
	line("Pending", pending ? "Yes" : "No");
	line("Remapping Failure Occurred", failure ? "Yes" : "No");
	close_section();
}

static void temperature(device gpu)
{
	unsigned v;
	unsigned long long memory_degrees = 0;
	open_section("Temperature");
	line("GPU Current Temp", NUMBER("%u C", DeviceGetTemperature(gpu, 0, &v)));
	line("GPU Shutdown Temp", NUMBER("%u C", DeviceGetTemperatureThreshold(gpu, 0, &v)));
	line("GPU Slowdown Temp", NUMBER("%u C", DeviceGetTemperatureThreshold(gpu, 1, &v)));
	line("GPU Max Operating Temp", NUMBER("%u C", DeviceGetTemperatureThreshold(gpu, 3, &v)));
	line("Memory Current Temp", field_value(gpu, 82, &memory_degrees) ? format("%llu C", memory_degrees) : NULL);
	close_section();
}

static void power(device gpu)
{
	unsigned v, least = 0, most = 0;
	result limits = nvml.DeviceGetPowerManagementLimitConstraints(gpu, &least, &most);
	open_section(node.major >= 535 ? "GPU Power Readings" : "Power Readings");
	line("Power Draw", WATTS(DeviceGetPowerUsage(gpu, &v)));
	line("Current Power Limit", WATTS(DeviceGetPowerManagementLimit(gpu, &v)));
	line("Requested Power Limit", WATTS(DeviceGetPowerManagementLimit(gpu, &v)));
	line("Default Power Limit", WATTS(DeviceGetPowerManagementDefaultLimit(gpu, &v)));
	line("Min Power Limit", limits == OK ? format("%.2f W", least / 1000.0) : NULL);
	line("Max Power Limit", limits == OK ? format("%.2f W", most / 1000.0) : NULL);
	close_section();
}

static void clocks(device gpu)
{
	static const char *const names[] = {"Graphics", "SM", "Memory", "Video"};
	unsigned v;
	open_section("Clocks");
	for (unsigned i = 0; i < 4; i++)
		line(names[i], NUMBER("%u MHz", DeviceGetClockInfo(gpu, i, &v)));
	close_section();
	open_section("Applications Clocks");
	line("Graphics", NUMBER("%u MHz", DeviceGetApplicationsClock(gpu, 0, &v)));
	line("Memory", NUMBER("%u MHz", DeviceGetApplicationsClock(gpu, 2, &v)));
	close_section();
	open_section("Default Applications Clocks");
	line("Graphics", NUMBER("%u MHz", DeviceGetDefaultApplicationsClock(gpu, 0, &v)));
	line("Memory", NUMBER("%u MHz", DeviceGetDefaultApplicationsClock(gpu, 2, &v)));
	close_section();
	open_section("Max Clocks");
	for (unsigned i = 0; i < 4; i++)
		line(names[i], NUMBER("%u MHz", DeviceGetMaxClockInfo(gpu, i, &v)));
	close_section();
}

static void processes(device gpu)
{
	static struct process list[MAX_PROCESSES];
	unsigned count = list_processes(gpu, list);
	if (!count) {
		line("Processes", "None");
		return;
	}
	open_section("Processes");
	for (unsigned i = 0; i < count; i++) {
		bool whole = list[i].gpu_instance == NO_INSTANCE;
		line("GPU instance ID", whole ? NULL : format("%u", list[i].gpu_instance));
		line("Compute instance ID", whole ? NULL : format("%u", list[i].compute_instance));
		line("Process ID", format("%u", list[i].pid));
		depth++;
		line("Type", "C");
		line("Name", process_name(list[i].pid));
		line("Used GPU Memory", format("%llu MiB", list[i].used / MIB));
		depth--;
	}
	close_section();
}

/* In the order of -q. A section without a name of -d is printed without -d only. */
static const struct {
	const char *name;
	void (*show)(device gpu);
} sections[] = {
	{NULL, identity}, {"MIG", mig}, {"PERFORMANCE", performance}, {"MEMORY", memory}, {"COMPUTE", mode},
	{"UTILIZATION", utilization}, {"ECC", ecc}, {"ROW_REMAPPER", row_remapper}, {"TEMPERATURE", temperature},
	{"POWER", power}, {"CLOCK", clocks}, {"PIDS", processes},
};
#define SECTIONS (sizeof sections / sizeof *sections)

/* Sets the bits of the sections that -d names. False after a message about an unknown one. */
static bool choose(const char *wanted, unsigned *chosen)
{
	char words[256];
	*chosen = *wanted ? 0 : ~0u;
	snprintf(words, sizeof words, "%s", wanted);
	for (char *rest = words, *word; *wanted && (word = strsep(&rest, ","));) {
		size_t i = 0;
		while (i < SECTIONS && !(sections[i].name && !strcasecmp(sections[i].name, word)))
			i++;
		if (i == SECTIONS) {
			refuse(format("--display=%s", word));
			return false;
		}
		*chosen |= 1u << i;
	}
	return true;
}

int show_report(const char *wanted, bool xml)
{
	char when[64];
	unsigned chosen;
	time_t now = time(NULL);
	if (!choose(wanted, &chosen))
		return EXIT_INVALID;
	if (xml)
		return show_xml(wanted);
	strftime(when, sizeof when, "%a %b %e %H:%M:%S %Y", localtime(&now));
	puts("\n==============NVSMI LOG==============\n");
	line("Timestamp", when);
	line("Driver Version", node.driver);
	line("CUDA Version", format("%d.%d", node.cuda / 1000, node.cuda % 1000 / 10));
	putchar('\n');
	line("Attached GPUs", format("%u", node.all));
	for (unsigned i = 0; i < node.count; i++) {
		struct pci pci = {0};
		nvml.DeviceGetPciInfo_v3(node.gpus[i].handle, &pci);
		open_section(format("GPU %s", pci.bus_id));
		for (size_t s = 0; s < SECTIONS; s++)
			if (chosen >> s & 1)
				sections[s].show(node.gpus[i].handle);
		close_section();
		putchar('\n');
	}
	return EXIT_OK;
}

/* --query-gpu and --query-compute-apps: fields of each GPU or process as comma-separated values. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

/* What a field is of: a GPU, and with --query-compute-apps a process on it. */
struct subject {
	const struct gpu *at;
	device gpu;
	const struct process *process;
};

/* `names` are all names that the option takes, the one of the header first. A value is NULL where NVML has none. */
struct query_field {
	const char *names, *unit, *help;
	const char *(*value)(const struct subject *subject);
};

#define VALUE(function) static const char *function(const struct subject *s)
#define TEXT(function, ask) VALUE(function) { return text_of(nvml.ask, s->gpu); }
#define NUMBER(function, type, pattern, ...) VALUE(function) { type v = 0; return number(nvml.__VA_ARGS__, pattern, v); }
#define WATTS(function, ...) VALUE(function) { unsigned v = 0; return nvml.__VA_ARGS__ == OK ? format("%.2f", v / 1000.0) : NULL; }

VALUE(timestamp)
{
	char text[64];
	struct timeval now;
	(void)s;
	gettimeofday(&now, NULL);
	strftime(text, sizeof text, "%Y/%m/%d %H:%M:%S", localtime(&now.tv_sec));
	return format("%s.%03d", text, (int)(now.tv_usec / 1000));
}
VALUE(driver_version) { (void)s; return node.driver; }
VALUE(count) { (void)s; return format("%u", node.all); }
VALUE(at_index) { return format("%u", s->at->index); }
TEXT(name, DeviceGetName)
TEXT(uuid, DeviceGetUUID)
TEXT(serial, DeviceGetSerial)
TEXT(vbios, DeviceGetVbiosVersion)

static bool pci_of(const struct subject *s, struct pci *pci)
{
	return nvml.DeviceGetPciInfo_v3(s->gpu, pci) == OK;
}
#define PCI(function, pattern, part) VALUE(function) { struct pci pci; return pci_of(s, &pci) ? format(pattern, part) : NULL; }
PCI(bus_id, "%s", pci.bus_id)
PCI(pci_domain, "0x%04X", pci.domain)
PCI(pci_bus, "0x%02X", pci.bus)
PCI(pci_device, "0x%02X", pci.device)
PCI(pci_device_id, "0x%08X", pci.pci_device_id)
PCI(pci_sub_device_id, "0x%08X", pci.pci_subsystem_id)
NUMBER(generation, unsigned, "%llu", DeviceGetCurrPcieLinkGeneration(s->gpu, &v))
NUMBER(generation_max, unsigned, "%llu", DeviceGetMaxPcieLinkGeneration(s->gpu, &v))
NUMBER(link_width, unsigned, "%llu", DeviceGetCurrPcieLinkWidth(s->gpu, &v))
NUMBER(link_width_max, unsigned, "%llu", DeviceGetMaxPcieLinkWidth(s->gpu, &v))
VALUE(capability)
{
	int major, minor;
	return nvml.DeviceGetCudaComputeCapability(s->gpu, &major, &minor) == OK ? format("%d.%d", major, minor) : NULL;
}
#define SWITCH(function, ask) VALUE(function) { unsigned v; return on(nvml.ask(s->gpu, &v), v, "Enabled", "Disabled"); }
SWITCH(display_mode, DeviceGetDisplayMode)
SWITCH(display_active, DeviceGetDisplayActive)
SWITCH(persistence, DeviceGetPersistenceMode)
NUMBER(fan, unsigned, "%llu", DeviceGetFanSpeed(s->gpu, &v))
NUMBER(state, unsigned, "P%llu", DeviceGetPerformanceState(s->gpu, &v))
NUMBER(throttle, unsigned long long, "0x%016llX", DeviceGetCurrentClocksThrottleReasons(s->gpu, &v))

static bool memory_of(const struct subject *s, struct memory_v2 *memory)
{
	*memory = (struct memory_v2){.version = sizeof *memory | 2u << 24};
	return nvml.DeviceGetMemoryInfo_v2(s->gpu, memory) == OK;
}
#define MEMORY(function, part) VALUE(function) { struct memory_v2 m; return memory_of(s, &m) ? format("%llu", m.part / MIB) : NULL; }
MEMORY(memory_total, total)
MEMORY(memory_reserved, reserved)
MEMORY(memory_used, used)
MEMORY(memory_free, free)
VALUE(mode) { return compute_mode(s->gpu); }
VALUE(busy)
{
	struct utilization u;
	return nvml.DeviceGetUtilizationRates(s->gpu, &u) == OK ? format("%u", u.gpu) : NULL;
}
VALUE(memory_busy)
{
	struct utilization u;
	return nvml.DeviceGetUtilizationRates(s->gpu, &u) == OK ? format("%u", u.memory) : NULL;
}
#define ENGINE(function, ask) VALUE(function) { unsigned v, period; return number(nvml.ask(s->gpu, &v, &period), "%llu", v); }
ENGINE(encoder, DeviceGetEncoderUtilization)
ENGINE(decoder, DeviceGetDecoderUtilization)
ENGINE(jpeg, DeviceGetJpgUtilization)
ENGINE(ofa, DeviceGetOfaUtilization)
VALUE(ecc_current) { unsigned now, later; return on(nvml.DeviceGetEccMode(s->gpu, &now, &later), now, "Enabled", "Disabled"); }
VALUE(ecc_pending) { unsigned now, later; return on(nvml.DeviceGetEccMode(s->gpu, &now, &later), later, "Enabled", "Disabled"); }
NUMBER(corrected_volatile, unsigned long long, "%llu", DeviceGetTotalEccErrors(s->gpu, 0, 0, &v))
NUMBER(uncorrected_volatile, unsigned long long, "%llu", DeviceGetTotalEccErrors(s->gpu, 1, 0, &v))
NUMBER(corrected_aggregate, unsigned long long, "%llu", DeviceGetTotalEccErrors(s->gpu, 0, 1, &v))
NUMBER(uncorrected_aggregate, unsigned long long, "%llu", DeviceGetTotalEccErrors(s->gpu, 1, 1, &v))
NUMBER(temperature, unsigned, "%llu", DeviceGetTemperature(s->gpu, 0, &v))
VALUE(memory_temperature) { unsigned long long v; return field_value(s->gpu, 82, &v) ? format("%llu", v) : NULL; }
VALUE(power_management) { unsigned v; return nvml.DeviceGetPowerManagementLimit(s->gpu, &v) == OK ? "Enabled" : NULL; }
WATTS(power_draw, DeviceGetPowerUsage(s->gpu, &v))
WATTS(power_limit, DeviceGetPowerManagementLimit(s->gpu, &v))
WATTS(enforced_limit, DeviceGetEnforcedPowerLimit(s->gpu, &v))
WATTS(default_limit, DeviceGetPowerManagementDefaultLimit(s->gpu, &v))
VALUE(min_limit)
{
	unsigned least, most;
	return nvml.DeviceGetPowerManagementLimitConstraints(s->gpu, &least, &most) == OK ? format("%.2f", least / 1000.0) : NULL;
}
VALUE(max_limit)
{
	unsigned least, most;
	return nvml.DeviceGetPowerManagementLimitConstraints(s->gpu, &least, &most) == OK ? format("%.2f", most / 1000.0) : NULL;
}
NUMBER(clock_graphics, unsigned, "%llu", DeviceGetClockInfo(s->gpu, 0, &v))
NUMBER(clock_sm, unsigned, "%llu", DeviceGetClockInfo(s->gpu, 1, &v))
NUMBER(clock_memory, unsigned, "%llu", DeviceGetClockInfo(s->gpu, 2, &v))
NUMBER(clock_video, unsigned, "%llu", DeviceGetClockInfo(s->gpu, 3, &v))
NUMBER(max_graphics, unsigned, "%llu", DeviceGetMaxClockInfo(s->gpu, 0, &v))
NUMBER(max_sm, unsigned, "%llu", DeviceGetMaxClockInfo(s->gpu, 1, &v))
NUMBER(max_memory, unsigned, "%llu", DeviceGetMaxClockInfo(s->gpu, 2, &v))
VALUE(mig_current) { unsigned now, later; return on(nvml.DeviceGetMigMode(s->gpu, &now, &later), now, "Enabled", "Disabled"); }
VALUE(mig_pending) { unsigned now, later; return on(nvml.DeviceGetMigMode(s->gpu, &now, &later), later, "Enabled", "Disabled"); }

static const struct query_field gpu_fields[] = {
	{"timestamp", "", "when the figures were read", timestamp},
	{"driver_version", "", "version of the installed driver", driver_version},
	{"count", "", "number of attached GPUs", count},
	{"name gpu_name", "", "product name", name},
	{"serial gpu_serial", "", "serial number of the board", serial},
	{"uuid gpu_uuid", "", "UUID of the GPU", uuid},
	{"index", "", "position of the GPU, from 0", at_index},
	{"pci.bus_id gpu_bus_id", "", "PCI address as domain:bus:device.function", bus_id},
	{"pci.domain", "", "PCI domain, hexadecimal", pci_domain},
	{"pci.bus", "", "PCI bus, hexadecimal", pci_bus},
	{"pci.device", "", "PCI device, hexadecimal", pci_device},
	{"pci.device_id", "", "PCI vendor and device, hexadecimal", pci_device_id},
	{"pci.sub_device_id", "", "PCI subsystem, hexadecimal", pci_sub_device_id},
	{"pcie.link.gen.current pcie.link.gen.gpucurrent", "", "generation of the PCIe link", generation},
	{"pcie.link.gen.max", "", "highest generation of the PCIe link", generation_max},
	{"pcie.link.width.current", "", "lanes of the PCIe link", link_width},
	{"pcie.link.width.max", "", "most lanes of the PCIe link", link_width_max},
	{"compute_cap", "", "compute capability", capability},
	{"display_mode", "", "whether a display is attached", display_mode},
	{"display_active", "", "whether a display is initialised", display_active},
	{"persistence_mode", "", "whether the driver stays loaded without clients", persistence},
	{"vbios_version", "", "version of the GPU's BIOS", vbios},
	{"fan.speed", "%", "speed of the fan", fan},
	{"pstate", "", "performance state, P0 is the highest", state},
	{"clocks_throttle_reasons.active clocks_event_reasons.active", "", "bit mask of what lowers the clocks", throttle},
	{"memory.total", "MiB", "installed memory; of a share, its memory", memory_total},
	{"memory.reserved", "MiB", "memory that the driver keeps", memory_reserved},
	{"memory.used", "MiB", "memory that processes hold", memory_used},
	{"memory.free", "MiB", "memory that is left", memory_free},
	{"compute_mode", "", "how many processes may compute on it", mode},
	{"utilization.gpu", "%", "part of the time in which a kernel ran", busy},
	{"utilization.memory", "%", "part of the time in which memory was accessed", memory_busy},
	{"utilization.encoder", "%", "use of the video encoder", encoder},
	{"utilization.decoder", "%", "use of the video decoder", decoder},
	{"utilization.jpeg", "%", "use of the JPEG engine", jpeg},
	{"utilization.ofa", "%", "use of the optical flow engine", ofa},
	{"ecc.mode.current", "", "whether ECC is on", ecc_current},
	{"ecc.mode.pending", "", "whether ECC is on after the next reboot", ecc_pending},
	{"ecc.errors.corrected.volatile.total", "", "corrected errors since the driver was loaded", corrected_volatile},
	{"ecc.errors.corrected.aggregate.total", "", "corrected errors of its life", corrected_aggregate},
	{"ecc.errors.uncorrected.volatile.total", "", "uncorrected errors since the driver was loaded", uncorrected_volatile},
	{"ecc.errors.uncorrected.aggregate.total", "", "uncorrected errors of its life", uncorrected_aggregate},
	{"temperature.gpu", "", "temperature in degrees Celsius", temperature},
	{"temperature.memory", "", "temperature of the memory in degrees Celsius", memory_temperature},
	{"power.management", "", "whether the power has a limit", power_management},
	{"power.draw", "W", "power drawn now", power_draw},
	{"power.draw.instant", "W", "power drawn now", power_draw},
	{"power.draw.average", "W", "power drawn in the last second", power_draw},
	{"power.limit", "W", "limit of the power", power_limit},
	{"enforced.power.limit", "W", "limit of the power that holds", enforced_limit},
	{"power.default_limit", "W", "limit of the power after a reset", default_limit},
	{"power.min_limit", "W", "lowest limit that may be set", min_limit},
	{"power.max_limit", "W", "highest limit that may be set", max_limit},
	{"clocks.current.graphics clocks.gr clocks.graphics", "MHz", "clock of the graphics engine", clock_graphics},
	{"clocks.current.sm clocks.sm", "MHz", "clock of the multiprocessors", clock_sm},
	{"clocks.current.memory clocks.mem clocks.memory", "MHz", "clock of the memory", clock_memory},
	{"clocks.current.video clocks.video", "MHz", "clock of the video engines", clock_video},
	{"clocks.max.graphics clocks.max.gr", "MHz", "highest clock of the graphics engine", max_graphics},
	{"clocks.max.sm", "MHz", "highest clock of the multiprocessors", max_sm},
	{"clocks.max.memory clocks.max.mem", "MHz", "highest clock of the memory", max_memory},
	{"mig.mode.current", "", "whether the GPU is in MIG mode", mig_current},
	{"mig.mode.pending", "", "whether the GPU is in MIG mode after the next reset", mig_pending},
	{NULL, NULL, NULL, NULL},
};

VALUE(process_pid) { return format("%u", s->process->pid); }
VALUE(process_command) { return process_name(s->process->pid); }
VALUE(process_memory) { return format("%llu", s->process->used / MIB); }

static const struct query_field process_fields[] = {
	{"timestamp", "", "when the figures were read", timestamp},
	{"gpu_name", "", "product name", name},
	{"gpu_bus_id", "", "PCI address as domain:bus:device.function", bus_id},
	{"gpu_serial", "", "serial number of the board", serial},
	{"gpu_uuid", "", "UUID of the GPU", uuid},
	{"pid", "", "process ID, as the machine sees it", process_pid},
	{"process_name name", "", "path of the program", process_command},
	{"used_gpu_memory used_memory", "MiB", "memory that the process holds on the GPU", process_memory},
	{NULL, NULL, NULL, NULL},
};

static bool has_name(const char *names, const char *word, size_t length)
{
	for (const char *at = names; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL)
		if (!strncmp(at, word, length) && (at[length] == ' ' || !at[length]))
			return true;
	return false;
}

/* The fields that a list names, NULL behind the last. False after a message about the first unknown one. */
static bool choose(const struct query_field *known, const char *wanted, const struct query_field **chosen, int most)
{
	int found = 0;
	for (const char *word = wanted, *end; word; word = *end ? end + 1 : NULL) {
		word += strspn(word, " ");
		end = strchrnul(word, ',');
		size_t length = (size_t)(end - word);
		while (length && word[length - 1] == ' ')
			length--;
		const struct query_field *field = known;
		while (field->names && !(length && has_name(field->names, word, length)))
			field++;
		if (!field->names || found == most) {
			printf("Field \"%.*s\" is not a valid field to query.\n\n", (int)length, word);
			return false;
		}
		chosen[found++] = field;
	}
	chosen[found] = NULL;
	return true;
}

struct how {
	bool header, units;
};

/* The words of --format: csv, with noheader and nounits. */
static bool read_format(const char *text, struct how *how)
{
	bool csv = false;
	char words[128];
	*how = (struct how){true, true};
	snprintf(words, sizeof words, "%s", text ? text : "");
	for (char *rest = words, *word; (word = strsep(&rest, ", "));) {
		if (!strcmp(word, "csv"))
			csv = true;
		else if (!strcmp(word, "noheader"))
			how->header = false;
		else if (!strcmp(word, "nounits"))
			how->units = false;
		else if (*word) {
			refuse(format("--format=%s", text));
			return false;
		}
	}
	if (!csv)
		puts("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n");
	return csv;
}

static void print_header(const struct query_field **fields)
{
	for (int i = 0; fields[i]; i++) {
		printf("%s%.*s", i ? ", " : "", (int)(strchrnul(fields[i]->names, ' ') - fields[i]->names), fields[i]->names);
		if (*fields[i]->unit)
			printf(" [%s]", fields[i]->unit);
	}
	putchar('\n');
}

static void print_row(const struct query_field **fields, const struct subject *subject, bool units)
{
	for (int i = 0; fields[i]; i++) {
		const char *value = fields[i]->value(subject);
		printf("%s%s", i ? ", " : "", value ? value : node.major >= 500 ? "[N/A]" : "[Not Supported]");
		if (value && units && *fields[i]->unit)
			printf(" %s", fields[i]->unit);
	}
	putchar('\n');
}

int query_gpus(const char *wanted, const char *format_words)
{
	const struct query_field *fields[128];
	struct how how;
	if (!read_format(format_words, &how) || !choose(gpu_fields, wanted, fields, 127))
		return EXIT_INVALID;
	if (how.header)
		print_header(fields);
	for (unsigned i = 0; i < node.count; i++)
		print_row(fields, &(struct subject){&node.gpus[i], node.gpus[i].handle, NULL}, how.units);
	return EXIT_OK;
}

int query_processes(const char *wanted, const char *format_words)
{
	static struct process list[MAX_PROCESSES];
	const struct query_field *fields[128];
	struct how how;
	if (!read_format(format_words, &how) || !choose(process_fields, wanted, fields, 127))
		return EXIT_INVALID;
	if (how.header)
		print_header(fields);
	for (unsigned i = 0; i < node.count; i++) {
		unsigned found = list_processes(node.gpus[i].handle, list);
		for (unsigned p = 0; p < found; p++)
			print_row(fields, &(struct subject){&node.gpus[i], node.gpus[i].handle, &list[p]}, how.units);
	}
	return EXIT_OK;
}

void list_fields(bool processes)
{
	puts("List of valid properties to query for the switch:\n");
	for (const struct query_field *field = processes ? process_fields : gpu_fields; field->names; field++) {
		char names[128];
		snprintf(names, sizeof names, "%s", field->names);
		for (char *rest = names, *word, *between = ""; (word = strsep(&rest, " ")); between = " or ")
			printf("%s\"%s\"", between, word);
		printf("\n%s%s%s\n\n", field->help, *field->unit ? ", in " : "", field->unit);
	}
}

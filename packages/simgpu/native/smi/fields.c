/* The fields of --query-gpu and --query-compute-apps, each with its value from NVML. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

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
NUMBER(gpu_generation_max, unsigned, "%llu", DeviceGetGpuMaxPcieLinkGeneration(s->gpu, &v))
NUMBER(throttle_supported, unsigned long long, "0x%016llX", DeviceGetSupportedClocksThrottleReasons(s->gpu, &v))
#define REASON(function, bit) VALUE(function) { unsigned long long v; return on(nvml.DeviceGetCurrentClocksThrottleReasons(s->gpu, &v), v & (bit), "Active", "Not Active"); }
REASON(slow_idle, 0x1)
REASON(slow_setting, 0x2)
REASON(slow_power, 0x4)
REASON(slow_hardware, 0x8)
REASON(slow_sync, 0x10)
REASON(slow_heat, 0x20)
REASON(slow_hardware_heat, 0x40)
REASON(slow_brake, 0x80)
NUMBER(application_graphics, unsigned, "%llu", DeviceGetApplicationsClock(s->gpu, 0, &v))
NUMBER(application_memory, unsigned, "%llu", DeviceGetApplicationsClock(s->gpu, 2, &v))
NUMBER(default_graphics, unsigned, "%llu", DeviceGetDefaultApplicationsClock(s->gpu, 0, &v))
NUMBER(default_memory, unsigned, "%llu", DeviceGetDefaultApplicationsClock(s->gpu, 2, &v))
VALUE(recovery)
{
	static const char *const actions[] = {"None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"};
	unsigned long long v;
	return field_value(s->gpu, 230, &v) && v < 5 ? actions[v] : NULL;
}
#define ROWS(function, pattern, value) VALUE(function) { unsigned corrected, uncorrected, pending, failure; return number(nvml.DeviceGetRemappedRows(s->gpu, &corrected, &uncorrected, &pending, &failure), pattern, value); }
#define ROWS_FLAG(function, value) VALUE(function) { unsigned corrected, uncorrected, pending, failure; return on(nvml.DeviceGetRemappedRows(s->gpu, &corrected, &uncorrected, &pending, &failure), value, "Yes", "No"); }
ROWS(rows_corrected, "%llu", corrected)
ROWS(rows_uncorrected, "%llu", uncorrected)
ROWS_FLAG(rows_pending, pending)
ROWS_FLAG(rows_failure, failure)
VALUE(host)
{
	static char name[256];
	(void)s;
	return gethostname(name, sizeof name - 1) ? NULL : name;
}
VALUE(none) { (void)s; return NULL; } /* NVML offers none on these machines */

/* The places in which NVML counts errors. */
#define ERRORS(function, kind, counter, place) VALUE(function) { unsigned long long v; return number(nvml.DeviceGetMemoryErrorCounter(s->gpu, kind, counter, place, &v), "%llu", v); }
#define ERRORS_OF(name, kind, counter) \
	ERRORS(name##_dram, kind, counter, 2) ERRORS(name##_registers, kind, counter, 3) ERRORS(name##_l1, kind, counter, 0) \
	ERRORS(name##_l2, kind, counter, 1) ERRORS(name##_texture, kind, counter, 4) ERRORS(name##_cbu, kind, counter, 6) \
	ERRORS(name##_sram, kind, counter, 7)
ERRORS_OF(cv, 0, 0)
ERRORS_OF(ca, 0, 1)
ERRORS_OF(uv, 1, 0)
ERRORS_OF(ua, 1, 1)
#define ERROR_FIELDS(begin, what, name) \
	{begin ".device_memory", "", what " in device memory", name##_dram}, {begin ".dram", "", what " in DRAM", name##_dram}, \
	{begin ".register_file", "", what " in the register file", name##_registers}, {begin ".l1_cache", "", what " in the L1 cache", name##_l1}, \
	{begin ".l2_cache", "", what " in the L2 cache", name##_l2}, {begin ".texture_memory", "", what " in texture memory", name##_texture}, \
	{begin ".cbu", "", what " in the CBU", name##_cbu}, {begin ".sram", "", what " in SRAM", name##_sram}

const struct query_field gpu_fields[] = {
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
	{"pcie.link.gen.gpumax", "", "highest generation of the PCIe link that the GPU knows", gpu_generation_max},
	{"pcie.link.width.current", "", "lanes of the PCIe link", link_width},
	{"pcie.link.width.max", "", "most lanes of the PCIe link", link_width_max},
	{"compute_cap", "", "compute capability", capability},
	{"display_mode", "", "whether a display is attached", display_mode},
	{"display_attached", "", "whether a display is attached", display_mode},
	{"display_active", "", "whether a display is initialised", display_active},
	{"persistence_mode", "", "whether the driver stays loaded without clients", persistence},
	{"addressing_mode", "", "how the GPU addresses memory of the machine", none},
	{"accounting.mode", "", "whether figures of ended processes are recorded", none},
	{"accounting.buffer_size", "", "number of processes that are recorded", none},
	{"driver_model.current", "", "model of the driver on Windows", none},
	{"driver_model.pending", "", "model of the driver on Windows after the next reboot", none},
	{"vbios_version", "", "version of the GPU's BIOS", vbios},
	{"inforom.img", "", "version of the stored image", none},
	{"inforom.oem", "", "version of the stored settings", none},
	{"inforom.ecc", "", "version of the stored counts of errors", none},
	{"inforom.pwr", "", "version of the stored power settings", none},
	{"inforom.checksum_validation", "", "whether what is stored is whole", none},
	{"gpu_recovery_action", "", "what the driver asks for after a fault", recovery},
	{"reset_status.reset_required", "", "whether the GPU needs a reset", none},
	{"reset_status.drain_and_reset_recommended", "", "whether a reset is due when the GPU is idle", none},
	{"gom.current", "", "operation mode of the GPU", none},
	{"gom.pending", "", "operation mode of the GPU after the next reboot", none},
	{"fan.speed", "%", "speed of the fan", fan},
	{"pstate", "", "performance state, P0 is the highest", state},
	{"clocks_throttle_reasons.supported clocks_event_reasons.supported", "", "bit mask of what may lower the clocks", throttle_supported},
	{"clocks_throttle_reasons.active clocks_event_reasons.active", "", "bit mask of what lowers the clocks", throttle},
	{"clocks_throttle_reasons.gpu_idle clocks_event_reasons.gpu_idle", "", "whether nothing runs", slow_idle},
	{"clocks_throttle_reasons.applications_clocks_setting clocks_event_reasons.applications_clocks_setting", "", "whether a setting lowers the clocks", slow_setting},
	{"clocks_throttle_reasons.sw_power_cap clocks_event_reasons.sw_power_cap", "", "whether the limit of the power lowers the clocks", slow_power},
	{"clocks_throttle_reasons.hw_slowdown clocks_event_reasons.hw_slowdown", "", "whether the hardware lowers the clocks", slow_hardware},
	{"clocks_throttle_reasons.hw_thermal_slowdown clocks_event_reasons.hw_thermal_slowdown", "", "whether the hardware lowers the clocks for heat", slow_hardware_heat},
	{"clocks_throttle_reasons.hw_power_brake_slowdown clocks_event_reasons.hw_power_brake_slowdown", "", "whether the machine's power supply lowers the clocks", slow_brake},
	{"clocks_throttle_reasons.sw_thermal_slowdown clocks_event_reasons.sw_thermal_slowdown", "", "whether the driver lowers the clocks for heat", slow_heat},
	{"clocks_throttle_reasons.sync_boost clocks_event_reasons.sync_boost", "", "whether another GPU of a group lowers the clocks", slow_sync},
	{"clocks_event_reasons_counters.sw_power_cap", "us", "time with lower clocks for the limit of the power", none},
	{"clocks_event_reasons_counters.sync_boost", "us", "time with lower clocks for another GPU of a group", none},
	{"clocks_event_reasons_counters.sw_thermal_slowdown", "us", "time with clocks that the driver lowered for heat", none},
	{"clocks_event_reasons_counters.hw_thermal_slowdown", "us", "time with clocks that the hardware lowered for heat", none},
	{"clocks_event_reasons_counters.hw_power_brake_slowdown", "us", "time with lower clocks for the power supply", none},
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
	{"encoder.stats.sessionCount", "", "number of encoder sessions", none},
	{"encoder.stats.averageFps", "", "frames a second of the encoder sessions", none},
	{"encoder.stats.averageLatency", "", "microseconds of the encoder for a frame", none},
	{"dramEncryption.mode.current", "", "whether memory is encrypted", none},
	{"dramEncryption.mode.pending", "", "whether memory is encrypted after the next reboot", none},
	{"ecc.mode.current", "", "whether ECC is on", ecc_current},
	{"ecc.mode.pending", "", "whether ECC is on after the next reboot", ecc_pending},
	ERROR_FIELDS("ecc.errors.corrected.volatile", "corrected errors since the driver was loaded", cv),
	{"ecc.errors.corrected.volatile.total", "", "corrected errors since the driver was loaded", corrected_volatile},
	ERROR_FIELDS("ecc.errors.corrected.aggregate", "corrected errors of its life", ca),
	{"ecc.errors.corrected.aggregate.total", "", "corrected errors of its life", corrected_aggregate},
	ERROR_FIELDS("ecc.errors.uncorrected.volatile", "uncorrected errors since the driver was loaded", uv),
	{"ecc.errors.uncorrected.volatile.total", "", "uncorrected errors since the driver was loaded", uncorrected_volatile},
	ERROR_FIELDS("ecc.errors.uncorrected.aggregate", "uncorrected errors of its life", ua),
	{"ecc.errors.uncorrected.aggregate.total", "", "uncorrected errors of its life", uncorrected_aggregate},
	{"retired_pages.single_bit_ecc.count retired_pages.sbe", "", "pages retired for single bit errors", none},
	{"retired_pages.double_bit.count retired_pages.dbe", "", "pages retired for double bit errors", none},
	{"retired_pages.pending", "", "whether pages are retired after the next reboot", none},
	{"remapped_rows.correctable", "", "rows remapped for corrected errors", rows_corrected},
	{"remapped_rows.uncorrectable", "", "rows remapped for uncorrected errors", rows_uncorrected},
	{"remapped_rows.pending", "", "whether rows are remapped after the next reset", rows_pending},
	{"remapped_rows.failure", "", "whether a row could not be remapped", rows_failure},
	{"remapped_rows.histogram.max", "", "banks with all spare rows", none},
	{"remapped_rows.histogram.high", "", "banks with most spare rows", none},
	{"remapped_rows.histogram.partial", "", "banks with some spare rows", none},
	{"remapped_rows.histogram.low", "", "banks with few spare rows", none},
	{"remapped_rows.histogram.none", "", "banks without a spare row", none},
	{"temperature.gpu", "", "temperature in degrees Celsius", temperature},
	{"temperature.gpu.tlimit", "", "degrees Celsius left until the clocks are lowered", none},
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
	{"clocks.applications.graphics clocks.applications.gr", "MHz", "clock of the graphics engine that applications get", application_graphics},
	{"clocks.applications.memory clocks.applications.mem", "MHz", "clock of the memory that applications get", application_memory},
	{"clocks.default_applications.graphics clocks.default_applications.gr", "MHz", "the same without a setting", default_graphics},
	{"clocks.default_applications.memory clocks.default_applications.mem", "MHz", "the same without a setting", default_memory},
	{"clocks.max.graphics clocks.max.gr", "MHz", "highest clock of the graphics engine", max_graphics},
	{"clocks.max.sm", "MHz", "highest clock of the multiprocessors", max_sm},
	{"clocks.max.memory clocks.max.mem", "MHz", "highest clock of the memory", max_memory},
	{"mig.mode.current", "", "whether the GPU is in MIG mode", mig_current},
	{"mig.mode.pending", "", "whether the GPU is in MIG mode after the next reset", mig_pending},
	{"gsp.mode.current", "", "whether the GPU's own processor runs the driver", none},
	{"gsp.mode.default", "", "whether the GPU's own processor runs the driver without a setting", none},
	{"c2c.mode", "", "whether the link to the processor is on", none},
	{"protected_memory.total", "MiB", "memory for confidential computing", none},
	{"protected_memory.used", "MiB", "memory for confidential computing that processes hold", none},
	{"protected_memory.free", "MiB", "memory for confidential computing that is left", none},
	{"fabric.state", "", "registration with the fabric manager", none},
	{"fabric.status", "", "result of the registration with the fabric manager", none},
	{"hostname", "", "name of the machine", host},
	{NULL, NULL, NULL, NULL},
};

VALUE(process_pid) { return format("%u", s->process->pid); }
VALUE(process_command) { return process_name(s->process->pid); }
VALUE(process_memory) { return format("%llu", s->process->used / MIB); }

const struct query_field process_fields[] = {
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

const struct query_field *field_named(const struct query_field *known, const char *word, size_t length)
{
	for (; length && known->names; known++)
		for (const char *at = known->names; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL)
			if (!strncmp(at, word, length) && (at[length] == ' ' || !at[length]))
				return known;
	return NULL;
}

const char *gpu_field(const struct gpu *at, const char *name)
{
	const struct query_field *field = field_named(gpu_fields, name, strlen(name));
	const char *value = field ? field->value(&(struct subject){at, at->handle, NULL}) : NULL;
	return value && *field->unit ? format("%s %s", value, field->unit) : value;
}

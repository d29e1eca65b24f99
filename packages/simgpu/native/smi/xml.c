/*
 * -q -x: the report as XML. Names and order of elements are those of NVIDIA's nvsmi_device DTDs: v11 until driver 529, v12
 * until 559, v13 since.
 *
 * Source: outputs of drivers 515, 535, 580 and 595.
 */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static int depth;

static void indent(void)
{
	for (int i = 0; i < depth; i++)
		putchar('\t');
}

static void escaped(const char *text)
{
	for (; *text; text++)
		switch (*text) {
		case '&': fputs("&amp;", stdout); break;
		case '<': fputs("&lt;", stdout); break;
		case '>': fputs("&gt;", stdout); break;
		default: putchar(*text);
		}
}

static void element(const char *tag, const char *value)
{
	indent();
	printf("<%s>", tag);
	escaped(value ? value : "N/A");
	printf("</%s>\n", tag);
}

static void open_element(const char *tag)
{
	indent();
	printf("<%s>\n", tag);
	depth++;
}

static void close_element(const char *tag)
{
	depth--;
	indent();
	printf("</%s>\n", tag);
}

/* -- values that --query-gpu does not have, or with another format -------------------------------------------------- */

#define VALUE(function) static const char *function(device gpu)
#define NUMBER(function, pattern, ...) VALUE(function) { unsigned v = 0; return number(nvml.__VA_ARGS__, pattern, v); }
#define PCI(function, pattern, part) VALUE(function) { struct pci pci; return nvml.DeviceGetPciInfo_v3(gpu, &pci) == OK ? format(pattern, part) : NULL; }
PCI(pci_bus, "%02X", pci.bus)
PCI(pci_device, "%02X", pci.device)
PCI(pci_domain, "%04X", pci.domain)
PCI(pci_device_id, "%08X", pci.pci_device_id)
PCI(pci_sub_system_id, "%08X", pci.pci_subsystem_id)
PCI(board_id, "0x%x", pci.bus << 8 | pci.device)
NUMBER(minor, "%llu", DeviceGetMinorNumber(gpu, &v))
NUMBER(replays, "%llu", DeviceGetPcieReplayCounter(gpu, &v))
NUMBER(sent, "%llu KB/s", DeviceGetPcieThroughput(gpu, 0, &v))
NUMBER(received, "%llu KB/s", DeviceGetPcieThroughput(gpu, 1, &v))
NUMBER(width_max, "%llux", DeviceGetMaxPcieLinkWidth(gpu, &v))
NUMBER(width, "%llux", DeviceGetCurrPcieLinkWidth(gpu, &v))
NUMBER(degrees, "%llu C", DeviceGetTemperature(gpu, 0, &v))
NUMBER(shutdown_degrees, "%llu C", DeviceGetTemperatureThreshold(gpu, 0, &v))
NUMBER(slowdown_degrees, "%llu C", DeviceGetTemperatureThreshold(gpu, 1, &v))
NUMBER(operating_degrees, "%llu C", DeviceGetTemperatureThreshold(gpu, 3, &v))
NUMBER(max_video, "%llu MHz", DeviceGetMaxClockInfo(gpu, 3, &v))
VALUE(memory_degrees) { unsigned long long v = 0; return field_value(gpu, 82, &v) ? format("%llu C", v) : NULL; }
VALUE(part) { return text_of(nvml.DeviceGetBoardPartNumber, gpu); }
VALUE(display_clocks)
{
	unsigned long long v = 0;
	return on(nvml.DeviceGetCurrentClocksThrottleReasons(gpu, &v), v & 0x100, "Active", "Not Active");
}
#define BAR1(function, field) VALUE(function) { struct memory bar; return number(nvml.DeviceGetBAR1MemoryInfo(gpu, &bar), "%llu MiB", bar.field / MIB); }
BAR1(bar1_total, total)
BAR1(bar1_used, used)
BAR1(bar1_free, free)

static const struct {
	const char *name;
	const char *(*value)(device gpu);
} own[] = {
	{".brand", brand}, {".architecture", architecture}, {".minor", minor}, {".part", part}, {".board_id", board_id},
	{".pci_bus", pci_bus}, {".pci_device", pci_device}, {".pci_domain", pci_domain}, {".pci_device_id", pci_device_id},
	{".pci_sub_system_id", pci_sub_system_id}, {".replays", replays}, {".sent", sent}, {".received", received},
	{".width_max", width_max}, {".width", width}, {".display_clocks", display_clocks}, {".degrees", degrees},
	{".shutdown", shutdown_degrees}, {".slowdown", slowdown_degrees}, {".operating", operating_degrees},
	{".memory_degrees", memory_degrees}, {".max_video", max_video}, {".bar1_total", bar1_total},
	{".bar1_used", bar1_used}, {".bar1_free", bar1_free},
};

static const char *value_of(const struct gpu *at, const char *name)
{
	if (*name == '=')
		return name + 1;
	for (size_t i = 0; *name == '.' && i < sizeof own / sizeof *own; i++)
		if (!strcmp(own[i].name, name))
			return own[i].value(at->handle);
	return gpu_field(at, name);
}

/* -- lists ----------------------------------------------------------------------------------------------------------- */

static void memory_of(device gpu)
{
	struct memory_v2 m = {.version = sizeof m | 2u << 24};
	bool known = nvml.DeviceGetMemoryInfo_v2(gpu, &m) == OK;
	open_element("fb_memory_usage");
	element("total", known ? format("%llu MiB", m.total / MIB) : NULL);
	element("reserved", known ? format("%llu MiB", m.reserved / MIB) : NULL);
	element("used", known ? format("%llu MiB", m.used / MIB) : NULL);
	element("free", known ? format("%llu MiB", m.free / MIB) : NULL);
	close_element("fb_memory_usage");
	open_element("bar1_memory_usage");
	element("total", bar1_total(gpu));
	element("used", bar1_used(gpu));
	element("free", bar1_free(gpu));
	close_element("bar1_memory_usage");
}

static void mig_device(unsigned index, device mig)
{
	struct attributes parts = {0};
	unsigned instance = 0, compute = 0;
	nvml.DeviceGetGpuInstanceId(mig, &instance);
	nvml.DeviceGetComputeInstanceId(mig, &compute);
	nvml.DeviceGetAttributes_v2(mig, &parts);
	open_element("mig_device");
	element("index", format("%u", index));
	element("gpu_instance_id", format("%u", instance));
	element("compute_instance_id", format("%u", compute));
	open_element("device_attributes");
	open_element("shared");
	element("multiprocessor_count", format("%u", parts.multiprocessors));
	element("copy_engine_count", format("%u", parts.copy_engines));
	element("encoder_count", format("%u", parts.encoders));
	element("decoder_count", format("%u", parts.decoders));
	element("ofa_count", format("%u", parts.ofa));
	element("jpg_count", format("%u", parts.jpeg));
	close_element("shared");
	close_element("device_attributes");
	open_element("ecc_error_count");
	open_element("volatile_count");
	element("sram_uncorrectable", "0");
	close_element("volatile_count");
	close_element("ecc_error_count");
	memory_of(mig);
	close_element("mig_device");
}

static void mig_devices(const struct gpu *at)
{
	unsigned most = 0;
	bool any = false;
	device mig;
	open_element("mig_devices");
	if (mig_enabled(at->handle))
		nvml.DeviceGetMaxMigDeviceCount(at->handle, &most);
	for (unsigned m = 0; m < most; m++)
		if (nvml.DeviceGetMigDeviceHandleByIndex(at->handle, m, &mig) == OK)
			mig_device(m, mig), any = true;
	if (!any)
		indent(), puts("None");
	close_element("mig_devices");
}

static void processes(const struct gpu *at)
{
	static struct process list[MAX_PROCESSES];
	unsigned count = list_processes(at->handle, list);
	open_element("processes");
	for (unsigned i = 0; i < count; i++) {
		bool whole = list[i].gpu_instance == NO_INSTANCE;
		open_element("process_info");
		element("gpu_instance_id", whole ? NULL : format("%u", list[i].gpu_instance));
		element("compute_instance_id", whole ? NULL : format("%u", list[i].compute_instance));
		element("pid", format("%u", list[i].pid));
		element("type", "C");
		element("process_name", process_name(list[i].pid));
		element("used_memory", format("%llu MiB", list[i].used / MIB));
		close_element("process_info");
	}
	close_element("processes");
	open_element("accounted_processes");
	close_element("accounted_processes");
}

/* -- the report ------------------------------------------------------------------------------------------------------ */

/*
 * An element of `tag` with `value`: a field of --query-gpu, one of `own`, or a text behind "=". Without a value it begins
 * a group, which the next "/" ends; a value behind "?" is one without which the group is N/A. It is of the drivers from
 * `since` until before `until`, and of a section of -d.
 */
struct row {
	const char *tag, *value;
	int since, until;
	const char *section;
	void (*show)(const struct gpu *at);
};
#define NA "=N/A"
#define REASONS(begin) \
	{begin "_gpu_idle", "clocks_event_reasons.gpu_idle", 0, 0, NULL, NULL}, \
	{begin "_applications_clocks_setting", "clocks_event_reasons.applications_clocks_setting", 0, 0, NULL, NULL}, \
	{begin "_sw_power_cap", "clocks_event_reasons.sw_power_cap", 0, 0, NULL, NULL}, \
	{begin "_hw_slowdown", "clocks_event_reasons.hw_slowdown", 0, 0, NULL, NULL}, \
	{begin "_hw_thermal_slowdown", "clocks_event_reasons.hw_thermal_slowdown", 0, 0, NULL, NULL}, \
	{begin "_hw_power_brake_slowdown", "clocks_event_reasons.hw_power_brake_slowdown", 0, 0, NULL, NULL}, \
	{begin "_sync_boost", "clocks_event_reasons.sync_boost", 0, 0, NULL, NULL}, \
	{begin "_sw_thermal_slowdown", "clocks_event_reasons.sw_thermal_slowdown", 0, 0, NULL, NULL}, \
	{begin "_display_clocks_setting", ".display_clocks", 0, 0, NULL, NULL}
#define ECC(counter) \
	{"sram_correctable", "ecc.errors.corrected." counter ".sram", 0, 0, NULL, NULL}, \
	{"sram_uncorrectable", "ecc.errors.uncorrected." counter ".sram", 0, 0, NULL, NULL}, \
	{"dram_correctable", "ecc.errors.corrected." counter ".dram", 0, 0, NULL, NULL}, \
	{"dram_uncorrectable", "ecc.errors.uncorrected." counter ".dram", 0, 0, NULL, NULL}
#define E(tag, value) {tag, value, 0, 0, NULL, NULL}
#define SINCE(version, tag, value) {tag, value, version, 0, NULL, NULL}
#define UNTIL(version, tag, value) {tag, value, 0, version, NULL, NULL}
#define GROUP(tag, section) {tag, NULL, 0, 0, section, NULL}
#define END {"/", NULL, 0, 0, NULL, NULL}

static const struct row rows[] = {
	E("product_name", "name"), E("product_brand", ".brand"), E("product_architecture", ".architecture"),
	E("display_mode", "display_mode"), SINCE(570, "display_attached", "=No"), E("display_active", "display_active"),
	E("persistence_mode", "persistence_mode"), SINCE(530, "addressing_mode", "addressing_mode"),
	GROUP("mig_mode", "MIG"), E("current_mig", "mig.mode.current"), E("pending_mig", "mig.mode.pending"), END,
	{"mig_devices", NULL, 0, 0, "MIG", mig_devices},
	E("accounting_mode", "accounting.mode"), E("accounting_mode_buffer_size", "accounting.buffer_size"),
	E("driver_model", NULL), E("current_dm", "driver_model.current"), E("pending_dm", "driver_model.pending"), END,
	E("serial", "serial"), E("uuid", "uuid"), SINCE(580, "pdi", NA), E("minor_number", ".minor"), E("vbios_version", "vbios_version"),
	E("multigpu_board", "=No"), E("board_id", ".board_id"), SINCE(520, "board_part_number", ".part"),
	UNTIL(520, "gpu_part_number", ".part"), SINCE(520, "gpu_part_number", NA), SINCE(530, "gpu_fru_part_number", NA),
	UNTIL(565, "gpu_module_id", NA),
	SINCE(565, "platformInfo", NULL), E("chassis_serial_number", NA), E("slot_number", NA), E("tray_index", NA), E("host_id", NA),
	E("peer_type", NA), E("module_id", NA), E("gpu_fabric_guid", NA), END,
	E("inforom_version", NULL), E("img_version", "inforom.img"), E("oem_object", "inforom.oem"), E("ecc_object", "inforom.ecc"),
	E("pwr_object", "inforom.pwr"), END,
	SINCE(545, "inforom_bbx_flush", NULL), E("latest_timestamp", NA), E("latest_duration", NA), END,
	E("gpu_operation_mode", NULL), E("current_gom", "gom.current"), E("pending_gom", "gom.pending"), END,
	SINCE(560, "c2c_mode", "c2c.mode"), UNTIL(560, "gsp_firmware_version", NA),
	E("gpu_virtualization_mode", NULL), E("virtualization_mode", "=None"), E("host_vgpu_mode", NA),
	SINCE(545, "vgpu_heterogeneous_mode", NA), END,
	{"gpu_reset_status", NULL, 530, 560, NULL, NULL}, E("reset_required", "reset_status.reset_required"),
	E("drain_and_reset_recommended", "reset_status.drain_and_reset_recommended"), END,
	SINCE(560, "gpu_recovery_action", "gpu_recovery_action"), SINCE(560, "gsp_firmware_version", NA),
	E("ibmnpu", NULL), E("relaxed_ordering_mode", NA), END,
	E("pci", NULL), E("pci_bus", ".pci_bus"), E("pci_device", ".pci_device"), E("pci_domain", ".pci_domain"),
	SINCE(560, "pci_base_class", "=3"), SINCE(560, "pci_sub_class", "=2"), E("pci_device_id", ".pci_device_id"),
	E("pci_bus_id", "pci.bus_id"), E("pci_sub_system_id", ".pci_sub_system_id"),
	E("pci_gpu_link_info", NULL),
	E("pcie_gen", NULL), E("max_link_gen", "pcie.link.gen.max"), E("current_link_gen", "pcie.link.gen.current"),
	SINCE(530, "device_current_link_gen", "pcie.link.gen.current"), SINCE(530, "max_device_link_gen", "pcie.link.gen.gpumax"),
	SINCE(530, "max_host_link_gen", NA), END,
	E("link_widths", NULL), E("max_link_width", ".width_max"), E("current_link_width", ".width"), END,
	END,
	E("pci_bridge_chip", NULL), E("bridge_chip_type", NA), E("bridge_chip_fw", NA), END,
	E("replay_counter", ".replays"), E("replay_rollover_counter", "=0"), E("tx_util", ".sent"), E("rx_util", ".received"),
	SINCE(530, "atomic_caps_outbound", NA), SINCE(530, "atomic_caps_inbound", NA), END,
	E("fan_speed", "fan.speed"), {"performance_state", "pstate", 0, 0, "PERFORMANCE", NULL},
	{"clocks_throttle_reasons", NULL, 0, 535, "PERFORMANCE", NULL}, REASONS("clocks_throttle_reason"), END,
	{"clocks_event_reasons", NULL, 535, 0, "PERFORMANCE", NULL}, REASONS("clocks_event_reason"), END,
	{"clocks_event_reasons_counters", NULL, 570, 0, "PERFORMANCE", NULL},
	E("clocks_event_reasons_counters_sw_power_cap", "clocks_event_reasons_counters.sw_power_cap"),
	E("clocks_event_reasons_counters_sync_boost", "clocks_event_reasons_counters.sync_boost"),
	E("clocks_event_reasons_counters_sw_therm_slowdown", "clocks_event_reasons_counters.sw_thermal_slowdown"),
	E("clocks_event_reasons_counters_hw_therm_slowdown", "clocks_event_reasons_counters.hw_thermal_slowdown"),
	E("clocks_event_reasons_counters_hw_power_brake", "clocks_event_reasons_counters.hw_power_brake_slowdown"), END,
	SINCE(545, "sparse_operation_mode", NA),
	GROUP("fb_memory_usage", "MEMORY"), E("total", "memory.total"), E("reserved", "memory.reserved"), E("used", "memory.used"),
	E("free", "memory.free"), END,
	GROUP("bar1_memory_usage", "MEMORY"), E("total", ".bar1_total"), E("used", ".bar1_used"), E("free", ".bar1_free"), END,
	{"cc_protected_memory_usage", NULL, 530, 0, "MEMORY", NULL}, E("total", "protected_memory.total"),
	E("used", "protected_memory.used"), E("free", "protected_memory.free"), END,
	{"compute_mode", "compute_mode", 0, 0, "COMPUTE", NULL},
	GROUP("utilization", "UTILIZATION"), E("gpu_util", "utilization.gpu"), E("memory_util", "utilization.memory"),
	E("encoder_util", "utilization.encoder"), E("decoder_util", "utilization.decoder"),
	SINCE(530, "jpeg_util", "utilization.jpeg"), SINCE(530, "ofa_util", "utilization.ofa"), END,
	E("encoder_stats", NULL), E("session_count", "encoder.stats.sessionCount"), E("average_fps", "encoder.stats.averageFps"),
	E("average_latency", "encoder.stats.averageLatency"), END,
	E("fbc_stats", NULL), E("session_count", NA), E("average_fps", NA), E("average_latency", NA), END,
	SINCE(575, "dram_encryption_mode", NULL), E("current_dram_encryption", "dramEncryption.mode.current"),
	E("pending_dram_encryption", "dramEncryption.mode.pending"), END,
	GROUP("ecc_mode", "ECC"), E("current_ecc", "ecc.mode.current"), E("pending_ecc", "ecc.mode.pending"), END,
	GROUP("ecc_errors", "ECC"), E("volatile", NULL), ECC("volatile"), END, E("aggregate", NULL), ECC("aggregate"), END, END,
	E("retired_pages", NULL),
	E("multiple_single_bit_retirement", NULL), E("retired_count", "retired_pages.sbe"), E("retired_pagelist", NA), END,
	E("double_bit_retirement", NULL), E("retired_count", "retired_pages.dbe"), E("retired_pagelist", NA), END,
	E("pending_blacklist", NA), E("pending_retirement", "retired_pages.pending"), END,
	{"remapped_rows", "?remapped_rows.correctable", 0, 0, "ROW_REMAPPER", NULL},
	E("remapped_row_corr", "remapped_rows.correctable"), E("remapped_row_unc", "remapped_rows.uncorrectable"),
	E("remapped_row_pending", "remapped_rows.pending"), E("remapped_row_failure", "remapped_rows.failure"),
	E("row_remapper_histogram", NULL), E("row_remapper_histogram_max", "remapped_rows.histogram.max"),
	E("row_remapper_histogram_high", "remapped_rows.histogram.high"),
	E("row_remapper_histogram_partial", "remapped_rows.histogram.partial"),
	E("row_remapper_histogram_low", "remapped_rows.histogram.low"), E("row_remapper_histogram_none", "remapped_rows.histogram.none"),
	END, END,
	GROUP("temperature", "TEMPERATURE"), E("gpu_temp", ".degrees"), SINCE(530, "gpu_temp_tlimit", "temperature.gpu.tlimit"),
	E("gpu_temp_max_threshold", ".shutdown"), E("gpu_temp_slow_threshold", ".slowdown"),
	E("gpu_temp_max_gpu_threshold", ".operating"), E("gpu_target_temperature", NA), E("memory_temp", ".memory_degrees"),
	E("gpu_temp_max_mem_threshold", NA), END,
	GROUP("supported_gpu_target_temp", "TEMPERATURE"), E("gpu_target_temp_min", NA), E("gpu_target_temp_max", NA), END,
	{"power_readings", NULL, 0, 530, "POWER", NULL}, E("power_state", "pstate"), E("power_management", "=Supported"),
	E("power_draw", "power.draw"), E("power_limit", "power.limit"), E("default_power_limit", "power.default_limit"),
	E("enforced_power_limit", "enforced.power.limit"), E("min_power_limit", "power.min_limit"),
	E("max_power_limit", "power.max_limit"), END,
	{"gpu_power_readings", NULL, 530, 0, "POWER", NULL}, E("power_state", "pstate"), UNTIL(560, "power_draw", "power.draw"),
	SINCE(560, "average_power_draw", "power.draw.average"), SINCE(560, "instant_power_draw", "power.draw.instant"),
	E("current_power_limit", "power.limit"), E("requested_power_limit", "power.limit"),
	E("default_power_limit", "power.default_limit"), E("min_power_limit", "power.min_limit"),
	E("max_power_limit", "power.max_limit"), END,
	{"gpu_memory_power_readings", NULL, 560, 0, "POWER", NULL}, E("average_power_draw", NA), E("instant_power_draw", NA), END,
	{"module_power_readings", NULL, 530, 0, "POWER", NULL}, E("power_state", "pstate"), UNTIL(560, "power_draw", NA),
	SINCE(560, "average_power_draw", NA), SINCE(560, "instant_power_draw", NA), E("current_power_limit", NA),
	E("requested_power_limit", NA), E("default_power_limit", NA), E("min_power_limit", NA), E("max_power_limit", NA), END,
	GROUP("clocks", "CLOCK"), E("graphics_clock", "clocks.gr"), E("sm_clock", "clocks.sm"), E("mem_clock", "clocks.mem"),
	E("video_clock", "clocks.video"), END,
	GROUP("applications_clocks", "CLOCK"), E("graphics_clock", "clocks.applications.gr"), E("mem_clock", "clocks.applications.mem"), END,
	GROUP("default_applications_clocks", "CLOCK"), E("graphics_clock", "clocks.default_applications.gr"),
	E("mem_clock", "clocks.default_applications.mem"), END,
	{"deferred_clocks", NULL, 530, 0, "CLOCK", NULL}, E("mem_clock", NA), END,
	GROUP("max_clocks", "CLOCK"), E("graphics_clock", "clocks.max.gr"), E("sm_clock", "clocks.max.sm"), E("mem_clock", "clocks.max.mem"),
	E("video_clock", ".max_video"), END,
	GROUP("max_customer_boost_clocks", "CLOCK"), E("graphics_clock", NA), END,
	GROUP("clock_policy", "CLOCK"), E("auto_boost", NA), E("auto_boost_default", NA), END,
	UNTIL(580, "voltage", NULL), E("graphics_volt", NA), END,
	SINCE(530, "fabric", NULL), E("state", "fabric.state"), E("status", "fabric.status"), END,
	E("supported_clocks", NA),
	{"processes", NULL, 0, 0, "PIDS", processes},
};
#define ROWS (sizeof rows / sizeof *rows)

static bool in_driver(const struct row *row)
{
	return node.major >= row->since && (!row->until || node.major < row->until);
}

static bool is_group(const struct row *row)
{
	return !row->show && strcmp(row->tag, "/") && (!row->value || *row->value == '?');
}

/* The row behind a group, or behind an element. */
static size_t behind(size_t at)
{
	int open = 0;
	do
		open += is_group(&rows[at]) ? 1 : strcmp(rows[at].tag, "/") ? 0 : -1;
	while (++at < ROWS && open > 0);
	return at;
}

/* Prints the rows from `at` until before `end`. */
static void show_rows(const struct gpu *gpu, size_t at, size_t end, const char *sections)
{
	for (size_t next; at < end; at = next) {
		const struct row *row = &rows[at];
		next = behind(at);
		bool wanted = !sections || (row->section && strstr(sections, format(",%s,", row->section)));
		if (!wanted || !in_driver(row) || !strcmp(row->tag, "/"))
			continue;
		if (row->show)
			row->show(gpu);
		else if (!is_group(row) || (row->value && !value_of(gpu, row->value + 1)))
			element(row->tag, is_group(row) ? NULL : value_of(gpu, row->value));
		else {
			open_element(row->tag);
			show_rows(gpu, at + 1, next - 1, NULL);
			close_element(row->tag);
		}
	}
}

int show_xml(const char *wanted)
{
	char when[64], sections[300] = ",", *end = sections + 1;
	time_t now = time(NULL);
	for (const char *at = wanted; *at && end < sections + sizeof sections - 2; at++)
		*end++ = *at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at;
	strcpy(end, ",");
	strftime(when, sizeof when, "%a %b %e %H:%M:%S %Y", localtime(&now));
	puts("<?xml version=\"1.0\" ?>");
	printf("<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v%d.dtd\">\n", node.major >= 560 ? 13 : node.major >= 530 ? 12 : 11);
	open_element("nvidia_smi_log");
	element("timestamp", when);
	element("driver_version", node.driver);
	element("cuda_version", format("%d.%d", node.cuda / 1000, node.cuda % 1000 / 10));
	element("attached_gpus", format("%u", node.all));
	for (unsigned i = 0; i < node.count; i++) {
		struct pci pci = {0};
		nvml.DeviceGetPciInfo_v3(node.gpus[i].handle, &pci);
		indent();
		printf("<gpu id=\"%s\">\n", pci.bus_id);
		depth++;
		show_rows(&node.gpus[i], 0, ROWS, *wanted ? sections : NULL);
		close_element("gpu");
		putchar('\n');
	}
	close_element("nvidia_smi_log");
	return EXIT_OK;
}

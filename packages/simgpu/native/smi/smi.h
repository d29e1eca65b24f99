/*
 * nvidia-smi of the simulated driver: what its parts share. All figures come from NVML, so in a container with a share it
 * shows what the NVML there answers.
 *
 * Invariants: the layout of the output follows the driver's version, as scripts that parse it expect; a figure that NVML
 * does not offer is N/A; exit codes are those of the manual page nvidia-smi(1).
 */
#ifndef SMI_H
#define SMI_H

#include <stdbool.h>
#include <stddef.h>

#define MAX_GPUS 64
#define MAX_PROCESSES 512
#define NO_INSTANCE 0xffffffffu
#define MIB (1ull << 20)

enum exit_code {
	EXIT_OK = 0,
	EXIT_INVALID = 2,
	EXIT_NOT_SUPPORTED = 3,
	EXIT_PERMISSION = 4,
	EXIT_NOT_FOUND = 6,
	EXIT_NO_DRIVER = 9,
	EXIT_NO_LIBRARY = 12,
	EXIT_LOST = 15,
	EXIT_OTHER = 255,
};

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, MISMATCH = 18 };

typedef unsigned result;
typedef struct opaque *device;

struct pci {
	char legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct process_sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };
struct field { unsigned field, scope; long long timestamp, latency; unsigned type; result result; union { unsigned u; unsigned long long ull; } value; };
struct placement { unsigned start, size; };
struct attributes { unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; unsigned long long memory_mib; };
struct gi_profile { unsigned version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa; unsigned long long memory_mib; char name[96]; };
struct ci_profile { unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa; };
struct gi_info { device device; unsigned id, profile; struct placement placement; };
struct ci_info { device device, gpu_instance; unsigned id, profile; struct placement placement; };

/* Every function of NVML that is called: its name without the prefix, and its arguments. */
#define NVML_FUNCTIONS(F) \
	F(Init_v2, (void)) \
	F(Shutdown, (void)) \
	F(SystemGetDriverVersion, (char *, unsigned)) \
	F(SystemGetNVMLVersion, (char *, unsigned)) \
	F(SystemGetCudaDriverVersion_v2, (int *)) \
	F(SystemGetProcessName, (unsigned, char *, unsigned)) \
	F(DeviceGetCount_v2, (unsigned *)) \
	F(DeviceGetHandleByIndex_v2, (unsigned, device *)) \
	F(DeviceGetIndex, (device, unsigned *)) \
	F(DeviceGetName, (device, char *, unsigned)) \
	F(DeviceGetUUID, (device, char *, unsigned)) \
	F(DeviceGetSerial, (device, char *, unsigned)) \
	F(DeviceGetVbiosVersion, (device, char *, unsigned)) \
	F(DeviceGetBoardPartNumber, (device, char *, unsigned)) \
	F(DeviceGetMinorNumber, (device, unsigned *)) \
	F(DeviceGetBrand, (device, unsigned *)) \
	F(DeviceGetArchitecture, (device, unsigned *)) \
	F(DeviceGetPciInfo_v3, (device, struct pci *)) \
	F(DeviceGetCudaComputeCapability, (device, int *, int *)) \
	F(DeviceGetDisplayMode, (device, unsigned *)) \
	F(DeviceGetDisplayActive, (device, unsigned *)) \
	F(DeviceGetPersistenceMode, (device, unsigned *)) \
	F(DeviceSetPersistenceMode, (device, unsigned)) \
	F(DeviceGetComputeMode, (device, unsigned *)) \
	F(DeviceSetComputeMode, (device, unsigned)) \
	F(DeviceGetFanSpeed, (device, unsigned *)) \
	F(DeviceGetPerformanceState, (device, unsigned *)) \
	F(DeviceGetTemperature, (device, unsigned, unsigned *)) \
	F(DeviceGetTemperatureThreshold, (device, unsigned, unsigned *)) \
	F(DeviceGetPowerUsage, (device, unsigned *)) \
	F(DeviceGetEnforcedPowerLimit, (device, unsigned *)) \
	F(DeviceGetPowerManagementLimit, (device, unsigned *)) \
	F(DeviceGetPowerManagementDefaultLimit, (device, unsigned *)) \
	F(DeviceGetPowerManagementLimitConstraints, (device, unsigned *, unsigned *)) \
	F(DeviceGetMemoryInfo, (device, struct memory *)) \
	F(DeviceGetMemoryInfo_v2, (device, struct memory_v2 *)) \
	F(DeviceGetBAR1MemoryInfo, (device, struct memory *)) \
	F(DeviceGetUtilizationRates, (device, struct utilization *)) \
	F(DeviceGetEncoderUtilization, (device, unsigned *, unsigned *)) \
	F(DeviceGetDecoderUtilization, (device, unsigned *, unsigned *)) \
	F(DeviceGetJpgUtilization, (device, unsigned *, unsigned *)) \
	F(DeviceGetOfaUtilization, (device, unsigned *, unsigned *)) \
	F(DeviceGetClockInfo, (device, unsigned, unsigned *)) \
	F(DeviceGetMaxClockInfo, (device, unsigned, unsigned *)) \
	F(DeviceGetApplicationsClock, (device, unsigned, unsigned *)) \
	F(DeviceGetDefaultApplicationsClock, (device, unsigned, unsigned *)) \
	F(DeviceGetCurrentClocksThrottleReasons, (device, unsigned long long *)) \
	F(DeviceGetSupportedClocksThrottleReasons, (device, unsigned long long *)) \
	F(DeviceGetMemoryErrorCounter, (device, unsigned, unsigned, unsigned, unsigned long long *)) \
	F(DeviceGetEccMode, (device, unsigned *, unsigned *)) \
	F(DeviceGetTotalEccErrors, (device, unsigned, unsigned, unsigned long long *)) \
	F(DeviceGetRemappedRows, (device, unsigned *, unsigned *, unsigned *, unsigned *)) \
	F(DeviceGetFieldValues, (device, int, struct field *)) \
	F(DeviceGetCurrPcieLinkGeneration, (device, unsigned *)) \
	F(DeviceGetMaxPcieLinkGeneration, (device, unsigned *)) \
	F(DeviceGetGpuMaxPcieLinkGeneration, (device, unsigned *)) \
	F(DeviceGetCurrPcieLinkWidth, (device, unsigned *)) \
	F(DeviceGetMaxPcieLinkWidth, (device, unsigned *)) \
	F(DeviceGetPcieReplayCounter, (device, unsigned *)) \
	F(DeviceGetPcieThroughput, (device, unsigned, unsigned *)) \
	F(DeviceGetComputeRunningProcesses_v3, (device, unsigned *, struct process *)) \
	F(DeviceGetProcessUtilization, (device, struct process_sample *, unsigned *, unsigned long long)) \
	F(DeviceGetTopologyCommonAncestor, (device, device, unsigned *)) \
	F(DeviceGetNvLinkState, (device, unsigned, unsigned *)) \
	F(DeviceGetNvLinkRemoteDeviceType, (device, unsigned, unsigned *)) \
	F(DeviceGetNvLinkRemotePciInfo_v2, (device, unsigned, struct pci *)) \
	F(DeviceGetNvLinkErrorCounter, (device, unsigned, unsigned, unsigned long long *)) \
	F(DeviceGetCpuAffinity, (device, unsigned, unsigned long *)) \
	F(DeviceGetMemoryAffinity, (device, unsigned, unsigned long *, unsigned)) \
	F(DeviceGetMigMode, (device, unsigned *, unsigned *)) \
	F(DeviceSetMigMode, (device, unsigned, result *)) \
	F(DeviceGetMaxMigDeviceCount, (device, unsigned *)) \
	F(DeviceGetMigDeviceHandleByIndex, (device, unsigned, device *)) \
	F(DeviceGetGpuInstanceId, (device, unsigned *)) \
	F(DeviceGetComputeInstanceId, (device, unsigned *)) \
	F(DeviceGetAttributes_v2, (device, struct attributes *)) \
	F(DeviceGetGpuInstanceProfileInfoV, (device, unsigned, struct gi_profile *)) \
	F(DeviceGetGpuInstancePossiblePlacements_v2, (device, unsigned, struct placement *, unsigned *)) \
	F(DeviceGetGpuInstanceRemainingCapacity, (device, unsigned, unsigned *)) \
	F(DeviceGetGpuInstances, (device, unsigned, device *, unsigned *)) \
	F(DeviceCreateGpuInstance, (device, unsigned, device *)) \
	F(DeviceCreateGpuInstanceWithPlacement, (device, unsigned, const struct placement *, device *)) \
	F(GpuInstanceGetInfo, (device, struct gi_info *)) \
	F(GpuInstanceDestroy, (device)) \
	F(GpuInstanceGetComputeInstanceProfileInfo, (device, unsigned, unsigned, struct ci_profile *)) \
	F(GpuInstanceGetComputeInstances, (device, unsigned, device *, unsigned *)) \
	F(GpuInstanceCreateComputeInstance, (device, unsigned, device *)) \
	F(ComputeInstanceGetInfo_v2, (device, struct ci_info *)) \
	F(ComputeInstanceDestroy, (device))

struct nvml {
#define F(name, arguments) result(*name) arguments;
	NVML_FUNCTIONS(F)
#undef F
};
extern struct nvml nvml;

struct gpu {
	device handle;
	unsigned index;
};

/* The subject of a field: a GPU, and with --query-compute-apps a process on it. */
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
extern const struct query_field gpu_fields[], process_fields[]; /* the last one has no names */

/* The driver, and the GPUs that the command is about. */
struct node {
	char driver[32], library[32];
	int cuda, major; /* 12080; of the driver's version */
	unsigned count, all; /* chosen by -i; attached */
	struct gpu gpus[MAX_GPUS];
	result (*reset)(device); /* of the simulated driver: NVML has none, the real program asks the kernel's module */
};
extern struct node node;

/* nvml.c */
int open_nvml(void);                    /* EXIT_OK, or an exit code after a message */
int choose_gpus(const char *selection); /* "" for all */
const char *format(const char *pattern, ...) __attribute__((format(printf, 1, 2))); /* lasts for 64 more calls */
const char *text_of(result (*ask)(device, char *, unsigned), device gpu);           /* NULL for N/A */
const char *process_name(unsigned pid);
unsigned list_processes(device gpu, struct process *list);
bool mig_enabled(device gpu);
bool field_value(device gpu, unsigned id, unsigned long long *value);
const char *compute_mode(device gpu);
const char *mig_name(device instance); /* "3g.20gb" */
/* fields.c; of one of `known` by a name, and its value with the unit. NULL for none, and for N/A. */
const struct query_field *field_named(const struct query_field *known, const char *word, size_t length);
const char *gpu_field(const struct gpu *at, const char *name);
const char *architecture(device gpu); /* report.c */
const char *brand(device gpu);
/* The result of a call of NVML as text; NULL for N/A. NB: macros, as a function's arguments may be read before the call. */
#define number(call, pattern, value) ((call) == OK ? format(pattern, (unsigned long long)(value)) : NULL)
#define on(call, value, yes, no) ((call) == OK ? (value) ? (yes) : (no) : NULL)

/* The verbs; each returns its exit code. */
int show_table(void);
int list_gpus(void);
int query_gpus(const char *fields, const char *how);
int query_processes(const char *fields, const char *how);
void list_fields(bool processes);
int show_report(const char *sections, bool xml); /* all for "" */
int show_xml(const char *sections);
int monitor_processes(int argc, char **argv);
int monitor_devices(int argc, char **argv);
int show_topology(int argc, char **argv);
int nvlink_command(int argc, char **argv);
int reset_gpus(void);
int mig_command(int argc, char **argv);
int set_mode(char kind, const char *value);
int complain(const char *what, result why); /* mig.c: a message, and the exit code */
void refuse(const char *option);

#endif

/* Utilisation, clocks, power and temperature: all follow from how busy the time line was. */
#include "nvml.h"

#define SECOND 1000000000ull
#define WINDOW (SECOND / 2) /* of what NVML calls the sampling period */

static unsigned percent(double part)
{
	return (unsigned)(100 * part + 0.5);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
	GPU(device);
	NEED(rates);
	if (gpu->mig_enabled)
		return NVML_NOT_SUPPORTED;
	rates->gpu = percent(simgpu_busy(gpu, WINDOW));
	rates->memory = percent(simgpu_memory_busy(gpu, WINDOW));
	return NVML_SUCCESS;
}

/* Engines that no simulated kernel uses; only a declared load shows on them. */
#define ENGINE(function, value)                                                                                        \
	EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned *rate, unsigned *period)                             \
	{                                                                                                               \
		GPU(device);                                                                                            \
		NEED(rate && period);                                                                                   \
		if (gpu->mig_enabled)                                                                                   \
			return NVML_NOT_SUPPORTED;                                                                      \
		*rate = (value);                                                                                        \
		*period = WINDOW / 1000;                                                                                \
		return NVML_SUCCESS;                                                                                    \
	}
ENGINE(nvmlDeviceGetEncoderUtilization, gpu->load_encoder_percent)
ENGINE(nvmlDeviceGetDecoderUtilization, gpu->load_decoder_percent)
ENGINE(nvmlDeviceGetJpgUtilization, 0)
ENGINE(nvmlDeviceGetOfaUtilization, 0)

static unsigned clock_mhz(const struct simgpu_gpu *gpu, unsigned type, bool maximum)
{
	if (type == 2)
		return gpu->memory_clock_mhz;
	unsigned full = type == 3 ? gpu->sm_clock_mhz * 9 / 10 : gpu->sm_clock_mhz;
	return maximum || simgpu_busy(gpu, SECOND) > 0 ? full : gpu->idle_clock_mhz;
}

#define CLOCK(function, maximum)                                                                                       \
	EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned type, unsigned *mhz)                                 \
	{                                                                                                               \
		GPU(device);                                                                                            \
		NEED(mhz);                                                                                              \
		if (type > 3)                                                                                           \
			return NVML_INVALID_ARGUMENT;                                                                   \
		*mhz = clock_mhz(gpu, type, maximum);                                                                   \
		return NVML_SUCCESS;                                                                                    \
	}
CLOCK(nvmlDeviceGetClockInfo, false)
CLOCK(nvmlDeviceGetMaxClockInfo, true)
CLOCK(nvmlDeviceGetApplicationsClock, true)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, true)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock, true)

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz)
{
	return id ? nvmlDeviceGetMaxClockInfo(device, type, mhz) : nvmlDeviceGetClockInfo(device, type, mhz);
}

double nvml_power_mw(const struct simgpu_gpu *gpu)
{
	/* A GPU at full load draws a little less than its limit. */
	return gpu->power_idle_mw + (gpu->power_limit_mw * 0.96 - gpu->power_idle_mw) * simgpu_busy(gpu, SECOND);
}

static unsigned temperature(const struct simgpu_gpu *gpu)
{
	/* Heat comes slower than power. */
	return gpu->temperature_idle +
	       (unsigned)((gpu->temperature_busy - gpu->temperature_idle) * simgpu_busy(gpu, 4 * SECOND) + 0.5);
}

#define NUMBER(function, type, condition, value)                                                                       \
	EXPORT nvmlReturn_t function(nvmlDevice_t device, type *result)                                                 \
	{                                                                                                               \
		GPU(device);                                                                                            \
		NEED(result);                                                                                           \
		if (!(condition))                                                                                       \
			return NVML_NOT_SUPPORTED;                                                                      \
		*result = (type)(value);                                                                                \
		return NVML_SUCCESS;                                                                                    \
	}
NUMBER(nvmlDeviceGetPowerUsage, unsigned, true, nvml_power_mw(gpu))
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, true, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, true, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, true, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementMode, unsigned, true, 1)
NUMBER(nvmlDeviceGetPerformanceState, unsigned, true, simgpu_busy(gpu, SECOND) > 0 || gpu->mig_supported ? 0 : 8)
NUMBER(nvmlDeviceGetPowerState, unsigned, true, simgpu_busy(gpu, SECOND) > 0 || gpu->mig_supported ? 0 : 8)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, true, simgpu_busy(gpu, SECOND) > 0 ? 0 : 1)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, true, simgpu_busy(gpu, SECOND) > 0 ? 0 : 1)
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, true, 0x1ff)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, true, 0x1ff)
/* Millijoules since the driver was loaded: idle power all the time, the rest while busy. */
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, gpu->energy_supported,
       gpu->power_idle_mw * ((double)(simgpu_now() - gpu->loaded_ns) / SECOND) +
	       (gpu->power_limit_mw * 0.96 - gpu->power_idle_mw) * ((double)simgpu_total_busy_ns(gpu) / SECOND))

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
	GPU(device);
	NEED(least && most);
	*least = gpu->power_min_mw;
	*most = gpu->power_limit_mw;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
	GPU(device);
	NEED(celsius);
	if (sensor != 0)
		return NVML_INVALID_ARGUMENT;
	*celsius = temperature(gpu);
	return NVML_SUCCESS;
}

struct temperature_argument {
	unsigned version, sensor;
	int celsius;
};

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature_argument *argument)
{
	GPU(device);
	NEED(argument);
	if (argument->version != (sizeof *argument | 1u << 24))
		return NVML_ARGUMENT_VERSION_MISMATCH;
	if (argument->sensor != 0)
		return NVML_INVALID_ARGUMENT;
	argument->celsius = (int)temperature(gpu);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned which, unsigned *celsius)
{
	GPU(device);
	NEED(celsius);
	switch (which) {
	case 0: *celsius = gpu->temperature_shutdown; return NVML_SUCCESS;
	case 1: *celsius = gpu->temperature_slowdown; return NVML_SUCCESS;
	case 3: *celsius = gpu->temperature_slowdown - 2; return NVML_SUCCESS;
	}
	return which < 8 ? NVML_NOT_SUPPORTED : NVML_INVALID_ARGUMENT;
}

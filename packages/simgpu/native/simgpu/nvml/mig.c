/* MIG: mode, profiles, GPU instances with one compute instance each. */
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

static void begin(void)
{
	pthread_mutex_lock(&threads);
	simgpu_lock(&nvml_view, LOCK_MIG, true);
}

static nvmlReturn_t end(nvmlReturn_t result)
{
	simgpu_unlock(&nvml_view, LOCK_MIG);
	pthread_mutex_unlock(&threads);
	return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	GPU(device);
	NEED(current && pending);
	if (!gpu->mig_supported)
		return NVML_NOT_SUPPORTED;
	*current = *pending = gpu->mig_enabled;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
	GPU(device);
	NEED(activation && mode <= 1);
	if (!gpu->mig_supported)
		return NVML_NOT_SUPPORTED;
	*activation = NVML_SUCCESS;
	begin();
	simgpu_reap(&nvml_view);
	if (mode != gpu->mig_enabled && simgpu_used(nvml_view.state, device->gpu, SIMGPU_NO_INSTANCE)) {
		*activation = NVML_IN_USE;
		return end(NVML_IN_USE);
	}
	for (int i = 0; mode != gpu->mig_enabled && i < SIMGPU_MIG_DEVICES; i++)
		gpu->mig_devices[i].used = 0;
	gpu->mig_enabled = mode;
	return end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	GPU(device);
	NEED(count);
	*count = gpu->mig_supported ? SIMGPU_MIG_DEVICES : 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
	GPU(device);
	NEED(mig);
	if (!gpu->mig_supported || index >= SIMGPU_MIG_DEVICES)
		return NVML_INVALID_ARGUMENT;
	if (!gpu->mig_enabled || !gpu->mig_devices[index].used || gpu->mig_devices[index].compute_instance)
		return NVML_NOT_FOUND;
	*mig = nvml_handle(device->gpu, (int32_t)index);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	GPU_OR_MIG(mig);
	NEED(device && mig->mig >= 0);
	(void)gpu;
	*device = nvml_handle(mig->gpu, -1);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is)
{
	GPU_OR_MIG(device);
	NEED(is);
	(void)gpu;
	*is = device->mig >= 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
	GPU_OR_MIG(device);
	NEED(id);
	if (device->mig < 0)
		return NVML_NOT_SUPPORTED;
	*id = gpu->mig_devices[device->mig].gpu_instance;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
	GPU_OR_MIG(device);
	NEED(id);
	if (device->mig < 0)
		return NVML_NOT_SUPPORTED;
	*id = gpu->mig_devices[device->mig].compute_instance;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	GPU_OR_MIG(device);
	NEED(attributes);
	if (device->mig < 0)
		return NVML_NOT_SUPPORTED;
	const struct simgpu_mig_profile *profile = &gpu->mig_profiles[gpu->mig_devices[device->mig].profile];
	*attributes = (nvmlDeviceAttributes_t){
		.multiprocessors = profile->multiprocessors, .copy_engines = profile->copy_engines,
		.gpu_slices = profile->slices, .compute_slices = profile->slices, .memory_mib = profile->memory_mib,
	};
	return NVML_SUCCESS;
}

static const struct simgpu_mig_profile *by_number(const struct simgpu_gpu *gpu, unsigned number)
{
	for (uint32_t i = 0; i < gpu->mig_profile_count; i++)
		if (gpu->mig_profiles[i].number == number)
			return &gpu->mig_profiles[i];
	return NULL;
}

static const struct simgpu_mig_profile *by_id(const struct simgpu_gpu *gpu, unsigned id)
{
	for (uint32_t i = 0; i < gpu->mig_profile_count; i++)
		if (gpu->mig_profiles[i].id == id)
			return &gpu->mig_profiles[i];
	return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned number,
							nvmlGpuInstanceProfileInfo_t *info)
{
	GPU(device);
	NEED(info);
	const struct simgpu_mig_profile *profile = by_number(gpu, number);
	if (!profile)
		return gpu->mig_supported && number >= 0x12 ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
	*info = (nvmlGpuInstanceProfileInfo_t){
		.id = profile->id, .slices = profile->slices, .instances = profile->capacity,
		.multiprocessors = profile->multiprocessors, .copy_engines = profile->copy_engines,
		.memory_mib = profile->memory_mib,
	};
	return NVML_SUCCESS;
}

static nvmlReturn_t describe(const struct simgpu_mig_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	unsigned version = info->version;
	if (version != (sizeof *info | 2u << 24))
		return NVML_ARGUMENT_VERSION_MISMATCH;
	*info = (nvmlGpuInstanceProfileInfo_v2_t){
		.version = version, .id = profile->id, .slices = profile->slices, .instances = profile->capacity,
		.multiprocessors = profile->multiprocessors, .copy_engines = profile->copy_engines,
		.memory_mib = profile->memory_mib,
	};
	snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned number,
							 nvmlGpuInstanceProfileInfo_v2_t *info)
{
	GPU(device);
	NEED(info);
	const struct simgpu_mig_profile *profile = by_number(gpu, number);
	return profile ? describe(profile, info) : NVML_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id,
							     nvmlGpuInstanceProfileInfo_v2_t *info)
{
	GPU(device);
	NEED(info);
	const struct simgpu_mig_profile *profile = by_id(gpu, id);
	return profile ? describe(profile, info) : NVML_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
								   nvmlPlacement_t *list, unsigned *count)
{
	GPU(device);
	NEED(count);
	const struct simgpu_mig_profile *profile = by_id(gpu, id);
	if (!profile)
		return NVML_NOT_SUPPORTED;
	for (unsigned i = 0; list && i < profile->placement_count && i < *count; i++)
		list[i] = (nvmlPlacement_t){profile->placements[i], profile->memory_slices};
	*count = profile->placement_count;
	return NVML_SUCCESS;
}

/* Whether `slices` memory slices from `start` on are free. */
static bool fits(const struct simgpu_gpu *gpu, uint32_t start, uint32_t slices)
{
	for (int i = 0; i < SIMGPU_MIG_DEVICES; i++) {
		const struct simgpu_mig_device *other = &gpu->mig_devices[i];
		uint32_t other_slices = gpu->mig_profiles[other->profile].memory_slices;
		if (other->used && start < other->start + other_slices && other->start < start + slices)
			return false;
	}
	return true;
}

/* Compute slices are seven, memory slices eight: both limit. */
static uint32_t slices_left(const struct simgpu_gpu *gpu)
{
	uint32_t left = 7;
	for (int i = 0; i < SIMGPU_MIG_DEVICES; i++)
		if (gpu->mig_devices[i].used)
			left -= gpu->mig_profiles[gpu->mig_devices[i].profile].slices;
	return left;
}

static bool may_place(const struct simgpu_gpu *gpu, const struct simgpu_mig_profile *profile, uint32_t start)
{
	return slices_left(gpu) >= profile->slices && fits(gpu, start, profile->memory_slices);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
	GPU(device);
	NEED(count);
	const struct simgpu_mig_profile *profile = by_id(gpu, id);
	if (!profile || !gpu->mig_enabled)
		return NVML_NOT_SUPPORTED;
	uint32_t room = slices_left(gpu) / profile->slices, found_count = 0, next = 0;
	for (uint32_t i = 0; i < profile->placement_count && found_count < room; i++) {
		if (profile->placements[i] < next || !fits(gpu, profile->placements[i], profile->memory_slices))
			continue;
		found_count++;
		next = profile->placements[i] + profile->memory_slices;
	}
	*count = found_count < profile->capacity ? found_count : profile->capacity;
	return NVML_SUCCESS;
}

/* A UUID that follows from the GPU's and the instance's number, as the driver's do: the same layout, the same names. */
static void name_instance(const struct simgpu_gpu *gpu, struct simgpu_mig_device *mig)
{
	uint64_t hash[2] = {0xcbf29ce484222325ull, 0x84222325cbf29ce4ull};
	char text[128];
	snprintf(text, sizeof text, "%s/%u/%u/%u", gpu->uuid, mig->gpu_instance, mig->profile, mig->start);
	for (int half = 0; half < 2; half++)
		for (const char *at = text; *at; at++)
			hash[half] = (hash[half] ^ (uint8_t)*at) * 0x100000001b3ull;
	snprintf(mig->uuid, sizeof mig->uuid, "MIG-%08x-%04x-5%03x-8%03x-%012llx", (unsigned)(hash[0] >> 32),
		 (unsigned)(hash[0] >> 16) & 0xffff, (unsigned)hash[0] & 0xfff, (unsigned)(hash[1] >> 52),
		 (unsigned long long)hash[1] & 0xffffffffffffull);
}

static nvmlReturn_t create(nvmlDevice_t device, struct simgpu_gpu *gpu, unsigned id, const nvmlPlacement_t *where,
			   nvmlGpuInstance_t *instance)
{
	const struct simgpu_mig_profile *profile = by_id(gpu, id);
	if (!profile || !gpu->mig_enabled)
		return NVML_NOT_SUPPORTED;
	/* From the end, as the driver does, which keeps the larger places at the start free. */
	for (uint32_t i = profile->placement_count; i-- > 0;) {
		uint32_t start = profile->placements[i];
		if ((where && where->start != start) || !may_place(gpu, profile, start))
			continue;
		for (int place = 0; place < SIMGPU_MIG_DEVICES; place++) {
			struct simgpu_mig_device *mig = &gpu->mig_devices[place];
			if (mig->used)
				continue;
			*mig = (struct simgpu_mig_device){
				.gpu_instance = (uint32_t)place + 1, .compute_instance = SIMGPU_NO_INSTANCE,
				.profile = (uint32_t)(profile - gpu->mig_profiles), .start = start,
			};
			name_instance(gpu, mig);
			__atomic_store_n(&mig->used, 1, __ATOMIC_SEQ_CST);
			*instance = nvml_handle(device->gpu, place);
			return NVML_SUCCESS;
		}
	}
	return NVML_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
	GPU(device);
	NEED(instance);
	begin();
	return end(create(device, gpu, id, NULL, instance));
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id,
							     const nvmlPlacement_t *placement,
							     nvmlGpuInstance_t *instance)
{
	GPU(device);
	NEED(instance && placement);
	begin();
	return end(create(device, gpu, id, placement, instance));
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
	GPU_OR_MIG(instance);
	NEED(instance->mig >= 0);
	begin();
	simgpu_reap(&nvml_view);
	struct simgpu_mig_device *mig = &gpu->mig_devices[instance->mig];
	if (!mig->compute_instance || simgpu_used(nvml_view.state, instance->gpu, mig->gpu_instance))
		return end(NVML_IN_USE);
	mig->used = 0;
	return end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *list, unsigned *count)
{
	GPU(device);
	NEED(list && count);
	if (!by_id(gpu, id))
		return NVML_NOT_SUPPORTED;
	*count = 0;
	for (int i = 0; gpu->mig_enabled && i < SIMGPU_MIG_DEVICES; i++)
		if (gpu->mig_devices[i].used && gpu->mig_profiles[gpu->mig_devices[i].profile].id == id)
			list[(*count)++] = nvml_handle(device->gpu, i);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
	GPU(device);
	NEED(instance);
	for (int i = 0; gpu->mig_enabled && i < SIMGPU_MIG_DEVICES; i++) {
		if (!gpu->mig_devices[i].used || gpu->mig_devices[i].gpu_instance != id)
			continue;
		*instance = nvml_handle(device->gpu, i);
		return NVML_SUCCESS;
	}
	return NVML_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
	GPU_OR_MIG(instance);
	NEED(info && instance->mig >= 0);
	const struct simgpu_mig_device *mig = &gpu->mig_devices[instance->mig];
	const struct simgpu_mig_profile *profile = &gpu->mig_profiles[mig->profile];
	*info = (nvmlGpuInstanceInfo_t){nvml_handle(instance->gpu, -1), mig->gpu_instance, profile->id,
					{mig->start, profile->memory_slices}};
	return NVML_SUCCESS;
}

/* The only compute profile of a GPU instance is the one that takes all of it. */
static unsigned compute_profile(const struct simgpu_gpu *gpu, nvmlGpuInstance_t instance)
{
	unsigned number = gpu->mig_profiles[gpu->mig_devices[instance->mig].profile].number;
	return number >= 7 ? 0 : number;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned number,
								 unsigned engines,
								 nvmlComputeInstanceProfileInfo_t *info)
{
	GPU_OR_MIG(instance);
	NEED(info && instance->mig >= 0);
	if (number != compute_profile(gpu, instance) || engines != 0)
		return NVML_NOT_SUPPORTED;
	const struct simgpu_mig_profile *profile = &gpu->mig_profiles[gpu->mig_devices[instance->mig].profile];
	*info = (nvmlComputeInstanceProfileInfo_t){
		.id = number, .slices = profile->slices, .instances = 1,
		.multiprocessors = profile->multiprocessors, .copy_engines = profile->copy_engines,
	};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned number,
								  unsigned engines,
								  nvmlComputeInstanceProfileInfo_v2_t *info)
{
	GPU_OR_MIG(instance);
	NEED(info && instance->mig >= 0);
	if (number != compute_profile(gpu, instance) || engines != 0)
		return NVML_NOT_SUPPORTED;
	unsigned version = info->version;
	if (version != (sizeof *info | 2u << 24))
		return NVML_ARGUMENT_VERSION_MISMATCH;
	const struct simgpu_mig_profile *profile = &gpu->mig_profiles[gpu->mig_devices[instance->mig].profile];
	*info = (nvmlComputeInstanceProfileInfo_v2_t){
		.version = version, .id = number, .slices = profile->slices, .instances = 1,
		.multiprocessors = profile->multiprocessors, .copy_engines = profile->copy_engines,
	};
	snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id, nvmlGpuInstance_t *compute)
{
	GPU_OR_MIG(instance);
	NEED(compute && instance->mig >= 0);
	if (id != compute_profile(gpu, instance))
		return NVML_NOT_SUPPORTED;
	begin();
	struct simgpu_mig_device *mig = &gpu->mig_devices[instance->mig];
	if (!mig->compute_instance)
		return end(NVML_INSUFFICIENT_RESOURCES);
	mig->compute_instance = 0;
	*compute = instance;
	return end(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned id, nvmlGpuInstance_t *list,
						       unsigned *count)
{
	GPU_OR_MIG(instance);
	NEED(list && count && instance->mig >= 0);
	*count = 0;
	if (!gpu->mig_devices[instance->mig].compute_instance && id == compute_profile(gpu, instance))
		list[(*count)++] = instance;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
							  nvmlGpuInstance_t *compute)
{
	GPU_OR_MIG(instance);
	NEED(compute && instance->mig >= 0);
	if (id != 0 || gpu->mig_devices[instance->mig].compute_instance)
		return NVML_NOT_FOUND;
	*compute = instance;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlGpuInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
	GPU_OR_MIG(compute);
	NEED(info && compute->mig >= 0);
	const struct simgpu_mig_profile *profile = &gpu->mig_profiles[gpu->mig_devices[compute->mig].profile];
	*info = (nvmlComputeInstanceInfo_t){nvml_handle(compute->gpu, -1), compute, 0, compute_profile(gpu, compute),
					    {0, profile->slices}};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlGpuInstance_t compute)
{
	GPU_OR_MIG(compute);
	NEED(compute->mig >= 0);
	begin();
	simgpu_reap(&nvml_view);
	struct simgpu_mig_device *mig = &gpu->mig_devices[compute->mig];
	if (simgpu_used(nvml_view.state, compute->gpu, mig->gpu_instance))
		return end(NVML_IN_USE);
	mig->compute_instance = SIMGPU_NO_INSTANCE;
	return end(NVML_SUCCESS);
}

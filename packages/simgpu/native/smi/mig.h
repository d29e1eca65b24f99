/* GPU instances and their compute instances, as the commands of `mig` see them. */
#ifndef MIG_H
#define MIG_H

#include "smi.h"

#define PROFILES 0x12 /* NVML_GPU_INSTANCE_PROFILE_*: numbers, not ids */
#define COMPUTE_PROFILES 8
#define INSTANCES 16

struct instance {
	unsigned gpu;
	device handle;
	struct gi_info info;
	struct gi_profile profile;
};

/* The ids of -gi and -ci, separated by commas; NULL for all. */
extern const char *chosen_instances, *chosen_computes;

bool has_id(const char *chosen, unsigned id);
bool profile_of(device gpu, unsigned number, struct gi_profile *profile);
unsigned instances_of(const struct gpu *at, struct instance *list); /* the chosen ones; returns how many */
device compute_of(device instance, struct ci_profile *profile);     /* NULL for none that was chosen */
bool default_compute_profile(device instance, struct ci_profile *profile);
int list_mig(const char *verb); /* -lgip, -lgipp, -lgi, -lcip, -lci */

#endif

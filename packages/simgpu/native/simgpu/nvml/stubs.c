/* Every other name that nvidia-ml-py may ask for: a GPU that does not offer it. */
#include "nvml.h"

#define STUB(name)                                                                                                     \
	EXPORT nvmlReturn_t name(void);                                                                                 \
	nvmlReturn_t name(void)                                                                                         \
	{                                                                                                               \
		return nvml_view.state ? NVML_NOT_SUPPORTED : NVML_UNINITIALIZED;                                       \
	}
#include "stubs.def"

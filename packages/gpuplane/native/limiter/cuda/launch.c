/* Kernel launches: forwarded when it is this process's turn. */
#include "gate.h"

#define KERNEL                                                                                                         \
	(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,             \
	 unsigned shared, CUstream stream, void **parameters, void **extra)
#define COOPERATIVE                                                                                                    \
	(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,             \
	 unsigned shared, CUstream stream, void **parameters)
#define EX (const struct launch_config *config, CUfunction function, void **parameters, void **extra)

#define LAUNCH(symbol, per_thread, stream, parameters, ...)                                                            \
	EXPORT CUresult symbol parameters                                                                               \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		CUstream meant = streams_meant(stream, per_thread);                                                     \
		if (!gate_pass(meant))                                                                                  \
			return CUDA_DEVICE_UNAVAILABLE;                                                                 \
		CUresult result = REAL(symbol)(__VA_ARGS__);                                                            \
		gate_launched(meant);                                                                                   \
		return result;                                                                                          \
	}
LAUNCH(cuLaunchKernel, false, stream, KERNEL, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
LAUNCH(cuLaunchKernel_ptsz, true, stream, KERNEL, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
LAUNCH(cuLaunchKernelEx, false, config ? config->stream : NULL, EX, config, function, parameters, extra)
LAUNCH(cuLaunchKernelEx_ptsz, true, config ? config->stream : NULL, EX, config, function, parameters, extra)
LAUNCH(cuLaunchCooperativeKernel, false, stream, COOPERATIVE, function, gx, gy, gz, bx, by, bz, shared, stream, parameters)
LAUNCH(cuLaunchCooperativeKernel_ptsz, true, stream, COOPERATIVE, function, gx, gy, gz, bx, by, bz, shared, stream,
       parameters)
LAUNCH(cuLaunchCooperativeKernelMultiDevice, false, count && list ? list->stream : NULL,
       (const struct launch_parameters *list, unsigned count, unsigned flags), list, count, flags)
/* Deprecated since CUDA 4.0, and still there. */
LAUNCH(cuLaunch, false, NULL, (CUfunction function), function)
LAUNCH(cuLaunchGrid, false, NULL, (CUfunction function, int width, int height), function, width, height)
LAUNCH(cuLaunchGridAsync, false, stream, (CUfunction function, int width, int height, CUstream stream), function, width,
       height, stream)

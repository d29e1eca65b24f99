/* Kernel launches: forwarded when it is this process's turn. */
#include "gate.h"

#define KERNEL                                                                                                         \
	(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,             \
	 unsigned shared, CUstream stream, void **parameters, void **extra)
#define COOPERATIVE                                                                                                    \
	(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,             \
	 unsigned shared, CUstream stream, void **parameters)
#define BLOCKS ((uint64_t)gx * gy * gz)
#define CONFIG_BLOCKS (config ? (uint64_t)config->grid[0] * config->grid[1] * config->grid[2] : 1)
#define EX (const struct launch_config *config, CUfunction function, void **parameters, void **extra)

#define LAUNCH(symbol, per_thread, stream, function, blocks, parameters, ...)                                           \
	GATED(symbol, per_thread, stream, true, costs_key(function, blocks), parameters, __VA_ARGS__)
LAUNCH(cuLaunchKernel, false, stream, function, BLOCKS, KERNEL, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
LAUNCH(cuLaunchKernel_ptsz, true, stream, function, BLOCKS, KERNEL, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
LAUNCH(cuLaunchKernelEx, false, config ? config->stream : NULL, function, CONFIG_BLOCKS, EX, config, function, parameters, extra)
LAUNCH(cuLaunchKernelEx_ptsz, true, config ? config->stream : NULL, function, CONFIG_BLOCKS, EX, config, function, parameters, extra)
LAUNCH(cuLaunchCooperativeKernel, false, stream, function, BLOCKS, COOPERATIVE, function, gx, gy, gz, bx, by, bz, shared, stream, parameters)
LAUNCH(cuLaunchCooperativeKernel_ptsz, true, stream, function, BLOCKS, COOPERATIVE, function, gx, gy, gz, bx, by, bz, shared, stream,
       parameters)
LAUNCH(cuLaunchCooperativeKernelMultiDevice, false, count && list ? list->stream : NULL, count && list ? list->function : NULL, 1,
       (const struct launch_parameters *list, unsigned count, unsigned flags), list, count, flags)
/* Deprecated since CUDA 4.0, and still there. */
LAUNCH(cuLaunch, false, NULL, function, 1, (CUfunction function), function)
LAUNCH(cuLaunchGrid, false, NULL, function, (uint64_t)width * (unsigned)height, (CUfunction function, int width, int height), function, width, height)
LAUNCH(cuLaunchGridAsync, false, stream, function, (uint64_t)width * (unsigned)height, (CUfunction function, int width, int height, CUstream stream), function, width,
       height, stream)

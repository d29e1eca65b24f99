/*
 * What NVIDIA's driver exports and this one does not do. Runtimes before CUDA 11.3 look every function up by its symbol
 * when they start and give up where one is missing; cuGetProcAddress goes on to say that these are not there.
 */
#include "cuda.h"

#define MISSING(name)                                                                                                  \
	EXPORT CUresult name(void);                                                                                     \
	CUresult name(void)                                                                                             \
	{                                                                                                               \
		CUresult result = cuda_ready();                                                                         \
		return result == CUDA_SUCCESS ? CUDA_NOT_SUPPORTED : result;                                            \
	}
#include "missing.def"

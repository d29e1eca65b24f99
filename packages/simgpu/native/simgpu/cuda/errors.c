/* Names of results. */
#include "cuda.h"

static const struct {
	CUresult result;
	const char *name, *text;
} errors[] = {
#define ERROR(name, text) {CUDA_##name, "CUDA_ERROR_" #name, text}
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	ERROR(INVALID_VALUE, "invalid argument"),
	ERROR(OUT_OF_MEMORY, "out of memory"),
	ERROR(NOT_INITIALIZED, "initialization error"),
	ERROR(DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
	ERROR(NO_DEVICE, "no CUDA-capable device is detected"),
	ERROR(INVALID_DEVICE, "invalid device ordinal"),
	ERROR(INVALID_CONTEXT, "invalid device context"),
	ERROR(INVALID_IMAGE, "device kernel image is invalid"),
	ERROR(NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
	ERROR(ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
	ERROR(UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
	ERROR(PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
	ERROR(INVALID_PTX, "a PTX JIT compilation failed"),
	ERROR(UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
	ERROR(FILE_NOT_FOUND, "file not found"),
	ERROR(OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
	ERROR(INVALID_HANDLE, "invalid resource handle"),
	ERROR(NOT_FOUND, "named symbol not found"),
	ERROR(NOT_READY, "device not ready"),
	ERROR(ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
	ERROR(LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
	ERROR(LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
	ERROR(PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
	ERROR(PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
	ERROR(PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
	ERROR(CONTEXT_IS_DESTROYED, "context is destroyed"),
	ERROR(ASSERT, "device-side assert triggered"),
	ERROR(HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
	ERROR(HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
	ERROR(ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
	ERROR(MISALIGNED_ADDRESS, "misaligned address"),
	ERROR(LAUNCH_FAILED, "unspecified launch failure"),
	{CUDA_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{CUDA_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
	 "operation failed due to a previous error during capture"},
	{CUDA_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
	{CUDA_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
	{CUDA_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
	{CUDA_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
	 "dependency created on uncaptured work in another stream"},
	{CUDA_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
	 "operation would make the legacy stream depend on a capturing blocking stream"},
	ERROR(CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
	{CUDA_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
	 "attempt to terminate a thread-local capture sequence from another thread"},
	ERROR(INVALID_RESOURCE_TYPE, "the resource type is not supported here"),
	ERROR(INVALID_RESOURCE_CONFIGURATION, "the resources do not fit the device or each other"),
	ERROR(ILLEGAL_STATE, "the operation cannot be performed in the present state"),
	ERROR(NOT_SUPPORTED, "operation not supported"),
	ERROR(SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
	ERROR(MPS_RPC_FAILURE, "the remote procedural call between the MPS server and the MPS client failed"),
	ERROR(MPS_MAX_CLIENTS_REACHED, "the hardware resources required to create MPS client have been exhausted"),
	ERROR(UNKNOWN, "unknown error"),
};

static CUresult look_up(CUresult result, const char **found, bool name)
{
	NEED(found);
	*found = NULL;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].result == result)
			*found = name ? errors[i].name : errors[i].text;
	return *found ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult result, const char **name)
{
	return look_up(result, name, true);
}

EXPORT CUresult cuGetErrorString(CUresult result, const char **text)
{
	return look_up(result, text, false);
}

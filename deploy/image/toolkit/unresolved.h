// NVIDIA's libraries come with the driver and are loaded at run time. Their functions stay unresolved when the programs
// are linked, which zig's linker accepts of weak symbols only. nvml.h declares its own with DECLDIR, the others are named.
#define _WINDOWS
#define __declspec(import) __attribute__((weak))
#pragma weak cuDeviceGet
#pragma weak cuDeviceGetAttribute
#pragma weak cuDriverGetVersion
#pragma weak cuInit
#pragma weak nvSandboxUtilsGetDriverVersion
#pragma weak nvSandboxUtilsGetFileContent
#pragma weak nvSandboxUtilsGetGpuResource
#pragma weak nvSandboxUtilsInit
#pragma weak nvSandboxUtilsShutdown

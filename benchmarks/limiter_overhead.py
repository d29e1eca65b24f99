"""Measures what the interposed driver costs a program: nanoseconds for each launch, fill and allocation.

    python benchmarks/limiter_overhead.py

Behind the limiter stands a driver that does nothing, so what is measured is the limiter alone: a launch and an
allocation through it, less the same through a library that only forwards. The share has a limit of memory and 100
percent of the time, so every check is made and no program waits. The best of many rounds counts, since other work on
the machine only adds.
Goals: a launch or a fill at most 15 ns, an allocation at most 50 ns more than forwarded. Peers (see the reference of
sharing): HAMi-core 2 to 9 percent of each token of vLLM, and 1.1 ms to enforce memory; GaiaGPU 1.0 percent on average.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from figures import show
from gpuplane.limits.facts import GpuLimit, Limits, Owner
from gpuplane.limits.injection import LIMITER
from gpuplane.limits.store import ShareStore
from shared_gpu import build_libraries, compiled

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
SECOND = "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"
LAUNCH = (
    "unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, void *s, void **p, void **x"
)

DRIVER = f"""
#include <stdint.h>
#include <stdlib.h>
static uint64_t next = 4096;
int cuInit(unsigned flags) {{ return (int)flags; }}
int cuDeviceGetCount(int *count) {{ *count = getenv("DEVICES") ? atoi(getenv("DEVICES")) : 1; return 0; }}
int cuDeviceGet(int *device, int n) {{ *device = n; return 0; }}
int cuDeviceGetUuid_v2(uint8_t *to, int n) {{ for (int i = 0; i < 16; i++) to[i] = (uint8_t)(i + 16 * n); return 0; }}
int cuCtxGetCurrent(void **context) {{ *context = &next; return 0; }}
int cuCtxSetCurrent(void *context) {{ (void)context; return 0; }}
int cuCtxGetDevice(int *device) {{ *device = 0; return 0; }}
int cuCtxSynchronize(void) {{ return 0; }}
int cuStreamIsCapturing(void *stream, int *status) {{ (void)stream; *status = 0; return 0; }}
int cuEventCreate(void **event, unsigned flags) {{ (void)flags; *event = &next; return 0; }}
int cuEventDestroy_v2(void *event) {{ (void)event; return 0; }}
int cuEventElapsedTime(float *ms, void *start, void *end) {{ (void)start; (void)end; *ms = 0.002f; return 0; }}
int cuEventQuery(void *event) {{ (void)event; return 0; }}
int cuEventRecord(void *event, void *stream) {{ (void)event; (void)stream; return 0; }}
int cuEventSynchronize(void *event) {{ (void)event; return 0; }}
int cuMemAlloc_v2(uint64_t *address, uint64_t size) {{ (void)size; *address = next += 512; return 0; }}
int cuMemFree_v2(uint64_t address) {{ (void)address; return 0; }}
int cuMemsetD8Async(uint64_t at, unsigned char value, uint64_t size, void *s) {{ return !(at && value && size && !s); }}
int cuLaunchKernel(void *k, {LAUNCH}) {{ return k == s && a + b + c + d + e + f + g == 7 && p == x ? 0 : 1; }}
"""

FORWARD = f"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
static int (*init)(unsigned), (*allocate)(uint64_t *, uint64_t), (*release)(uint64_t), (*launch)(void *, {LAUNCH});
static int (*fill)(uint64_t, unsigned char, uint64_t, void *);
__attribute__((constructor)) static void find(void)
{{
	void *real = dlopen(getenv("REAL"), RTLD_NOW);
	*(void **)&init = dlsym(real, "cuInit");
	*(void **)&allocate = dlsym(real, "cuMemAlloc_v2");
	*(void **)&release = dlsym(real, "cuMemFree_v2");
	*(void **)&launch = dlsym(real, "cuLaunchKernel");
	*(void **)&fill = dlsym(real, "cuMemsetD8Async");
}}
int cuInit(unsigned flags) {{ return init(flags); }}
int cuMemAlloc_v2(uint64_t *address, uint64_t size) {{ return allocate(address, size); }}
int cuMemFree_v2(uint64_t address) {{ return release(address); }}
int cuMemsetD8Async(uint64_t at, unsigned char value, uint64_t size, void *s) {{ return fill(at, value, size, s); }}
int cuLaunchKernel(void *k, {LAUNCH}) {{ return launch(k, a, b, c, d, e, f, g, s, p, x); }}
"""

PROGRAM = f"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void)
{{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}}
int main(int argc, char **argv)
{{
	void *cuda = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!cuda) return puts(dlerror()), 1;
	int (*init)(unsigned), (*allocate)(uint64_t *, uint64_t), (*release)(uint64_t), (*launch)(void *, {LAUNCH});
	*(void **)&init = dlsym(cuda, "cuInit");
	*(void **)&allocate = dlsym(cuda, "cuMemAlloc_v2");
	*(void **)&release = dlsym(cuda, "cuMemFree_v2");
	*(void **)&launch = dlsym(cuda, "cuLaunchKernel");
	int (*fill)(uint64_t, unsigned char, uint64_t, void *);
	*(void **)&fill = dlsym(cuda, "cuMemsetD8Async");
	if (init(0)) return 1;
	double best_launch = 1e9, best_batch = 1e9, best_memory = 1e9, best_fill = 1e9, best_change = 1e9, best_free = 1e9;
	static uint64_t held[1000];
	for (int round = 0; round < 300; round++) {{
		double start = now();
		for (int i = 0; i < 20000; i++)
			if (launch(NULL, 1, 1, 1, 1, 1, 1, 1, NULL, NULL, NULL)) return 2;
		double each = (now() - start) / 20000;
		if (each < best_launch) best_launch = each;
		/* Within one batch: the fast path and nothing else. */
		for (int k = 0; k < 20; k++) {{
			start = now();
			for (int i = 0; i < 16; i++) launch(NULL, 1, 1, 1, 1, 1, 1, 1, NULL, NULL, NULL);
			each = (now() - start) / 16;
			if (each < best_batch) best_batch = each;
		}}
		/* Each in another stream than the one before. */
		start = now();
		for (int i = 0; i < 20000; i++)
			launch(NULL, 1, 1, 1, 1, 1, 1, 1, (void *)(uintptr_t)(4096 * (1 + i % 4)), NULL, NULL);
		each = (now() - start) / 20000;
		if (each < best_change) best_change = each;
		start = now();
		for (int i = 0; i < 20000; i++)
			if (fill(1, 1, 4096, NULL)) return 5;
		each = (now() - start) / 20000;
		if (each < best_fill) best_fill = each;
		start = now();
		for (int i = 0; i < 1000; i++)
			if (allocate(&held[i], 4096)) return 3;
		each = (now() - start) / 1000;
		if (each < best_memory) best_memory = each;
		start = now();
		for (int i = 0; i < 1000; i++)
			if (release(held[i])) return 4;
		each = (now() - start) / 1000;
		if (each < best_free) best_free = each;
	}}
	printf("%f %f %f %f %f %f\\n", best_batch, best_launch, best_memory, best_fill, best_change, best_free);
	return 0;
}}
"""


def written(folder: Path, name: str, text: str, *flags: str) -> Path:
    source = folder / f"{name}.c"
    source.write_text(text)
    return compiled(source, folder / name, *flags)


def main() -> None:
    build_libraries()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = written(folder, "libcuda.so.gpuplane-real", DRIVER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
        forward = written(folder, "forward.so", FORWARD, "-shared", "-fPIC")
        program = written(folder, "program", PROGRAM)
        (folder / "limiter.so").symlink_to(LIMITER / "libcuda.so.1")
        gpus = [GpuLimit(uuid=uuid, core=100, memory_bytes=1 << 40) for uuid in (UUID, SECOND)]
        limits = Limits(tuple(gpus))
        store = ShareStore(folder / "limits")
        directory = store.write("share", limits, Owner(name="share"))
        environment = os.environ | {
            "REAL": str(driver),
            "LD_LIBRARY_PATH": str(folder),
            "GPUPLANE_LIMITS": str(directory),
        }

        def measure(library: Path, devices: int = 1) -> list[float]:
            variables = environment | {"DEVICES": str(devices)}
            done = subprocess.run([program, library], env=variables, capture_output=True, text=True, check=True)
            return [float(word) for word in done.stdout.split()]

        plain, limited = measure(forward), measure(folder / "limiter.so")
        two = measure(folder / "limiter.so", devices=2)
        if not store.read("share").totals[0].launches:
            raise SystemExit("the limiter was not in between: nothing was measured")
    fast, mean, memory, fill, change, free = (over - base for over, base in zip(limited, plain, strict=True))
    show("launch, forwarded only", plain[0], "ns")
    show("launch over that, fast path", fast, "ns", goal=15, peer="HAMi-core: 2-9% of a token of vLLM")
    show("launch over that, with every 16th's look", mean, "ns", goal=15)
    show("launch over that, of a process with two GPUs", two[1] - plain[1], "ns", goal=100)
    show("launch over that, in another stream each time", change, "ns", goal=1000)
    show("fill over forwarded, with every 16th's look", fill, "ns", goal=15)
    show("allocation over forwarded", memory, "ns", goal=50, peer="HAMi-core: 1.1 ms to enforce")
    show("end of an allocation over forwarded", free, "ns")


if __name__ == "__main__":
    main()

"""How exactly shares of a GPU's time hold, and what 10,000 killed processes leave behind.

    python benchmarks/limits.py [--quick]

On a simulated T4, whose time line is exact: kernels take the time they say, and cost the machine nothing. A program
launches one kernel after the other for as long as it may; its share is the kernels' time over the time between the
first and the last launch, from one second after its start on. So an error within the goal is also a settling within a
second. Programs run on this machine's processors, and what else runs there makes shares smaller: so what a program
gets without a limit is shown beside them. Where that is below 100, a limit's time cannot all be used.

Goals: at most 2 points of error for one tenant, 3 for each of two, for limits of 10 to 90 percent and kernels of 20 us
to 300 ms; a killed process delays others by less than a second and leaves no memory. Peers (see the reference of
sharing): vcuda and HAMi-core give 31 to 100 percent for a limit of 30, depending on the kernel; memory 91.5% exact.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import gpuplane
from figures import show
from gpuplane.limits.facts import GpuLimit, Limits, Mode, Owner
from gpuplane.limits.store import Store
from gpuplane.simulator.gpus import PROFILES, SimulatedGPUs, create_state

NATIVE = Path(gpuplane.__file__).parent / "_native"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
MIB = 1 << 20

PRELUDE = """
import ctypes, json, os, random, select, signal, sys, time
from ctypes import byref, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
def context():
    call("cuInit", 0)
    call("cuCtxCreate_v2", byref(c_void_p()), 0, 0)
def kernel(microseconds):
    ptx = '.version 7.0 .target sm_35 .address_size 64 .visible .entry k() { .pragma "simgpu.time_ns %d"; ret; }'
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), (ptx % int(microseconds * 1000)).encode())
    call("cuModuleGetFunction", byref(function), module, b"k")
    return function
launch = lambda function: call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""
BUSY = """
context()
function = kernel({us})
launch(function)
call("cuCtxSynchronize")
ready()
start, first, count = time.monotonic(), 0, 0
while (now := time.monotonic()) < start + {seconds}:
    launch(function)
    if not first and now > start + 1:
        first, count = time.monotonic(), 0  # settled: what comes counts
    last = time.monotonic()
    count += 1
print((count - 1) * {us} / 1e4 / (last - first))
"""
KILLER = """
def busy():
    context()
    function = kernel(200)
    while True:
        blocks = [c_uint64() for _ in range(6)]
        for block in blocks:
            cuda.cuMemAlloc_v2(byref(block), c_size_t(random.randrange(1, 8) << 20))
        for _ in range(5):
            launch(function)
        for block in blocks:
            if block:
                call("cuMemFree_v2", block)
ready()
for _ in range({kills}):
    child = os.fork()
    if child == 0:
        busy()
    time.sleep(random.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""
WITNESS = """
context()
function = kernel(200)
launch(function)
ready()
longest = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    start = time.monotonic()
    launch(function)
    call("cuCtxSynchronize")
    longest = max(longest, time.monotonic() - start)
print(longest)
"""
WHOLE = """
context()
block = c_uint64()
print(cuda.cuMemAlloc_v2(byref(block), c_size_t({size})))
"""


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        profile = PROFILES["1x-t4"]
        (root / "dev").mkdir()
        (root / "lib").mkdir()
        create_state(root / "dev" / "nvidiactl", profile, "570.133.20", "bench")
        (root / "dev" / "nvidia0").touch()
        for name in LIBRARIES:
            (root / "lib" / name).symlink_to(NATIVE / "limiter" / name)
            (root / "lib" / name.replace(".1", ".gpuplane-real")).symlink_to(NATIVE / name)
        self.uuid = SimulatedGPUs(profile, "bench").inventory()[0].uuid
        self.store = Store(root / "limits")
        self.shares = 0

    def share(self, **limits: object) -> Path:
        self.shares += 1
        wanted = Limits((GpuLimit(uuid=self.uuid, **limits),))  # type: ignore[arg-type]
        return self.store.write(f"share-{self.shares}", wanted, Owner(name=f"share-{self.shares}"))

    def start(self, program: str, share: Path) -> subprocess.Popen[str]:
        environment = {
            "SIMGPU_DEV": str(self.root / "dev"),
            "LD_LIBRARY_PATH": str(self.root / "lib"),
            "GPUPLANE_LIMITS": str(share),
        }
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", PRELUDE + program]
        return subprocess.Popen(command, env=os.environ | environment, stdin=pipe, stdout=pipe, text=True)


def begin(*children: subprocess.Popen[str]) -> None:
    for child in children:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()


def shares(machine: Machine, seconds: float, *tenants: tuple[float, Mapping[str, object]]) -> list[float]:
    """Percent of the GPU's time that each tenant gets: (microseconds of its kernels, its limits)."""
    children = [machine.start(BUSY.format(us=us, seconds=seconds), machine.share(**limits)) for us, limits in tenants]
    begin(*children)
    return [float(child.communicate()[0]) for child in children]


def duration(us: float, quick: bool) -> float:
    """Long kernels come seldom under small limits, so they need longer."""
    return 2.0 if quick else 3.0 if us <= 20_000 else 13.0


def one_tenant(machine: Machine, quick: bool) -> None:
    for us in (20, 1000, 20_000) if quick else (20, 100, 1000, 20_000, 300_000):
        worst, line = 0.0, [f"unlimited:{shares(machine, 2, (us, {}))[0]:.1f}"]
        for core in (10, 50, 90) if quick else range(10, 100, 10):
            got = shares(machine, duration(us, quick), (us, {"core": core}))[0]
            worst = max(worst, abs(got - core))
            line.append(f"{core}:{got:.1f}")
        print("   ", " ".join(line))
        show(f"one tenant, {us:,} us, worst error", worst, "pts", goal=2, peer="vcuda, HAMi-core: 31-100% at 30")


def two_tenants(machine: Machine, quick: bool) -> None:
    pairs = [((1000, 30), (1000, 60)), ((20_000, 30), (20_000, 60))]
    if not quick:
        pairs += [
            ((100, 20), (100, 70)),
            ((1000, 45), (1000, 45)),
            ((1000, 10), (20_000, 80)),
            ((300_000, 30), (1000, 60)),
        ]
    for first, second in pairs:
        seconds = max(duration(us, quick) for us, _ in (first, second))
        got = shares(machine, seconds, *((us, {"core": core}) for us, core in (first, second)))
        worst = max(abs(share - core) for share, (_, core) in zip(got, (first, second), strict=True))
        print(f"    {first[1]}:{got[0]:.1f} {second[1]}:{got[1]:.1f}")
        show(f"two tenants, {first[0]:,} and {second[0]:,} us, worst", worst, "pts", goal=3)
    weights = [{"core": 1, "weight": weight, "mode": Mode.WEIGHTED} for weight in (1, 3)]
    light, heavy = shares(machine, duration(1000, quick), *((1000, limits) for limits in weights))
    show("weights 1 and 3: of all time lost", 100 - light - heavy, "pts")
    show("weights 1 and 3: error of the ratio", abs(heavy / light - 3) / 3 * 100, "%")


def kills(machine: Machine, count: int) -> None:
    doomed = machine.share(memory_bytes=64 * MIB, core=40)
    killer = machine.start(KILLER.format(kills=count), doomed)
    witness = machine.start(WITNESS, machine.share(memory_bytes=64 * MIB, core=40))
    begin(killer, witness)
    killer.communicate()
    longest = float(witness.communicate("stop\n")[0])
    left = machine.start(WHOLE.format(size=64 * MIB), doomed).communicate()[0]
    show(f"{count:,} kills: longest delay of another", longest * 1000, "ms", goal=1000, peer="semaphores: for ever")
    show(f"{count:,} kills: memory left behind", float(json.loads(left) != 0) * 64, "MiB", goal=0)


def main() -> None:
    quick = "--quick" in sys.argv
    build = NATIVE.parents[2] / "native" / "build.py"
    subprocess.run([sys.executable, build, *LIBRARIES, *(f"limiter/{name}" for name in LIBRARIES)], check=True)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder))
        one_tenant(machine, quick)
        two_tenants(machine, quick)
        kills(machine, 500 if quick else 10_000)


if __name__ == "__main__":
    main()

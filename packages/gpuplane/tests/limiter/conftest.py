"""A machine with simulated GPUs, shares of them, and programs that run in a share as the product starts them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpulab.light.gpus import SimulatedGPUs
from gpuplane.limits.arbiter import Arbiter
from gpuplane.limits.facts import GpuLimit, Limits, Owner
from gpuplane.limits.injection import LIMITER
from gpuplane.limits.store import ShareStore
from simgpu import NATIVE, PROFILES, Faults, create_state

ROOT = Path(__file__).resolve().parents[4]
LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "limiter/libcuda.so.1",
    "limiter/libnvidia-ml.so.1",
    "limiter/arbiter",
)
MIB, GIB = 1 << 20, 1 << 30

# The beginning of these tests' programs.
PRELUDE = """
import ctypes, json, os, signal, sys, time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
MIB, GIB = 1 << 20, 1 << 30
cuda = ctypes.CDLL("libcuda.so.1")

def code_of(name, *arguments):
    return getattr(cuda, name)(*arguments)

def call(name, *arguments):
    code = code_of(name, *arguments)
    assert code == 0, f"{name}: {code}"

def context(ordinal=0):
    call("cuInit", 0)
    handle = c_void_p()
    call("cuCtxCreate_v2", byref(handle), 0, ordinal)
    return handle

def allocate(size):
    address = c_uint64()
    code = code_of("cuMemAlloc_v2", byref(address), c_size_t(size))
    return address if code == 0 else code

def info():
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value

def free():
    return info()[0]

# A kernel that takes the time it says, and no work of the processor that plays the GPU.
def kernel(microseconds):
    ptx = '.version 7.0 .target sm_35 .address_size 64 .visible .entry k() { .pragma "simgpu.time_ns %d"; ret; }'
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), (ptx % int(microseconds * 1000)).encode())
    call("cuModuleGetFunction", byref(function), module, b"k")
    return function

def launch(function, stream=None):
    return code_of("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

def ready():
    print(json.dumps("ready"), flush=True)
    return sys.stdin.readline()

def answer(value):
    print(json.dumps(value), flush=True)
"""


class Machine:
    """A machine with the GPUs of a profile, and the shares of them."""

    def __init__(self, root: Path, profile: str = "1x-t4") -> None:
        self.dev = root / "dev"
        self.dev.mkdir(parents=True)
        self.state = self.dev / "nvidiactl"
        create_state(self.state, PROFILES[profile], "570.133.20", root.name)
        for index in range(PROFILES[profile].count):
            (self.dev / f"nvidia{index}").touch()
        # The limiter's libraries first, and the driver's under the names by which they need them.
        self.libraries = root / "lib"
        self.libraries.mkdir()
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (self.libraries / name).symlink_to(LIMITER / name)
            (self.libraries / name.replace(".1", ".gpuplane-real")).symlink_to(NATIVE / name)
        self.store = ShareStore(root / "limits")
        self.uuids = [gpu.uuid for gpu in SimulatedGPUs(PROFILES[profile], root.name).inventory()]
        self.arbiter = Arbiter(self.store)
        self._children: list[subprocess.Popen[str]] = []

    def share(self, name: str, *gpus: GpuLimit, fail_open: bool = False, **limits: Any) -> dict[str, str]:
        """Make or resize a share, of the first GPU by default; return its programs' variables."""
        wanted = Limits(gpus or (GpuLimit(uuid=self.uuids[0], **limits),), fail_open)
        self.arbiter.keep()
        directory = self.store.write(name, wanted, Owner(name=name))
        return {"GPUPLANE_LIMITS": str(directory), "LD_LIBRARY_PATH": str(self.libraries)}

    def without_limiter(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(NATIVE)}

    def start(self, program: str, variables: dict[str, str], **more: str) -> subprocess.Popen[str]:
        return self.execute([sys.executable, "-c", f"{PRELUDE}\n{textwrap.dedent(program)}"], variables | more)

    def execute(self, command: Sequence[str | Path], variables: dict[str, str]) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            command,
            env=os.environ | {"SIMGPU_DEV": str(self.dev)} | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    def run(self, program: str, variables: dict[str, str], **more: str) -> Any:
        """Runs a program to its end; returns what it gave to `answer`."""
        child = self.start(program, variables, **more)
        output, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
        return json.loads(output.splitlines()[-1]) if output else None

    def held(self, name: str) -> int:
        """Return the memory of the first GPU that the processes of a share hold, as the ledger counts it."""
        return sum(slot.gpus[0].memory_bytes for slot in self.store.read(name).slots)

    def faults(self) -> Faults:
        return Faults(self.state)

    def close(self) -> None:
        self.arbiter.close()
        for child in self._children:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


def answers_of_all(children: Mapping[str, subprocess.Popen[str]]) -> dict[str, Any]:
    """Let programs that have called `ready` go on at one moment; return what each gave to `answer` in the end."""
    for child in children.values():
        assert child.stdout and child.stderr and child.stdin
        assert child.stdout.readline(), child.stderr.read()
    for child in children.values():
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = {name: child.communicate(timeout=60) for name, child in children.items()}
    for name, (output, errors) in outputs.items():
        assert output, f"{name}: {errors}"
    return {name: json.loads(output.splitlines()[-1]) for name, (output, _) in outputs.items()}


@pytest.fixture(scope="session", autouse=True)
def native() -> Path:
    """The libraries, compiled if they are not."""
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), *LIBRARIES], check=True)
    return NATIVE


@pytest.fixture(scope="session")
def machine_type(native: Path) -> type[Machine]:
    """For fixtures that live longer than one test."""
    return Machine


@pytest.fixture
def make_machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(profile: str = "1x-t4", name: str = "machine") -> Machine:
        made.append(Machine(tmp_path / name, profile))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


@pytest.fixture
def machine(make_machine: Callable[..., Machine]) -> Machine:
    return make_machine()

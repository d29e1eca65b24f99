"""A simulated node to run programs on, and the driver API in this process for what needs many calls."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from simgpu import NATIVE, PROFILES, Faults, create_state
from tests.support.gpu_programs import SPIN

ROOT = Path(__file__).resolve().parents[4]

# The beginning of these tests' programs: calls that check their result.
PRELUDE = """
import ctypes, json, os, sys
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
cuda = ctypes.CDLL("libcuda.so.1")

def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"

def code_of(name, *arguments):
    return getattr(cuda, name)(*arguments)

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

def kernel(ptx, name):
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), ptx.encode())
    call("cuModuleGetFunction", byref(function), module, name.encode())
    return function

def launch(function, *values, grid=1, block=1, stream=None):
    holders = [value if isinstance(value, ctypes._SimpleCData) else c_uint64(value) for value in values]
    pointers = (c_void_p * max(len(holders), 1))(*(ctypes.addressof(holder) for holder in holders))
    return code_of("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream, pointers, None)

def answer(value):
    print(json.dumps(value), flush=True)
"""


class Node:
    """A node's device directory with the GPUs of a profile."""

    def __init__(self, path: Path, profile: str = "1x-t4") -> None:
        self.dev = path / "dev"
        self.dev.mkdir(parents=True)
        self.state = self.dev / "nvidiactl"
        create_state(self.state, PROFILES[profile], "570.133.20", path.name)
        for index in range(PROFILES[profile].count):
            (self.dev / f"nvidia{index}").touch()
        self._children: list[subprocess.Popen[str]] = []

    def environment(self, **more: str) -> dict[str, str]:
        return os.environ | {"SIMGPU_DEV": str(self.dev), "LD_LIBRARY_PATH": str(NATIVE)} | more

    def start(self, program: str, *, within: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
        """Starts a program; `within` is a command that runs it."""
        text = f"{PRELUDE}\nSPIN = '''{SPIN}'''\n{textwrap.dedent(program)}"
        child = subprocess.Popen(
            [*within, sys.executable, "-c", text],
            env=self.environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    def run(self, program: str, **environment: str) -> Any:
        """Runs a program to its end; returns what it gave to `answer`."""
        child = self.start(program, **environment)
        output, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
        return json.loads(output) if output else None

    def faults(self) -> Faults:
        return Faults(self.state)

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


@pytest.fixture(scope="session", autouse=True)
def native() -> Path:
    """The libraries, compiled if they are not."""
    subprocess.run(
        [sys.executable, str(ROOT / "native" / "build.py"), "libcuda.so.1", "libnvidia-ml.so.1", "nvidia-smi"],
        check=True,
    )
    return NATIVE


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(profile: str = "1x-t4", name: str = "node") -> Node:
        made.append(Node(tmp_path / name, profile))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()


class Gpu:
    """The driver API in this process, on a node of its own: contexts come and go, the library stays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._context = ctypes.c_void_p()

    def call(self, name: str, *arguments: object) -> int:
        code: int = getattr(self.library, name)(*arguments)
        return code

    def renew(self) -> None:
        """A context that nothing has broken."""
        if self._context:
            self.call("cuCtxDestroy_v2", self._context)
        assert self.call("cuCtxCreate_v2", ctypes.byref(self._context), 0, 0) == 0

    def load(self, ptx: str | bytes) -> tuple[int, ctypes.c_void_p, str]:
        """Result, module and the compiler's log."""
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(300)
        options = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        image = ptx.encode() if isinstance(ptx, str) else ptx
        code = self.call("cuModuleLoadDataEx", ctypes.byref(module), image, 2, options, values)
        return code, module, log.value.decode(errors="replace")

    def launch(
        self,
        module: ctypes.c_void_p,
        name: str,
        values: Sequence[Any],
        grid: int = 1,
        block: int = 1,
        shared: int = 0,
    ) -> int:
        """Runs a kernel; returns the result of the launch, or of waiting for it."""
        function = ctypes.c_void_p()
        code = self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if code:
            return code
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        return self.call(
            "cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, pointers, None
        ) or self.call("cuCtxSynchronize")

    def compute(self, ptx: str, inputs: bytes, output_size: int, block: int = 1, grid: int = 1) -> bytes:
        """Runs the kernel `k(in, out)` of a module."""
        code, module, log = self.load(ptx)
        assert code == 0, log
        source, target = ctypes.c_uint64(), ctypes.c_uint64()
        for address, size in ((source, len(inputs)), (target, output_size)):
            assert self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size)) == 0
        assert self.call("cuMemcpyHtoD_v2", source, inputs, ctypes.c_size_t(len(inputs))) == 0
        assert self.launch(module, "k", (source, target), grid, block) == 0
        result = ctypes.create_string_buffer(output_size)
        assert self.call("cuMemcpyDtoH_v2", result, target, ctypes.c_size_t(output_size)) == 0
        for address in (source, target):
            self.call("cuMemFree_v2", address)
        self.call("cuModuleUnload", module)
        return result.raw


@pytest.fixture(scope="session")
def process_gpu(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    """An H100 for this process; it keeps it, since cuInit cannot be undone."""
    node = Node(tmp_path_factory.mktemp("in-process") / "node", "8x-h100")
    before = {name: os.environ.get(name) for name in ("SIMGPU_DEV", "SIMGPU_MAX_INSTRUCTIONS")}
    os.environ |= {"SIMGPU_DEV": str(node.dev), "SIMGPU_MAX_INSTRUCTIONS": "3000000"}
    library = ctypes.CDLL(str(native / "libcuda.so.1"))
    assert library.cuInit(0) == 0
    # The library has read them; programs that later tests of this process start have devices of their own.
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    return Gpu(library)


@pytest.fixture
def gpu(process_gpu: Gpu) -> Gpu:
    process_gpu.renew()
    return process_gpu

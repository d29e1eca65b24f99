"""A machine with one simulated T4 whose NVML this process reads, and programs on it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.hardware import GPUFacts, GPUSource, open_gpus
from gpuplane.limits.store import ShareStore
from simgpu import NATIVE, PROFILES, create_state

ROOT = Path(__file__).resolve().parents[4]
PRELUDE = """
import ctypes, sys
from ctypes import byref, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
def context():
    call("cuInit", 0)
    call("cuCtxCreate_v2", byref(c_void_p()), 0, 0)
def allocate(size):
    call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(size))
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


class Machine:
    """`gpus` is NVML; `start` runs a program without the limiter, as one that got round it does."""

    def __init__(self, root: Path, profile: str = "1x-t4") -> None:
        self.dev = root / "dev"
        self.dev.mkdir(parents=True)
        libraries = root / "usr/lib64"
        libraries.mkdir(parents=True)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (libraries / name).symlink_to(NATIVE / name)
        create_state(self.dev / "nvidiactl", PROFILES[profile], "570.133.20", root.name)
        for index in range(PROFILES[profile].count):
            (self.dev / f"nvidia{index}").touch()
        os.environ["SIMGPU_DEV"] = str(self.dev)
        self.gpus: GPUSource = open_gpus(root)
        self.store = ShareStore(root / "limits")
        self._children: list[subprocess.Popen[str]] = []

    @property
    def gpu(self) -> GPUFacts:
        return self.gpus.inventory()[0]

    def start(self, program: str, **environment: str) -> subprocess.Popen[str]:
        """Returns when the program has said that it is ready."""
        child = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
            env=os.environ | {"SIMGPU_DEV": str(self.dev), "LD_LIBRARY_PATH": str(NATIVE)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def close(self) -> None:
        self.gpus.close()
        for child in self._children:
            child.kill()
            child.communicate()


@pytest.fixture(scope="session")
def native() -> Path:
    """The simulated driver, compiled if it is not."""
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), "libcuda.so.1", "libnvidia-ml.so.1"], check=True)
    return NATIVE


@pytest.fixture
def machine(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("SIMGPU_DEV", str(tmp_path))  # given back afterwards
    made = Machine(tmp_path / "machine")
    yield made
    made.close()

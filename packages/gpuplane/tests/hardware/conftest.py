"""A driver root with the simulated NVML, and sources opened on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuplane.hardware import GPUSource, open_gpus
from simgpu import NATIVE, PROFILES, Faults, create_state

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session", autouse=True)
def native() -> Path:
    """The libraries, compiled if they are not."""
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), "libcuda.so.1", "libnvidia-ml.so.1"], check=True)
    return NATIVE


class Machine:
    """A machine whose driver is installed below `root`; `open` gives its GPUs through NVML."""

    def __init__(self, root: Path, profile: str) -> None:
        self.root, self.profile, self.dev = root, PROFILES[profile], root / "dev"
        libraries = root / "usr/lib/x86_64-linux-gnu"
        libraries.mkdir(parents=True)
        (libraries / "libnvidia-ml.so.1").symlink_to(NATIVE / "libnvidia-ml.so.1")
        self.dev.mkdir()
        create_state(self.dev / "nvidiactl", self.profile, "570.133.20", root.name)
        for index in range(self.profile.count):
            (self.dev / f"nvidia{index}").touch()
        self._sources: list[GPUSource] = []

    def open(self) -> GPUSource:
        os.environ["SIMGPU_DEV"] = str(self.dev)  # this process has the library of the first machine
        self._sources.append(open_gpus(self.root))
        return self._sources[-1]

    def faults(self) -> Faults:
        return Faults(self.dev / "nvidiactl")

    def program(self, text: str) -> subprocess.Popen[str]:
        """A Python program that uses this machine's GPUs."""
        environment = os.environ | {"SIMGPU_DEV": str(self.dev), "LD_LIBRARY_PATH": str(NATIVE)}
        return subprocess.Popen(
            [sys.executable, "-c", text], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        for source in self._sources:
            source.close()


@pytest.fixture
def make_machine(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    made: list[Machine] = []
    before = os.environ.get("SIMGPU_DEV")

    def make(profile: str) -> Machine:
        made.append(Machine(tmp_path / f"machine-{len(made)}", profile))
        return made[-1]

    yield make
    for machine in made:
        machine.close()
    if before is None:
        os.environ.pop("SIMGPU_DEV", None)
    else:
        os.environ["SIMGPU_DEV"] = before

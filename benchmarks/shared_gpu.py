"""Simulated machines with shares of their GPU, and C programs that run in them: for the limiter's benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpulab.light.gpus import SimulatedGPUs
from gpuplane.limits.arbiter import Arbiter
from gpuplane.limits.facts import GpuLimit, Limits, Owner
from gpuplane.limits.injection import LIMITER
from gpuplane.limits.store import ShareStore
from simgpu import NATIVE, PROFILES, create_state

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
MIB = 1 << 20


def build_libraries() -> None:
    """The simulated driver and the limiter, if they are out of date."""
    names = [*LIBRARIES, *(f"limiter/{name}" for name in (*LIBRARIES, "arbiter"))]
    subprocess.run([sys.executable, ROOT / "native" / "build.py", *names], check=True)


def compiled(source: Path, output: Path, *flags: str) -> Path:
    compiler = os.environ.get("CC", f"{sys.executable} -m ziglang cc").split()
    options = ["-std=gnu11", "-O2", "-w", "-fno-sanitize=all", *flags, "-o", str(output), str(source), "-ldl"]
    subprocess.run([*compiler, *options], check=True)
    return output


class Machine:
    """A machine with one simulated T4, whose time line is exact."""

    def __init__(self, root: Path) -> None:
        self.root = root
        profile = PROFILES["1x-t4"]
        (root / "dev").mkdir(parents=True)
        (root / "lib").mkdir()
        create_state(root / "dev" / "nvidiactl", profile, "570.133.20", "bench")
        (root / "dev" / "nvidia0").touch()
        for name in LIBRARIES:
            (root / "lib" / name).symlink_to(LIMITER / name)
            (root / "lib" / name.replace(".1", ".gpuplane-real")).symlink_to(NATIVE / name)
        self.uuid = SimulatedGPUs(profile, "bench").inventory()[0].uuid
        self.store = ShareStore(root / "limits")
        self.arbiter = Arbiter(self.store)  # it ends with this process

    def share(self, name: str, **limits: object) -> Path:
        """Make a share of the GPU, or resize it while programs run in it."""
        self.arbiter.keep()
        wanted = Limits((GpuLimit(uuid=self.uuid, **limits),))  # type: ignore[arg-type]
        return self.store.write(name, wanted, Owner(name=name))

    def start(self, command: Sequence[str | Path], share: Path | None) -> subprocess.Popen[str]:
        """A program in a share; without one it is on the driver itself."""
        environment = {"SIMGPU_DEV": str(self.root / "dev"), "LD_LIBRARY_PATH": str(NATIVE)}
        if share is not None:
            environment |= {"LD_LIBRARY_PATH": str(self.root / "lib"), "GPUPLANE_LIMITS": str(share)}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=os.environ | environment, stdin=pipe, stdout=pipe, text=True)

    def answer(self, command: Sequence[str | Path], share: Path | None = None) -> str:
        output, _ = self.start(command, share).communicate()
        return output.strip()


def begin(*children: subprocess.Popen[str]) -> None:
    """Wait until all say that they are ready, then tell them to go."""
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()

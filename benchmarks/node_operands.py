"""Measures the operands of one node: the choice of GPUs, the vectorAdd.

    python benchmarks/node_operands.py

A machine with 8 simulated H100 in a temporary directory; no cluster. A scrape is in exporter.py, memory in
operand_memory.py.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simgpu import NATIVE, PROFILES, create_state

LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROFILE = PROFILES["8x-h100"]


def machine(root: Path) -> None:
    """A node's root with the simulated driver loaded."""
    (root / "dev").mkdir()
    (root / LIBRARIES).mkdir(parents=True)
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        shutil.copy(NATIVE / name, root / LIBRARIES / name)
    create_state(root / "dev/nvidiactl", PROFILE, "570.133.20", "bench")
    for index in range(PROFILE.count):
        (root / f"dev/nvidia{index}").touch()


def median_ms(work: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def choice() -> None:
    """8 of 16 GPUs, two sockets, pairs on a switch: the first choice makes the node's sums."""
    from gpuplane.device_plugin.allocation.topology import TopologyChooser

    def near(a: int, b: int) -> int:
        return 0 if a == b else 5 if a // 2 == b // 2 else 3 if a // 8 == b // 8 else 1

    ids = [f"GPU-{i}" for i in range(16)]
    chooser = TopologyChooser(ids, [[near(a, b) for b in range(16)] for a in range(16)])
    first = median_ms(lambda: chooser.choose(ids, [], 8), 1)
    print(f"preferred allocation, 8 of 16 GPUs    {median_ms(lambda: chooser.choose(ids, [], 8), 20):7.1f} ms")
    print(f"  the node's first one                {first:7.1f} ms")


def vector_add(root: Path) -> None:
    env = {"LD_LIBRARY_PATH": str(root / LIBRARIES), "SIMGPU_DEV": str(root / "dev")}

    def run(*arguments: str) -> Callable[[], Any]:
        return lambda: subprocess.run([sys.executable, *arguments], env=env, check=True, stdout=subprocess.DEVNULL)

    run("-m", "gpuplane.validator.vectoradd")()  # writes the bytecode
    print(f"vectorAdd, a process on one GPU       {median_ms(run('-m', 'gpuplane.validator.vectoradd'), 9):7.1f} ms")
    print(f"  of that Python's start              {median_ms(run('-c', 'pass'), 9):7.1f} ms")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        machine(Path(directory))
        choice()
        vector_add(Path(directory))


if __name__ == "__main__":
    main()

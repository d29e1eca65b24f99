"""What the operands of one node cost: the choice of GPUs, a scrape, the vectorAdd, resident memory.

    python benchmarks/node_operands.py

A machine with 8 simulated H100 in a temporary directory; no cluster. Memory is that of one operand in a process of
its own, after it has begun to work: resident (all pages it uses) and proportional (pages shared with other processes
counted in part).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpuplane
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.meta import ObjectMeta
from gpuplane.host import Host
from gpuplane.operand import OperandContext
from gpuplane.simulator.gpus import PROFILES, create_state

NATIVE = Path(gpuplane.__file__).parent / "_native"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROFILE = PROFILES["8x-h100"]
PORT = 19400


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
    from gpuplane.device_plugin.preference import Chooser

    def near(a: int, b: int) -> int:
        return 0 if a == b else 5 if a // 2 == b // 2 else 3 if a // 8 == b // 8 else 1

    ids = [f"GPU-{i}" for i in range(16)]
    chooser = Chooser(ids, [[near(a, b) for b in range(16)] for a in range(16)])
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


class Nobody:
    """An API server without opinions."""

    async def get(self, kind: type, name: str) -> GPUNode:
        return GPUNode(metadata=ObjectMeta(name=name))


async def operand(name: str, root: Path) -> None:
    """Run one operand until it works, then print what it holds. The child of `memory`."""
    from gpuplane.hardware import open_gpus

    logging.disable(logging.WARNING)  # there is no kubelet, as it says
    context = OperandContext(
        node_name="bench",
        namespace="gpu-operator",
        client=Nobody(),  # type: ignore[arg-type]  # the two calls that are made here
        now=lambda: "",
        host_root=root,
        kubelet_dir=root / "var/lib/kubelet",
        address="127.0.0.1",
        port=PORT,
        open_gpus=lambda: open_gpus(root, root / "dev"),
        sleep=asyncio.sleep,
    )
    if name == "device-plugin":
        from gpuplane.device_plugin import run

        task = asyncio.create_task(run(context))
        socket = "var/lib/kubelet/device-plugins/nvidia-gpu.sock"
        async for _ in Host(root).watch(socket):
            if Host(root).exists(socket):
                break
    else:
        from gpuplane.exporter import run

        task = asyncio.create_task(run(context))
        times = [await scrape() for _ in range(20)]
        print(f"scrape of {PROFILE.count} GPUs                      {statistics.median(times) * 1000:7.1f} ms")
    held = Path("/proc/self/smaps_rollup").read_text().split()
    resident, shared = (int(held[held.index(key) + 1]) / 1024 for key in ("Rss:", "Pss:"))
    print(f"{name + ', resident':38}{resident:7.1f} MB")
    print(f"{name + ', proportional':38}{shared:7.1f} MB")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def scrape() -> float:
    """Seconds that one GET of /metrics takes; waits for the port to open."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    start = time.perf_counter()
    writer.write(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    return time.perf_counter() - start


def main() -> None:
    if len(sys.argv) > 2:
        asyncio.run(operand(sys.argv[1], Path(sys.argv[2])))
        return
    with tempfile.TemporaryDirectory() as directory:
        machine(Path(directory))
        choice()
        vector_add(Path(directory))
        for name in ("exporter", "device-plugin"):
            for out in (subprocess.DEVNULL, None):  # the first one writes the bytecode
                command = [sys.executable, __file__, name, directory]
                subprocess.run(command, check=True, stdout=out)


if __name__ == "__main__":
    main()

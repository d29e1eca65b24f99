"""The parts of gpuplane that look at a GPU: NVML, vectorAdd, discovery, exporter, CDI specification, MIG.

    python -m tests.gpu.parts

It runs as a program of its own, as on a node, and prints a line of JSON for each figure.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpuplane.api.pluginconfig import parse
from gpuplane.discovery import GpuFacts, gpu_labels
from gpuplane.discovery.gpu_config import gpu_config
from gpuplane.exporter import run
from gpuplane.hardware import open_gpus
from gpuplane.operand import OperandContext
from tests.gpu.findings import Finding

INVENTORY_MS: Final = 100.0  # of NVML, for each GPU
LOADED: Final = Path("/proc/driver/nvidia/version")


def nvml() -> Iterator[Finding]:
    """Compare NVML's answers with the machine, and measure how long they take."""
    gpus = open_gpus()
    found = gpus.inventory()
    began = time.perf_counter()
    gpus.inventory()
    took = 1e3 * (time.perf_counter() - began)
    yield Finding("machine", "model", found[0].model)
    yield Finding("machine", "driver", gpus.driver_version())
    yield Finding("machine", "memory", found[0].memory_bytes >> 20, "MiB")
    yield Finding("NVML", "GPUs", len(found), "", 1)
    yield Finding("NVML", "an inventory", took, "ms", None, INVENTORY_MS * len(found))
    yield Finding("MIG", "mode of the first GPU", found[0].mig.value or "not supported")
    gpus.close()


def vectoradd() -> Iterator[Finding]:
    """The validation workload, as its pod runs it."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "gpuplane.validator.vectoradd"], capture_output=True, text=True)
    passed = "Test PASSED" in done.stdout
    yield Finding("validator", "vectorAdd passed", float(passed), "", 1, 1)
    yield Finding("validator", "vectorAdd", time.perf_counter() - began, "s", None, 30)


def labels() -> Iterator[Finding]:
    """The labels of the GPUs, as discovery writes them on a Node."""
    gpus = open_gpus()
    facts = GpuFacts(driver=gpus.driver_version(), cuda=gpus.cuda_version(), gpus=gpus.inventory(), machine="")
    gpus.close()
    found = gpu_labels(facts, gpu_config(parse({})))
    for name in ("product", "count", "memory", "compute.major", "family"):
        value = found.get(f"nvidia.com/gpu.{name}", "")
        yield Finding("discovery", f"gpu.{name} is known", float(bool(value)), "", 1)


def exporter() -> Iterator[Finding]:
    """A scrape of this machine's metrics."""

    async def scraped() -> tuple[bytes, float]:
        with tempfile.TemporaryDirectory() as kubelet:
            context = OperandContext(
                node_name="test-gpu",
                namespace="gpu-operator",
                client=None,  # type: ignore[arg-type]  # the exporter asks the cluster nothing
                now=lambda: "",
                host_root=Path("/"),
                kubelet_dir=Path(kubelet),
                address="127.0.0.1",
                port=19401,
                open_gpus=open_gpus,
                sleep=asyncio.sleep,
            )
            task = asyncio.create_task(run(context))
            try:
                async with asyncio.timeout(30):
                    await scrape()
                    began = time.perf_counter()
                    return await scrape(), time.perf_counter() - began
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    text, seconds = asyncio.run(scraped())
    for metric in (
        b"DCGM_FI_DEV_GPU_UTIL",
        b"DCGM_FI_DEV_FB_USED",
        b"DCGM_FI_DEV_POWER_USAGE",
        b"DCGM_FI_DEV_GPU_TEMP",
    ):
        yield Finding("exporter", f"{metric.decode()} is there", float(metric in text), "", 1)
    yield Finding("exporter", "a scrape", 1e3 * seconds, "ms", None, 100)


async def scrape() -> bytes:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", 19401)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    writer.write(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


def cdi() -> Iterator[Finding]:
    """The CDI specification: all that it names is there, and libcuda is mounted."""
    if not LOADED.exists():
        yield Finding("CDI", "the specification", "no driver in this kernel")
        return
    words = [sys.executable, "-m", "gpuplane", "toolkit", "cdi", "--format", "json", "-q"]
    spec = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    paths = [mount["hostPath"] for one in edits for mount in one.get("mounts", ())]
    paths += [node.get("hostPath", node["path"]) for one in edits for node in one.get("deviceNodes", ())]
    missing = [path for path in paths if not Path(path).exists()]
    yield Finding("CDI", "paths that do not exist", len(missing), "", None, 0)
    yield Finding("CDI", "libcuda is mounted", float(any("libcuda.so." in path for path in paths)), "", 1)
    yield Finding("CDI", "devices", len(spec["devices"]), "", 1)


PARTS: Final[tuple[Callable[[], Iterator[Finding]], ...]] = (nvml, vectoradd, labels, exporter, cdi)


def main() -> None:
    logging.disable(logging.ERROR)
    for part in PARTS:
        try:
            for finding in part():
                sys.stdout.write(json.dumps(finding) + "\n")
        except Exception as error:  # the other parts are measured all the same
            sys.stdout.write(json.dumps({"part": part.__name__, "what": repr(error)[:300]}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

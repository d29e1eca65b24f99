"""From NVML's answers about pairs of GPUs to links and to the matrix people know from `nvidia-smi topo -m`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuplane.api.gpunode import Link
from gpuplane.hardware.facts import GPUFacts, GPUTopology

# nvmlGpuTopologyLevel_t -> the word of nvidia-smi.
LEVELS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def link(gpu: int, level: int, lanes: int) -> Link:
    """The path to GPU `gpu`: NVLink when there are lanes, else the common ancestor on PCIe."""
    if lanes:
        return Link(gpu=gpu, type="NVL", lanes=lanes)
    return Link(gpu=gpu, type=LEVELS.get(level, "SYS"))


def matrix(gpus: Sequence[GPUFacts]) -> GPUTopology:
    """The whole matrix of a node's GPUs, "NV<lanes>" for NVLink."""
    position = {gpu.index: column for column, gpu in enumerate(gpus)}
    rows: list[tuple[str, ...]] = []
    for gpu in gpus:
        row = ["X"] * len(gpus)
        for path in gpu.links:
            row[position[path.gpu]] = f"NV{path.lanes}" if path.type == "NVL" else path.type
        rows.append(tuple(row))
    return GPUTopology(
        uuids=tuple(gpu.uuid for gpu in gpus),
        matrix=tuple(rows),
        numa=tuple(gpu.numa for gpu in gpus),
        cpus=tuple(gpu.cpus for gpu in gpus),
    )


def cpu_list(words: Sequence[int]) -> str:
    """A CPU mask of 64-bit words, lowest first, as a list: "0-23,48-71"."""
    cpus = [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    parts: list[str] = []
    start = previous = -2
    for cpu in [*cpus, -1]:
        if cpu == previous + 1:
            previous = cpu
            continue
        if previous >= 0:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = cpu
    return ",".join(parts)

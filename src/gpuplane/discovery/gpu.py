"""From what NVML says to the labels of GPU feature discovery.

Pure, and equal to what NVIDIA's GPU feature discovery gives for the same hardware without sharing and with MIG strategy
`none`, in the old names (cuda.driver.major) and the new (cuda.driver-version.major). One thing differs on purpose: with
GPUs of several models on a node, theirs labels one of them at random; here it is the most frequent, then the first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from gpuplane.discovery.vgpu import VirtualGPU
from gpuplane.hardware import GPU, MigMode

PREFIX = "nvidia.com/"
TIMESTAMP_LABEL = PREFIX + "gfd.timestamp"
# All that is made here; the operator's own nvidia.com/gpu.present and gpu.deploy.* are not.
GPU_LABELS = frozenset(
    PREFIX + name
    for name in (
        *(f"cuda.driver-version.{part}" for part in ("major", "minor", "revision", "full")),
        *(f"cuda.runtime-version.{part}" for part in ("major", "minor", "full")),
        *(f"cuda.driver.{part}" for part in ("major", "minor", "rev")),
        *(f"cuda.runtime.{part}" for part in ("major", "minor")),
        *(f"gpu.{part}" for part in ("machine", "count", "replicas", "sharing-strategy", "product", "memory")),
        *(f"gpu.{part}" for part in ("family", "compute.major", "compute.minor", "mode")),
        *("gfd.timestamp", "mig.capable", "mps.capable", "vgpu.present"),
        *("vgpu.host-driver-version", "vgpu.host-driver-branch"),
    )
)
_MODES = {"0x0300": "graphics", "0x0302": "compute"}


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the labels follow from. `classes` and `vgpus` are by PCI address, as sysfs spells class and address."""

    driver: str
    cuda: tuple[int, int]
    gpus: tuple[GPU, ...]
    machine: str = ""
    classes: Mapping[str, str] = {}
    vgpus: Sequence[VirtualGPU] = ()


def is_gpu_label(label: str) -> bool:
    """Whether a label is one of those made here."""
    return label in GPU_LABELS


def gpu_labels(facts: GpuFacts) -> dict[str, str]:
    """The labels of a node's GPUs, without the timestamp; none when there is no GPU."""
    if not facts.gpus:
        return {}
    labels = {**_versions(facts), **_product(facts.gpus)}
    labels["gpu.machine"] = _sanitised(facts.machine) or "unknown"
    labels["gpu.mode"] = _mode(facts)
    labels["mig.capable"] = _boolean(any(gpu.mig is not MigMode.UNSUPPORTED for gpu in facts.gpus))
    labels["mps.capable"] = "false"
    labels["vgpu.present"] = _boolean(bool(facts.vgpus))
    if facts.vgpus:
        labels["vgpu.host-driver-version"] = facts.vgpus[-1].host_driver
        labels["vgpu.host-driver-branch"] = facts.vgpus[-1].host_branch
    return {PREFIX + name: labels[name] for name in sorted(labels)}


def _versions(facts: GpuFacts) -> dict[str, str]:
    major, minor, revision = [*facts.driver.split("."), "", ""][:3]
    runtime_major, runtime_minor = (str(part) for part in facts.cuda)
    return {
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": facts.driver,
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime-version.major": runtime_major,
        "cuda.runtime-version.minor": runtime_minor,
        "cuda.runtime-version.full": f"{runtime_major}.{runtime_minor}",
        "cuda.runtime.major": runtime_major,
        "cuda.runtime.minor": runtime_minor,
    }


def _product(gpus: tuple[GPU, ...]) -> dict[str, str]:
    """Model, count, memory and architecture of the GPUs that are offered whole, or else of those split by MIG."""
    whole = [gpu for gpu in gpus if gpu.mig is not MigMode.ENABLED]
    first = {gpu.name: gpu for gpu in reversed(whole or gpus)}
    model = max(first, key=lambda name: (sum(gpu.name == name for gpu in whole or gpus), -first[name].index))
    gpu = first[model]
    labels = {
        "gpu.product": _sanitised(model),
        "gpu.count": str(Counter(g.name for g in gpus)[model]),
        "gpu.replicas": "1" if whole else "0",
        "gpu.sharing-strategy": "none",
    }
    if gpu.memory_bytes:
        labels["gpu.memory"] = str(gpu.memory_bytes >> 20)
    if gpu.compute[0]:
        labels["gpu.family"] = gpu.family
        labels["gpu.compute.major"], labels["gpu.compute.minor"] = (str(part) for part in gpu.compute)
    return labels


def _mode(facts: GpuFacts) -> str:
    classes = {facts.classes.get(gpu.pci, "")[:6] for gpu in facts.gpus}
    return _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown"


def _sanitised(text: str) -> str:
    """Spaces to dashes, and out with what no label may have."""
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", text).split())


def _boolean(value: bool) -> str:
    return "true" if value else "false"

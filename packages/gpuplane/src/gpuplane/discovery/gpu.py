"""From what NVML says to the labels of GPU feature discovery.

Pure, and equal to what NVIDIA's GPU feature discovery gives for the same hardware and the same configuration: whole and
shared GPUs, MIG strategies none, single and mixed, in the old names (cuda.driver.major) and the new
(cuda.driver-version.major). One thing differs on purpose: with GPUs of several models on a node, theirs labels one of
them at random; here it is the most frequent, then the first. In addition there is the model label of Kubernetes 1.6.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.discovery.gpu_config import GpuConfig, MigStrategy, SharingStrategy
from gpuplane.discovery.vgpu import VirtualGPU
from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from gpuplane.names import ALPHA_GPU_NAME_LABEL, GPU_RESOURCE
from kubekit.api.labels import label_value, strict_label_value

PREFIX = "nvidia.com/"
TIMESTAMP_LABEL = PREFIX + "gfd.timestamp"
_RESOURCE: Final = ("product", "count", "replicas", "sharing-strategy", "memory")
_ATTRIBUTES: Final = {
    "memory": "memory_mib",
    "multiprocessors": "multiprocessors",
    "slices.gi": "gpu_slices",
    "slices.ci": "slices",
    "engines.copy": "copy_engines",
    "engines.decoder": "decoders",
    "engines.encoder": "encoders",
    "engines.jpeg": "jpeg_engines",
    "engines.ofa": "ofa_engines",
}
# All that is made here; the operator's own nvidia.com/gpu.present and gpu.deploy.* are not.
GPU_LABELS = frozenset({ALPHA_GPU_NAME_LABEL}) | frozenset(
    PREFIX + name
    for name in (
        *(f"cuda.driver-version.{part}" for part in ("major", "minor", "revision", "full")),
        *(f"cuda.runtime-version.{part}" for part in ("major", "minor", "full")),
        *(f"cuda.driver.{part}" for part in ("major", "minor", "rev")),
        *(f"cuda.runtime.{part}" for part in ("major", "minor")),
        *(f"gpu.{part}" for part in (*_RESOURCE, *_ATTRIBUTES)),
        *(f"gpu.{part}" for part in ("machine", "family", "compute.major", "compute.minor", "mode", "clique")),
        *("gfd.timestamp", "mig.capable", "mig.strategy", "mps.capable", "vgpu.present"),
        *("vgpu.host-driver-version", "vgpu.host-driver-branch"),
    )
)
_MIG_LABEL: Final = re.compile(r"nvidia\.com/mig-(\d+c\.)?\d+g\.[^/]+\.(product|count|replicas|.*[a-z])")
_MODES: Final = {"0x0300": "graphics", "0x0302": "compute"}


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the labels. `classes` and `vgpus` are by PCI address, as sysfs spells class and address."""

    driver: str
    cuda: tuple[int, int]
    gpus: tuple[GPUFacts, ...]
    machine: str = ""
    classes: Mapping[str, str] = {}
    vgpus: Sequence[VirtualGPU] = ()


def is_gpu_label(label: str) -> bool:
    """Return whether a label is one of those made here."""
    return label in GPU_LABELS or _MIG_LABEL.fullmatch(label) is not None


def gpu_labels(facts: GpuFacts, config: GpuConfig = GpuConfig()) -> dict[str, str]:  # noqa: B008 - frozen
    """The labels of a node's GPUs, without the timestamp; none when there is no GPU."""
    if not facts.gpus:
        return {}
    labels = {**_versions(facts), **_whole(facts.gpus, config), **_mig(facts.gpus, config)}
    labels["gpu.machine"] = label_value(facts.machine) or "unknown"
    labels["gpu.mode"] = _mode(facts)
    labels["mig.capable"] = _boolean(any(gpu.mig is not MigMode.UNSUPPORTED for gpu in facts.gpus))
    by_mps = config.strategy is SharingStrategy.MPS
    labels["mps.capable"] = _boolean(by_mps and all(gpu.mig is not MigMode.ENABLED for gpu in facts.gpus))
    labels["vgpu.present"] = _boolean(bool(facts.vgpus))
    if facts.vgpus:
        labels["vgpu.host-driver-version"] = facts.vgpus[-1].host_driver
        labels["vgpu.host-driver-branch"] = facts.vgpus[-1].host_branch
    fabrics = {gpu.fabric for gpu in facts.gpus if gpu.fabric}
    if len(fabrics) == 1:  # GPUs of one node in several fabrics have no common name
        labels["gpu.clique"] = fabrics.pop()
    named = {PREFIX + name: labels[name] for name in sorted(labels)}
    return {ALPHA_GPU_NAME_LABEL: strict_label_value(_model(facts.gpus)), **named}


def _model(gpus: tuple[GPUFacts, ...]) -> str:
    """The most frequent model, then the first, of those that are offered whole or else of all."""
    offered = [gpu for gpu in gpus if gpu.mig is not MigMode.ENABLED] or list(gpus)
    first = {gpu.model: gpu.index for gpu in reversed(offered)}
    return max(first, key=lambda name: (sum(gpu.model == name for gpu in offered), -first[name]))


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


def _whole(gpus: tuple[GPUFacts, ...], config: GpuConfig) -> dict[str, str]:
    """Model, count, memory and architecture of the GPUs that are offered whole, or else of those split by MIG."""
    whole = [gpu for gpu in gpus if gpu.mig is not MigMode.ENABLED]
    model = _model(gpus)
    gpu = next(gpu for gpu in whole or gpus if gpu.model == model)
    count = Counter(each.model for each in gpus)[model]
    labels = _resource("gpu", GPU_RESOURCE, (model,), count, config)
    if not whole:  # nothing is offered under this name, so nothing is shared
        labels |= {"gpu.product": label_value(model), "gpu.replicas": "0", "gpu.sharing-strategy": "none"}
    if gpu.memory_bytes:
        labels["gpu.memory"] = str(gpu.memory_bytes >> 20)
    if gpu.compute[0]:
        labels["gpu.family"] = gpu.family
        labels["gpu.compute.major"], labels["gpu.compute.minor"] = (str(part) for part in gpu.compute)
    return labels


def _mig(gpus: tuple[GPUFacts, ...], config: GpuConfig) -> dict[str, str]:
    """Return the labels of MIG: under the whole GPUs' names with strategy single, under their own with mixed."""
    if config.mig_strategy is MigStrategy.NONE:
        return {}
    labels = {"mig.strategy": config.mig_strategy.value}
    split = [gpu for gpu in gpus if gpu.mig is MigMode.ENABLED]
    kinds: dict[str, list[tuple[GPUFacts, MigDevice]]] = {}
    for gpu in split:
        for device in gpu.mig_devices:
            kinds.setdefault(device.profile.replace("+", "."), []).append((gpu, device))
    single = config.mig_strategy is MigStrategy.SINGLE
    alike = len(split) == len(gpus) and all(gpu.mig_devices for gpu in split) and len(kinds) == 1
    if single and split and not alike:
        return labels | _invalid(split[0])
    for profile, devices in kinds.items():
        prefix = "gpu" if single else f"mig-{profile}"
        gpu, device = devices[0]
        parts = (gpu.model, "MIG", profile)
        labels |= _resource(prefix, GPU_RESOURCE if single else PREFIX + prefix, parts, len(devices), config)
        for label, attribute in _ATTRIBUTES.items():
            labels[f"{prefix}.{label}"] = str(getattr(device, attribute))
    return labels


def _invalid(gpu: GPUFacts) -> dict[str, str]:
    """With strategy single all GPUs have to be split, and all alike; where they are not, nothing is offered."""
    return {
        "gpu.product": f"{label_value(gpu.model)}-MIG-INVALID",
        "gpu.count": "0",
        "gpu.replicas": "0",
        "gpu.sharing-strategy": "",
        "gpu.memory": "0",
    }


def _resource(prefix: str, resource: str, parts: Sequence[str], count: int, config: GpuConfig) -> dict[str, str]:
    """Product, count, replicas and sharing of one resource. `-SHARED` is for what keeps its name though shared."""
    shared = config.replicas(resource) > 1
    suffix = "-SHARED" if shared and not config.renamed(resource) else ""
    return {
        f"{prefix}.product": "-".join(map(label_value, parts)) + suffix,
        f"{prefix}.count": str(count),
        f"{prefix}.replicas": str(config.replicas(resource)),
        f"{prefix}.sharing-strategy": (config.strategy if shared else SharingStrategy.NONE).value,
    }


def _mode(facts: GpuFacts) -> str:
    classes = {facts.classes.get(gpu.pci, "")[:6] for gpu in facts.gpus}
    return _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown"


def _boolean(value: bool) -> str:
    return "true" if value else "false"

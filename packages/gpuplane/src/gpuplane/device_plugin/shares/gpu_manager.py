"""Answers as gpu-manager does: its four metrics, `/usage`, `/graph` and `/version`. Pure.

Utilization is percent of one GPU, memory MiB; what was requested is GPUs and MiB, the sum over a container's GPUs, as
there. Source: tkestack/gpu-manager, pkg/services/display.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.device_plugin.container_lookup import KubeletContainer
from gpuplane.device_plugin.shares.ids import by_gpu
from gpuplane.hardware import GPUFacts
from gpuplane.limits import GpuView
from gpuplane.sharing import WHOLE
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from kubekit.api.core import Pod
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, series

MIB: Final = 1 << 20
METRICS: Final = (
    Metric("container_gpu_utilization", MetricType.GAUGE, "Use of a GPU by a container, percent of the GPU's time."),
    Metric("container_gpu_memory_total", MetricType.GAUGE, "Memory of a GPU that a container uses, MiB."),
    Metric("container_request_gpu_utilization", MetricType.GAUGE, "GPUs that a container requests, 1 for a whole one."),
    Metric("container_request_gpu_memory", MetricType.GAUGE, "Memory of GPUs that a container asked, MiB."),
)
_LAST_LABELS: Final = ("gpu", "gpu_memory", "req_of_gpu", "req_of_gpu_memory")
_TOTAL: Final = "total"


class CoreUse(msgspec.Struct, frozen=True):
    """One GPU of one container: percent of its time, and MiB."""

    gpu: GPUFacts
    percent: float
    memory_mib: float
    pids: tuple[int, ...] = ()


class CoreHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A container with what it asked, in percent of one GPU and MiB, and what it uses of each of its GPUs."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    core: int
    memory_mib: int
    used: tuple[CoreUse, ...] = ()


def holders(
    shown: Iterable[KubeletContainer], pods: Iterable[Pod], gpus: Sequence[GPUFacts], views: Sequence[GpuView]
) -> list[CoreHolder]:
    """The containers that hold core.

    Args:
        views: GPUs with their shares as the agent saw them last. A container of a whole GPU has no share: what the GPU
            does is what it does.
    """
    uids = {(pod.metadata.namespace, pod.metadata.name): pod.metadata.uid for pod in pods}
    found = []
    for one in sorted(shown, key=lambda one: (one.namespace, one.pod, one.container)):
        core = one.ids.get(names.VCUDA_CORE, ())
        if not core:
            continue
        used = [
            _used(gpu, len(mine), one, views) for gpu in gpus for uuid, mine in by_gpu(core).items() if uuid == gpu.uuid
        ]
        found.append(
            CoreHolder(
                namespace=one.namespace,
                pod=one.pod,
                pod_uid=uids.get((one.namespace, one.pod), ""),
                container=one.container,
                core=len(core),
                memory_mib=len(one.ids.get(names.VCUDA_MEMORY, ())) * MEMORY_UNIT_MIB,
                used=tuple(use for use in used if use is not None),
            )
        )
    return found


def _used(gpu: GPUFacts, core: int, one: KubeletContainer, views: Sequence[GpuView]) -> CoreUse | None:
    view = next((view for view in views if view.uuid == gpu.uuid), None)
    if view is None:
        return None
    if core == WHOLE:
        return CoreUse(gpu, float(view.busy_percent or 0), (view.memory_used_bytes or 0) / MIB)
    for share in view.shares:
        if (share.namespace, share.pod, share.container) == (one.namespace, one.pod, one.container):
            return CoreUse(gpu, share.core_percent or 0.0, share.memory_bytes / MIB)
    return CoreUse(gpu, 0.0, 0.0)  # it has only just started


def container_metrics(found: Iterable[CoreHolder], node: str) -> Iterator[MetricFamily]:
    """Yield gpu-manager's metrics."""
    rows: list[list[tuple[Series, float]]] = [[] for _ in METRICS]
    for one in found:
        labels = {"container_name": one.container, "namespace": one.namespace, "node": node, "pod_name": one.pod}

        def row(number: int, last: str, value: float, labels: Mapping[str, str] = labels) -> None:
            all_labels = sorted({**labels, _LAST_LABELS[number]: last}.items())
            rows[number].append((series(dict(all_labels)), value))

        for use in one.used:
            row(0, f"gpu{use.gpu.index}", use.percent)
            row(1, f"gpu{use.gpu.index}", use.memory_mib)
        if one.used:
            row(0, _TOTAL, sum(use.percent for use in one.used))
            row(1, _TOTAL, sum(use.memory_mib for use in one.used))
        row(2, _TOTAL, one.core / WHOLE)
        row(3, _TOTAL, one.memory_mib)
    yield from map(MetricFamily, METRICS, rows)


def usage(found: Iterable[CoreHolder]) -> dict[str, Any]:
    """`/usage`: by the pod's UID what its containers asked and use."""
    pods: dict[str, Any] = {}
    for one in found:
        pod = pods.setdefault(one.pod_uid, {"stat": {}, "project": one.namespace, "spec": {}})
        pod["spec"][one.container] = {"gpu": one.core / WHOLE, "mem": one.memory_mib}
        if one.used:
            devices = [
                {
                    "id": use.gpu.pci,
                    "card_idx": str(use.gpu.index),
                    "gpu": use.percent,
                    "mem": use.memory_mib,
                    "device_mem": use.gpu.memory_bytes / MIB,
                }
                for use in one.used
            ]
            pod["stat"][one.container] = {"dev": devices}
    return {"usage": pods}


def graph(gpus: Sequence[GPUFacts], found: Sequence[CoreHolder]) -> dict[str, str]:
    """`/graph`: the node's GPUs as text, each with what is free and who holds the rest."""
    lines = []
    for gpu in gpus:
        mine = [(one, use) for one in found for use in one.used if use.gpu.uuid == gpu.uuid]
        held = sum(min(one.core, WHOLE) for one, _ in mine)
        lines.append(f"GPU{gpu.index} {gpu.model} {gpu.memory_bytes // MIB} MiB numa {gpu.numa} free {WHOLE - held}%")
        near = ", ".join(f"GPU{link.gpu} {link.type}{link.lanes or ''}" for link in gpu.links)
        if near:
            lines.append(f"  links {near}")
        lines += [
            f"  {min(one.core, WHOLE)}% {one.memory_mib} MiB {one.namespace}/{one.pod}:{one.container}"
            for one, _ in mine
        ]
    return {"graph": "".join(f"{line}\n" for line in lines)}

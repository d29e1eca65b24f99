"""Shares as Prometheus text: a pure function. Source: Prometheus, "Exposition formats", text format 0.0.4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gpuplane.limits.view import GpuView, ShareView


class Metric(NamedTuple):
    name: str
    kind: str
    about: str


class OfShare(NamedTuple):
    metric: Metric
    value: Callable[[ShareView], float | None]


_CORE: Final = "Core that the share used since the last look, percent of the GPU's time."
SHARE_METRICS: Final = (
    OfShare(
        Metric("gpuplane_share_core_limit_percent", "gauge", "Core of the share, percent of the GPU's time."),
        lambda share: share.core_limit or None,
    ),
    OfShare(Metric("gpuplane_share_core_percent", "gauge", _CORE), lambda share: share.core_percent),
    OfShare(
        Metric("gpuplane_share_gpu_seconds_total", "counter", "Time of the GPU that the share used, seconds."),
        lambda share: share.gpu_seconds,
    ),
    OfShare(
        Metric("gpuplane_share_held_back_seconds_total", "counter", "Time that its launches waited, seconds."),
        lambda share: share.held_back_seconds,
    ),
    OfShare(
        Metric("gpuplane_share_memory_limit_bytes", "gauge", "Memory of the share, bytes."),
        lambda share: share.memory_limit_bytes or None,
    ),
    OfShare(
        Metric("gpuplane_share_memory_bytes", "gauge", "Memory that the share holds, contexts included, bytes."),
        lambda share: share.memory_bytes,
    ),
    OfShare(
        Metric("gpuplane_share_refused_total", "counter", "Allocations that were refused at the limit."),
        lambda share: share.refused,
    ),
    OfShare(
        Metric("gpuplane_share_processes", "gauge", "Processes of the share that use the GPU."),
        lambda share: share.processes,
    ),
)
ESCAPED_PROCESSES: Final = Metric(
    "gpuplane_limits_escaped_processes", "gauge", "Processes on a shared GPU outside every limit."
)
ESCAPED_BYTES: Final = Metric("gpuplane_limits_escaped_bytes", "gauge", "Memory that they hold, bytes.")
METRICS: Final = (*(of_share.metric for of_share in SHARE_METRICS), ESCAPED_PROCESSES, ESCAPED_BYTES)


def exposition(gpus: Sequence[GpuView]) -> str:
    """The metrics of all shares; a limit that a share does not have is left out."""
    lines: list[str] = []
    for metric, value in SHARE_METRICS:
        found = [(_labels(gpu, share), value(share)) for gpu in gpus for share in gpu.shares]
        lines += _metric(metric, [(labels, number) for labels, number in found if number is not None])
    shared = [gpu for gpu in gpus if gpu.shares or gpu.outside]
    lines += _metric(ESCAPED_PROCESSES, [(_gpu_labels(gpu), len(gpu.outside)) for gpu in shared])
    lines += _metric(ESCAPED_BYTES, [(_gpu_labels(gpu), sum(o.memory_bytes for o in gpu.outside)) for gpu in shared])
    return "".join(f"{line}\n" for line in lines)


def _metric(metric: Metric, values: Iterable[tuple[str, float]]) -> list[str]:
    head = [f"# HELP {metric.name} {metric.about}", f"# TYPE {metric.name} {metric.kind}"]
    return head + [f"{metric.name}{{{labels}}} {_number(value)}" for labels, value in values]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")


def _gpu_labels(gpu: GpuView) -> str:
    return f'gpu="{gpu.index}",UUID="{_escaped(gpu.uuid)}"'


def _labels(gpu: GpuView, share: ShareView) -> str:
    who = {"namespace": share.namespace, "pod": share.pod, "container": share.container}
    if not share.pod:
        who = {"share": share.name}
    return ",".join([_gpu_labels(gpu), *(f'{name}="{_escaped(value)}"' for name, value in who.items())])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

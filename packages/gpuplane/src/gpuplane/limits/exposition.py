"""The metrics of shares: a pure function of what the agent saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from gpuplane.limits.view import GpuView, ShareView
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, series

_GAUGE: Final = MetricType.GAUGE
_COUNTER: Final = MetricType.COUNTER


class OfShare(NamedTuple):
    metric: Metric
    value: Callable[[ShareView], float | None]


_CORE: Final = "Core that the share used since the last look, percent of the GPU's time."
SHARE_METRICS: Final = (
    OfShare(
        Metric("gpuplane_share_core_limit_percent", _GAUGE, "Core of the share, percent of the GPU's time."),
        lambda share: share.core_limit or None,
    ),
    OfShare(Metric("gpuplane_share_core_percent", _GAUGE, _CORE), lambda share: share.core_percent),
    OfShare(
        Metric("gpuplane_share_gpu_seconds_total", _COUNTER, "Time of the GPU that the share used, seconds."),
        lambda share: share.gpu_seconds,
    ),
    OfShare(
        Metric("gpuplane_share_held_back_seconds_total", _COUNTER, "Time that its launches waited, seconds."),
        lambda share: share.held_back_seconds,
    ),
    OfShare(
        Metric("gpuplane_share_memory_limit_bytes", _GAUGE, "Memory of the share, bytes."),
        lambda share: share.memory_limit_bytes or None,
    ),
    OfShare(
        Metric("gpuplane_share_memory_bytes", _GAUGE, "Memory that the share holds, contexts included, bytes."),
        lambda share: share.memory_bytes,
    ),
    OfShare(
        Metric("gpuplane_share_refused_total", _COUNTER, "Allocations that were refused at the limit."),
        lambda share: share.refused,
    ),
    OfShare(
        Metric("gpuplane_share_processes", _GAUGE, "Processes of the share that use the GPU."),
        lambda share: share.processes,
    ),
)
ESCAPED_PROCESSES: Final = Metric(
    "gpuplane_limits_escaped_processes", _GAUGE, "Processes on a shared GPU outside every limit."
)
ESCAPED_BYTES: Final = Metric("gpuplane_limits_escaped_bytes", _GAUGE, "Memory that they hold, bytes.")
METRICS: Final = (*(of_share.metric for of_share in SHARE_METRICS), ESCAPED_PROCESSES, ESCAPED_BYTES)


def share_metrics(gpus: Sequence[GpuView]) -> Iterator[MetricFamily]:
    """Yield the metrics of all shares; a limit that a share does not have is left out."""
    shares = [(_share_series(gpu, share), share) for gpu in gpus for share in gpu.shares]
    for metric, value in SHARE_METRICS:
        found = [(which, value(share)) for which, share in shares]
        yield MetricFamily(metric, [(which, number) for which, number in found if number is not None])
    shared = [(series(_gpu_labels(gpu)), gpu.outside) for gpu in gpus if gpu.shares or gpu.outside]
    yield MetricFamily(ESCAPED_PROCESSES, [(which, len(escaped)) for which, escaped in shared])
    yield MetricFamily(
        ESCAPED_BYTES, [(which, sum(process.memory_bytes for process in escaped)) for which, escaped in shared]
    )


def _gpu_labels(gpu: GpuView) -> dict[str, str]:
    return {"gpu": str(gpu.index), "UUID": gpu.uuid}


def _share_series(gpu: GpuView, share: ShareView) -> Series:
    who = {"namespace": share.namespace, "pod": share.pod, "container": share.container}
    return series({**_gpu_labels(gpu), **(who if share.pod else {"share": share.name})})

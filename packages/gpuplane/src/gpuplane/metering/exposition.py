"""The meter's totals as metrics: one family for pods and one for the rest of each GPU, per amount. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from gpuplane.metering.facts import PodContainer
from gpuplane.metering.meter import Key, MeterTotals
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, series

_COUNTER: Final = MetricType.COUNTER
_DECIMALS: Final = 6


def _counter(name: str, about: str) -> Metric:
    return Metric(name, _COUNTER, about, _DECIMALS)


_POD: Final = (
    _counter("gpuplane_pod_gpu_held_seconds_total", "Time that the container held the GPU, GPU seconds by its part."),
    _counter("gpuplane_pod_gpu_used_seconds_total", "Time of the GPU that the container used, seconds."),
    _counter("gpuplane_pod_gpu_memory_byte_seconds_total", "Memory of the GPU that it used, bytes by seconds."),
    _counter("gpuplane_pod_gpu_energy_joules_total", "Energy of the GPU, idle power by part and the rest by use, J."),
)
_UNBOOKED: Final = (
    _counter("gpuplane_gpu_unbooked_seconds_total", "Time of the GPU that no container held, GPU seconds."),
    _counter("gpuplane_gpu_unbooked_used_seconds_total", "Time of the GPU that no container explains, seconds."),
    _counter("gpuplane_gpu_unbooked_memory_byte_seconds_total", "Memory that no container explains, bytes by seconds."),
    _counter("gpuplane_gpu_unbooked_energy_joules_total", "Energy of the GPU that is booked to no container, J."),
)
ALLOCATION: Final = Metric(
    "container_gpu_allocation", MetricType.GAUGE, "GPUs that the container holds, by its part; OpenCost's name.", 6
)
METER_SECONDS: Final = _counter(
    "gpuplane_meter_seconds_total",
    "Time that the node's meter has booked, seconds. Another life is another process, whose counters began at 0.",
)
METRICS: Final = (*_POD, *_UNBOOKED, ALLOCATION, METER_SECONDS)
_AMOUNTS: Final[tuple[Callable[[MeterTotals], float | None], ...]] = (
    lambda total: total.held_seconds,
    lambda total: total.used_seconds,
    lambda total: total.memory_byte_seconds,
    lambda total: total.energy_joules,
)


class MeterNames(msgspec.Struct, frozen=True):
    """Labels of the lines.

    Args:
        gpus: UUID -> labels of the GPU.
        pod: labels of a holder besides its name: owner, and those of the pod that are chosen. They do not change while
            a pod runs, or its counters become other series.
        node: the node's name.
        life: of the meter's process, another text for each; empty leaves `gpuplane_meter_seconds_total` out.
        seconds: that this process has booked.
    """

    gpus: Mapping[str, Mapping[str, str]]
    pod: Callable[[PodContainer], Mapping[str, str]]
    node: str = ""
    life: str = ""
    seconds: float = 0.0


def families(totals: Mapping[Key, MeterTotals], names: MeterNames) -> Iterator[MetricFamily]:
    """Yield all metrics. A GPU that `names` does not have is left out."""
    if names.life:
        yield MetricFamily(METER_SECONDS, [(_series((("node", names.node), ("life", names.life))), names.seconds)])
    pods: list[tuple[Series, MeterTotals]] = []
    rest: list[tuple[Series, MeterTotals]] = []
    for (uuid, who), total in totals.items():
        labels = names.gpus.get(uuid)
        if labels is None:
            continue
        if who is None:
            rest.append((_series(tuple(labels.items())), total))
        else:
            own = {"container": who.container, "namespace": who.namespace, "pod": who.pod, "kind": str(who.kind)}
            fixed = {**labels, **own}
            pods.append((_series(tuple({**names.pod(who), **fixed}.items())), total))
    for lines, metrics in ((pods, _POD), (rest, _UNBOOKED)):
        for metric, amount in zip(metrics, _AMOUNTS, strict=True):
            values = [(which, number) for which, total in lines if (number := amount(total)) is not None]
            if values:
                yield MetricFamily(metric, values)
    allocated: dict[PodContainer, float] = {}
    for (_, who), total in totals.items():
        if who is not None and total.part:
            allocated[who] = allocated.get(who, 0.0) + total.part
    if allocated:
        yield MetricFamily(ALLOCATION, [(_allocation(who, names.node), part) for who, part in allocated.items()])


@lru_cache(4096)  # a node's pods: to escape their labels again takes as long as to book their time
def _series(labels: tuple[tuple[str, str], ...]) -> Series:
    return series(dict(labels))


def _allocation(who: PodContainer, node: str) -> Series:
    labels = {"container": who.container, "namespace": who.namespace, "node": node, "pod": who.pod}
    return _series(tuple((name, value) for name, value in labels.items() if value))

"""Two scrapes of a kubelet, and the use of CPU and memory between them. Pure.

The rules are those of metrics-server: a container that is younger than ten seconds has no value, one that is not in the
earlier scrape counts from its start, and a pod has values only if all of its containers have.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import msgspec

from kubekit.api.quantity import parse_quantity, spell_quantity
from kubekit.kube.exposition import metric_samples

RESOLUTION_S: Final = 15.0  # --metric-resolution of metrics-server
STALE_S: Final = 60.0
FIRST_WINDOW_S: Final = 2.0
_YOUNG_S: Final = 10.0
_NODE_CPU: Final = "node_cpu_usage_seconds_total"
_NODE_MEMORY: Final = "node_memory_working_set_bytes"
_CPU: Final = "container_cpu_usage_seconds_total"
_MEMORY: Final = "container_memory_working_set_bytes"
_STARTED: Final = "container_start_time_seconds"
_NAMES: Final = frozenset((_NODE_CPU, _NODE_MEMORY, _CPU, _MEMORY, _STARTED))

ContainerKey = tuple[str, str, str]  # namespace, pod, container


class MetricPoint(msgspec.Struct, frozen=True):
    """A counter of CPU in seconds and the memory in bytes at a time; `started` is 0 where it is unknown."""

    time: float
    cpu: float
    memory: int
    started: float = 0.0


class NodeScrape(msgspec.Struct, frozen=True):
    """One scrape of a kubelet; `time` is that of its values."""

    time: float
    node: MetricPoint | None
    containers: Mapping[ContainerKey, MetricPoint]


class UseBetween(msgspec.Struct, frozen=True):
    """The use of the last `window` seconds before `time`: CPU in cores, memory in bytes at the end."""

    time: float
    window: float
    cpu: float
    memory: int

    def quantities(self) -> dict[str, str]:
        """Return the use as Kubernetes spells it."""
        cpu = Decimal(int(self.cpu * 10**9)) / 10**9
        return {"cpu": spell_quantity(cpu), "memory": spell_quantity(Decimal(self.memory), binary=True)}


class NextScrape(Enum):
    """The scrapes that come before an answer."""

    NONE = "the scrapes at hand are recent"
    ONE = "the last scrape becomes the earlier one"
    SECOND = "there is a recent scrape and no earlier one: a second one after a short while"
    TWO = "there is no recent scrape: two with a short while between them"


def next_scrape(now: float, last: NodeScrape | None, earlier: NodeScrape | None) -> NextScrape:
    """Decide what to scrape before a node's metrics are answered."""
    if last is None or now - last.time > STALE_S:
        return NextScrape.TWO
    if now - last.time >= RESOLUTION_S:
        return NextScrape.ONE
    return NextScrape.SECOND if earlier is None else NextScrape.NONE


def parse_scrape(text: str, now: float) -> NodeScrape:
    """Read the text of /metrics/resource. Values without a time have that of the scrape, `now`.

    Raises ValueError for an invalid value. A container of which a value is missing is left out.
    """
    found: dict[ContainerKey, dict[str, float]] = {}
    node: dict[str, float] = {}
    times: dict[ContainerKey, float] = {}
    time = now
    for one in metric_samples(text, _NAMES):
        at = now if one.at is None else one.at / 1000
        if one.name in (_NODE_CPU, _NODE_MEMORY):
            node[one.name] = one.value
            time = at
            continue
        key = (one.labels["namespace"], one.labels["pod"], one.labels["container"])
        found.setdefault(key, {})[one.name] = one.value
        if one.name == _CPU:
            times[key] = at
    containers = {
        key: MetricPoint(times[key], values[_CPU], int(values[_MEMORY]), values.get(_STARTED, 0.0))
        for key, values in found.items()
        if _CPU in values and _MEMORY in values
    }
    whole = MetricPoint(time, node[_NODE_CPU], int(node[_NODE_MEMORY])) if len(node) == 2 else None
    return NodeScrape(time, whole, containers)


def node_use(last: NodeScrape, earlier: NodeScrape) -> UseBetween | None:
    """Return the use of a node; None where a scrape has none, or its counter began again between them."""
    if last.node is None or earlier.node is None:
        return None
    return _between(last.node, earlier.node)


def pod_use(last: NodeScrape, earlier: NodeScrape, namespace: str, pod: str) -> dict[str, UseBetween]:
    """Return the use of each container of a pod; empty where one of them has no value yet."""
    found = {}
    for key, point in last.containers.items():
        if key[:2] == (namespace, pod):
            use = _container(point, earlier.containers.get(key))
            if use is None:
                return {}
            found[key[2]] = use
    return dict(sorted(found.items()))


def _container(point: MetricPoint, before: MetricPoint | None) -> UseBetween | None:
    if point.started and point.time - point.started < _YOUNG_S:
        return None
    if before is None or point.started > before.time:
        if not point.started:
            return None
        before = MetricPoint(point.started, 0.0, 0, point.started)
    return _between(point, before)


def _between(point: MetricPoint, before: MetricPoint) -> UseBetween | None:
    window = point.time - before.time
    if window <= 0 or point.cpu < before.cpu:
        return None
    return UseBetween(point.time, window, (point.cpu - before.cpu) / window, point.memory)


def window_text(seconds: float) -> str:
    """Return a duration as Go writes it: `15.2s`, `1m0.5s`."""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{text}" if minutes else text


def oldest(uses: Mapping[str, UseBetween]) -> UseBetween:
    """Return the use with the earliest time, which is that of the pod."""
    return min(uses.values(), key=lambda use: use.time)


def total_quantities(usages: list[Mapping[str, Any]]) -> dict[str, str]:
    """Return the sums of several usages, as `quantities` returns them."""
    cpu = sum((parse_quantity(one["cpu"]) for one in usages), Decimal(0))
    memory = sum((parse_quantity(one["memory"]) for one in usages), Decimal(0))
    return {"cpu": spell_quantity(cpu), "memory": spell_quantity(memory, binary=True)}

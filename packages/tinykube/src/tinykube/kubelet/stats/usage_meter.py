"""Keeps the counters of one node growing: containers end, and the CPU time that a node has used does not shrink.

Nothing is measured until it is asked for. The CPU time that a container used between the last measurement and its end
is not counted, as no process has it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tinykube.kubelet.stats.usage import ContainerUsage, NodeUsage, PodUsage, ProcessesUse

_SHORTEST_S: Final = 1.0  # over a shorter time a rate says little: the kernel counts in hundredths of a second
_APART_S: Final = 0.1  # of two measurements that are stored
_LONGEST_S: Final = 120.0


class RunningContainer(msgspec.Struct, frozen=True):
    """A container to measure; `limit` is that of its memory."""

    id: str
    name: str
    namespace: str
    pod: str
    uid: str
    pod_started: float
    started: float
    limit: int | None = None


class UsageMeter:
    """The counters of one node since `started`."""

    def __init__(self, name: str, memory_bytes: int, started: float) -> None:
        self._name = name
        self._memory_bytes = memory_bytes
        self._started = started
        self._containers: dict[str, int] = {}  # the highest CPU time of each
        self._pods: dict[str, int] = {}
        self._total = 0
        self._earlier: list[tuple[float, dict[str, int]]] = []

    def usage(
        self,
        running: Iterable[RunningContainer],
        measured: Mapping[str, ProcessesUse],
        kubelet: ProcessesUse,
        time: float,
    ) -> NodeUsage:
        """Return the node's usage from one measurement of its containers (by id) and its kubelet."""
        running = [one for one in running if one.id in measured]
        self._count(running, measured)
        counters = {
            **{f"container {one.id}": self._containers[one.id] for one in running},
            **{f"pod {uid}": self._pods[uid] for uid in {one.uid for one in running}},
            "kubelet": kubelet.cpu_ns,
            "node": self._total + kubelet.cpu_ns,
        }
        rates = self._rates(counters, time)
        by_pod: dict[str, list[RunningContainer]] = {}
        for one in running:
            by_pod.setdefault(one.uid, []).append(one)
        pods = tuple(self._pod(ones, measured, rates) for ones in by_pod.values())
        whole = kubelet
        for pod in pods:
            whole = whole + pod.use
        return NodeUsage(
            name=self._name,
            time=time,
            started=self._started,
            memory_bytes=self._memory_bytes,
            use=msgspec.structs.replace(whole, cpu_ns=counters["node"]),
            kubelet=kubelet,
            pods=pods,
            cpu_rate=rates.get("node"),
            kubelet_rate=rates.get("kubelet"),
        )

    def _count(self, running: list[RunningContainer], measured: Mapping[str, ProcessesUse]) -> None:
        now = {}
        for one in running:
            before = self._containers.get(one.id, 0)
            # A process whose parent ignores its end takes its time along.
            now[one.id] = max(before, measured[one.id].cpu_ns)
            self._pods[one.uid] = self._pods.get(one.uid, 0) + now[one.id] - before
            self._total += now[one.id] - before
        self._containers = now
        alive = {one.uid for one in running}
        self._pods = {uid: value for uid, value in self._pods.items() if uid in alive}

    def _rates(self, counters: dict[str, int], time: float) -> dict[str, int]:
        """Return the counters' growth for each second since an earlier measurement, as far as both have them."""
        self._earlier = [one for one in self._earlier if time - one[0] <= _LONGEST_S]
        old = [one for one in self._earlier if time - one[0] >= _SHORTEST_S]
        # Of the earlier ones the last that is old enough is enough, and those after it.
        self._earlier = [*old[-1:], *self._earlier[len(old) :]]
        # However often clients ask, few measurements are stored, and one of them becomes old enough.
        if not self._earlier or time - self._earlier[-1][0] >= _APART_S:
            self._earlier.append((time, counters))
        if not old:
            return {}
        since, before = old[-1]
        return {
            name: int((value - before[name]) / (time - since))
            for name, value in counters.items()
            if before.get(name, value + 1) <= value
        }

    def _pod(
        self, ones: list[RunningContainer], measured: Mapping[str, ProcessesUse], rates: Mapping[str, int]
    ) -> PodUsage:
        first, whole, containers = ones[0], ProcessesUse(), []
        for one in ones:
            use = msgspec.structs.replace(measured[one.id], cpu_ns=self._containers[one.id])
            rate = rates.get(f"container {one.id}")
            containers.append(ContainerUsage(one.id, one.name, one.started, use, one.limit, rate))
            whole = whole + use
        return PodUsage(
            first.namespace,
            first.pod,
            first.uid,
            first.pod_started,
            tuple(containers),
            msgspec.structs.replace(whole, cpu_ns=self._pods[first.uid]),
            rates.get(f"pod {first.uid}"),
        )

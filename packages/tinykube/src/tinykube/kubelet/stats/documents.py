"""The two documents that a kubelet serves about the use of its node: pure functions of what was measured.

Source: the types of k8s.io/kubelet stats/v1alpha1, and the metrics reference of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, exposition, series
from tinykube.kubelet.stats.usage import ContainerUsage, NodeUsage, PodUsage, ProcessesUse

Object = dict[str, Any]
_NS: Final = 10**9


def summary(usage: NodeUsage, *, only_cpu_and_memory: bool = False) -> Object:
    """Return the body of /stats/summary. Networks, volumes and the layers of containers are not measured."""
    at = _time(usage.time)
    node: Object = {
        "nodeName": usage.name,
        "systemContainers": [
            {
                "name": "kubelet",
                "startTime": _seconds(usage.started),
                "cpu": _cpu(usage.kubelet, usage.kubelet_rate, at),
                "memory": _memory(usage.kubelet, None, at),
            }
        ],
        "startTime": _seconds(usage.started),
        "cpu": _cpu(usage.use, usage.cpu_rate, at),
        "memory": _memory(usage.use, usage.memory_bytes, at),
    }
    if usage.file_system is not None and not only_cpu_and_memory:
        disk = usage.file_system
        node["fs"] = {
            "time": at,
            "availableBytes": disk.available,
            "capacityBytes": disk.capacity,
            "usedBytes": disk.capacity - disk.available,
            "inodesFree": disk.inodes_free,
            "inodes": disk.inodes,
            "inodesUsed": disk.inodes - disk.inodes_free,
        }
    return {"node": node, "pods": [_pod(pod, at) for pod in usage.pods]}


def _pod(pod: PodUsage, at: str) -> Object:
    return {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": _seconds(pod.started),
        "containers": [
            {
                "name": one.name,
                "startTime": _seconds(one.started),
                "cpu": _cpu(one.use, one.cpu_rate, at),
                "memory": _memory(one.use, one.limit, at),
            }
            for one in pod.containers
        ],
        "cpu": _cpu(pod.use, pod.cpu_rate, at),
        "memory": _memory(pod.use, _limit(pod.containers), at),
        "process_stats": {"process_count": pod.use.processes},
    }


def _limit(containers: Iterable[ContainerUsage]) -> int | None:
    limits = [one.limit for one in containers]
    return None if None in limits else sum(limit for limit in limits if limit is not None)


def _cpu(use: ProcessesUse, rate: int | None, at: str) -> Object:
    shown = {} if rate is None else {"usageNanoCores": rate}
    return {"time": at, **shown, "usageCoreNanoSeconds": use.cpu_ns}


def _memory(use: ProcessesUse, limit: int | None, at: str) -> Object:
    free = {} if limit is None else {"availableBytes": max(0, limit - use.working_set)}
    faults, major = use.page_faults
    return {
        "time": at,
        **free,
        "usageBytes": max(use.working_set, use.rss),
        "workingSetBytes": use.working_set,
        "rssBytes": use.rss,
        "pageFaults": faults,
        "majorPageFaults": major,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _metric(name: str, about: str, *, stage: str = "STABLE", type: MetricType = MetricType.GAUGE) -> Metric:
    return Metric(name, type, f"[{stage}] {about}")


_CPU: Final = {
    of: _metric(f"{of}_cpu_usage_seconds_total", f"CPU time of the {of} in core-seconds", type=MetricType.COUNTER)
    for of in ("container", "node", "pod")
}
_MEMORY: Final = {
    of: _metric(f"{of}_memory_working_set_bytes", f"Working set of the {of} in bytes")
    for of in ("container", "node", "pod")
}
_STARTED: Final = _metric("container_start_time_seconds", "Start of the container in seconds since the epoch")
_ERROR: Final = _metric("resource_scrape_error", "1 if the containers could not be measured, else 0")
_OLD_ERROR: Final = _metric("scrape_error", "(Deprecated since 1.29.0) as resource_scrape_error", stage="ALPHA")


def resource_metrics(usage: NodeUsage) -> bytes:
    """Return the body of /metrics/resource. The values have the time of the measurement."""
    at = round(usage.time * 1000)
    pods = [(pod, series({"namespace": pod.namespace, "pod": pod.name})) for pod in usage.pods]
    ones = [
        (one, series({"container": one.name, "namespace": pod.namespace, "pod": pod.name}))
        for pod in usage.pods
        for one in pod.containers
    ]
    node = [(usage, Series(""))]

    def cpu(of: str, measured: Iterable[tuple[Any, Series]]) -> MetricFamily:
        return _family(_CPU[of], measured, lambda use: use.cpu_ns / _NS, at)

    def memory(of: str, measured: Iterable[tuple[Any, Series]]) -> MetricFamily:
        return _family(_MEMORY[of], measured, lambda use: use.working_set, at)

    return exposition(
        [
            cpu("container", ones),
            memory("container", ones),
            MetricFamily(_STARTED, [(labels, one.started) for one, labels in ones]),
            cpu("node", node),
            memory("node", node),
            cpu("pod", pods),
            memory("pod", pods),
            MetricFamily(_ERROR, [(Series(""), 0)]),
            MetricFamily(_OLD_ERROR, [(Series(""), 0)]),
        ]
    )


def _family(
    metric: Metric, measured: Iterable[tuple[Any, Series]], value: Callable[[ProcessesUse], float], at: int
) -> MetricFamily:
    return MetricFamily(metric, [(labels, value(one.use)) for one, labels in measured], at=at)

"""Measures the running containers of a kubelet, and the kubelet itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from kubekit.api.durations import parse_time
from tinykube.kubelet.containers.records import ContainerRecord
from tinykube.kubelet.pod import every_container, memory_limit
from tinykube.kubelet.stats.processes import measure
from tinykube.kubelet.stats.usage import FileSystemUse, ProcessesUse
from tinykube.kubelet.stats.usage_meter import RunningContainer
from tinykube.kubelet.worker import PodWorker

Running = tuple[RunningContainer, ContainerRecord]


def running_containers(workers: Iterable[PodWorker]) -> list[Running]:
    """Return the containers that run now, with their records."""
    found = []
    for worker in workers:
        meta = worker.pod.metadata
        limits = {one.name: memory_limit(one) for one in every_container(worker.pod)}
        for name, record in worker.records.items():
            state = worker.seen.get(name)
            if state is not None and state.started_at is not None and record.shim_pid:
                begun = worker.pod.status.start_time or record.created
                container = RunningContainer(
                    id=record.id,
                    name=name,
                    namespace=meta.namespace,
                    pod=meta.name,
                    uid=meta.uid,
                    pod_started=parse_time(begun).timestamp(),
                    started=state.started_at,
                    limit=limits.get(name),
                )
                found.append((container, record))
    return found


def measure_node(running: Sequence[Running]) -> tuple[dict[str, ProcessesUse], ProcessesUse]:
    """Return the use of each container, by its id, and that of this process. Reads /proc: run it in a thread."""
    shims = {container.id: record.shim_pid for container, record in running}
    groups = {container.id: record.groups for container, record in running if record.groups}
    return measure(shims, groups, [os.getpid()])


def file_system(root: Path) -> FileSystemUse | None:
    """Return the use of the file system of a directory; None where it cannot be read."""
    try:
        found = os.statvfs(root)
    except OSError:
        return None
    return FileSystemUse(
        available=found.f_bavail * found.f_frsize,
        capacity=found.f_blocks * found.f_frsize,
        inodes_free=found.f_ffree,
        inodes=found.f_files,
    )

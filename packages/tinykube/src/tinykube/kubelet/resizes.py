"""Decides what a resize in place changes of a pod's containers, and what its conditions say. Pure.

Source: `computePodResizeAction` and `validateMemoryResizeAction` of the kubelet of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kubekit.api.core import Resources
from tinykube.kubelet.pod import ContainerResources, KubeletPod, SpecContainer, all_containers
from tinykube.kubelet.resources import RESIZABLE, resizable

PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"
_RESTART: Final = "RestartContainer"


class ResizeCondition(msgspec.Struct, frozen=True):
    """A condition of a pod about its resize, which is True while it is there. `since` in seconds since the epoch."""

    type: str
    reason: str
    message: str
    generation: int
    since: float


class ContainerChange(msgspec.Struct, frozen=True):
    """A running container whose resources differ from those that are allocated for it."""

    container: SpecContainer
    restarts: bool
    lowered_limit: int | None = None  # of memory in bytes, where it becomes lower


def find_changes(pod: KubeletPod, actual: Mapping[str, Resources]) -> list[ContainerChange]:
    """Return what is to be changed.

    Args:
        pod: with the resources that are allocated.
        actual: the resources of the containers that run, by their names.
    """
    changes = []
    for container in all_containers(pod):
        if container.name not in actual:
            continue  # it starts with what is allocated
        new, old = resizable(container.resources), resizable(actual[container.name])
        if new == old:
            continue
        differs = {name for name in RESIZABLE for a, b in zip(new, old, strict=True) if a.get(name) != b.get(name)}
        restarts = any(p.resource_name in differs and p.restart_policy == _RESTART for p in container.resize_policy)
        limit, before = new[1].get("memory"), old[1].get("memory")
        lowered = limit if limit is not None and (before is None or limit < before) else None
        changes.append(ContainerChange(container, restarts, lowered))
    return changes


def find_problem(changes: list[ContainerChange], used: Mapping[str, int | None]) -> str:
    """Return why limits of memory cannot be set, "" if they can: what is used would be above them.

    Args:
        used: how many bytes each container uses; None where that is unknown.
    """
    errors = []
    for change in changes:
        name, limit = change.container.name, change.lowered_limit
        amount = used.get(name)
        if limit is not None and not change.restarts and amount is not None and amount >= limit:
            errors.append(f'attempting to set container "{name}" memory limit ({limit}) below current usage ({amount})')
    if not errors:
        return ""
    return f"cannot decrease memory limits: {errors[0] if len(errors) == 1 else '[' + ', '.join(errors) + ']'}"


def shown_resources(allocated: ContainerResources, actual: Resources | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the requests and limits of a container's status: those of CPU and memory as it has them if it runs."""
    rows = []
    for field in ("requests", "limits"):
        values = dict(getattr(allocated, field))
        has = getattr(actual, field) if actual is not None else {}
        values |= {name: has[name] for name in RESIZABLE if name in has and name in values}
        rows.append(values)
    return rows[0], rows[1]

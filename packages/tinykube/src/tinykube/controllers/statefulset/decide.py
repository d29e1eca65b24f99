"""Decides the next pods of a StatefulSet to make and to delete, and its status. Pure, on plain data.

Rules as in kube-controller-manager: in order, a pod is made only when all before it are available, and the last goes
first; with `Parallel` only the rolling update is in order. A rolling update replaces the last old pod first, and waits
for it. Pods below the partition keep the current revision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tinykube.controllers import pods as podstate
from tinykube.controllers.templates import scaled

Object = Mapping[str, Any]
REVISION: Final = "controller-revision-hash"


class StatefulStep(msgspec.Struct, frozen=True):
    """Pods to make (ordinal, name of the revision) and to delete, and when time alone makes a pod available."""

    create: tuple[tuple[int, str], ...] = ()
    delete: tuple[Object, ...] = ()
    wait_s: float | None = None


class _View(msgspec.Struct, frozen=True):
    """A StatefulSet and its pods: those it should have, by ordinal, and those beyond, the last first."""

    obj: Object
    pods: Mapping[int, Object]
    beyond: tuple[Object, ...]
    now: str

    @property
    def in_order(self) -> bool:
        return bool(self.obj["spec"].get("podManagementPolicy") != "Parallel")

    def is_available(self, pod: Object) -> bool:
        return not podstate.is_terminating(pod) and self.available_in(pod) == 0

    def available_in(self, pod: Object) -> float | None:
        if podstate.phase(pod) != "Running":
            return None
        return podstate.available_in(pod, self.obj["spec"].get("minReadySeconds") or 0, self.now)


def ordinal_of(obj: Object, pod: Object) -> int | None:
    """Return the ordinal in a pod's name; None for a name that is not of this StatefulSet."""
    parent, _, number = pod["metadata"]["name"].rpartition("-")
    return int(number) if parent == obj["metadata"]["name"] and number.isdecimal() and number.isascii() else None


def ordinals(obj: Object) -> range:
    """Return the ordinals that a StatefulSet should have."""
    start = (obj["spec"].get("ordinals") or {}).get("start") or 0
    return range(start, start + obj["spec"].get("replicas", 1))


def is_healthy(pod: Object) -> bool:
    """Return whether a pod runs, is ready and stays."""
    return podstate.phase(pod) == "Running" and podstate.is_ready(pod) and not podstate.is_terminating(pod)


def revision_of(pod: Object) -> str:
    return (pod["metadata"].get("labels") or {}).get(REVISION) or ""


def _view(obj: Object, pods: Iterable[Object], now: str) -> _View:
    wanted, by_ordinal, beyond = ordinals(obj), dict[int, Object](), dict[int, Object]()
    for pod in pods:
        ordinal = ordinal_of(obj, pod)
        if ordinal is not None:
            (by_ordinal if ordinal in wanted else beyond)[ordinal] = pod
    return _View(obj, by_ordinal, tuple(beyond[ordinal] for ordinal in sorted(beyond, reverse=True)), now)


def beyond(obj: Object, pods: Iterable[Object]) -> tuple[Object, ...]:
    """Return the pods that a StatefulSet no longer wants, the last first."""
    return _view(obj, pods, "").beyond


def step(obj: Object, pods: Sequence[Object], current: str, update: str, now: str) -> StatefulStep:
    """Decide the next step. `current` and `update` name the revisions that the set has and that it goes to."""
    view = _view(obj, pods, now)
    waits = [seconds for pod in view.pods.values() if (seconds := view.available_in(pod))]
    wait = min(waits, default=None)
    create, delete, goes_on = _fill(view, current, update)
    if goes_on:
        delete, goes_on = _shrink(view, delete)
    if goes_on and not create:
        delete = (*delete, *_roll(view, update))
    return StatefulStep(create, delete, wait)


def _fill(view: _View, current: str, update: str) -> tuple[tuple[tuple[int, str], ...], tuple[Object, ...], bool]:
    """Return the pods to make, finished ones to delete, and whether the step goes on after that."""
    create: list[tuple[int, str]] = []
    delete: list[Object] = []
    below = ordinals(view.obj).start + _partition(view.obj)
    for ordinal in ordinals(view.obj):
        pod = view.pods.get(ordinal)
        if pod is None:
            create.append((ordinal, current if _is_rolling(view.obj) and ordinal < below else update))
        elif podstate.is_finished(pod) and not podstate.is_terminating(pod):
            delete.append(pod)
        elif not view.in_order or view.is_available(pod):
            continue
        if view.in_order:
            return tuple(create), tuple(delete), False
    return tuple(create), tuple(delete), True


def _shrink(view: _View, delete: tuple[Object, ...]) -> tuple[tuple[Object, ...], bool]:
    """Add the pods beyond the number; in order, only the last, when all before it are healthy."""
    if not view.in_order:
        return (*delete, *(pod for pod in view.beyond if not podstate.is_terminating(pod))), True
    if not view.beyond:
        return delete, True
    last = view.beyond[0]
    unhealthy = [pod for pod in reversed(view.beyond) if not is_healthy(pod)]
    if podstate.is_terminating(last) or (not view.is_available(last) and unhealthy and last is not unhealthy[0]):
        return delete, False
    return (*delete, last), False


def _roll(view: _View, update: str) -> tuple[Object, ...]:
    """Return the old pods that a rolling update deletes now, the last first."""
    if not _is_rolling(view.obj):
        return ()
    wanted = ordinals(view.obj)
    rolling = (view.obj["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    allowed = max(1, scaled(rolling.get("maxUnavailable", 1), len(wanted), up=False))
    # NB: a pod that is old and unavailable counts, and goes first, since waiting for it would not end.
    allowed -= sum(not view.is_available(view.pods[n]) for n in wanted if revision_of(view.pods[n]) == update)
    found: list[Object] = []
    for ordinal in reversed(wanted[_partition(view.obj) :]):
        pod = view.pods[ordinal]
        if podstate.is_terminating(pod):
            allowed -= revision_of(pod) != update
        elif revision_of(pod) != update and len(found) < allowed:
            found.append(pod)
    return tuple(found)


def _is_rolling(obj: Object) -> bool:
    return bool((obj["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate")


def _partition(obj: Object) -> int:
    rolling = (obj["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    return rolling.get("partition") or 0


def status_of(obj: Object, pods: Sequence[Object], current: str, update: str, now: str) -> dict[str, Any]:
    """Return the status. When all pods are of the new revision and ready, it is the current one."""
    view = _view(obj, pods, now)
    all_pods = [*view.pods.values(), *view.beyond]
    ready = [pod for pod in all_pods if podstate.phase(pod) == "Running" and podstate.is_ready(pod)]
    staying = [pod for pod in all_pods if not podstate.is_terminating(pod)]
    replicas, updated = obj["spec"].get("replicas", 1), sum(revision_of(pod) == update for pod in staying)
    count = sum(revision_of(pod) == current for pod in staying)
    if _is_rolling(obj) and updated == replicas == len(ready) == len(all_pods):
        current, count = update, updated
    numbers = {"readyReplicas": len(ready), "currentReplicas": count, "updatedReplicas": updated}
    return {
        "observedGeneration": obj["metadata"].get("generation", 1),
        "replicas": len(all_pods),
        **{name: number for name, number in numbers.items() if number},
        "currentRevision": current,
        "updateRevision": update,
        "collisionCount": (obj.get("status") or {}).get("collisionCount") or 0,
        "availableReplicas": sum(view.available_in(pod) == 0 for pod in all_pods),
    }

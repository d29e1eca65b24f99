"""Carries out resizes in place of one pod, and keeps what its status says of them.

A resize goes from the spec to the allocation of the node (`allocations.py`), and from there to the control groups of
the containers, or to a restart where the container's resizePolicy wants one.

Invariants:

- `containers.pod` has the allocated resources. A container that starts gets those.
- The allocation is on disk before a container changes, so a kubelet that was killed goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kubekit.api.core import Resources
from tinykube.kubelet.allocations import DEFERRED, INFEASIBLE, ResizeRank
from tinykube.kubelet.containers import ContainerRecord
from tinykube.kubelet.lifecycle import Stop
from tinykube.kubelet.pod import ContainerResources, KubeletPod, all_containers
from tinykube.kubelet.podcontainers import PodContainers
from tinykube.kubelet.resizes import (
    IN_PROGRESS,
    PENDING,
    ContainerChange,
    ResizeCondition,
    find_changes,
    find_problem,
)
from tinykube.kubelet.resources import (
    group_limits,
    is_guaranteed,
    pod_requests,
    resources_text,
    with_resources,
)

log = logging.getLogger("tinykube.kubelet")

_RETRY_SECONDS: Final = 10.0
_FILE: Final = "allocated_resources"


class PodResizer:
    """The resizes of one pod.

    Args:
        stop: begins to stop a container.

    Attributes:
        fresh: a resize was allocated, and no status says so yet.
        retry_at: when a resize that failed is tried again, in seconds since the epoch.
    """

    def __init__(self, containers: PodContainers, stop: Callable[[Stop], None]) -> None:
        self.fresh = False
        self.retry_at: float | None = None
        self._containers = containers
        self._machine = containers.machine
        self._stop = stop
        self._desired = containers.pod
        self._admitted = False
        self._pending: ResizeCondition | None = None
        self._progress: ResizeCondition | None = None
        self._reported: set[str] = set()

    # -- admission and new versions of the pod ---------------------------------------------------------------------

    def admit(self) -> None:
        """The node has admitted the pod with what its spec requests."""
        self._admitted = True
        if self._containers.pod is not self._desired:
            self._consider()

    def adopt(self) -> None:
        """The pod was admitted by an earlier kubelet, which may have died during a resize."""
        containers = self._containers
        allocated = _read(self._file) or {
            name: ContainerResources(limits=record.limits, requests=record.requests)
            for name, record in containers.records.items()
        }
        own = {container.name: container.resources for container in all_containers(self._desired)}
        allocated = {
            name: msgspec.structs.replace(one, claims=own[name].claims)
            for name, one in allocated.items()
            if name in own
        }
        containers.pod = with_resources(self._desired, allocated)
        for condition in self._desired.status.conditions:
            if condition.type in (PENDING, IN_PROGRESS):
                since = self._machine.clock.time()
                what = condition.reason, condition.message, condition.observed_generation, since
                found = ResizeCondition(condition.type, *what)
                self._reported.add(condition.type)
                if condition.type == PENDING:
                    self._pending = found
                else:
                    self._progress = found
        self._machine.allocations.hold(self.uid, pod_requests(containers.pod))
        self.admit()

    def update(self, pod: KubeletPod) -> None:
        """A newer version of the pod."""
        before, self._desired = self._desired, pod
        allocated = {container.name: container.resources for container in all_containers(self._containers.pod)}
        self._containers.pod = with_resources(pod, allocated)
        if self._containers.pod is pod:
            self._machine.allocations.withdraw(self.uid)
            self._pending = None
        elif with_resources(before, {c.name: c.resources for c in all_containers(pod)}) is not before:
            self._consider()

    def release(self) -> None:
        """The pod has ended: it holds nothing and waits for nothing."""
        self._admitted = False
        self._machine.allocations.release(self.uid)

    # -- the node's answer, see WaitingResize ----------------------------------------------------------------------

    @property
    def uid(self) -> str:
        return self._desired.metadata.uid

    @property
    def wanted(self) -> Mapping[str, int]:
        return pod_requests(self._desired)

    @property
    def rank(self) -> ResizeRank:
        has = pod_requests(self._containers.pod)
        increases = any(amount > has.get(name, 0) for name, amount in self.wanted.items())
        since = self._machine.clock.time() if self._pending is None else self._pending.since
        return ResizeRank(increases, -self._desired.spec.priority, not is_guaranteed(self._desired), since)

    def _consider(self) -> None:
        if self._machine.resize_problem:
            self._refuse(INFEASIBLE, self._machine.resize_problem)
        else:
            self._machine.allocations.want(self)

    def accept(self) -> None:
        pod = self._desired
        resources = {container.name: container.resources for container in all_containers(pod)}
        _write(self._file, resources)
        self._containers.pod = pod
        self._pending = None
        self._progress = self._condition(IN_PROGRESS, "", "")
        self.fresh, self.retry_at = True, None
        self._note("ResizeStarted", "Pod resize started")
        self._containers.poke()

    def defer(self, message: str) -> None:
        self._refuse(DEFERRED, message)

    def _refuse(self, reason: str, message: str) -> None:
        before, self._pending = self._pending, self._condition(PENDING, reason, message)
        if before is not None and before.reason == reason:
            self._pending = msgspec.structs.replace(self._pending, since=before.since)
        if before is None or (before.reason, before.generation) != (reason, self._pending.generation):
            self._note(f"Resize{reason}", f"Pod resize {reason}", message)
        self._containers.poke()

    def _condition(self, kind: str, reason: str, message: str) -> ResizeCondition:
        now = self._machine.clock.time()
        return ResizeCondition(kind, reason, message, self._desired.metadata.generation, now)

    def _note(self, reason: str, what: str, error: str = "", generation: int | None = None) -> None:
        pod = self._desired
        number = pod.metadata.generation if generation is None else generation
        text = f"{what}: {resources_text(pod, number, error)}"
        say = self._machine.events.warn if error else self._machine.events.note
        say(pod, reason, text)

    # -- the containers --------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Change the containers to what is allocated for them, as far as that is possible now."""
        if self._progress is None and self.retry_at is None and not self._find_changes():
            return
        changes = self._find_changes()
        problem = self._apply(changes)
        if problem:
            self.retry_at = self._machine.clock.time() + _RETRY_SECONDS
            before = self._progress or self._condition(IN_PROGRESS, "", "")
            if (before.reason, before.message) != ("Error", problem):
                since = before.since if before.reason == "Error" else self._machine.clock.time()
                self._progress = ResizeCondition(IN_PROGRESS, "Error", problem, before.generation, since)
                self._note("ResizeError", "Pod resize error", problem, before.generation)
            return
        self.retry_at = None
        if self._progress is not None and not self._find_changes() and not self._replacing():
            self._note("ResizeCompleted", "Pod resize completed", generation=self._progress.generation)
            self._progress = None

    def _replacing(self) -> bool:
        return any(state.running and state.replaced for state in self._containers.seen.values())

    def _find_changes(self) -> list[ContainerChange]:
        seen = self._containers.seen
        running = {name for name, state in seen.items() if state.running and not state.stopping}
        return find_changes(self._containers.pod, {name: _has(self._containers.records[name]) for name in running})

    def _apply(self, changes: list[ContainerChange]) -> str:
        """Return why a change could not be made, "" for success."""
        records, groups = self._containers.records, self._machine.launcher.groups
        used = {c.container.name: groups.memory_used(records[c.container.name].groups) for c in changes}
        if problem := find_problem(changes, used):
            return problem
        for change in changes:
            name, resources = change.container.name, change.container.resources
            if change.restarts:
                self._stop(Stop(name, f"Container {name} resize requires restart", replaced=True))
                continue
            try:
                groups.set(records[name].groups, group_limits(resources))
            except OSError as error:
                return f'container "{name}": {error.strerror}'
            new = msgspec.structs.replace(records[name], requests=resources.requests, limits=resources.limits)
            self._machine.launcher.records.save(new)
            records[name] = new
        return ""

    # -- the status ------------------------------------------------------------------------------------------------

    @property
    def actual(self) -> dict[str, Resources]:
        """Return the resources of the containers that run."""
        seen, records = self._containers.seen, self._containers.records
        return {name: _has(records[name]) for name, state in seen.items() if state.running and name in records}

    def conditions(self) -> dict[str, ResizeCondition | None]:
        """Return the conditions of the pod's resize by their types; None for one that was reported and is over."""
        found = {one.type: one for one in (self._pending, self._progress) if one is not None}
        self._reported |= found.keys()
        return {kind: found.get(kind) for kind in (PENDING, IN_PROGRESS) if kind in self._reported}

    @property
    def _file(self) -> Path:
        return self._machine.pod_dir(self.uid) / _FILE


def _has(record: ContainerRecord) -> Resources:
    return Resources(limits=record.limits, requests=record.requests)


def _write(path: Path, resources: Mapping[str, ContainerResources]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(msgspec.json.encode(resources))
    new.rename(path)


def _read(path: Path) -> dict[str, ContainerResources]:
    """Return what an earlier kubelet allocated; empty where no resize was, or where the file cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, ContainerResources])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning(
            "allocation not read, containers keep the resources that they started with path=%s: %s", path, error
        )
        return {}

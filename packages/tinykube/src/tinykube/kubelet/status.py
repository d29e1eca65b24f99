"""The status of a pod as kubectl and the controllers read it, computed from what its containers are doing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from kubekit.api.core import Resources
from tinykube.images import image_id
from tinykube.kubelet.lifecycle import NEVER_SEEN, Ended, ObservedContainer, Phase, PodPlan, delay_text
from tinykube.kubelet.pod import KubeletPod, SpecContainer
from tinykube.kubelet.resizes import ResizeCondition, shown_resources
from tinykube.kubelet.resources import resources_object


def stamp(seconds: float) -> str:
    """Seconds since the epoch as metav1.Time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_status(
    pod: KubeletPod,
    seen: Mapping[str, ObservedContainer],
    plan: PodPlan,
    *,
    now: float,
    started_at: float,
    host_ip: str,
    pod_ip: str,
    runtime: str,
    failure: tuple[str, str] | None = None,
    resources: Mapping[str, Sequence[Mapping[str, Any]]] = {},
    actual: Mapping[str, Resources] = {},
    resize: Mapping[str, ResizeCondition | None] = {},
) -> dict[str, Any]:
    """`status` as a patch holds it: all the kubelet's own fields. `failure` is (reason, message) of a rejected pod.

    Args:
        resources: by container, the health of the devices that its claims have.
        actual: by container that runs, the CPU and memory that it has.
        resize: the conditions of a resize in place by their types; None for one to take out.
    """
    phase = _phase(pod, seen, plan)
    waits_as = "ContainerCreating" if plan.initialized or not pod.spec.init_containers else "PodInitializing"
    main = [_container_status(pod, c, seen, plan, runtime, waits_as) for c in pod.spec.containers]
    init = [
        _container_status(pod, c, seen, plan, runtime, "PodInitializing", init=True) for c in pod.spec.init_containers
    ]
    added = [_container_status(pod, c, seen, plan, runtime, "ContainerCreating") for c in pod.spec.ephemeral_containers]
    for one in added:
        one["ready"] = False  # nothing waits for them
    for one, container in zip((*main, *init), (*pod.spec.containers, *pod.spec.init_containers), strict=True):
        if container.name in resources and one in main:
            one["allocatedResourcesStatus"] = resources[container.name]
        if seen.get(container.name, NEVER_SEEN).id:
            one |= _resources(container, actual.get(container.name))
    if failure is not None and phase is Phase.FAILED and not any(s.ended or s.running for s in seen.values()):
        main, init = [], []  # a pod that was refused never had containers
    status: dict[str, Any] = {
        "observedGeneration": pod.metadata.generation,
        "phase": phase.value,
        "conditions": [*_conditions(pod, seen, plan, phase, now), *_resize_conditions(resize, phase)],
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": pod.status.start_time or stamp(started_at),
    }
    if any(state.running or state.ended for state in seen.values()):
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    if main:
        status["containerStatuses"] = main
    if init:
        status["initContainerStatuses"] = init
    if added:
        status["ephemeralContainerStatuses"] = added
    if failure is not None:
        status |= {"reason": failure[0], "message": failure[1]}
    return status


def _resources(container: SpecContainer, actual: Resources | None) -> dict[str, Any]:
    """Return the resources that a started container has, and those that are allocated for it."""
    requests, limits = shown_resources(container.resources, actual)
    shown = msgspec.structs.replace(container.resources, requests=requests, limits=limits)
    found: dict[str, Any] = {"resources": resources_object(shown)}
    if container.resources.requests:
        found["allocatedResources"] = dict(container.resources.requests)
    return found


def _resize_conditions(resize: Mapping[str, ResizeCondition | None], phase: Phase) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for kind, one in resize.items():
        if one is None or phase in (Phase.SUCCEEDED, Phase.FAILED):
            rows.append({"$patch": "delete", "type": kind})
            continue
        since = stamp(one.since)
        row: dict[str, Any] = {"type": kind, "status": "True", "lastProbeTime": since, "lastTransitionTime": since}
        row |= {"reason": one.reason or None, "message": one.message or None, "observedGeneration": one.generation}
        rows.append(row)
    return rows


def _phase(pod: KubeletPod, seen: Mapping[str, ObservedContainer], plan: PodPlan) -> Phase:
    if plan.finished is not None:
        return plan.finished
    main = [seen.get(c.name, NEVER_SEEN) for c in pod.spec.containers]
    if plan.initialized and all(state.running or state.ended for state in main):
        return Phase.RUNNING
    return Phase.PENDING


def _terminated(ended: Ended, runtime: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "exitCode": ended.code,
        "reason": ended.reason,
        "startedAt": stamp(ended.started),
        "finishedAt": stamp(ended.finished),
        "containerID": f"{runtime}://{ended.id}",
    }
    if ended.signal:
        found["signal"] = ended.signal
    if ended.message:
        found["message"] = ended.message
    return {"terminated": found}


def _container_status(
    pod: KubeletPod,
    container: SpecContainer,
    seen: Mapping[str, ObservedContainer],
    plan: PodPlan,
    runtime: str,
    waits_as: str,
    *,
    init: bool = False,
) -> dict[str, Any]:
    state = seen.get(container.name, NEVER_SEEN)
    status: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imageID": image_id(container.image) if state.id else "",
        "restartCount": state.attempt,
        "ready": _ready(container, state, init=init),
        "started": state.running and state.started,
        "state": _state(pod, container, state, plan, runtime, waits_as),
        "lastState": {},
    }
    if state.id:
        status["containerID"] = f"{runtime}://{state.id}"
    last = state.previous
    if state.ended is not None and "waiting" in status["state"]:
        last = state.ended
    if last is not None:
        status["lastState"] = _terminated(last, runtime)
    return status


def _ready(container: SpecContainer, state: ObservedContainer, *, init: bool) -> bool:
    if init and not container.sidecar:
        return state.ended is not None and state.ended.code == 0 and not state.running
    return state.running and state.ready and not state.stopping


def _state(
    pod: KubeletPod, container: SpecContainer, state: ObservedContainer, plan: PodPlan, runtime: str, waits_as: str
) -> dict[str, Any]:
    if state.started_at is not None:
        return {"running": {"startedAt": stamp(state.started_at)}}
    if state.waiting is not None:
        reason, message = state.waiting
        return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    if container.name in plan.backing_off:
        name = f"{pod.metadata.name}_{pod.metadata.namespace}({pod.metadata.uid})"
        text = f"back-off {delay_text(state.crashes)} restarting failed container={container.name} pod={name}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
    if state.ended is not None:
        return _terminated(state.ended, runtime)
    return {"waiting": {"reason": waits_as}}


def _conditions(
    pod: KubeletPod, seen: Mapping[str, ObservedContainer], plan: PodPlan, phase: Phase, now: float
) -> list[dict[str, Any]]:
    main = [c for c in pod.spec.containers if not _ready(c, seen.get(c.name, NEVER_SEEN), init=False)]
    late = [c for c in pod.spec.init_containers if c.sidecar and not _ready(c, seen.get(c.name, NEVER_SEEN), init=True)]
    unready = [c.name for c in (*late, *main)]
    reason, message = "", ""
    if phase is Phase.SUCCEEDED:
        reason = "PodCompleted"
    elif phase is Phase.FAILED:
        reason = "PodFailed"
    elif unready:
        reason = "ContainersNotReady"
        message = f"containers with unready status: [{' '.join(unready)}]"
    pending = [
        c.name
        for c in pod.spec.init_containers
        if not c.sidecar and not _ready(c, seen.get(c.name, NEVER_SEEN), init=True)
    ]
    initialized = plan.initialized or phase is Phase.SUCCEEDED
    ready = not reason
    sandbox = phase not in (Phase.SUCCEEDED, Phase.FAILED) and bool(seen)
    rows = [
        ("PodReadyToStartContainers", sandbox, "", ""),
        (
            "Initialized",
            initialized,
            "" if initialized else "ContainersNotInitialized",
            "" if initialized else f"containers with incomplete status: [{' '.join(pending)}]",
        ),
        ("Ready", ready, reason, message),
        ("ContainersReady", ready, reason, message),
    ]
    before = {condition.type: condition for condition in pod.status.conditions}
    conditions = []
    for kind, holds, why, text in rows:
        old = before.get(kind)
        value = "True" if holds else "False"
        since = old.last_transition_time if old is not None and old.status == value else None
        # A strategic patch merges conditions by type: what does not hold any more has to be taken out by name.
        condition: dict[str, Any] = {"type": kind, "status": value, "lastTransitionTime": since or stamp(now)}
        condition |= {"reason": why or None, "message": text or None, "observedGeneration": pod.metadata.generation}
        conditions.append(condition)
    return conditions

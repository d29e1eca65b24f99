"""Printers of what runs: pods and the kinds that make them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kubekit.api.core import has_ended
from kubekit.api.durations import age, human_duration, parse_time
from tinykube.apiserver.printers.base import (
    NONE,
    Object,
    Printer,
    columns,
    containers_and_images,
    created,
    get,
    labels_text,
    name,
    selector_text,
)


def _terminated(state: Any) -> str:
    if state.get("reason"):
        return str(state["reason"])
    return f"Signal:{state['signal']}" if state.get("signal") else f"ExitCode:{state.get('exitCode', 0)}"


def _always_restarted(container: Any) -> bool:
    return bool(container.get("restartPolicy") == "Always")


def _condition(obj: Object, kind: str) -> Object:
    return next((c for c in get(obj, "status", "conditions", default=[]) if c.get("type") == kind), {})


def _init_phase(pod: Object) -> tuple[str | None, int, int, list[str], int]:
    """Return the state of the init containers: (`Init:...` or None, restarts, restarts of sidecars, last restarts,
    ready).
    """
    specs = {c["name"]: c for c in get(pod, "spec", "initContainers", default=[])}
    restarts = sidecar_restarts = ready = 0
    last: list[str] = []
    for index, status in enumerate(get(pod, "status", "initContainerStatuses", default=[])):
        restarts += status.get("restartCount", 0)
        if finished := get(status, "lastState", "terminated", "finishedAt"):
            last.append(finished)
        sidecar = _always_restarted(specs.get(status.get("name"), {}))
        if sidecar:
            sidecar_restarts += status.get("restartCount", 0)
        terminated = get(status, "state", "terminated")
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if sidecar and status.get("started"):
            ready += 1 if status.get("ready") else 0
            continue
        waiting = get(status, "state", "waiting", "reason", default="")
        if terminated is not None:
            return "Init:" + _terminated(terminated), restarts, sidecar_restarts, last, ready
        if waiting and waiting != "PodInitializing":
            return "Init:" + waiting, restarts, sidecar_restarts, last, ready
        return f"Init:{index}/{len(specs)}", restarts, sidecar_restarts, last, ready
    return None, restarts, sidecar_restarts, last, ready


def pod_status(pod: Object) -> tuple[str, int, int, list[str]]:
    """(STATUS, ready containers, restarts, times of earlier terminations) as `kubectl get pods` shows them."""
    phase = get(pod, "status", "phase", default="")
    reason = get(pod, "status", "reason", default="") or phase
    if _condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    init, restarts, sidecar_restarts, last, ready = _init_phase(pod)
    if init is not None:
        reason = init
    if init is None or _condition(pod, "Initialized").get("status") == "True":
        restarts = sidecar_restarts
        running = False
        for status in reversed(get(pod, "status", "containerStatuses", default=[])):
            restarts += status.get("restartCount", 0)
            if finished := get(status, "lastState", "terminated", "finishedAt"):
                last.append(finished)
            state = get(status, "state", default={})
            if get(state, "waiting", "reason"):
                reason = state["waiting"]["reason"]
            elif state.get("terminated") is not None:
                reason = _terminated(state["terminated"])
            elif status.get("ready") and state.get("running") is not None:
                running = True
                ready += 1
        if reason == "Completed" and running:
            reason = "Running" if _condition(pod, "Ready").get("status") == "True" else "NotReady"
    if get(pod, "metadata", "deletionTimestamp"):
        if get(pod, "status", "reason") == "NodeLost":
            reason = "Unknown"
        elif not has_ended(phase):
            reason = "Terminating"
    return reason, ready, restarts, last


def _pod(pod: Object, now: datetime) -> list[Any]:
    reason, ready, restarts, last = pod_status(pod)
    sidecars = [c for c in get(pod, "spec", "initContainers", default=[]) if _always_restarted(c)]
    total = len(get(pod, "spec", "containers", default=[])) + len(sidecars)
    gates = [g["conditionType"] for g in get(pod, "spec", "readinessGates", default=[])]
    open_gates = sum(1 for gate in gates if _condition(pod, gate).get("status") == "True")
    return [
        name(pod),
        f"{ready}/{total}",
        reason,
        f"{restarts} ({age(max(last), now)} ago)" if restarts and last else str(restarts),
        created(pod, now),
        get(pod, "status", "podIP", default="") or NONE,
        get(pod, "spec", "nodeName", default="") or NONE,
        get(pod, "status", "nominatedNodeName", default="") or NONE,
        f"{open_gates}/{len(gates)}" if gates else NONE,
    ]


def _deployment(obj: Object, now: datetime) -> list[Any]:
    status = get(obj, "status", default={})
    return [
        name(obj),
        f"{status.get('readyReplicas', 0)}/{get(obj, 'spec', 'replicas', default=1)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        created(obj, now),
        *containers_and_images(obj, "spec", "template"),
        selector_text(get(obj, "spec", "selector")),
    ]


def _replica_set(obj: Object, now: datetime) -> list[Any]:
    status = get(obj, "status", default={})
    return [
        name(obj),
        get(obj, "spec", "replicas", default=1),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        created(obj, now),
        *containers_and_images(obj, "spec", "template"),
        selector_text(get(obj, "spec", "selector")),
    ]


def _replication_controller(obj: Object, now: datetime) -> list[Any]:
    return [*_replica_set(obj, now)[:-1], labels_text(get(obj, "spec", "selector", default={}))]


def _stateful_set(obj: Object, now: datetime) -> list[Any]:
    ready = get(obj, "status", "readyReplicas", default=0)
    wanted = get(obj, "spec", "replicas", default=1)
    return [name(obj), f"{ready}/{wanted}", created(obj, now), *containers_and_images(obj, "spec", "template")]


def _daemon_set(obj: Object, now: datetime) -> list[Any]:
    status = get(obj, "status", default={})
    return [
        name(obj),
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        labels_text(get(obj, "spec", "template", "spec", "nodeSelector", default={})),
        created(obj, now),
        *containers_and_images(obj, "spec", "template"),
        selector_text(get(obj, "spec", "selector")),
    ]


def _job(obj: Object, now: datetime) -> list[Any]:
    status = get(obj, "status", default={})
    wanted = get(obj, "spec", "completions")
    if wanted is None:
        parallel = get(obj, "spec", "parallelism", default=0)
        total = f"1 of {parallel}" if parallel > 1 else "1"
    else:
        total = str(wanted)
    duration = ""
    if started := status.get("startTime"):
        ended = status.get("completionTime")
        end = parse_time(ended) if ended else now
        duration = human_duration((end - parse_time(started)).total_seconds())
    return [
        name(obj),
        _job_status(obj),
        f"{status.get('succeeded', 0)}/{total}",
        duration,
        created(obj, now),
        *containers_and_images(obj, "spec", "template"),
        selector_text(get(obj, "spec", "selector")),
    ]


def _job_status(obj: Object) -> str:
    for kind, text in (
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if _condition(obj, kind).get("status") == "True":
            return text
    return "Terminating" if get(obj, "metadata", "deletionTimestamp") else "Running"


def _cron_job(obj: Object, now: datetime) -> list[Any]:
    last = get(obj, "status", "lastScheduleTime")
    return [
        name(obj),
        get(obj, "spec", "schedule", default=""),
        get(obj, "spec", "timeZone", default="") or NONE,
        "True" if get(obj, "spec", "suspend") else "False",
        len(get(obj, "status", "active", default=[])),
        age(last, now) if last else NONE,
        created(obj, now),
        *containers_and_images(obj, "spec", "jobTemplate", "spec", "template"),
        NONE,
    ]


def _revision(obj: Object, now: datetime) -> list[Any]:
    owner = next((one for one in get(obj, "metadata", "ownerReferences", default=[]) if one.get("controller")), None)
    made_by = NONE
    if owner is not None:
        group = owner["apiVersion"].rpartition("/")[0]
        made_by = f"{owner['kind'].lower()}{'.' if group else ''}{group}/{owner['name']}"
    return [name(obj), made_by, obj.get("revision", 0), created(obj, now)]


PRINTERS: dict[tuple[str, str], Printer] = {
    ("", "pods"): Printer(
        columns("Name Ready Status Restarts Age wide:IP wide:Node wide:Nominated_Node wide:Readiness_Gates"),
        _pod,
    ),
    ("", "replicationcontrollers"): Printer(
        columns("Name Desired# Current# Ready# Age wide:Containers wide:Images wide:Selector"),
        _replication_controller,
    ),
    ("apps", "controllerrevisions"): Printer(columns("Name Controller Revision Age"), _revision),
    ("apps", "deployments"): Printer(
        columns("Name Ready Up-to-date Available Age wide:Containers wide:Images wide:Selector"),
        _deployment,
    ),
    ("apps", "replicasets"): Printer(
        columns("Name Desired# Current# Ready# Age wide:Containers wide:Images wide:Selector"),
        _replica_set,
    ),
    ("apps", "statefulsets"): Printer(
        columns("Name Ready Age wide:Containers wide:Images"),
        _stateful_set,
    ),
    ("apps", "daemonsets"): Printer(
        columns(
            "Name Desired# Current# Ready# Up-to-date# Available# Node_Selector Age "
            "wide:Containers wide:Images wide:Selector"
        ),
        _daemon_set,
    ),
    ("batch", "jobs"): Printer(
        columns("Name Status Completions Duration Age wide:Containers wide:Images wide:Selector"),
        _job,
    ),
    ("batch", "cronjobs"): Printer(
        columns("Name Schedule Timezone Suspend? Active# Last_Schedule Age wide:Containers wide:Images wide:Selector"),
        _cron_job,
    ),
}

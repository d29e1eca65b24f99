"""Decides a Job's next step and its status. Pure, on plain data.

Finished pods carry a finalizer until they are counted, so that a pod that vanishes is never forgotten and never counted
twice: first its uid goes into `status.uncountedTerminatedPods`, then its finalizer goes, then the counters take the uid
in. Each step may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from kubekit.api.durations import parse_time
from tinykube.controllers import pods as podstate

Object = Mapping[str, Any]
MANAGER: Final = "kubernetes.io/job-controller"  # spec.managedBy of the Jobs that are ours
TRACKING: Final = "batch.kubernetes.io/job-tracking"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
_FIRST_BACKOFF_S: Final = 10.0
_LAST_BACKOFF_S: Final = 600.0


class JobTally(msgspec.Struct, frozen=True):
    """The pods of a Job sorted out. Counters include what is still uncounted; `indexes` are completed ones."""

    active: tuple[Object, ...]
    ready: int
    terminating: int
    succeeded: int
    failed: int
    uncounted_succeeded: tuple[str, ...]
    uncounted_failed: tuple[str, ...]
    to_release: tuple[Object, ...]
    indexes: frozenset[int]
    last_failure: str


class JobStep(msgspec.Struct, frozen=True):
    """Pods to make (their indexes, None where there are none), pods to delete, and how the Job ends, if it does."""

    create: tuple[int | None, ...] = ()
    delete: tuple[Object, ...] = ()
    ended: str = ""  # Complete or Failed
    reason: str = ""
    message: str = ""
    wait_s: float | None = None


def index_of(pod: Object) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX)
    return int(text) if text is not None and text.isdigit() else None


def parse_indexes(text: str) -> set[int]:
    """`0-2,5` -> {0, 1, 2, 5}"""
    found: set[int] = set()
    for part in text.split(","):
        if part:
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
    return found


def format_indexes(indexes: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def tally(job: Object, pods: Sequence[Object]) -> JobTally:
    status = job.get("status") or {}
    before = status.get("uncountedTerminatedPods") or {}
    uncounted_ok, uncounted_bad = set(before.get("succeeded") or ()), set(before.get("failed") or ())
    known = {pod["metadata"]["uid"]: pod for pod in pods}
    succeeded, failed = status.get("succeeded") or 0, status.get("failed") or 0
    # Listed pods without the finalizer (or gone) are safe to take into the counters.
    for uids, ok in ((uncounted_ok, True), (uncounted_bad, False)):
        for uid in sorted(uids):
            pod = known.get(uid)
            if pod is None or TRACKING not in (pod["metadata"].get("finalizers") or ()):
                uids.discard(uid)
                succeeded, failed = succeeded + ok, failed + (not ok)
    indexes = parse_indexes(status.get("completedIndexes") or "")
    to_release: list[Object] = []
    last_failure = ""
    for uid, pod in known.items():
        tracked = TRACKING in (pod["metadata"].get("finalizers") or ())
        phase = podstate.phase(pod)
        gone = podstate.is_terminating(pod) and not (
            pod["spec"].get("nodeName") and pod["metadata"].get("deletionGracePeriodSeconds")
        )
        if phase == "Succeeded":
            index = index_of(pod)
            if index is not None:
                indexes.add(index)
            if tracked:
                uncounted_ok.add(uid)
        elif (phase == "Failed" or gone) and tracked:
            uncounted_bad.add(uid)
        if phase == "Failed":
            last_failure = max(last_failure, _finished_at(pod))
        if tracked and uid in uncounted_ok | uncounted_bad:
            to_release.append(pod)
    active = tuple(p for p in known.values() if podstate.is_active(p))
    return JobTally(
        active=active,
        ready=sum(podstate.is_ready(p) for p in active),
        terminating=sum(podstate.is_terminating(p) and not podstate.is_finished(p) for p in known.values()),
        succeeded=succeeded + len(uncounted_ok),
        failed=failed + len(uncounted_bad),
        uncounted_succeeded=tuple(sorted(uncounted_ok)),
        uncounted_failed=tuple(sorted(uncounted_bad)),
        to_release=tuple(to_release),
        indexes=frozenset(indexes),
        last_failure=last_failure,
    )


def _finished_at(pod: Object) -> str:
    times = [
        (status.get("state") or {}).get("terminated", {}).get("finishedAt") or ""
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return max([*times, pod["metadata"].get("creationTimestamp") or ""])


def step(job: Object, counted: JobTally, now: str, attempts: int | None = None) -> JobStep:
    """Decide the next step. `attempts`: restarts of running pods' containers (OnFailure), which count as failures."""
    spec, status = job["spec"], job.get("status") or {}
    indexed = spec.get("completionMode") == "Indexed"
    parallelism = spec.get("parallelism", 1)
    completions = spec.get("completions")
    limit = spec.get("backoffLimit", 6)
    if counted.failed > limit or (attempts or 0) > limit:
        text = "Job has reached the specified backoff limit"
        return JobStep(delete=counted.active, ended="Failed", reason="BackoffLimitExceeded", message=text)
    deadline, started = spec.get("activeDeadlineSeconds"), status.get("startTime")
    wait: float | None = None
    if deadline is not None and started and not spec.get("suspend"):
        left = deadline - (parse_time(now) - parse_time(started)).total_seconds()
        if left <= 0:
            text = "Job was active longer than specified deadline"
            return JobStep(delete=counted.active, ended="Failed", reason="DeadlineExceeded", message=text)
        wait = left
    done = len([i for i in counted.indexes if i < (completions or 0)]) if indexed else counted.succeeded
    finished = done >= completions if completions is not None else counted.succeeded > 0 and not counted.active
    if finished:
        reason, text = "CompletionsReached", "Reached expected number of succeeded pods"
        return JobStep(delete=counted.active, ended="Complete", reason=reason, message=text)
    if spec.get("suspend"):
        return JobStep(delete=counted.active, wait_s=wait)
    wanted = parallelism
    if completions is not None:
        wanted = min(parallelism, completions - done)
    elif counted.succeeded:
        wanted = len(counted.active)  # a work queue: once one succeeded no new ones start
    missing = wanted - len(counted.active)
    if missing < 0:
        spare = sorted(counted.active, key=lambda p: (podstate.is_ready(p), _negated(p["metadata"])))
        return JobStep(delete=tuple(spare[:-missing]), wait_s=wait)
    if not missing:
        return JobStep(wait_s=wait)
    backoff = _backoff(counted, now)
    if backoff > 0:
        return JobStep(wait_s=min(backoff, wait) if wait is not None else backoff)
    if not indexed:
        return JobStep(create=(None,) * missing, wait_s=wait)
    taken = counted.indexes | {index_of(pod) for pod in counted.active}
    free = [index for index in range(completions or 0) if index not in taken]
    return JobStep(create=tuple(free[:missing]), wait_s=wait)


def _negated(meta: Object) -> tuple[int, ...]:
    """Younger pods first."""
    return tuple(-ord(c) for c in meta.get("creationTimestamp") or "")


def _backoff(counted: JobTally, now: str) -> float:
    """Seconds until the next pod may start: 10 s after a failure, doubled for each, at most ten minutes."""
    if not counted.failed or not counted.last_failure:
        return 0.0
    pause = min(_FIRST_BACKOFF_S * 2.0 ** (counted.failed - 1), _LAST_BACKOFF_S)
    return float(pause) - (parse_time(now) - parse_time(counted.last_failure)).total_seconds()


def status_of(job: Object, counted: JobTally, now: str, *, active: int) -> dict[str, Any]:
    """The status without its conditions; `active` after what the step did."""
    before = job.get("status") or {}
    indexed = job["spec"].get("completionMode") == "Indexed"
    uncounted = {"succeeded": list(counted.uncounted_succeeded), "failed": list(counted.uncounted_failed)}
    status: dict[str, Any] = {
        "ready": counted.ready,
        "terminating": counted.terminating,
        "uncountedTerminatedPods": {k: v for k, v in uncounted.items() if v},
    }
    counters = {
        "active": active,
        "succeeded": counted.succeeded - len(counted.uncounted_succeeded),
        "failed": counted.failed - len(counted.uncounted_failed),
    }
    status.update({name: value for name, value in counters.items() if value})
    if indexed and counted.indexes:
        status["completedIndexes"] = format_indexes(sorted(counted.indexes))
    if not job["spec"].get("suspend"):
        status["startTime"] = before.get("startTime") or now
    if before.get("completionTime"):
        status["completionTime"] = before["completionTime"]
    return status


def is_over(job: Object) -> bool:
    return any((podstate.condition(job, type_) or {}).get("status") == "True" for type_ in ("Complete", "Failed"))


def expires_in(job: Object, now: str) -> float | None:
    """Seconds until `ttlSecondsAfterFinished` removes a finished Job; None: never."""
    ttl = job["spec"].get("ttlSecondsAfterFinished")
    if ttl is None:
        return None
    ended = [
        c["lastTransitionTime"]
        for c in (job.get("status") or {}).get("conditions") or ()
        if c["type"] in ("Complete", "Failed") and c["status"] == "True"
    ]
    if not ended:
        return None
    return max(0.0, float(ttl) - (parse_time(now) - parse_time(ended[0])).total_seconds())

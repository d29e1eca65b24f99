"""Decides a Job's next step and its status. Pure, on plain data.

A Job ends in two steps: first a condition says how it will end (FailureTarget, SuccessCriteriaMet) and its pods go;
when none runs any more and all are counted, Failed or Complete follows with the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kubekit.api.durations import parse_time
from tinykube.controllers import pods as podstate
from tinykube.controllers.job.indexes import attempts_before, format_indexes, index_of
from tinykube.controllers.job.policies import matched_success_rule, replaces_failed_only
from tinykube.controllers.job.tally import JobTally, finished_at

Object = Mapping[str, Any]
MANAGER: Final = "kubernetes.io/job-controller"  # spec.managedBy of the Jobs that are ours
_FIRST_BACKOFF_S: Final = 10.0
_LAST_BACKOFF_S: Final = 600.0
_ANNOUNCED: Final = {"FailureTarget": "Failed", "SuccessCriteriaMet": "Complete"}


class JobEnd(msgspec.Struct, frozen=True):
    """The end of a Job: Complete or Failed, and why."""

    type: str
    reason: str
    message: str

    @property
    def announcement(self) -> str:
        """The condition that precedes the end."""
        return next(first for first, last in _ANNOUNCED.items() if last == self.type)


class JobStep(msgspec.Struct, frozen=True):
    """Pods to make (their indexes, None where there are none), pods to delete, and how the Job ends, if it does."""

    create: tuple[int | None, ...] = ()
    delete: tuple[Object, ...] = ()
    end: JobEnd | None = None
    wait_s: float | None = None


def announced_end(job: Object) -> JobEnd | None:
    """Return how a Job will end, when a condition says so already."""
    for first, last in _ANNOUNCED.items():
        found = podstate.condition(job, first)
        if found is not None and found.get("status") == "True":
            return JobEnd(last, found.get("reason") or "", found.get("message") or "")
    return None


def step(job: Object, counted: JobTally, now: str, attempts: int | None = None) -> JobStep:
    """Decide the next step. `attempts`: restarts of running pods' containers (OnFailure), which count as failures."""
    spec, status = job["spec"], job.get("status") or {}
    deadline, started = spec.get("activeDeadlineSeconds"), status.get("startTime")
    left: float | None = None
    if deadline is not None and started and not spec.get("suspend"):
        left = deadline - (parse_time(now) - parse_time(started)).total_seconds()
    end = announced_end(job) or _failure(spec, counted, left, attempts or 0) or _success(job, counted)
    if end is not None:
        return JobStep(delete=counted.active, end=end)
    if spec.get("suspend"):
        return JobStep(delete=counted.active, wait_s=left)
    create, delete, backoff = _pods(job, counted, now)
    waits = [seconds for seconds in (left, backoff) if seconds is not None]
    return JobStep(create=create, delete=delete, wait_s=min(waits, default=None))


def _failure(spec: Object, counted: JobTally, left: float | None, attempts: int) -> JobEnd | None:
    if counted.fails_job:
        return JobEnd("Failed", "PodFailurePolicy", counted.fails_job)
    limit = spec.get("backoffLimit", 6)
    if counted.failed + counted.waiting_failures > limit or attempts > limit:
        return JobEnd("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if left is not None and left <= 0:
        return JobEnd("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    if not counted.failed_indexes:
        return None
    most, completions = spec.get("maxFailedIndexes"), spec.get("completions") or 0
    if most is not None and len(counted.failed_indexes) > most:
        text = "Job has exceeded the specified maximal number of failed indexes"
        return JobEnd("Failed", "MaxFailedIndexesExceeded", text)
    if len(counted.failed_indexes) + len(_completed(spec, counted)) >= completions:
        return JobEnd("Failed", "FailedIndexes", "Job has failed indexes")
    return None


def _success(job: Object, counted: JobTally) -> JobEnd | None:
    spec = job["spec"]
    completions = spec.get("completions")
    if _is_indexed(spec):
        rule = matched_success_rule(job, _completed(spec, counted))
        if rule is not None:
            return JobEnd("Complete", "SuccessPolicy", f"Matched rules at index {rule}")
    if completions is not None:
        finished = _done(spec, counted) >= completions
    else:
        finished = counted.succeeded > 0 and not counted.active
    return JobEnd("Complete", "CompletionsReached", "Reached expected number of succeeded pods") if finished else None


def _is_indexed(spec: Object) -> bool:
    return spec.get("completionMode") == "Indexed"


def _completed(spec: Object, counted: JobTally) -> frozenset[int]:
    """The completed indexes that the Job still has."""
    return frozenset(index for index in counted.indexes if index < (spec.get("completions") or 0))


def _done(spec: Object, counted: JobTally) -> int:
    return len(_completed(spec, counted)) if _is_indexed(spec) else counted.succeeded


def _pods(job: Object, counted: JobTally, now: str) -> tuple[tuple[int | None, ...], tuple[Object, ...], float | None]:
    """Return the pods to make, those to delete, and in how many seconds the next may start."""
    spec, completions = job["spec"], job["spec"].get("completions")
    wanted = spec.get("parallelism", 1)
    if completions is not None:
        wanted = min(wanted, completions - _done(spec, counted) - len(counted.failed_indexes))
    elif counted.succeeded:
        wanted = len(counted.active)  # a work queue: once a pod succeeded no new ones start
    if wanted < len(counted.active):
        spare = sorted(counted.active, key=lambda p: (podstate.is_ready(p), _negated(p["metadata"])))
        return (), tuple(spare[: len(counted.active) - wanted]), None
    occupying = (*counted.active, *counted.leaving) if replaces_failed_only(job) else counted.active
    missing = wanted - len(occupying)
    if missing <= 0:
        return (), (), None
    if spec.get("backoffLimitPerIndex") is None:
        backoff = _backoff(counted.failed, counted.last_failure, now)
        if backoff > 0:
            return (), (), backoff
    if not _is_indexed(spec):
        return (None,) * missing, (), None
    taken = counted.indexes | counted.failed_indexes | {index_of(pod) for pod in occupying}
    free = [index for index in range(completions or 0) if index not in taken]
    waits = {index: _backoff_of_index(counted.replaceable.get(index), now) for index in free}
    ready = [index for index in free if waits[index] <= 0]
    return tuple(ready[:missing]), (), min((wait for wait in waits.values() if wait > 0), default=None)


def _negated(meta: Object) -> tuple[int, ...]:
    """Younger pods first."""
    return tuple(-ord(c) for c in meta.get("creationTimestamp") or "")


def _backoff(failures: int, last_failure: str, now: str) -> float:
    """Seconds until the next pod may start: 10 s after a failure, doubled for each, at most ten minutes."""
    if not last_failure:
        return 0.0
    pause = min(_FIRST_BACKOFF_S * 2.0 ** (max(failures, 1) - 1), _LAST_BACKOFF_S)
    return float(pause) - (parse_time(now) - parse_time(last_failure)).total_seconds()


def _backoff_of_index(replaced: Object | None, now: str) -> float:
    """The same for one index, whose last failed pod carries the number of failures before it."""
    return _backoff(attempts_before(replaced) + 1, finished_at(replaced), now) if replaced is not None else 0.0


def status_of(job: Object, counted: JobTally, now: str, *, active: int) -> dict[str, Any]:
    """The status without its conditions; `active` after what the step did."""
    before = job.get("status") or {}
    uncounted = {"succeeded": list(counted.uncounted_succeeded), "failed": list(counted.uncounted_failed)}
    status: dict[str, Any] = {
        "ready": counted.ready,
        "terminating": len(counted.leaving),
        "uncountedTerminatedPods": {k: v for k, v in uncounted.items() if v},
    }
    counters = {
        "active": active,
        "succeeded": counted.succeeded - len(counted.uncounted_succeeded),
        "failed": counted.failed - len(counted.uncounted_failed),
    }
    status.update({name: value for name, value in counters.items() if value})
    if _is_indexed(job["spec"]) and counted.indexes:
        status["completedIndexes"] = format_indexes(counted.indexes)
    if job["spec"].get("backoffLimitPerIndex") is not None:
        status["failedIndexes"] = format_indexes(counted.failed_indexes)
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

"""Counts a Job's pods, each exactly once. Pure, on plain data.

Finished pods carry a finalizer until they are counted, so that a pod that vanishes is never forgotten and never counted
twice: first its uid goes into `status.uncountedTerminatedPods`, then its finalizer goes, then the counters take the uid
in. Each step may be repeated. With `backoffLimitPerIndex` the last failed pod of an index stays as it is until its
replacement exists, which carries its number of failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tinykube.controllers import pods as podstate
from tinykube.controllers.job.indexes import attempts_before, failures_before, index_of, parse_indexes
from tinykube.controllers.job.policies import FailureVerdict, has_failed, judge_failure

Object = Mapping[str, Any]
TRACKING: Final = "batch.kubernetes.io/job-tracking"


class JobTally(msgspec.Struct, frozen=True):
    """The pods of a Job sorted out. Counters include what is still uncounted; `indexes` are completed ones.

    `leaving` are under deletion and have not ended. `replaceable` are failed pods by index, each waiting for its
    replacement; `waiting_failures` of them count. `fails_job` is why a pod's failure fails the Job.
    """

    active: tuple[Object, ...]
    leaving: tuple[Object, ...]
    ready: int
    succeeded: int
    failed: int
    uncounted_succeeded: tuple[str, ...]
    uncounted_failed: tuple[str, ...]
    to_release: tuple[Object, ...]
    indexes: frozenset[int]
    failed_indexes: frozenset[int]
    replaceable: Mapping[int, Object]
    waiting_failures: int
    fails_job: str
    last_failure: str

    @property
    def is_settled(self) -> bool:
        """No pod runs any more, and all are in the counters."""
        uncounted = self.uncounted_succeeded or self.uncounted_failed or self.replaceable
        return not (self.active or self.leaving or uncounted)


def is_tracked(pod: Object) -> bool:
    return TRACKING in (pod["metadata"].get("finalizers") or ())


def tally(job: Object, pods: Sequence[Object], *, is_ending: bool = False) -> JobTally:
    """Count the pods of a Job. `is_ending`: the Job has failed or succeeded already, so no pod waits for another."""
    status, completions = job.get("status") or {}, job["spec"].get("completions") or 0
    before = status.get("uncountedTerminatedPods") or {}
    uncounted_ok, uncounted_bad = set(before.get("succeeded") or ()), set(before.get("failed") or ())
    known = {pod["metadata"]["uid"]: pod for pod in pods}
    succeeded, failed = status.get("succeeded") or 0, status.get("failed") or 0
    # Listed pods without the finalizer (or gone) are safe to take into the counters.
    for uids, ok in ((uncounted_ok, True), (uncounted_bad, False)):
        for uid in sorted(uids):
            pod = known.get(uid)
            if pod is None or not is_tracked(pod):
                uids.discard(uid)
                succeeded, failed = succeeded + ok, failed + (not ok)
    active = tuple(pod for pod in known.values() if podstate.is_active(pod))
    bad = {uid: judge_failure(job, pod) for uid, pod in known.items() if is_tracked(pod) and has_failed(job, pod)}
    indexes = parse_indexes(status.get("completedIndexes") or "")
    done = (index_of(pod) for pod in known.values() if podstate.phase(pod) == "Succeeded")
    indexes |= {index for index in done if index is not None}
    failed_indexes: set[int] = set()
    replaceable: dict[int, Object] = {}
    if job["spec"].get("backoffLimitPerIndex") is not None:
        failed_pods = {uid: known[uid] for uid in bad}
        failed_indexes = parse_indexes(status.get("failedIndexes") or "")
        failed_indexes |= _newly_failed(job, failed_pods, bad, completions)
        if not is_ending:
            over = {*indexes, *failed_indexes, *(index_of(pod) for pod in active)}
            replaceable = _replaceable(failed_pods.values(), over, completions)
    waiting = {pod["metadata"]["uid"] for pod in replaceable.values()}
    to_release: list[Object] = []
    for uid, pod in known.items():
        if not is_tracked(pod):
            continue
        if podstate.phase(pod) == "Succeeded":
            if uid not in uncounted_bad:
                uncounted_ok.add(uid)
        elif uid not in bad or uid in waiting:
            continue
        elif bad[uid].counts:
            uncounted_bad.add(uid)
        to_release.append(pod)
    return JobTally(
        active=active,
        leaving=tuple(p for p in known.values() if podstate.is_terminating(p) and not podstate.is_finished(p)),
        ready=sum(podstate.is_ready(p) for p in active),
        succeeded=succeeded + len(uncounted_ok),
        failed=failed + len(uncounted_bad),
        uncounted_succeeded=tuple(sorted(uncounted_ok)),
        uncounted_failed=tuple(sorted(uncounted_bad)),
        to_release=tuple(to_release),
        indexes=frozenset(indexes),
        failed_indexes=frozenset(failed_indexes),
        replaceable=replaceable,
        waiting_failures=sum(bad[uid].counts for uid in waiting),
        fails_job=next((verdict.fails_job for verdict in bad.values() if verdict.fails_job), ""),
        last_failure=max((finished_at(p) for p in known.values() if podstate.phase(p) == "Failed"), default=""),
    )


def _newly_failed(
    job: Object, failed: Mapping[str, Object], verdicts: Mapping[str, FailureVerdict], completions: int
) -> set[int]:
    """The indexes with a failed pod after which no other is tried."""
    limit, found = job["spec"]["backoffLimitPerIndex"], set()
    for uid, pod in failed.items():
        index, verdict = index_of(pod), verdicts[uid]
        is_last = verdict.fails_index or (verdict.counts and failures_before(pod) >= limit)
        if index is not None and index < completions and is_last:
            found.add(index)
    return found


def _replaceable(failed: Iterable[Object], over: set[int | None], completions: int) -> dict[int, Object]:
    """The last failed pod of each index that is not over yet."""
    found: dict[int, Object] = {}
    for pod in failed:
        index = index_of(pod)
        if index is None or index >= completions or index in over:
            continue
        if index not in found or attempts_before(found[index]) <= attempts_before(pod):
            found[index] = pod
    return found


def finished_at(pod: Object) -> str:
    """Return when the last container of a pod ended, else when the pod was made."""
    times = [
        (status.get("state") or {}).get("terminated", {}).get("finishedAt") or ""
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return max([*times, pod["metadata"].get("creationTimestamp") or ""])

"""Failed and succeeded pods of a Job with policies: podFailurePolicy, limits of indexes, successPolicy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.apiserver import subresources
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.writes import BY_SYSTEM
from tinykube.controllers.job.decide import status_of, step
from tinykube.controllers.job.indexes import INDEX, failure_annotations, index_of
from tinykube.controllers.job.policies import judge_failure
from tinykube.controllers.job.tally import TRACKING, tally

from .test_job import active, condition, finish, made, work

FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"


def rules(*wanted):
    return {"rules": list(wanted)}


def on_exit(action, operator, *values, **more):
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values), **more}}


DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


async def fail(cluster, pod, code=1, **status):
    ended = {"state": {"terminated": {"exitCode": code, "finishedAt": cluster.registry.now()}}}
    statuses = [{"name": "main", "image": "app", "imageID": "", "ready": False, "restartCount": 0, **ended}]
    await cluster.set_status("pods", pod, phase="Failed", containerStatuses=statuses, **status)
    await cluster.settle()


async def bind(cluster, pod):
    binding = {"metadata": {"uid": pod["metadata"]["uid"]}, "target": {"name": "a"}}
    await subresources.bind(cluster.registry, "default", pod["metadata"]["name"], binding, BY_SYSTEM)


def by_index(cluster):
    return {index_of(pod): pod for pod in active(cluster)}


async def test_a_disrupted_pod_is_replaced_and_counts_for_nothing(cluster):
    await made(cluster, backoffLimit=0, podFailurePolicy=rules(DISRUPTED))
    (pod,) = active(cluster)
    await fail(cluster, pod, 137, conditions=[{"type": "DisruptionTarget", "status": "True"}])
    await cluster.settle(10)
    assert condition(cluster, "Failed") is None
    assert "failed" not in work(cluster)["status"]
    (again,) = active(cluster)
    assert again["metadata"]["name"] != pod["metadata"]["name"]
    assert TRACKING not in (
        cluster.registry.get("pods", "default", pod["metadata"]["name"])["metadata"].get("finalizers") or ()
    )


async def test_an_exit_code_fails_the_whole_job_at_once(cluster):
    policy = rules(DISRUPTED, on_exit("FailJob", "In", 42, containerName="main"))
    await made(cluster, completions=3, parallelism=3, podFailurePolicy=policy)
    first, *others = active(cluster)
    await fail(cluster, first, 42)
    name = first["metadata"]["name"]
    text = f"Container main for pod default/{name} failed with exit code 42 matching FailJob rule at index 1"
    for type_ in ("FailureTarget", "Failed"):
        assert condition(cluster, type_)["reason"] == "PodFailurePolicy"
        assert condition(cluster, type_)["message"] == text
    assert all(cluster.registry.get("pods", "default", pod["metadata"]["name"]) is None for pod in others)
    assert cluster.events("PodFailurePolicy")[0]["message"] == text


async def test_a_job_has_failed_only_when_its_last_pod_is_gone(cluster):
    await cluster.node("a")
    await made(cluster, completions=2, parallelism=2, backoffLimit=0)
    first, second = active(cluster)
    await bind(cluster, second)
    await fail(cluster, first)
    assert condition(cluster, "FailureTarget")["status"] == "True"
    assert condition(cluster, "Failed") is None
    assert work(cluster)["status"]["terminating"] == 1
    await cluster.registry.delete("pods", "default", second["metadata"]["name"], grace=0)
    await cluster.settle()
    assert condition(cluster, "Failed")["reason"] == "BackoffLimitExceeded"
    assert work(cluster)["status"]["terminating"] == 0
    assert work(cluster)["status"]["failed"] == 2


async def test_with_failed_replacements_a_pod_that_still_ends_is_not_replaced(cluster):
    await cluster.node("a")
    await made(cluster, podReplacementPolicy="Failed")
    (pod,) = active(cluster)
    await bind(cluster, pod)
    await cluster.registry.delete("pods", "default", pod["metadata"]["name"])
    await cluster.settle()
    assert len(cluster.pods()) == 1
    assert work(cluster)["status"]["terminating"] == 1
    await fail(cluster, pod)
    await cluster.settle(10)
    assert work(cluster)["status"]["failed"] == 1
    assert len([p for p in active(cluster) if "deletionTimestamp" not in p["metadata"]]) == 1


async def test_each_index_has_failures_of_its_own(cluster):
    await made(cluster, completionMode="Indexed", completions=3, parallelism=3, backoffLimitPerIndex=1)
    assert work(cluster)["spec"]["backoffLimit"] == 2**31 - 1
    assert work(cluster)["status"]["failedIndexes"] == ""
    first = by_index(cluster)[1]
    assert first["metadata"]["annotations"][FAILURES] == "0"
    await fail(cluster, first)
    assert sorted(by_index(cluster)) == [0, 2]
    # It stays, and holds its count, until its replacement has come.
    assert TRACKING in cluster.registry.get("pods", "default", first["metadata"]["name"])["metadata"]["finalizers"]
    assert "failed" not in work(cluster)["status"]
    await cluster.settle(10)
    second = by_index(cluster)[1]
    assert second["metadata"]["annotations"][FAILURES] == "1"
    assert work(cluster)["status"]["failed"] == 1
    await fail(cluster, second)
    await cluster.settle(1000)
    assert work(cluster)["status"]["failedIndexes"] == "1"
    assert sorted(by_index(cluster)) == [0, 2]
    await finish(cluster, *active(cluster))
    assert condition(cluster, "Failed")["reason"] == "FailedIndexes"
    assert work(cluster)["status"]["completedIndexes"] == "0,2"
    assert work(cluster)["status"]["failed"] == 2


async def test_too_many_failed_indexes_end_it(cluster):
    fields = {"completionMode": "Indexed", "completions": 4, "parallelism": 4}
    policy = rules(on_exit("FailIndex", "NotIn", 1))
    await made(cluster, **fields, backoffLimitPerIndex=5, maxFailedIndexes=1, podFailurePolicy=policy)
    pods = by_index(cluster)
    await fail(cluster, pods[0], 3)
    assert work(cluster)["status"]["failedIndexes"] == "0"
    assert condition(cluster, "FailureTarget") is None
    await fail(cluster, pods[3], 3)
    assert work(cluster)["status"]["failedIndexes"] == "0,3"
    assert condition(cluster, "Failed")["reason"] == "MaxFailedIndexesExceeded"
    assert active(cluster) == []


async def test_ignored_failures_of_an_index_are_remembered_for_its_pauses(cluster):
    fields = {"completionMode": "Indexed", "completions": 1, "backoffLimitPerIndex": 0}
    await made(cluster, **fields, podFailurePolicy=rules(DISRUPTED))
    for pause, ignored in ((10, "1"), (20, "2")):
        (pod,) = active(cluster)
        await fail(cluster, pod, conditions=[{"type": "DisruptionTarget", "status": "True"}])
        await cluster.settle(pause - 3)
        assert active(cluster) == []
        await cluster.settle(3)
        (pod,) = active(cluster)
        assert pod["metadata"]["annotations"][FAILURES] == "0"
        assert pod["metadata"]["annotations"][IGNORED] == ignored
    assert condition(cluster, "Failed") is None


@pytest.mark.parametrize(
    ("rule", "succeeding"),
    [
        ({"succeededIndexes": "0"}, [0]),
        ({"succeededCount": 2}, [1, 3]),
        ({"succeededIndexes": "0,2-3", "succeededCount": 1}, [3]),
    ],
)
async def test_enough_successes_complete_it(cluster, rule, succeeding):
    fields = {"completionMode": "Indexed", "completions": 4, "parallelism": 4}
    await made(cluster, **fields, successPolicy=rules({"succeededIndexes": "0-3"}, rule))
    pods = by_index(cluster)
    for index in succeeding:
        assert condition(cluster, "SuccessCriteriaMet") is None
        await finish(cluster, pods[index])
    for type_ in ("SuccessCriteriaMet", "Complete"):
        assert condition(cluster, type_)["reason"] == "SuccessPolicy"
        assert condition(cluster, type_)["message"] == "Matched rules at index 1"
    assert active(cluster) == []
    assert work(cluster)["status"]["succeeded"] == len(succeeding)


@pytest.mark.parametrize(
    "change",
    [
        {"backoffLimitPerIndex": 2},
        {"podFailurePolicy": rules(DISRUPTED)},
        {"successPolicy": rules({"succeededCount": 1})},
    ],
)
async def test_policies_do_not_change(cluster, change):
    await made(cluster, completionMode="Indexed", completions=2, backoffLimitPerIndex=1, podReplacementPolicy="Failed")
    with pytest.raises(ApiFailure, match="field is immutable"):
        await cluster.registry.patch(("batch", "jobs"), "default", "work", {"spec": change}, "merge")


# -- any history of a Job -------------------------------------------------------------------------------------------
NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-02T00:00:00Z"


def failed_pod(pod, code, disrupted):
    status: dict[str, Any] = {"phase": "Failed", "containerStatuses": [{"name": "main"}]}
    status["containerStatuses"][0]["state"] = {"terminated": {"exitCode": code, "finishedAt": NOW}}
    if disrupted:
        status["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    return {**pod, "status": status}


class Run:
    """A Job and its pods; `turn` does what the controller does, all at once."""

    def __init__(self, job):
        self.job = job
        self.pods: dict[str, Any] = {}
        self.started: list[tuple[int, int]] = []  # index, counted failures before it
        self.ended = None

    def turn(self):
        for _ in range(4):  # uncounted, released, counted
            counted = tally(self.job, list(self.pods.values()), is_ending=self.ended is not None)
            decided = step(self.job, counted, LATER)
            self.ended = self.ended or decided.end
            for pod in decided.delete:
                del self.pods[pod["metadata"]["uid"]]
            for index in decided.create:
                assert index not in {index_of(pod) for pod in counted.active}
                replaced = counted.replaceable.get(index)
                counts = replaced is not None and judge_failure(self.job, replaced).counts
                notes = failure_annotations(replaced, counts=counts)
                uid = f"{index}-{len(self.started)}"
                meta = {"name": uid, "namespace": "n", "uid": uid, "creationTimestamp": NOW, "finalizers": [TRACKING]}
                meta["annotations"] = {INDEX: str(index), **notes}
                self.pods[uid] = {"metadata": meta, "spec": {}, "status": {}}
                self.started.append((index, int(notes[FAILURES])))
            self.job["status"] = status_of(self.job, counted, NOW, active=0)
            for pod in counted.to_release:
                uid = pod["metadata"]["uid"]
                self.pods[uid] = {**pod, "metadata": {**pod["metadata"], "finalizers": []}}

    def running(self):
        return sorted(uid for uid, pod in self.pods.items() if not pod["status"])


@given(
    completions=st.integers(1, 4),
    parallelism=st.integers(1, 4),
    limit=st.integers(0, 2),
    most=st.none() | st.integers(0, 2),
    fates=st.lists(st.sampled_from(["done", "fail", "stop", "disrupted", "gone"]), max_size=25),
)
def test_no_index_is_tried_too_often_and_every_job_ends(completions, parallelism, limit, most, fates):
    policy = rules(
        {**DISRUPTED, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        on_exit("FailIndex", "In", 3),
    )
    spec = {"completionMode": "Indexed", "completions": completions, "parallelism": parallelism, "backoffLimit": 1000}
    run = Run({"spec": {**spec, "backoffLimitPerIndex": limit, "maxFailedIndexes": most, "podFailurePolicy": policy}})
    run.turn()
    for fate in [*fates, *["fail"] * completions * (limit + 1)]:
        if not run.running():
            break
        uid = run.running()[0]
        pod = run.pods[uid]
        if fate == "done":
            run.pods[uid] = {**pod, "status": {"phase": "Succeeded"}}
        elif fate == "gone":  # a user deletes it before it had a node
            run.pods[uid] = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": NOW}}
        else:
            run.pods[uid] = failed_pod(pod, 3 if fate == "stop" else 1, fate == "disrupted")
        run.turn()
        assert len(run.running()) <= parallelism
    status = run.job["status"]
    assert run.ended is not None
    assert all(failures <= limit for _, failures in run.started)
    if run.ended.type == "Complete":
        assert status["failedIndexes"] == ""
    elif most is None:
        assert run.ended.reason == "FailedIndexes"
    assert run.running() == []

"""Jobs: pods that run to their end, counted exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.controllers.job.indexes import format_indexes, parse_indexes
from tinykube.controllers.job.tally import TRACKING


def job(**spec):
    restart = spec.pop("restart", "Never")
    return {
        "metadata": {"name": "work"},
        "spec": {
            "template": {"spec": {"restartPolicy": restart, "containers": [{"name": "main", "image": "app"}]}},
            **spec,
        },
    }


async def made(cluster, **spec):
    await cluster.create("jobs", job(**spec))
    await cluster.settle()


def work(cluster):
    return cluster.registry.get("jobs", "default", "work")


def condition(cluster, type_):
    found = (work(cluster)["status"] or {}).get("conditions") or []
    return next((c for c in found if c["type"] == type_), None)


def active(cluster):
    return [p for p in cluster.pods() if p.get("status", {}).get("phase") not in ("Succeeded", "Failed")]


async def finish(cluster, *pods, phase="Succeeded"):
    for pod in pods:
        await cluster.set_status("pods", pod, phase=phase)
    await cluster.settle()


async def test_one_pod_that_succeeds_completes_it(cluster):
    await made(cluster)
    assert work(cluster)["status"]["active"] == 1
    await finish(cluster, *active(cluster))
    status = work(cluster)["status"]
    assert status["succeeded"] == 1
    assert "active" not in status
    assert status["completionTime"]
    assert condition(cluster, "Complete")["reason"] == "CompletionsReached"
    assert condition(cluster, "SuccessCriteriaMet")["status"] == "True"
    assert TRACKING not in (cluster.pods()[0]["metadata"].get("finalizers") or [])
    assert status["uncountedTerminatedPods"] == {}


async def test_a_job_of_another_controller_is_left_to_it(cluster):
    await made(cluster, managedBy="example.com/other")
    assert not cluster.pods()
    assert not work(cluster)["status"]


async def test_completions_run_at_most_parallelism_at_a_time(cluster):
    await made(cluster, completions=5, parallelism=2)
    for done in range(5):
        assert len(active(cluster)) == min(2, 5 - done)
        await finish(cluster, active(cluster)[0])
    assert work(cluster)["status"]["succeeded"] == 5
    assert condition(cluster, "Complete")


async def test_failures_are_tried_again_with_growing_pauses_until_the_limit(cluster):
    await made(cluster, backoffLimit=2)
    await finish(cluster, *active(cluster), phase="Failed")
    assert active(cluster) == []
    await cluster.settle(10)
    assert len(active(cluster)) == 1
    await finish(cluster, *active(cluster), phase="Failed")
    await cluster.settle(10)
    assert active(cluster) == []
    await cluster.settle(10)
    await finish(cluster, *active(cluster), phase="Failed")
    assert condition(cluster, "Failed")["reason"] == "BackoffLimitExceeded"
    assert work(cluster)["status"]["failed"] == 3
    assert cluster.events("BackoffLimitExceeded")


async def test_a_pod_that_vanishes_is_counted_once(cluster):
    await made(cluster, completions=2, parallelism=1)
    first = active(cluster)[0]
    await cluster.set_status("pods", first, phase="Succeeded")
    await cluster.registry.delete("pods", "default", first["metadata"]["name"], grace=0)
    await cluster.settle()
    assert cluster.registry.get("pods", "default", first["metadata"]["name"]) is None
    assert work(cluster)["status"]["succeeded"] == 1
    await finish(cluster, *active(cluster))
    assert work(cluster)["status"]["succeeded"] == 2
    assert condition(cluster, "Complete")


async def test_selected_strays_are_adopted_and_pods_of_other_labels_released(cluster):
    await made(cluster, parallelism=2, completions=2)
    first, second = active(cluster)
    names = [pod["metadata"]["name"] for pod in (first, second)]
    stray = {"metadata": {"ownerReferences": None, "finalizers": None}}
    await cluster.registry.patch("pods", "default", names[0], stray, "merge")
    await cluster.settle()
    again = cluster.registry.get("pods", "default", names[0])["metadata"]
    assert again["ownerReferences"][0]["name"] == "work"
    assert again["finalizers"] == [TRACKING]
    assert len(active(cluster)) == 2
    labels = dict.fromkeys(second["metadata"]["labels"])
    await cluster.registry.patch("pods", "default", names[1], {"metadata": {"labels": labels}}, "merge")
    await cluster.settle()
    released = cluster.registry.get("pods", "default", names[1])["metadata"]
    assert not released.get("ownerReferences") and not released.get("finalizers")
    assert len(active(cluster)) == 3


async def test_a_job_with_a_selector_of_its_own_adopts_what_it_selects(cluster):
    labels = {"app": "mine"}
    pod = {"metadata": {"name": "early", "labels": labels}, "spec": job()["spec"]["template"]["spec"]}
    body = job(manualSelector=True, selector={"matchLabels": labels}, parallelism=2, completions=2)
    body["spec"]["template"]["metadata"] = {"labels": labels}
    await cluster.create("pods", pod)
    await cluster.create("jobs", body)
    await cluster.settle()
    assert cluster.registry.get("pods", "default", "early")["metadata"]["ownerReferences"][0]["name"] == "work"
    assert len(active(cluster)) == 2


async def test_a_deadline_ends_it(cluster):
    await made(cluster, activeDeadlineSeconds=60)
    await cluster.settle(60)
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"
    assert active(cluster) == []


async def test_suspension_takes_its_pods_and_resuming_brings_them_back(cluster):
    await made(cluster, suspend=True)
    assert cluster.pods() == []
    assert condition(cluster, "Suspended")["status"] == "True"
    await cluster.registry.patch("jobs", "default", "work", {"spec": {"suspend": False}}, "merge")
    await cluster.settle()
    assert len(active(cluster)) == 1
    assert condition(cluster, "Suspended")["reason"] == "JobResumed"


async def test_indexed_jobs_run_each_index(cluster):
    await made(cluster, completions=3, parallelism=2, completionMode="Indexed")
    seen = set()
    for _ in range(3):
        pod = active(cluster)[0]
        index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        env = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
        assert env["JOB_COMPLETION_INDEX"] == index
        seen.add(index)
        await finish(cluster, pod)
    assert seen == {"0", "1", "2"}
    assert work(cluster)["status"]["completedIndexes"] == "0-2"
    assert condition(cluster, "Complete")


async def test_a_finished_job_is_removed_after_its_time_to_live(cluster):
    await made(cluster, ttlSecondsAfterFinished=30)
    await finish(cluster, *active(cluster))
    await cluster.settle(20)
    assert work(cluster) is not None
    await cluster.settle(15)
    assert work(cluster) is None
    assert cluster.pods() == []


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_deleting_it_takes_its_pods_along(cluster, propagation):
    await made(cluster, parallelism=2)
    await cluster.registry.delete("jobs", "default", "work", propagation=propagation)
    await cluster.settle()
    assert cluster.pods() == []
    assert work(cluster) is None


@given(st.sets(st.integers(0, 50)))
def test_index_ranges_read_back(indexes):
    assert parse_indexes(format_indexes(sorted(indexes))) == indexes


async def test_a_namespace_with_a_running_job_can_be_deleted(cluster):
    """The Job may create no other pod there, and releases the one that has ended all the same."""
    await cluster.create("namespaces", {"metadata": {"name": "going"}})
    await cluster.node("n1")
    main = {"name": "main", "image": "app"}
    template = {"spec": {"restartPolicy": "Never", "nodeName": "n1", "containers": [main]}}
    await cluster.create("jobs", job(template=template), "going")
    await cluster.settle()
    (pod,) = cluster.pods("going")
    await cluster.registry.delete("namespaces", None, "going")
    await cluster.settle()
    await cluster.registry.delete("pods", "going", pod["metadata"]["name"], grace=0)  # its kubelet has ended it
    await cluster.settle(30)
    assert cluster.registry.get("namespaces", None, "going") is None

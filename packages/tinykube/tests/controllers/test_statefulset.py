"""Pods with names that stay: made in order, replaced from the last to the first, with claims that wait for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinykube.controllers.statefulset.decide import ordinal_of, ordinals, revision_of, status_of, step
from tinykube.controllers.statefulset.identity import new_pod


def statefulset(replicas=3, image="app:1", **spec):
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "serviceName": "peers",
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
            **spec,
        },
    }


async def made(cluster, **fields):
    await cluster.create("statefulsets", statefulset(**fields))
    await cluster.settle()


def web(cluster):
    return cluster.registry.get("statefulsets", "default", "web")


def names(cluster):
    return sorted(pod["metadata"]["name"] for pod in cluster.pods())


def images(cluster):
    return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in cluster.pods()}


async def run_all(cluster):
    """Run each pod as soon as it is there, until nothing changes."""
    while waiting := [p for p in cluster.pods() if p.get("status", {}).get("phase") != "Running"]:
        await cluster.run_pods(*waiting)
        await cluster.settle()


async def change(cluster, **spec):
    await cluster.registry.patch("statefulsets", "default", "web", {"spec": spec}, "merge")
    await cluster.settle()


def image(name):
    return {"spec": {"containers": [{"name": "main", "image": name}]}}


def on_a_node():
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "a", **image("x")["spec"]}}


async def test_pods_come_one_after_the_other_with_names_of_their_own(cluster):
    await made(cluster)
    assert names(cluster) == ["web-0"]
    for count in (2, 3):
        await cluster.run_pods(cluster.pods()[-1])
        await cluster.settle()
        assert len(names(cluster)) == count
    await run_all(cluster)
    assert names(cluster) == ["web-0", "web-1", "web-2"]
    pod = cluster.registry.get("pods", "default", "web-1")
    assert pod["spec"]["hostname"] == "web-1"
    assert pod["spec"]["subdomain"] == "peers"
    assert pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "web-1"
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
    status = web(cluster)["status"]
    assert (
        status["currentRevision"] == status["updateRevision"] == pod["metadata"]["labels"]["controller-revision-hash"]
    )
    assert (status["replicas"], status["readyReplicas"], status["availableReplicas"]) == (3, 3, 3)


async def test_parallel_pods_come_at_once(cluster):
    await made(cluster, podManagementPolicy="Parallel", ordinals={"start": 5})
    assert names(cluster) == ["web-5", "web-6", "web-7"]
    await change(cluster, replicas=1)
    assert names(cluster) == ["web-5"]


async def test_scaling_down_takes_the_last_first_and_waits_for_it(cluster):
    await cluster.node("a")
    await made(
        cluster, template={"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "a", **image("x")["spec"]}}
    )
    await run_all(cluster)
    await change(cluster, replicas=1)
    leaving = [p["metadata"]["name"] for p in cluster.pods() if "deletionTimestamp" in p["metadata"]]
    assert leaving == ["web-2"]
    await cluster.registry.delete("pods", "default", "web-2", grace=0)
    await cluster.settle()
    leaving = [p["metadata"]["name"] for p in cluster.pods() if "deletionTimestamp" in p["metadata"]]
    assert leaving == ["web-1"]
    assert cluster.events("SuccessfulDelete")[0]["message"] == "Delete Pod web-2 in StatefulSet web successful"


async def test_a_pod_that_is_deleted_or_ends_comes_back_under_its_name(cluster):
    await made(cluster)
    await run_all(cluster)
    before = cluster.registry.get("pods", "default", "web-1")["metadata"]["uid"]
    await cluster.registry.delete("pods", "default", "web-1")
    await cluster.settle()
    again = cluster.registry.get("pods", "default", "web-1")
    assert again["metadata"]["uid"] != before
    await cluster.run_pods(again, phase="Failed", ready=False)
    await cluster.settle()
    assert cluster.registry.get("pods", "default", "web-1")["metadata"]["uid"] != again["metadata"]["uid"]


async def test_a_rolling_update_goes_from_the_last_to_the_first(cluster):
    await made(cluster)
    await run_all(cluster)
    first = web(cluster)["status"]["currentRevision"]
    await change(cluster, template=image("app:2"))
    assert images(cluster) == {"web-0": "app:1", "web-1": "app:1", "web-2": "app:2"}
    assert web(cluster)["status"]["updatedReplicas"] == 1
    await run_all(cluster)
    assert set(images(cluster).values()) == {"app:2"}
    status = web(cluster)["status"]
    assert status["currentRevision"] == status["updateRevision"] != first
    assert status["currentReplicas"] == status["updatedReplicas"] == 3


async def test_below_the_partition_pods_keep_their_revision(cluster):
    await made(cluster)
    await run_all(cluster)
    await change(cluster, updateStrategy={"rollingUpdate": {"partition": 2}}, template=image("app:2"))
    await run_all(cluster)
    assert images(cluster) == {"web-0": "app:1", "web-1": "app:1", "web-2": "app:2"}
    await cluster.registry.delete("pods", "default", "web-0")
    await cluster.settle()
    assert images(cluster)["web-0"] == "app:1"
    await run_all(cluster)
    await change(cluster, updateStrategy={"rollingUpdate": {"partition": 0}})
    await run_all(cluster)
    assert set(images(cluster).values()) == {"app:2"}


async def test_on_delete_waits_for_somebody_to_delete(cluster):
    await made(cluster, updateStrategy={"type": "OnDelete"})
    await run_all(cluster)
    await change(cluster, template=image("app:2"))
    assert set(images(cluster).values()) == {"app:1"}
    await cluster.registry.delete("pods", "default", "web-1")
    await cluster.settle()
    assert images(cluster) == {"web-0": "app:1", "web-1": "app:2", "web-2": "app:1"}


async def test_claims_are_made_for_each_pod_and_stay(cluster):
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    claim["spec"]["resources"] = {"requests": {"storage": "1Gi"}}
    await made(cluster, replicas=2, volumeClaimTemplates=[claim])
    await run_all(cluster)
    volume = cluster.registry.get("pods", "default", "web-1")["spec"]["volumes"][0]
    assert volume == {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-1"}}

    def claims():
        return {c["metadata"]["name"]: c for c in cluster.registry.list("persistentvolumeclaims", "default")}

    assert sorted(claims()) == ["data-web-0", "data-web-1"]
    assert claims()["data-web-0"]["metadata"]["labels"] == {"app": "web"}
    await change(cluster, replicas=1)
    assert sorted(claims()) == ["data-web-0", "data-web-1"]
    assert not claims()["data-web-1"]["metadata"].get("ownerReferences")


async def test_claims_go_with_their_pods_where_the_policy_says_so(cluster):
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    claim["spec"]["resources"] = {"requests": {"storage": "1Gi"}}
    policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
    await cluster.node("a")
    await made(
        cluster,
        replicas=2,
        template=on_a_node(),
        volumeClaimTemplates=[claim],
        persistentVolumeClaimRetentionPolicy=policy,
    )
    await run_all(cluster)
    await change(cluster, replicas=1)
    await cluster.registry.delete("pods", "default", "web-1", grace=0)
    await cluster.settle()
    left = cluster.registry.list("persistentvolumeclaims", "default")
    assert [found["metadata"]["name"] for found in left if "deletionTimestamp" not in found["metadata"]] == [
        "data-web-0"
    ]
    assert left[0]["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"


async def test_matching_strays_are_adopted_and_history_is_kept_short(cluster):
    stray = {"metadata": {"name": "web-0", "labels": {"app": "web"}}, **image("stray")}
    await cluster.create("pods", stray)
    await made(cluster, replicas=1, revisionHistoryLimit=1)
    owner = cluster.registry.get("pods", "default", "web-0")["metadata"]["ownerReferences"][0]
    assert owner["kind"] == "StatefulSet"
    for number in range(2, 6):
        await change(cluster, template=image(f"app:{number}"))
        await run_all(cluster)
    assert images(cluster) == {"web-0": "app:5"}
    revisions = cluster.registry.list(("apps", "controllerrevisions"), "default")
    assert sorted(revision["revision"] for revision in revisions) == [4, 5]


async def test_deleting_it_takes_its_pods_along(cluster):
    await made(cluster, podManagementPolicy="Parallel")
    await cluster.registry.delete("statefulsets", "default", "web")
    await cluster.settle()
    assert names(cluster) == []
    assert web(cluster) is None


# -- any history ----------------------------------------------------------------------------------------------------
NOW = "2026-01-01T00:00:00Z"


class Run:
    """A StatefulSet and its pods; a pod is ready or not as the moods say."""

    def __init__(self, obj):
        self.obj = obj
        self.pods = {}
        self.current = "one"

    def turn(self, update, moods):
        for pod in self.pods.values():
            ready = next(moods, True)
            condition = {"type": "Ready", "status": "True" if ready else "False"}
            pod["status"] = {"phase": "Running", "conditions": [condition]}
        pods = list(self.pods.values())
        decided = step(self.obj, pods, self.current, update, NOW)
        for pod in decided.delete:
            del self.pods[pod["metadata"]["name"]]
        for ordinal, revision in decided.create:
            pod = new_pod(self.obj, self.obj["spec"]["template"], revision, ordinal)
            assert pod["metadata"]["name"] not in self.pods
            self.pods[pod["metadata"]["name"]] = {**pod, "status": {"phase": "Pending"}}
        self.current = status_of(self.obj, list(self.pods.values()), self.current, update, NOW)["currentRevision"]
        return decided


def uid(obj):
    obj["metadata"] |= {"namespace": "default", "uid": "u"}
    return obj


@given(
    start=st.integers(0, 3),
    replicas=st.integers(0, 5),
    then=st.integers(0, 5),
    partition=st.integers(0, 6),
    parallel=st.booleans(),
    moods=st.lists(st.booleans(), max_size=60),
)
def test_every_update_ends_with_the_right_pods_and_stays_in_order(start, replicas, then, partition, parallel, moods):
    policy = {"podManagementPolicy": "Parallel"} if parallel else {}
    run = Run(uid(statefulset(replicas, ordinals={"start": start}, **policy)))
    for _ in range(12):
        run.turn("one", iter(()))
    assert {ordinal_of(run.obj, pod) for pod in run.pods.values()} == set(ordinals(run.obj))
    run.obj["spec"] |= {"replicas": then, "updateStrategy": {"rollingUpdate": {"partition": partition}}}
    mood = iter(moods)
    for _ in range(40):
        decided = run.turn("two", mood)
        if not parallel:
            assert len(decided.create) + len(decided.delete) <= 1
    found = {ordinal_of(run.obj, pod): revision_of(pod) for pod in run.pods.values()}
    assert set(found) == set(ordinals(run.obj))
    for ordinal, revision in found.items():
        if ordinal - start >= partition:
            assert revision == "two"
        elif ordinal - start < replicas:
            assert revision == "one"

"""One pod on every node that a DaemonSet selects."""

from __future__ import annotations

import json

import pytest


def daemonset(name="daemon", *, node_selector=None, image="app:1", **spec):
    return {
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "containers": [{"name": "main", "image": image}],
                    "nodeSelector": node_selector or {},
                    **spec.pop("pod", {}),
                },
            },
            **spec,
        },
    }


async def made(cluster, **fields):
    obj = await cluster.create("daemonsets", daemonset(**fields))
    await cluster.settle()
    return obj


def status(cluster, name="daemon"):
    return cluster.registry.get("daemonsets", "default", name)["status"]


def targets(cluster):
    found = []
    for pod in cluster.pods():
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        found.append(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
    return sorted(found)


async def label(cluster, node, **labels):
    await cluster.registry.patch("nodes", "", node, {"metadata": {"labels": labels}}, "merge")
    await cluster.settle()


async def test_every_selected_node_gets_one_pod_pinned_to_it(cluster):
    await cluster.node("a", labels={"gpu": "yes"})
    await cluster.node("b", labels={"gpu": "yes"})
    await cluster.node("c")
    await made(cluster, node_selector={"gpu": "yes"})
    assert targets(cluster) == ["a", "b"]
    pod = cluster.pods()[0]
    assert {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"} in pod["spec"][
        "tolerations"
    ]
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"
    assert status(cluster)["desiredNumberScheduled"] == 2
    assert status(cluster)["observedGeneration"] == 1


async def test_a_label_that_comes_brings_the_pod_and_one_that_goes_takes_it(cluster):
    await cluster.node("a")
    await made(cluster, node_selector={"gpu": "yes"})
    assert targets(cluster) == []
    await label(cluster, "a", gpu="yes")
    assert targets(cluster) == ["a"]
    await label(cluster, "a", gpu=None)
    assert targets(cluster) == []
    assert status(cluster)["desiredNumberScheduled"] == 0


async def test_nodes_added_later_get_their_pod(cluster):
    await made(cluster)
    await cluster.node("late")
    await cluster.settle()
    assert targets(cluster) == ["late"]


async def test_a_no_schedule_taint_keeps_new_pods_off_and_leaves_running_ones(cluster):
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    await cluster.node("a")
    await cluster.node("b", taints=[taint])
    await made(cluster)
    assert targets(cluster) == ["a"]
    await cluster.registry.patch("nodes", "", "a", {"spec": {"taints": [taint]}}, "merge")
    await cluster.settle()
    assert targets(cluster) == ["a"]
    assert status(cluster)["numberMisscheduled"] == 1
    await cluster.registry.patch("nodes", "", "a", {"spec": {"taints": [{**taint, "effect": "NoExecute"}]}}, "merge")
    await cluster.settle()
    assert targets(cluster) == []


async def test_the_status_leaves_labels_and_annotations(cluster):
    await cluster.node("a")
    marks = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    made = daemonset()
    await cluster.create("daemonsets", {**made, "metadata": {**made["metadata"], **marks}})
    await cluster.settle()
    assert status(cluster)["desiredNumberScheduled"] == 1
    metadata = cluster.registry.get("daemonsets", "default", "daemon")["metadata"]
    assert metadata["labels"] == marks["labels"]
    assert metadata["annotations"].items() >= marks["annotations"].items()


async def test_the_status_counts_ready_and_available_pods(cluster):
    for name in ("a", "b"):
        await cluster.node(name)
    await made(cluster, minReadySeconds=30)
    await cluster.run_pods(*cluster.pods())
    await cluster.settle()
    assert status(cluster)["numberReady"] == 2
    assert "numberAvailable" not in status(cluster)
    await cluster.settle(31)
    assert status(cluster)["numberAvailable"] == 2
    assert "numberUnavailable" not in status(cluster)


async def test_a_deleted_pod_is_made_again(cluster):
    await cluster.node("a")
    await made(cluster)
    first = cluster.pods()[0]["metadata"]["name"]
    await cluster.registry.delete("pods", "default", first)
    await cluster.settle()
    assert targets(cluster) == ["a"]
    assert cluster.pods()[0]["metadata"]["name"] != first


async def test_a_failed_pod_is_replaced_ever_more_slowly(cluster):
    await cluster.node("a")
    await made(cluster)
    names = []
    for _ in range(3):
        names.append(cluster.pods()[0]["metadata"]["name"])
        await cluster.run_pods(*cluster.pods(), phase="Failed", ready=False)
        await cluster.settle(0.5)
        if len(names) > 1:  # only the first is replaced at once
            assert cluster.pods()[0]["metadata"]["name"] == names[-1]
        await cluster.settle(10)
        assert cluster.pods()[0]["metadata"]["name"] != names[-1]
    assert cluster.events("FailedDaemonPod")


@pytest.mark.parametrize("unavailable", [1, 2, "50%"])
async def test_a_rolling_update_never_takes_more_than_max_unavailable(cluster, unavailable):
    for name in "abcd":
        await cluster.node(name)
    await made(cluster, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable}})
    await cluster.run_pods(*cluster.pods())
    await cluster.settle()
    allowed = 2 if unavailable == "50%" else unavailable
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "app:2"}]}}}}
    await cluster.registry.patch("daemonsets", "default", "daemon", patch, "merge")
    for _ in range(10):
        await cluster.settle()
        fresh = [p for p in cluster.pods() if p.get("status", {}).get("phase") != "Running"]
        assert len(fresh) <= allowed
        await cluster.run_pods(*fresh)
    assert {p["spec"]["containers"][0]["image"] for p in cluster.pods()} == {"app:2"}
    await cluster.settle()
    assert status(cluster)["updatedNumberScheduled"] == 4
    assert status(cluster)["observedGeneration"] == 2
    revisions = cluster.registry.list("controllerrevisions", "default")
    assert sorted(r["revision"] for r in revisions) == [1, 2]
    for revision in revisions:  # clients of Go compare bytes
        assert json.dumps(revision["data"]) == json.dumps(revision["data"], sort_keys=True)


async def test_a_surge_starts_the_new_pod_before_the_old_one_goes(cluster):
    await cluster.node("a")
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await made(cluster, updateStrategy=strategy)
    await cluster.run_pods(*cluster.pods())
    await cluster.settle()
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "app:2"}]}}}}
    await cluster.registry.patch("daemonsets", "default", "daemon", patch, "merge")
    await cluster.settle()
    assert sorted(p["spec"]["containers"][0]["image"] for p in cluster.pods()) == ["app:1", "app:2"]
    await cluster.run_pods(*(p for p in cluster.pods() if p["spec"]["containers"][0]["image"] == "app:2"))
    await cluster.settle()
    assert [p["spec"]["containers"][0]["image"] for p in cluster.pods()] == ["app:2"]


async def test_on_delete_waits_for_somebody_to_delete(cluster):
    await cluster.node("a")
    await made(cluster, updateStrategy={"type": "OnDelete"})
    await cluster.run_pods(*cluster.pods())
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "app:2"}]}}}}
    await cluster.registry.patch("daemonsets", "default", "daemon", patch, "merge")
    await cluster.settle(5)
    assert cluster.pods()[0]["spec"]["containers"][0]["image"] == "app:1"
    await cluster.registry.delete("pods", "default", cluster.pods()[0]["metadata"]["name"])
    await cluster.settle()
    assert cluster.pods()[0]["spec"]["containers"][0]["image"] == "app:2"


async def test_deleting_it_takes_its_pods_along(cluster):
    await cluster.node("a")
    await made(cluster)
    await cluster.registry.delete("daemonsets", "default", "daemon")
    await cluster.settle()
    assert cluster.pods() == []


async def test_a_nodes_heartbeat_touches_no_daemonset(cluster):
    await cluster.node("a")
    await made(cluster)
    before = cluster.registry.store.version
    node = cluster.registry.get("nodes", "", "a")
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2030-01-01T00:00:00Z"}]
    await cluster.set_status("nodes", node, conditions=conditions)
    await cluster.settle()
    assert cluster.registry.store.version == before + 1


async def test_orphaned_pods_are_adopted_by_the_next_one_and_strangers_released(cluster):
    for name in "ab":
        await cluster.node(name)
    await made(cluster)
    await cluster.run_pods(*cluster.pods())
    names = sorted(pod["metadata"]["name"] for pod in cluster.pods())
    await cluster.registry.delete("daemonsets", "default", "daemon", propagation="Orphan")
    await cluster.settle()
    assert sorted(pod["metadata"]["name"] for pod in cluster.pods()) == names
    await made(cluster)
    await cluster.settle()
    assert sorted(pod["metadata"]["name"] for pod in cluster.pods()) == names
    assert status(cluster)["numberReady"] == 2
    stranger = {"metadata": {"labels": {"app": "other"}}}
    await cluster.registry.patch("pods", "default", names[0], stranger, "merge")
    await cluster.settle()
    assert not cluster.registry.get("pods", "default", names[0])["metadata"].get("ownerReferences")
    assert len(cluster.pods(app="daemon")) == 2

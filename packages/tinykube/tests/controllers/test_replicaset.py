"""As many pods as a ReplicaSet says, no more, no less, and the right ones go first."""

from __future__ import annotations

import pytest

from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.replicaset import to_delete


def replicaset(replicas=3, **spec):
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "app"}]},
            },
            **spec,
        },
    }


async def scale(cluster, replicas):
    await cluster.registry.patch("replicasets", "default", "web", {"spec": {"replicas": replicas}}, "merge")
    await cluster.settle()


def status(cluster):
    return cluster.registry.get("replicasets", "default", "web")["status"]


async def test_pods_are_made_and_deleted_to_the_number(cluster):
    await cluster.create("replicasets", replicaset(3))
    await cluster.settle()
    assert len(cluster.pods()) == 3
    await scale(cluster, 5)
    assert len(cluster.pods()) == 5
    await scale(cluster, 1)
    assert len(cluster.pods()) == 1
    assert status(cluster)["replicas"] == 1
    assert status(cluster)["observedGeneration"] == 3


async def test_a_failed_or_deleted_pod_is_replaced(cluster):
    await cluster.create("replicasets", replicaset(2))
    await cluster.settle()
    first, second = cluster.pods()
    await cluster.registry.delete("pods", "default", first["metadata"]["name"])
    await cluster.run_pods(second, phase="Failed", ready=False)
    await cluster.settle()
    active = [p for p in cluster.pods() if p.get("status", {}).get("phase") != "Failed"]
    assert len(active) == 2


async def test_matching_orphans_are_adopted_and_strangers_released(cluster):
    orphan = {
        "metadata": {"name": "orphan", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    await cluster.create("pods", orphan)
    await cluster.create("replicasets", replicaset(2))
    await cluster.settle()
    assert len(cluster.pods()) == 2
    assert cluster.registry.get("pods", "default", "orphan")["metadata"]["ownerReferences"][0]["name"] == "web"
    await cluster.registry.patch("pods", "default", "orphan", {"metadata": {"labels": {"app": "other"}}}, "merge")
    await cluster.settle()
    assert not cluster.registry.get("pods", "default", "orphan")["metadata"].get("ownerReferences")
    assert len(cluster.pods(app="web")) == 2


async def test_a_replication_controller_does_the_same_by_labels_of_its_template(cluster):
    body = replicaset(2)
    del body["spec"]["selector"]
    await cluster.create("replicationcontrollers", body)
    await cluster.settle()
    made = cluster.registry.get("replicationcontrollers", "default", "web")
    assert made["spec"]["selector"] == made["metadata"]["labels"] == {"app": "web"}
    assert made["status"]["replicas"] == 2
    first, second = cluster.pods(app="web")
    assert first["metadata"]["ownerReferences"][0]["kind"] == "ReplicationController"
    await cluster.registry.patch(
        "pods", "default", first["metadata"]["name"], {"metadata": {"labels": {"app": "other"}}}, "merge"
    )
    await cluster.registry.patch("replicationcontrollers", "default", "web", {"spec": {"replicas": 1}}, "merge")
    await cluster.settle()
    assert [pod["metadata"]["name"] for pod in cluster.pods(app="web")] == [second["metadata"]["name"]]
    await cluster.registry.delete("replicationcontrollers", "default", "web", propagation="Background")
    await cluster.settle()
    assert cluster.pods(app="web") == []


async def test_the_status_counts_ready_and_available(cluster):
    await cluster.create("replicasets", replicaset(2, minReadySeconds=10))
    await cluster.settle()
    await cluster.run_pods(*cluster.pods())
    await cluster.settle()
    assert status(cluster)["readyReplicas"] == 2
    assert "availableReplicas" not in status(cluster)
    await cluster.settle(11)
    assert status(cluster)["availableReplicas"] == 2


async def test_a_refused_pod_shows_in_the_status_and_is_tried_again(cluster, monkeypatch):
    create, refused, attempts = cluster.registry.create, True, 0

    async def refusing(resource, namespace, obj, **options):
        nonlocal attempts
        if refused and obj.get("kind") == "Pod":
            attempts += 1
            raise ApiFailure(403, "Forbidden", f"pod {attempts} exceeds the quota")
        return await create(resource, namespace, obj, **options)

    monkeypatch.setattr(cluster.registry, "create", refusing)
    await cluster.create("replicasets", replicaset(1))
    await cluster.settle()
    assert status(cluster)["conditions"][0]["reason"] == "FailedCreate"
    assert attempts < 5
    assert cluster.events("FailedCreate")[0]["message"] == "Error creating: pod 1 exceeds the quota"
    refused = False
    await cluster.settle(10)
    assert len(cluster.pods()) == 1
    assert "conditions" not in status(cluster)


def pod(name, *, node="", phase="Running", ready=True, created="2026-01-01T00:00:00Z", cost=None):
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": created}
    annotations = {"controller.kubernetes.io/pod-deletion-cost": cost} if cost else {}
    return {
        "metadata": {"name": name, "creationTimestamp": created, "annotations": annotations},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": [condition]},
    }


@pytest.mark.parametrize(
    ("goes", "stays"),
    [
        (pod("g"), pod("s", node="a")),
        (pod("g", node="a", phase="Pending"), pod("s", node="a")),
        (pod("g", node="a", ready=False), pod("s", node="a")),
        (pod("g", node="a", cost="-1"), pod("s", node="a")),
        (pod("g", node="a", created="2026-01-02T00:00:00Z"), pod("s", node="a")),
    ],
)
def test_which_pod_goes_first(goes, stays):
    assert to_delete([stays, goes], 1, {}) == [goes]


def test_pods_on_crowded_nodes_go_first():
    first, second = pod("a", node="empty"), pod("b", node="crowded")
    assert to_delete([first, second], 1, {"empty": 1, "crowded": 3}) == [second]

"""Nodes that fall silent or go, and what becomes of their pods."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kubekit.scheduling.podinfo import NodeTaint
from tinykube.controllers.nodelifecycle import patience

UNREACHABLE = "node.kubernetes.io/unreachable"
EXISTS = {"key": UNREACHABLE, "operator": "Exists"}
NOT_READY = "node.kubernetes.io/not-ready"


async def pod(cluster, name, node, *tolerations):
    spec = {"nodeName": node, "containers": [{"name": "m", "image": "x"}], "tolerations": list(tolerations)}
    made = await cluster.create("pods", {"metadata": {"name": name}, "spec": spec})
    await cluster.run_pods(made)
    return made


async def beat(cluster, node):
    lease = {"spec": {"holderIdentity": node, "renewTime": cluster.registry.now() + "x"}}
    if cluster.registry.get("leases", "kube-node-lease", node) is None:
        await cluster.create(
            "leases", {"metadata": {"name": node}, "spec": {"holderIdentity": node}}, "kube-node-lease"
        )
        return
    lease["spec"]["renewTime"] = cluster.registry.now().replace("Z", ".000000Z")
    await cluster.registry.patch("leases", "kube-node-lease", node, lease, "merge")


def taints(cluster, node):
    return {(t["key"], t["effect"]) for t in cluster.registry.get("nodes", None, node)["spec"].get("taints") or ()}


def ready(obj):
    return next(c["status"] for c in obj["status"]["conditions"] if c["type"] == "Ready")


@pytest.fixture
async def alive(cluster):
    """Another node that stays; without any that is ready nobody is evicted."""
    await cluster.node("alive")

    async def go_on():
        while True:
            await beat(cluster, "alive")
            await cluster.settle(10)

    beating = asyncio.create_task(go_on())
    yield
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating


async def test_a_silent_node_is_unknown_tainted_and_its_pods_not_ready(cluster, alive):
    await cluster.node("a")
    await pod(cluster, "p", "a", {"key": UNREACHABLE, "operator": "Exists"})
    await cluster.settle(30)
    assert ready(cluster.registry.get("nodes", None, "a")) == "True"
    await cluster.settle(20)
    node = cluster.registry.get("nodes", None, "a")
    assert ready(node) == "Unknown"
    message = next(c["message"] for c in node["status"]["conditions"] if c["type"] == "Ready")
    assert message == "Kubelet stopped posting node status."
    assert taints(cluster, "a") == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}
    assert ready(cluster.registry.get("pods", "default", "p")) == "False"
    assert cluster.events("NodeNotReady")


async def test_leases_keep_a_node_alive(cluster):
    await cluster.node("a")
    for _ in range(12):
        await beat(cluster, "a")
        await cluster.settle(10)
    assert ready(cluster.registry.get("nodes", None, "a")) == "True"
    assert taints(cluster, "a") == set()


async def test_a_node_that_comes_back_loses_its_taints(cluster, alive):
    await cluster.node("a", ready="False")
    await cluster.settle()
    assert taints(cluster, "a") == {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}
    node = cluster.registry.get("nodes", None, "a")
    await cluster.set_status("nodes", node, conditions=[{"type": "Ready", "status": "True"}])
    await cluster.settle()
    assert taints(cluster, "a") == set()


async def test_cordon_and_pressure_become_taints_and_others_taints_stay(cluster):
    await cluster.node("a", unschedulable=True, taints=[{"key": "gpu", "value": "v", "effect": "NoSchedule"}])
    node = cluster.registry.get("nodes", None, "a")
    conditions = [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "True"}]
    await cluster.set_status("nodes", node, conditions=conditions)
    await cluster.settle()
    assert taints(cluster, "a") == {
        ("gpu", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    }


async def test_pods_leave_when_their_patience_ends(cluster, alive):
    await cluster.node("a")
    await pod(cluster, "at-once", "a")
    await pod(cluster, "later", "a", {**EXISTS, "effect": "NoExecute", "tolerationSeconds": 300})
    await pod(cluster, "never", "a", EXISTS)

    def leaving():
        return {p["metadata"]["name"] for p in cluster.pods() if "deletionTimestamp" in p["metadata"]}

    await cluster.settle(60)
    assert leaving() == {"at-once"}
    await cluster.settle(300)
    assert leaving() == {"at-once", "later"}
    assert len(cluster.events("TaintManagerEviction")) == 2


async def test_when_no_node_at_all_is_heard_of_nobody_is_evicted(cluster):
    for name in "ab":
        await cluster.node(name)
        await pod(cluster, f"p-{name}", name)
    await cluster.settle(60)
    assert taints(cluster, "a") == {(UNREACHABLE, "NoSchedule")}
    assert not any("deletionTimestamp" in p["metadata"] for p in cluster.pods())
    node = cluster.registry.get("nodes", None, "b")
    await cluster.set_status("nodes", node, conditions=[{"type": "Ready", "status": "True"}])
    await cluster.settle()
    assert (UNREACHABLE, "NoExecute") in taints(cluster, "a")
    assert taints(cluster, "b") == set()


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ([], 0.0),
        ([{"operator": "Exists"}], None),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 30}], 30.0),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": -5}], 0.0),
        ([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}], 0.0),
        ([{"operator": "Exists"}, {"key": "k", "operator": "Exists", "tolerationSeconds": 7}], 7.0),
    ],
)
def test_how_long_a_pod_may_stay(tolerations, expected):
    assert patience({"spec": {"tolerations": tolerations}}, [NodeTaint("k", "", "NoExecute")]) == expected


async def test_pods_of_a_node_that_is_gone_are_removed_after_a_quarantine(cluster):
    await cluster.node("a")
    await pod(cluster, "p", "a")
    await cluster.registry.delete("nodes", None, "a")
    await cluster.settle(30)
    assert cluster.pods()
    await cluster.settle(15)
    assert cluster.pods() == []


async def test_a_node_that_comes_back_in_time_keeps_its_pods(cluster):
    await cluster.node("a")
    await pod(cluster, "p", "a")
    await cluster.registry.delete("nodes", None, "a")
    await cluster.settle(30)
    await cluster.node("a")
    await cluster.settle(15)
    assert cluster.pods()

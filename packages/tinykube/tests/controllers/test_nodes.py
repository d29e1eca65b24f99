"""Nodes that fall silent or go, and what becomes of their pods."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.api.durations import parse_time
from tinykube.controllers.tainteviction import patience, patience_starts

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
    """Add another node that stays; without a ready node the controller evicts no pod."""
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


async def test_a_new_node_that_is_ready_loses_the_taint_of_its_admission_in_one_write(cluster):
    await cluster.node("a", taints=[{"key": NOT_READY, "effect": "NoSchedule"}])
    before = cluster.registry.store.version
    await cluster.settle()
    assert taints(cluster, "a") == set()
    assert cluster.registry.store.version == before + 1


async def test_taints_of_users_with_keys_of_conditions_stay(cluster):
    """The controller's own have the effect NoSchedule; not-ready and unreachable have NoExecute, too."""
    own = [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/memory-pressure", "effect": "PreferNoSchedule"},
        {"key": NOT_READY, "effect": "PreferNoSchedule"},
    ]
    stale = [{"key": NOT_READY, "effect": "NoExecute"}, {"key": UNREACHABLE, "effect": "NoSchedule"}]
    await cluster.node("a", taints=[*own, *stale])
    await cluster.settle()
    assert taints(cluster, "a") == {(one["key"], one["effect"]) for one in own}


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


TAINT = {"key": "k", "effect": "NoExecute"}


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
    assert patience({"spec": {"tolerations": tolerations}}, [TAINT]) == expected


NOW = parse_time("2026-01-01T01:00:00Z")


@pytest.mark.parametrize(
    ("added", "came", "ago"), [(None, None, 0), (10, None, 10), (10, 3, 3), (10, 60, 10), (None, 60, 0)]
)
def test_a_pods_time_begins_when_it_and_the_taint_were_there(added, came, ago):
    def before(seconds):
        return f"2026-01-01T00:59:{60 - seconds:02}Z" if seconds else None

    pod = {"metadata": {"creationTimestamp": before(came)}}
    assert (NOW - patience_starts(pod, [{**TAINT, "timeAdded": before(added)}], NOW)).total_seconds() == ago


KEYS = st.sampled_from(["a", "b", "c"])
SECONDS = st.fixed_dictionaries({}, optional={"tolerationSeconds": st.integers(0, 600)})
TOLERATIONS = st.lists(
    st.builds(lambda key, more: {"key": key, "operator": "Exists", **more}, KEYS, SECONDS), max_size=4
)
TAINTS = st.lists(st.builds(lambda key: {"key": key, "effect": "NoExecute"}, KEYS), max_size=3)


@given(tolerations=TOLERATIONS, taints=TAINTS, more=TAINTS)
def test_more_taints_never_give_a_pod_more_time(tolerations, taints, more):
    pod = {"spec": {"tolerations": tolerations}}
    few, many = patience(pod, taints), patience(pod, [*taints, *more])
    assert few is None or (many is not None and many <= few)
    assert taints or few is None


async def test_an_evicted_pod_says_that_it_was_disrupted(cluster, alive):
    await cluster.node("a")
    body = {"metadata": {"name": "p", "finalizers": ["example.com/look"]}}
    body["spec"] = {"nodeName": "a", "containers": [{"name": "m", "image": "x"}]}
    await cluster.run_pods(await cluster.create("pods", body))
    await taint(cluster, "a", [{"key": "broken", "effect": "NoExecute"}])
    found = cluster.registry.get("pods", "default", "p")
    assert "deletionTimestamp" in found["metadata"]
    condition = next(c for c in found["status"]["conditions"] if c["type"] == "DisruptionTarget")
    assert condition["status"] == "True"
    assert condition["reason"] == "DeletionByTaintManager"


async def test_a_taint_that_goes_in_time_lets_the_pod_stay(cluster, alive):
    await cluster.node("a")
    await pod(cluster, "p", "a", {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 45})
    await taint(cluster, "a", [{"key": "broken", "effect": "NoExecute"}])
    await cluster.settle(30)
    await taint(cluster, "a", [])
    assert [e["message"] for e in cluster.events("TaintManagerEviction")] == ["Cancelling deletion of Pod default/p"]
    await taint(cluster, "a", [{"key": "broken", "effect": "NoExecute"}])
    await cluster.settle(30)
    assert "deletionTimestamp" not in cluster.pods()[0]["metadata"]
    await beat(cluster, "a")
    await cluster.settle(30)
    assert "deletionTimestamp" in cluster.pods()[0]["metadata"]


async def taint(cluster, node, taints):
    await cluster.registry.patch("nodes", None, node, {"spec": {"taints": taints}}, "merge")
    await beat(cluster, node)
    await cluster.settle()


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

"""Taints that node pools put on their nodes: operands run there, or the node says which taint is in the way."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.karpenter import BetaNodePool, DeclaredPool, NodePool, Provisioner, declared_pool
from gpuplane.autoscaler.repair.observe import REBOOTING_TAINT
from gpuplane.operator import pools
from gpuplane.operator.operands import is_removal, manifests
from gpuplane.operator.stages import OPERANDS
from gpuplane.operator.taints import (
    MOST,
    declared,
    has_unlisted_key,
    in_the_way,
    seen_keys,
    tolerates,
    tolerations,
    why_off,
)
from kubekit.api.core import DaemonSet, DaemonSetSpec, Node, NodeSpec, PodSpec, PodTemplate, Taint, Toleration
from kubekit.kube import Client, ServerError, SystemClock
from tests.support.until import until
from tests.support.virtual_time import VirtualClock

NAMESPACE = names.OPERATOR_NAMESPACE
GPUNODES = ("gpuplane.dev", "gpunodes")
POOLS = [
    Taint("nvidia.com/gpu", "NoSchedule", "present"),
    Taint("nvidia.com/gpu-shared", "NoSchedule"),
    Taint("nvidia.com/gpu", "NoExecute"),
    Taint("nvidia.com/some-team", "NoSchedule"),
    Taint("sku", "NoSchedule", "gpu"),
    Taint("kubernetes.azure.com/scalesetpriority", "NoSchedule", "spot"),
    Taint("cloud.google.com/gke-spot", "NoSchedule", "true"),
    Taint("karpenter.sh/unregistered", "NoExecute"),
    Taint("karpenter.sh/disrupted", "NoSchedule"),
    Taint(REBOOTING_TAINT, "NoSchedule"),
    Taint("ToBeDeletedByClusterAutoscaler", "NoSchedule", "1700000000"),
]


def node(*taints: Taint) -> Node:
    return Node(spec=NodeSpec(taints=taints))


@pytest.mark.parametrize("taint", POOLS, ids=lambda taint: taint.key)
def test_operands_tolerate_what_node_pools_declare(taint: Taint) -> None:
    keys = seen_keys([node(taint)], [])
    assert any(tolerates(toleration, taint) for toleration in tolerations(keys))
    assert in_the_way(node(taint), (), keys=keys) == ()
    assert has_unlisted_key(node(taint)) == bool(keys), "else the node controller looks for no keys"


@pytest.mark.parametrize(
    "taint", [Taint("team", "NoSchedule", "a"), Taint("sku", "NoSchedule", "other"), Taint("team", "NoExecute")]
)
def test_any_other_taint_is_in_the_way(taint: Taint) -> None:
    assert in_the_way(node(taint), ()) == (taint,)
    assert in_the_way(node(taint), [Toleration(key=taint.key, operator="Exists")]) == ()


@pytest.mark.parametrize(
    "taint", [Taint("team", "PreferNoSchedule"), Taint("node.kubernetes.io/unschedulable", "NoSchedule")]
)
def test_a_taint_that_does_not_keep_daemonsets_off_is_not(taint: Taint) -> None:
    assert in_the_way(node(taint), ()) == ()


def test_a_key_stays_tolerated_when_its_pool_is_empty() -> None:
    """Else each change of an autoscaled pool would replace the operands' pods on all nodes."""
    template = PodTemplate(spec=PodSpec(tolerations=tolerations(["nvidia.com/some-team"])))
    live = DaemonSet(spec=DaemonSetSpec(template=template))
    assert seen_keys([node(POOLS[3])], []) == seen_keys([], [live]) == ("nvidia.com/some-team",)


def test_every_operand_has_the_tolerations_and_a_removal_tolerates_everything() -> None:
    made = manifests(
        ClusterPolicySpec(), {}, ["container-toolkit"], image="i", owner={"name": "p"}, tainted=["nvidia.com/own"]
    )
    gates = {operand.gate for operand in OPERANDS} - {"driver"}
    seen = set()
    for manifest in made:
        gate = manifest["metadata"]["labels"].get("app.kubernetes.io/component")
        if manifest["kind"] != "DaemonSet" or gate not in gates:
            continue
        found = manifest["spec"]["template"]["spec"]["tolerations"]
        if is_removal(manifest):
            assert found == [{"operator": "Exists"}]
        else:
            seen.add(gate)
            assert {"key": "nvidia.com/own", "operator": "Exists"} in found
    assert seen == gates


def test_the_taints_are_named_with_a_cure_once() -> None:
    reason, message, cure = why_off([Taint("team", "NoSchedule", "a"), Taint("old", "NoExecute")])
    assert reason == "TaintNotTolerated"
    assert message == "the taints team=a:NoSchedule, old:NoExecute keep gpuplane's pods off the node"
    assert "{key: team, operator: Exists}, {key: old, operator: Exists}" in cure
    assert why_off([]) == ("", "", "")


async def test_a_node_behind_a_taint_says_so_until_the_policy_tolerates_it(played: Any, work: Any) -> None:
    async with work(played):
        await played.add_node("n0", taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
        await played.policy()

        def driver() -> dict[str, Any]:
            found = played.registry.get(GPUNODES, None, "n0") or {}
            stage: dict[str, Any] = found.get("status", {}).get("stages", {}).get("driver", {})
            return stage

        told = await played.until(lambda: driver().get("reason") == "TaintNotTolerated" and driver())
        assert "team=a:NoSchedule" in told["message"] and "daemonsets.tolerations" in told["cure"]
        more = {"spec": {"daemonsets": {"tolerations": [{"key": "team", "operator": "Exists"}]}}}
        await played.registry.patch(("nvidia.com", "clusterpolicies"), None, "p", more, "merge")
        await played.until(lambda: driver().get("state") == "done")


async def test_a_node_behind_a_key_of_nvidia_com_beyond_the_most_says_so(played: Any, work: Any) -> None:
    def own(number: int) -> dict[str, str]:
        return {"key": f"nvidia.com/team-{number:03}", "effect": "NoSchedule"}

    async with work(played):
        await played.add_node("others", taints=[own(number) for number in range(MOST)])
        await played.add_node("n0", taints=[own(MOST)])
        await played.policy()

        def driver() -> dict[str, Any]:
            found = played.registry.get(GPUNODES, None, "n0") or {}
            stage: dict[str, Any] = found.get("status", {}).get("stages", {}).get("driver", {})
            return stage

        told = await played.until(lambda: driver().get("reason") == "TaintNotTolerated" and driver())
        assert f"nvidia.com/team-{MOST}:NoSchedule" in told["message"]


async def test_a_node_pools_own_taint_of_nvidia_com_reaches_every_daemonset(played: Any, work: Any) -> None:
    async with work(played):
        await played.add_node("n0", taints=[{"key": "nvidia.com/some-team", "effect": "NoSchedule"}])
        await played.policy()
        await played.until(
            lambda: (
                all(
                    "nvidia.com/some-team"
                    in {one.get("key") for one in found["spec"]["template"]["spec"]["tolerations"]}
                    for found in played.registry.list(("apps", "daemonsets"), NAMESPACE)
                    if not found["metadata"]["name"].startswith("node-feature")
                )
                and len(played.registry.list(("apps", "daemonsets"), NAMESPACE)) > len(OPERANDS)
            )
        )


# -- node pools that the cluster declares ------------------------------------------------------------------------------

TEAM = {"key": "team", "value": "a", "effect": "NoSchedule"}
AGENT = {"key": "node.cilium.io/agent-not-ready", "value": "true", "effect": "NoExecute"}
TEMPLATE = {"taints": [TEAM], "startupTaints": [AGENT]}
NODE_POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "team-a"},
    "spec": {"template": {"metadata": {"labels": {"pool": "a"}}, "spec": TEMPLATE}},
}
BETA_NODE_POOL = {**NODE_POOL, "apiVersion": "karpenter.sh/v1beta1"}
PROVISIONER = {
    "apiVersion": "karpenter.sh/v1alpha5",
    "kind": "Provisioner",
    "metadata": {"name": "team-a"},
    "spec": {**TEMPLATE, "labels": {"pool": "a"}},
}


def karpenter_crd(version: str, plural: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.karpenter.sh"},
        "spec": {
            "group": "karpenter.sh",
            "scope": "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.mark.parametrize(
    ("raw", "kind"), [(PROVISIONER, Provisioner), (NODE_POOL, NodePool), (BETA_NODE_POOL, BetaNodePool)]
)
def test_taints_and_startup_taints_of_a_declared_pool_are_tolerated(raw: Any, kind: Any) -> None:
    pool = declared_pool(msgspec.convert(raw, kind))
    assert (pool.name, pool.labels) == ("team-a", {"pool": "a"})
    for taint in (Taint("team", "NoSchedule", "a"), Taint("node.cilium.io/agent-not-ready", "NoExecute", "true")):
        assert any(tolerates(one, taint) for one in tolerations((), [pool]))
        assert in_the_way(node(taint), (), [pool]) == () != in_the_way(node(taint), ())
    other = Taint("team", "NoSchedule", "b")
    assert in_the_way(node(other), (), [pool]) == (other,)


def test_requirements_and_labels_of_a_provisioner_are_read() -> None:
    """The fields of a Provisioner for shared GPUs on AWS, with those that have no meaning here."""
    spec = {
        "ttlSecondsAfterEmpty": 300,
        "labels": {names.PLUGIN_CONFIG_LABEL: "shared_gpu"},
        "requirements": [
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge", "g4dn.12xlarge"]}
        ],
        "taints": [{"key": names.SHARED_TAINT, "effect": "NoSchedule"}],
        "limits": {"resources": {"cpu": 1000}},
        "provider": {"launchTemplate": "shared"},
    }
    pool = declared_pool(msgspec.convert({"metadata": {"name": "gpu-shared"}, "spec": spec}, Provisioner))
    assert [taint.key for taint in pool.taints] == [names.SHARED_TAINT]
    assert pool.requirements[0].values == ("g4dn.xlarge", "g4dn.12xlarge")
    assert pool.labels == {names.PLUGIN_CONFIG_LABEL: "shared_gpu"}


def test_a_declared_taint_of_nvidia_com_changes_no_template_when_a_node_has_it() -> None:
    taints = [{"key": "nvidia.com/some-team", "effect": "NoSchedule"}]
    pool = declared_pool(msgspec.convert({"spec": {"taints": taints}}, Provisioner))
    before = tolerations(seen_keys([], [], [pool]), [pool])
    assert before == tolerations(seen_keys([node(POOLS[3])], [], [pool]), [pool])
    assert any(tolerates(one, POOLS[3]) for one in before)


def test_a_declared_taint_that_every_operand_tolerates_is_not_added() -> None:
    taints = [
        {"key": "sku", "value": "gpu", "effect": "NoSchedule"},
        {"key": "team", "effect": "PreferNoSchedule"},
    ]
    pool = declared_pool(msgspec.convert({"spec": {"taints": taints}}, Provisioner))
    assert declared([pool]) == ()


@pytest.mark.parametrize(
    ("crd", "pool"),
    [
        (karpenter_crd("v1", "nodepools", "NodePool"), NODE_POOL),
        (karpenter_crd("v1beta1", "nodepools", "NodePool"), BETA_NODE_POOL),
        (karpenter_crd("v1alpha5", "provisioners", "Provisioner"), PROVISIONER),
    ],
)
async def test_a_node_of_a_tainted_pool_becomes_ready(
    played: Any, work: Any, monkeypatch: pytest.MonkeyPatch, crd: Any, pool: Any
) -> None:
    """With the operator's own rights; the kind is served, and the pool made, while the operator runs."""
    monkeypatch.setattr(pools, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(pools, "SETTLE_SECONDS", 0.05)
    resource = ("karpenter.sh", crd["spec"]["names"]["plural"])
    async with work(played):
        await played.add_node("n0", taints=[TEAM, AGENT])
        await played.policy()

        def driver() -> dict[str, Any]:
            found = played.registry.get(GPUNODES, None, "n0") or {}
            stage: dict[str, Any] = found.get("status", {}).get("stages", {}).get("driver", {})
            return stage

        await played.until(lambda: driver().get("reason") == "TaintNotTolerated")
        await played.registry.create(("apiextensions.k8s.io", "customresourcedefinitions"), None, crd)
        await played.registry.create(resource, None, pool)
        await played.until(lambda: driver().get("state") == "done")


async def test_a_pool_that_is_served_in_two_versions_counts_once(
    played: Any, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Karpenter 0.37, with v1beta1 alone, is upgraded to 1.0, which serves both, and to 1.1 with v1 alone."""
    monkeypatch.setattr(pools, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(pools, "SETTLE_SECONDS", 0.05)
    crds, resource = ("apiextensions.k8s.io", "customresourcedefinitions"), ("karpenter.sh", "nodepools")
    crd = karpenter_crd("v1beta1", "nodepools", "NodePool")
    await played.registry.create(crds, None, crd)
    await played.registry.create(resource, None, BETA_NODE_POOL)
    watch = pools.PoolWatch(admin, SystemClock())
    running = asyncio.create_task(watch.run())
    await watch.known()
    assert [pool.name for pool in watch.pools()] == ["team-a"]
    (old,) = crd["spec"]["versions"]
    both = [{**old, "storage": False}, {**old, "name": "v1"}]
    for versions in (both, [{**both[0], "served": False}, both[1]]):
        await played.registry.patch(crds, None, crd["metadata"]["name"], {"spec": {"versions": versions}}, "merge")
        await until(lambda: watched(watch) == ["v1"])
    assert [pool.name for pool in watch.pools()] == ["team-a"]
    more = {**NODE_POOL, "metadata": {"name": "team-b"}, "spec": {"template": {"spec": {"taints": [TEAM]}}}}
    await played.registry.create(resource, None, more)
    await until(lambda: [pool.name for pool in watch.pools()] == ["team-a", "team-b"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_kind_that_the_api_server_cannot_list_holds_up_the_operator_for_a_while_only(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Karpenter was removed with its conversion webhook, and its definitions and objects are left."""
    request, broken, clock = admin.request, True, VirtualClock()

    async def answer(method: str, path: str, *arguments: Any, **options: Any) -> bytes:
        if broken and path == NodePool.RESOURCE.path():
            raise ServerError("conversion webhook for karpenter.sh/v1beta1, Kind=NodePool failed: no service karpenter")
        return await request(method, path, *arguments, **options)

    monkeypatch.setattr(admin, "request", answer)
    watch = pools.PoolWatch(admin, clock)
    running = asyncio.create_task(watch.run())
    known = asyncio.create_task(watch.known())

    async def later() -> bool:
        await clock.advance(1.0)
        return known.done()

    started = clock.now()
    await until(later)
    assert clock.now() - started >= pools.PATIENCE_SECONDS
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def watched(watch: pools.PoolWatch) -> list[str]:
    """Return the versions that have an informer."""
    return [path.split("/")[3] for path in watch._informers]


async def test_pools_that_are_applied_together_count_together_and_their_use_does_not(
    played: Any, admin: Client
) -> None:
    """Each change of the tolerations replaces the operands' pods on all nodes."""
    resource, clock = ("karpenter.sh", "nodepools"), VirtualClock()
    crd = karpenter_crd("v1", "nodepools", "NodePool")
    await played.registry.create(("apiextensions.k8s.io", "customresourcedefinitions"), None, crd)
    counted: list[int] = []
    watch = pools.PoolWatch(admin, clock)
    watch.add_handler(lambda: counted.append(len(watch.pools())))
    running = asyncio.create_task(watch.run())
    await watch.known()

    async def settled(number: int) -> list[int]:
        """Return the counts once that many pools are known, and no more have arrived for long."""
        await until(lambda: len(watch._found()) == number)
        await clock.advance(3 * pools.SETTLE_SECONDS)
        return counted

    for number in range(10):
        taints = {"template": {"spec": {"taints": [{"key": f"team-{number}", "effect": "NoSchedule"}]}}}
        made = {**NODE_POOL, "metadata": {"name": f"pool-{number}"}, "spec": taints}
        await played.registry.create(resource, None, made)
    assert await settled(10) == [10]
    await played.registry.patch(resource, None, "pool-0", {"status": {"resources": {"cpu": "4"}}}, "merge")
    await played.registry.delete(resource, None, "pool-9")
    assert await settled(9) == [10, 9]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("bad", [("a b", ""), ("team", "not a value"), ("-team", ""), ("a/b/c", ""), ("", "x")])
def test_a_taint_that_kubernetes_refuses_is_left_out_of_the_tolerations(bad: tuple[str, str]) -> None:
    """A DaemonSet with such a toleration would be refused whole, on every node."""
    key, value = bad
    good = Taint("team", "NoSchedule", "a")
    pool = DeclaredPool("p", taints=(Taint(key, "NoSchedule", value), good))
    assert declared([pool]) == (Toleration(key="team", operator="Equal", value="a", effect="NoSchedule"),)
    assert seen_keys([], [], [DeclaredPool("p", taints=(Taint("nvidia.com/a b", "NoSchedule"),))]) == ()


def test_the_tolerations_stay_few_however_many_pools_there_are() -> None:
    values = [DeclaredPool("p", taints=(Taint("team", "NoSchedule", f"t{number}"),)) for number in range(MOST + 1)]
    assert declared(values) == (Toleration(key="team", operator="Exists"),)
    keys = [DeclaredPool("p", taints=(Taint(f"team-{number}", "NoSchedule"),)) for number in range(1500)]
    assert len(declared(keys)) == MOST
    left = Taint("team-999", "NoSchedule")
    assert in_the_way(node(left), (), keys) == (left,), "the node says so"
    ours = [DeclaredPool("p", taints=(Taint(f"nvidia.com/team-{number}", "NoSchedule"),)) for number in range(1500)]
    assert len(seen_keys([], [], ours)) == MOST
    (first, last) = (Taint(f"nvidia.com/team-{number}", "NoSchedule") for number in (0, 999))
    keys = seen_keys([], [], ours)
    assert in_the_way(node(first, last), (), ours, keys) == (last,), "the node says so"
    assert in_the_way(node(last), [Toleration(key=last.key, operator="Exists")], ours, keys) == ()

"""Taints that node pools put on their nodes: operands run there, or the node says which taint is in the way."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.operands import is_removal, manifests
from gpuplane.operator.stages import OPERANDS
from gpuplane.operator.taints import in_the_way, seen_keys, tolerates, tolerations, why_off
from kubekit.api.core import DaemonSet, DaemonSetSpec, Node, NodeSpec, PodSpec, PodTemplate, Taint, Toleration

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
    Taint("ToBeDeletedByClusterAutoscaler", "NoSchedule", "1700000000"),
]


def node(*taints: Taint) -> Node:
    return Node(spec=NodeSpec(taints=taints))


@pytest.mark.parametrize("taint", POOLS, ids=lambda taint: taint.key)
def test_operands_tolerate_what_node_pools_declare(taint: Taint) -> None:
    allowed = tolerations(seen_keys([node(taint)], []))
    assert any(tolerates(toleration, taint) for toleration in allowed)
    assert in_the_way(node(taint), ()) == ()


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

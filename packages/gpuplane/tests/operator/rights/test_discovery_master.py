"""Rights of the discovery master's token to change Nodes: the results that a NodeFeatureRule may have."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.nodefeature_checks import annotation_problems, label_problems, resource_problems, taint_problems
from gpuplane.api.nodefeature_node import WantedFeatures, owned, patches
from kubekit.api.core import Node, Taint
from tests.support.policy_world import PolicyWorld, token
from tests.support.stolen_tokens import REFUSED_RESULTS, REFUSED_STATUS

MASTER = token("node-feature-discovery-master")
NAMES = (
    "feature.node.kubernetes.io/a",
    "below.feature.node.kubernetes.io/a",
    "vendor.example.com/a",
    "node-role.kubernetes.io/control-plane",
    "node.kubernetes.io/unreachable",
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "example.k8s.io/a",
    "x-k8s.io/a",
    "karpenter.sh/do-not-disrupt",
    names.UPGRADE_RECORD_ANNOTATION,
    names.SHARE_FREED_ANNOTATION,
    names.DEPLOY_PREFIX + "driver",
    names.DEPLOY_OPERANDS_LABEL,
    names.NOT_READY_TAINT,
    names.GPU_RESOURCE,
    names.UPGRADE_STATE_LABEL,
)


async def apply(world: PolicyWorld, wanted: WantedFeatures) -> str:
    """Write the results of rules as the master does; return the first refusal."""
    node = await read(world)
    change = patches(node, wanted)
    said = await world.refused_patch(MASTER, "nodes", "mine", change.node) if change.node else ""
    if change.status and not said:
        return await world.refused_patch(MASTER, "nodes", "mine", change.status, subresource="status")
    return said


async def read(world: PolicyWorld) -> Node:
    return msgspec.convert(world.registry.get("nodes", None, "mine"), Node, strict=False)


async def test_results_of_rules_come_and_go(world: PolicyWorld) -> None:
    wanted = WantedFeatures(
        labels={"feature.node.kubernetes.io/a": "1", "vendor.example.com/b": "2", "example.com/team": "changed"},
        annotations={"feature.node.kubernetes.io/note": "n", "vendor.example.com/note": "m"},
        taints=(Taint(key="vendor.example.com/t", value="v", effect="NoSchedule"),),
        resources={"feature.node.kubernetes.io/cards": "4", "vendor.example.com/cards": "2"},
    )
    assert await apply(world, wanted) == ""
    assert owned(await read(world)) == wanted
    assert await apply(world, WantedFeatures()) == ""
    assert await apply(world, WantedFeatures()) == ""
    assert owned(await read(world)) == WantedFeatures()
    assert [taint.key for taint in (await read(world)).spec.taints] == ["example.com/reserved"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_result_passes_where_the_check_of_rules_lets_it_pass(world: PolicyWorld, name: str) -> None:
    for wanted, problems in (
        (WantedFeatures(labels={name: "1"}), label_problems(name, "1", "")),
        (WantedFeatures(annotations={name: "1"}), annotation_problems(name, "1", "")),
        (WantedFeatures(taints=(Taint(key=name, effect="NoSchedule"),)), taint_problems(name, "")),
        (WantedFeatures(resources={name: "1"}), resource_problems(name, "1", "")),
    ):
        said = await apply(world, wanted)
        assert (said == "") == (not list(problems)), (wanted, said)


@pytest.mark.parametrize("what", sorted(REFUSED_RESULTS))
async def test_the_rest_of_a_node_stays(world: PolicyWorld, what: str) -> None:
    await world.registry.patch(
        "nodes", None, "mine", {"metadata": {"annotations": {"network.example.com/address": "10.0.0.1"}}}, "merge"
    )
    assert "gpuplane-discovery-master" in await world.refused_patch(MASTER, "nodes", "mine", REFUSED_RESULTS[what])


@pytest.mark.parametrize("what", sorted(REFUSED_STATUS))
async def test_the_rest_of_the_status_stays(world: PolicyWorld, what: str) -> None:
    said = await world.refused_patch(MASTER, "nodes", "mine", REFUSED_STATUS[what], subresource="status")
    assert "gpuplane-discovery-master" in said


async def test_an_annotation_is_not_claimed_in_one_step_and_changed_in_the_next(world: PolicyWorld) -> None:
    book = "gpuplane.nfd.node.kubernetes.io/feature-annotations"
    address = "network.example.com/address"
    await world.registry.patch("nodes", None, "mine", {"metadata": {"annotations": {address: "10.0.0.1"}}}, "merge")
    claim = {"metadata": {"annotations": {book: address}}}
    assert "gpuplane-discovery-master" in await world.refused_patch(MASTER, "nodes", "mine", claim)


async def test_the_master_asks_for_no_annotation_that_it_would_be_refused(world: PolicyWorld) -> None:
    address = "network.example.com/address"
    await world.registry.patch("nodes", None, "mine", {"metadata": {"annotations": {address: "10.0.0.1"}}}, "merge")
    wanted = WantedFeatures(labels={"vendor.example.com/b": "2"}, annotations={address: "10.9.9.9"})
    assert await apply(world, wanted) == ""
    assert owned(await read(world)).labels == {"vendor.example.com/b": "2"}

"""Rights of an operand's token: it may change its own Node, GPUNode and NodeFeature, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.nodefeature_checks import label_problems
from gpuplane.discovery.gpu import GPU_LABELS
from tests.support.policy_world import GPUNODES, NAMESPACE, NODE_FEATURES, Body, PolicyWorld, token

WORKER = token("node-feature-discovery", "mine")
GFD = token("gpu-feature-discovery", "mine")
DRIVER = token("nvidia-driver", "mine")
TOOLKIT = token("nvidia-container-toolkit", "mine")
VALIDATOR = token("nvidia-operator-validator", "mine")
PLUGIN = token("nvidia-device-plugin", "mine")

LABELS = (
    "feature.node.kubernetes.io/pci-10de.present",
    "profile.node.kubernetes.io/small",
    "vendor.example.com/card",
    names.DEPLOY_OPERANDS_LABEL,
    names.PLUGIN_CONFIG_LABEL,
    "kubernetes.io/hostname",
    "node-role.kubernetes.io/control-plane",
    "node-restriction.kubernetes.io/team",
    "topology.kubernetes.io/zone",
    "node.kubernetes.io/exclude-from-external-load-balancers",
    "example.k8s.io/a",
    "nvidia-device-enable",
    "trusted",
    names.DEPLOY_PREFIX + "driver",
    names.GPU_PRESENT_LABEL,
    names.UPGRADE_STATE_LABEL,
    names.DRIVER_OWNER_LABEL,
    names.ROLLBACK_LABEL,
    "karpenter.sh/nodepool",
)
REST_OF_A_NODE: dict[str, Body] = {
    "owner": {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "u"}]}},
    "finalizer": {"metadata": {"finalizers": ["example.com/held"]}},
    "annotation": {"metadata": {"annotations": {"example.com/a": "b"}}},
    "taints": {"spec": {"taints": None}},
    "cordon": {"spec": {"unschedulable": True}},
}


@pytest.mark.parametrize("label", LABELS)
async def test_discovery_sets_the_labels_that_a_feature_file_may_ask_for(world: PolicyWorld, label: str) -> None:
    """A name that the policy refused and the check let pass would be tried again and again."""
    said = await world.refused_patch(WORKER, "nodes", "mine", {"metadata": {"labels": {label: "x"}}})
    # A rule's name without a prefix gets that of features.
    may = "/" in label and not list(label_problems(label, "x", "spec"))
    assert (said == "") == may, said


async def test_discovery_removes_no_label_of_others(world: PolicyWorld) -> None:
    assert await world.refused_patch(
        WORKER, "nodes", "mine", {"metadata": {"labels": {"kubernetes.io/hostname": None}}}
    )


@pytest.mark.parametrize("label", sorted(GPU_LABELS))
async def test_gpu_feature_discovery_sets_each_of_its_labels(world: PolicyWorld, label: str) -> None:
    assert await world.refused_patch(GFD, "nodes", "mine", {"metadata": {"labels": {label: "1"}}}) == ""


async def test_gpu_feature_discovery_labels_mig_devices(world: PolicyWorld) -> None:
    labels = {"nvidia.com/mig-1g.10gb.count": "7", "nvidia.com/mig-1c.3g.40gb.product": "A"}
    assert await world.refused_patch(GFD, "nodes", "mine", {"metadata": {"labels": labels}}) == ""


@pytest.mark.parametrize(
    "label",
    [
        "feature.node.kubernetes.io/pci-10de.present",
        "vendor.example.com/card",
        names.DEPLOY_PREFIX + "driver",
        names.DEPLOY_OPERANDS_LABEL,
        names.GPU_PRESENT_LABEL,
        names.PLUGIN_CONFIG_LABEL,
        names.MIG_CONFIG_LABEL,
        names.UPGRADE_STATE_LABEL,
        names.UPGRADE_SKIP_LABEL,
    ],
)
async def test_gpu_feature_discovery_sets_no_other_label(world: PolicyWorld, label: str) -> None:
    said = await world.refused_patch(GFD, "nodes", "mine", {"metadata": {"labels": {label: "x"}}})
    assert "makes labels of GPUs only" in said


@pytest.mark.parametrize("what", sorted(REST_OF_A_NODE))
@pytest.mark.parametrize("account", ["node-feature-discovery", "gpu-feature-discovery", "nvidia-driver"])
async def test_the_rest_of_a_node_stays(world: PolicyWorld, account: str, what: str) -> None:
    said = await world.refused_patch(token(account, "mine"), "nodes", "mine", REST_OF_A_NODE[what])
    assert "labels of its Node, and nothing else" in said


async def test_only_discovery_notes_labels_of_users(world: PolicyWorld) -> None:
    note = {"metadata": {"annotations": {names.USER_LABELS_ANNOTATION: "vendor.example.com/card"}}}
    assert await world.refused_patch(WORKER, "nodes", "mine", note) == ""
    gone = {"metadata": {"annotations": {names.USER_LABELS_ANNOTATION: None}}}
    assert await world.refused_patch(GFD, "nodes", "mine", gone)


async def test_the_status_of_a_node_stays(world: PolicyWorld) -> None:
    patch = {"status": {"capacity": {"nvidia.com/gpu": "9"}}}
    assert await world.refused_patch(WORKER, "nodes", "mine", patch, subresource="status")


@pytest.mark.parametrize("user", [token("node-feature-discovery", "mine"), token("node-feature-discovery")])
async def test_another_node_and_a_token_without_one_are_refused(world: PolicyWorld, user: Any) -> None:
    label = {"metadata": {"labels": {"feature.node.kubernetes.io/cpu-model.id": "1"}}}
    assert "its own node only" in await world.refused_patch(user, "nodes", "other", label)


# -- GPUNodes ----------------------------------------------------------------------------------------------------------
DONE = {"state": "done", "since": "2026-11-20T10:00:00Z"}
GPU = {"index": 0, "uuid": "GPU-1", "model": "T4", "memoryMib": 16, "pci": "0000:00:04.0"}
MACHINE, HEALTH, HELD = {"driver": "580.1"}, {"GPU-1": "Xid 79"}, {"GPU-1": {"pod": 30}}


def stages(*reported: str) -> Body:
    return {"status": {"stages": dict.fromkeys(reported, DONE)}}


@pytest.mark.parametrize(
    ("user", "patch"),
    [
        (DRIVER, {"status": {**stages("driver")["status"], "machine": MACHINE, "gpus": [GPU], "health": HEALTH}}),
        (TOOLKIT, {"status": {**stages("toolkit")["status"], "machine": {"runtime": "containerd"}}}),
        (VALIDATOR, stages("cuda", "plugin")),
        (PLUGIN, {"status": {**stages("device-plugin")["status"], "health": HEALTH, "held": HELD}}),
        (PLUGIN, {"status": {"summary": {"gpus": "1/1"}}}),
    ],
)
async def test_an_operand_reports_its_part(world: PolicyWorld, user: Any, patch: Body) -> None:
    assert await world.refused_patch(user, GPUNODES, "mine", patch) == ""
    assert "its own node only" in await world.refused_patch(user, GPUNODES, "other", patch)


@pytest.mark.parametrize(
    ("user", "patch"),
    [
        (DRIVER, stages("cuda")),
        (DRIVER, {"status": {"stages": {"toolkit": None}}}),
        (DRIVER, {"status": {"held": HELD}}),
        (TOOLKIT, stages("driver")),
        (TOOLKIT, {"status": {"gpus": [GPU]}}),
        (VALIDATOR, stages("device-plugin")),
        (VALIDATOR, {"status": {"health": HEALTH}}),
        (PLUGIN, stages("ready")),
        (PLUGIN, {"status": {"gpus": [GPU]}}),
        (PLUGIN, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        (PLUGIN, {"metadata": {"labels": {"a": "b"}}}),
        (PLUGIN, {"metadata": {"annotations": {names.RETRY_ANNOTATION: "now"}}}),
        (PLUGIN, {"metadata": {"finalizers": ["example.com/held"]}}),
        (PLUGIN, REST_OF_A_NODE["owner"]),
    ],
)
async def test_the_parts_of_others_stay(world: PolicyWorld, user: Any, patch: Body) -> None:
    assert "gpuplane-own-report" in await world.refused_patch(user, GPUNODES, "mine", patch)


# -- NodeFeatures ------------------------------------------------------------------------------------------------------
def feature(name: str, about: str, **metadata: Any) -> Body:
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": "u"}
    labels = {"nfd.node.kubernetes.io/node-name": about}
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner], **metadata}, "spec": {}}


async def test_discovery_publishes_features_of_its_node_only(world: PolicyWorld) -> None:
    assert await world.refused_create(WORKER, NODE_FEATURES, NAMESPACE, feature("mine", "mine")) == ""
    move = {"metadata": {"labels": {"nfd.node.kubernetes.io/node-name": "other"}}}
    assert await world.refused_patch(WORKER, NODE_FEATURES, "mine", move, namespace=NAMESPACE)
    keep = {"metadata": {"finalizers": ["example.com/held"]}}
    assert await world.refused_patch(WORKER, NODE_FEATURES, "mine", keep, namespace=NAMESPACE)
    assert await world.refused_delete(WORKER, NODE_FEATURES, NAMESPACE, "mine") == ""
    for body in (
        feature("other", "other"),
        feature("mine", "other"),
        feature("mine", "mine", labels={}),
        feature("mine", "mine", ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]),
    ):
        assert await world.refused_create(WORKER, NODE_FEATURES, NAMESPACE, body), body

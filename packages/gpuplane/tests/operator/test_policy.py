"""What the status of the ClusterPolicy says while nodes become known: a pure function of what the operator sees."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from gpuplane.operator.policy import policy_status
from kubekit.api.core import Node

NOW = "2026-11-23T10:00:00Z"
OTHER = {"feature.node.kubernetes.io/system-os_release.ID": "ubuntu"}
GPU = {**OTHER, names.PCI_PRESENT_LABELS[0]: "true"}
READY = {"driver": {"state": "present"}, "ready": {"state": "done"}}


def node(name: str, **labels: str) -> Node:
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, Node)


def gpunode(name: str, stages: dict[str, Any]) -> GPUNode:
    return msgspec.convert({"metadata": {"name": name}, "status": {"stages": stages}}, GPUNode)


def state(*nodes: Node, gpunodes: tuple[GPUNode, ...] = (), discovering: str = "", **spec: Any) -> tuple[str, str, str]:
    """(state, reason, message) of the status."""
    policy = msgspec.convert({"metadata": {"name": "cluster-policy"}, "spec": spec}, ClusterPolicy)
    status = policy_status(policy, nodes, gpunodes, discovering.split(), error="", now=NOW)
    return status["state"], status["conditions"][0]["reason"], status["conditions"][0]["message"]


def test_a_node_that_discovery_has_labelled_a_moment_ago_is_not_taken_for_one_without_gpus() -> None:
    assert state(node("g1", **GPU)) == ("notReady", "OperandNotReady", "discovered just now: g1")
    ready = gpunode("g1", READY)
    found = state(node("g1", **GPU), node("g2", **GPU), gpunodes=(ready,))
    assert found == ("notReady", "OperandNotReady", "discovered just now: g2")
    assert state(node("g1", **GPU), gpunodes=(ready,)) == ("ready", "Reconciled", "1 GPU node is ready")


def test_that_no_node_has_a_gpu_is_said_once_every_node_is_discovered_that_runs_discovery() -> None:
    cpu, late = node("c1", **OTHER), [node(f"n{number}") for number in range(5)]
    found = state(cpu, *late, discovering="c1 n0 n1 n2 n3 n4")
    assert found == ("notReady", "NFDLabelsMissing", "no feature.node.kubernetes.io labels yet: n0, n1, n2 and 2 more")
    without = ("ready", "NoGPUNodes", "no node has an NVIDIA GPU")
    assert state(cpu, *late, discovering="c1") == without, "no pod of discovery runs there: a virtual node, a taint"
    assert state(cpu, discovering="c1") == without
    assert state(node("n1"), discovering="n1")[1] == "NFDLabelsMissing"


@pytest.mark.parametrize(
    ("labels", "spec"),
    [
        ({names.DEPLOY_OPERANDS_LABEL: "false"}, {}),
        ({"pool": "others"}, {"daemonsets": {"nodeSelector": {"pool": "ours"}}}),
    ],
)
def test_a_node_that_is_not_meant_is_not_waited_for(labels: dict[str, str], spec: dict[str, Any]) -> None:
    assert state(node("g1", **GPU, **labels), **spec)[:2] == ("ready", "NoGPUNodes")


def test_discovery_that_is_late_on_one_node_does_not_hide_the_state_of_the_others() -> None:
    found = state(node("g1", **GPU), node("n2"), gpunodes=(gpunode("g1", READY),), discovering="g1 n2")
    assert found == ("ready", "Reconciled", "1 GPU node is ready")

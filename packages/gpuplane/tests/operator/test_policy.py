"""The status of the ClusterPolicy while nodes become known, and the events of a lost GPU.

Both are pure functions of the operator's observations.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.offers import GpuUnits, UnitKind
from gpuplane.operator.policy import holder_events, policy_status, stage_events
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from kubekit.api.core import Node, Pod

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


def with_gpus(*faults: str) -> GPUNode:
    """Return a node with a GPU for each fault; an empty string means no fault."""
    gpus = [{"index": at, "uuid": f"GPU-{at}", "model": "T4", "memoryMib": 15360} for at in range(len(faults))]
    health = {f"GPU-{at}": fault for at, fault in enumerate(faults) if fault}
    return msgspec.convert({"metadata": {"name": "n1"}, "status": {"gpus": gpus, "health": health}}, GPUNode)


def holding(name: str, limits: dict[str, str], at: int | None = None) -> Pod:
    """A pod of the node n1; with `at` the scheduler has given it a part of that GPU."""
    container = {"name": "main", "resources": {"limits": limits}}
    body = {"metadata": {"name": name, "namespace": "ml"}, "spec": {"nodeName": "n1", "containers": [container]}}
    pod = msgspec.convert(body, Pod)
    if at is None:
        return pod
    request = request_of(pod)
    [ask] = request.asks
    said = to_annotations(Assignment({"main": (Part(f"GPU-{at}", at, ask.core, 4096),)}), request, "n1", 0)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=said))


def share(name: str, core: int, at: int) -> Pod:
    return holding(name, {names.VCUDA_CORE: str(core), names.VCUDA_MEMORY: "16"}, at)


def told(old: GPUNode, new: GPUNode, *pods: Pod, units: tuple[GpuUnits, ...] = ()) -> list[tuple[str, str, str]]:
    return [(pod.metadata.name, reason, text) for pod, reason, text in holder_events(old, new, pods, units)]


def test_the_pods_that_hold_a_lost_gpu_get_its_event_too() -> None:
    old, new = with_gpus("", ""), with_gpus("", "Xid 79: fallen off the bus")
    assert stage_events(old, new) == [("Warning", "GPULost", "GPU-1: Xid 79: fallen off the bus")]
    found = told(old, new, share("serve", 50, 1), share("tune", 30, 1), share("eval", 40, 0))
    text = "GPU 1 of n1, GPU-1: Xid 79: fallen off the bus; this pod holds {}% of it"
    assert found == [("serve", "GPULost", text.format(50)), ("tune", "GPULost", text.format(30))]
    assert told(new, new, share("serve", 50, 1)) == [], "once"
    assert told(new, old, share("serve", 50, 1)) == [], "nothing is lost"


def test_a_pod_gets_no_event_for_a_gpu_that_it_may_not_hold() -> None:
    old, new = with_gpus("", ""), with_gpus("", "Xid 48: double bit ECC error")
    one, both = holding("one", {names.GPU_RESOURCE: "1"}), holding("both", {names.GPU_RESOURCE: "2"})
    assert told(old, new, one) == [], "its node alone knows which GPU it holds"
    [(name, reason, text)] = told(old, new, both)
    assert (name, reason) == ("both", "GPUUnhealthy") and text.endswith("double bit ECC error; this pod holds it")


def test_the_event_of_a_replica_says_how_many_it_holds() -> None:
    units = (GpuUnits(names.GPU_RESOURCE, UnitKind.REPLICA, 10, 10.0),)
    pod = holding("two", {names.GPU_RESOURCE: "2"})
    [(_, _, text)] = told(with_gpus(""), with_gpus("lost: NVML does not reach it"), pod, units=units)
    assert text.endswith("this pod holds 2 replicas of it")

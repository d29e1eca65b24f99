"""The cluster-wide settings of a ClusterPolicy, and the status that the operator writes back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicySpec
from gpuplane.api.gpunode import GPUNode, StageName, StageState, is_lost
from gpuplane.api.offers import WHOLE, GpuUnits, core_asked
from gpuplane.operator.manifest import Manifest
from gpuplane.sharing.held import held_parts
from kubekit.api.core import DaemonSet, Node, Pod
from kubekit.api.meta import Condition, to_dict
from kubekit.kube.events import EventLevel

FINALIZER: Final = "gpuplane.dev/take-back"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
PART_OF: Final = "gpuplane"
_SHOWN: Final = 3  # nodes that a message names


def is_selected(labels: Mapping[str, str], spec: ClusterPolicySpec) -> bool:
    """Return whether the policy means a node with these labels."""
    return all(labels.get(name) == value for name, value in spec.daemonsets.node_selector.items())


def has_gpus(labels: Mapping[str, str]) -> bool:
    """Return whether discovery saw an NVIDIA GPU; the label that we set ourselves does not count."""
    return any(labels.get(label) == "true" for label in names.PCI_PRESENT_LABELS)


def has_opted_out(labels: Mapping[str, str]) -> bool:
    """Return whether the label that keeps all operands off the node is set."""
    return labels.get(names.DEPLOY_OPERANDS_LABEL) == "false"


def is_feature(label: str) -> bool:
    """Return whether a node label comes from feature discovery."""
    return label.startswith(names.FEATURE_PREFIX)


def is_discovered(nodes: Iterable[Node]) -> bool:
    """Return whether some node carries labels of feature discovery."""
    return any(is_feature(label) for node in nodes for label in node.metadata.labels)


def undiscovered(nodes: Iterable[Node], discovering: Collection[str]) -> list[str]:
    """Names of the nodes that run discovery and have no label of it yet."""
    return [
        node.metadata.name
        for node in nodes
        if node.metadata.name in discovering and not any(map(is_feature, node.metadata.labels))
    ]


def unknown(nodes: Iterable[Node], gpunodes: Iterable[GPUNode], spec: ClusterPolicySpec) -> list[str]:
    """Names of the nodes without a GPUNode on which discovery saw a GPU and which the policy means."""
    known = {found.metadata.name for found in gpunodes}
    return [
        node.metadata.name
        for node in nodes
        if node.metadata.name not in known
        and has_gpus(node.metadata.labels)
        and not has_opted_out(node.metadata.labels)
        and is_selected(node.metadata.labels, spec)
    ]


def to_prune(existing: Iterable[DaemonSet], wanted: Iterable[Manifest], policy_uid: str) -> list[str]:
    """DaemonSets that this policy made and does not want any more."""
    keep = {manifest["metadata"]["name"] for manifest in wanted if manifest["kind"] == "DaemonSet"}
    return sorted(
        found.metadata.name for found in existing if found.metadata.name not in keep and is_ours(found, policy_uid)
    )


def is_ours(found: DaemonSet, policy_uid: str) -> bool:
    """Return whether the policy made it. A DaemonSet that removes an operand's work has no owner, see
    `operands.manifests`."""
    owners = found.metadata.owner_references
    if not owners:
        return found.metadata.labels.get(PART_OF_LABEL) == PART_OF
    return any(owner.uid == policy_uid for owner in owners)


def policy_status(
    policy: ClusterPolicy,
    nodes: Sequence[Node],
    gpunodes: Sequence[GPUNode],
    discovering: Collection[str],
    *,
    error: str,
    now: str,
) -> dict[str, Any]:
    """`status` of the policy in force: state and the conditions Ready and Error.

    Reasons are those that users of the GPU operator know: Reconciled, ReconcileFailed, OperandNotReady, DriverNotReady,
    NFDLabelsMissing, NoGPUNodes. NoGPUNodes holds once every node that runs discovery is discovered.

    Args:
        discovering: names of the nodes that answer and have a pod of discovery.
    """
    old = policy.status.conditions
    coming = unknown(nodes, gpunodes, policy.spec)
    late = [] if gpunodes or coming else undiscovered(nodes, discovering)
    waiting = [node for node in gpunodes if not _holds(node, StageName.READY)]
    if error:
        reason, message = "ReconcileFailed", error
    elif not is_discovered(nodes):
        reason, message = "NFDLabelsMissing", "no node carries feature.node.kubernetes.io labels yet"
    elif late:
        reason, message = "NFDLabelsMissing", f"no feature.node.kubernetes.io labels yet: {_some(late)}"
    elif not gpunodes and not coming:
        reason, message = "NoGPUNodes", "no node has an NVIDIA GPU"
    elif any(not _holds(node, StageName.DRIVER) for node in waiting):
        reason, message = "DriverNotReady", _waits(waiting)
    elif coming:
        reason, message = "OperandNotReady", f"discovered just now: {_some(coming)}"
    elif waiting:
        reason, message = "OperandNotReady", _waits(waiting)
    else:
        one = len(gpunodes) == 1
        reason, message = "Reconciled", "1 GPU node is ready" if one else f"{len(gpunodes)} GPU nodes are ready"
    ready = reason in ("Reconciled", "NoGPUNodes")
    return {
        "state": "ready" if ready else "notReady",
        "namespace": names.OPERATOR_NAMESPACE,
        "conditions": [
            to_dict(condition(old, "Ready", ready, reason, message, now)),
            to_dict(condition(old, "Error", bool(error), reason if error else "None", error, now)),
        ],
    }


def ignored_status(used: str, now: str, old: Sequence[Condition]) -> dict[str, Any]:
    """`status` of a policy that does not count."""
    message = f"ClusterPolicy {used} is older and in force; there can be one"
    return {"state": "ignored", "conditions": [to_dict(condition(old, "Ready", False, "Ignored", message, now))]}


def _holds(node: GPUNode, name: StageName) -> bool:
    stage = node.status.stages.get(name.value)
    return stage is not None and stage.state.holds


def _waits(waiting: Sequence[GPUNode]) -> str:
    """`n1 waits for driver, n2 for toolkit and 3 more`."""
    return _some([f"{node.metadata.name} waits for {node.status.summary.waits_for or 'driver'}" for node in waiting])


def _some(named: Sequence[str]) -> str:
    """`n1, n2, n3 and 4 more`."""
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more


def condition(old: Sequence[Condition], kind: str, holds: bool, reason: str, message: str, now: str) -> Condition:
    status = "True" if holds else "False"
    before = next((one for one in old if one.type == kind), None)
    since = before.last_transition_time if before is not None and before.status == status else now
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)


def stage_events(old: GPUNode, new: GPUNode) -> list[tuple[EventLevel, str, str]]:
    """(level, reason, message) of the events that a change of a GPUNode is worth."""
    events: list[tuple[EventLevel, str, str]] = []
    for name in StageName:
        before, after = old.status.stages.get(name.value), new.status.stages.get(name.value)
        if after is None or (before is not None and (before.state, before.reason) == (after.state, after.reason)):
            continue
        if after.state is StageState.FAILED:
            cure = f"; {after.cure}" if after.cure else ""
            events.append(("Warning", "StageFailed", f"{name.value}: {after.message or after.reason}{cure}"[:1000]))
        elif after.state in (StageState.DONE, StageState.PRESENT):
            events.append(("Normal", "StageDone", f"{name.value}: {after.message or after.state.value}"[:1000]))
    for uuid, why in new_faults(old, new).items():
        events.append(("Warning", fault_reason(why), f"{uuid}: {why}"[:1000]))
    return events


def new_faults(old: GPUNode, new: GPUNode) -> dict[str, str]:
    """Return by UUID why GPUs are not usable that were usable before."""
    return {uuid: why for uuid, why in new.status.health.items() if uuid not in old.status.health}


def fault_reason(why: str) -> str:
    """Return the reason of the event of such a GPU."""
    return "GPULost" if is_lost(why) else "GPUUnhealthy"


def holder_events(
    old: GPUNode, new: GPUNode, pods: Iterable[Pod], units: Sequence[GpuUnits]
) -> list[tuple[Pod, str, str]]:
    """(pod, reason, message) for each pod that holds a part of a GPU which has become unusable.

    Pods whose GPUs their node alone knows are left out.

    Args:
        pods: those of the node.
        units: what the node offers, or would if all its GPUs were usable.
    """
    faults, gpus = new_faults(old, new), new.status.gpus
    sick = {gpu.index: gpu for gpu in gpus if gpu.uuid in faults}
    told = []
    for pod in pods:
        held = {part.index: part.of_gpu for part in held_parts(pod, gpus, units)}
        if not held and core_asked(pod, units) >= WHOLE * len(gpus):
            held = dict.fromkeys(sick, "it")  # a pod with all GPUs of its node
        for index in sorted(held.keys() & sick.keys()):
            uuid = sick[index].uuid
            text = f"GPU {index} of {new.metadata.name}, {uuid}: {faults[uuid]}; this pod holds {held[index]}"
            told.append((pod, fault_reason(faults[uuid]), text[:1000]))
    return told


def digest(manifest: Mapping[str, Any]) -> bytes:
    """Return the digest by which an applied manifest is recognised."""
    return msgspec.json.encode(manifest, order="sorted")

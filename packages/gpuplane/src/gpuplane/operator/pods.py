"""Tells the pods of our operands from others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuplane import names
from gpuplane.api.requests import uses_gpus
from gpuplane.operator.observed import COMPONENT_LABEL, answers
from gpuplane.operator.policy import PART_OF, PART_OF_LABEL
from kubekit.api.core import Node, Pod

BY_NODE: Final = "node"
"""The name of the index of pods by their node, for `node_of`."""
_INSTALLED: Final = frozenset({"gpu-operator", names.EXTENDER_NAME, names.ADMISSION_NAME})
"""The components of the installation itself, which outlive every policy."""


def node_of(pod: Pod) -> Iterable[str]:
    """Return the node of a pod; none for a pod that is not bound."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def is_operand(pod: Pod) -> bool:
    """Return whether the operator made the pod's DaemonSet or Deployment; not for the installation's own pods."""
    component = pod.metadata.labels.get(COMPONENT_LABEL, "")
    return bool(component) and component not in _INSTALLED and pod.metadata.labels.get(PART_OF_LABEL) == PART_OF


def is_proof(pod: Pod) -> bool:
    """Return whether a pod is one that a validator has run on its node."""
    meta = pod.metadata
    ours = meta.labels.get("app") == names.VALIDATION_POD and meta.labels.get(PART_OF_LABEL) == PART_OF
    return ours and meta.namespace == names.OPERATOR_NAMESPACE


def concerns_node(pod: Pod) -> bool:
    """Return whether a pod is of the operator's namespace or holds a part of a GPU."""
    return pod.metadata.namespace == names.OPERATOR_NAMESPACE or holds_gpus(pod)


def holds_gpus(pod: Pod) -> bool:
    """Return whether a pod is bound, has not ended, and asks for GPUs in any unit."""
    return bool(pod.spec.node_name) and not pod.status.ended and uses_gpus(pod)


def operand_pods(pods: Iterable[Pod], nodes: Iterable[Node]) -> list[Pod]:
    """Return the operand pods on nodes that answer; on others they cannot end."""
    answering = {node.metadata.name for node in nodes if answers(node)}
    return [pod for pod in pods if pod.spec.node_name in answering and is_operand(pod)]

"""Admission of new Nodes: none takes pods before the node lifecycle controller has seen that it is ready.

Source: plugin/pkg/admission/nodetaint of Kubernetes 1.36.
"""

from __future__ import annotations

from typing import Final

from tinykube.apiserver.hooks import Object

NODES: Final = "nodes"
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_EFFECT: Final = "NoSchedule"


def taint_new(node: Object) -> None:
    """Give a new Node the taint not-ready:NoSchedule, unless it has one with that key and effect."""
    spec = node.setdefault("spec", {})
    if not isinstance(spec, dict):
        return  # validation refuses it
    taints = spec.get("taints") or []
    if not isinstance(taints, list) or any(_is_not_ready(taint) for taint in taints):
        return
    spec["taints"] = [*taints, {"key": _NOT_READY, "effect": _EFFECT}]


def _is_not_ready(taint: object) -> bool:
    return isinstance(taint, dict) and taint.get("key") == _NOT_READY and taint.get("effect") == _EFFECT

"""Finds fields that the pod scheduler cannot decide about: such a pod waits, and an event names the field.

A scheduler that ignored such a field would bind the pod to a node where it cannot start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_GROUP_LABELS: Final = ("pod-group.scheduling.sigs.k8s.io",)  # of scheduler-plugins before its PodGroup was an object
_GROUP_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
CURE: Final = "give the pod to default-scheduler"


def unsupported(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return what the scheduler cannot decide about, in one line; empty for a pod that it can place."""
    found = list(_groups(metadata, spec))
    return f"the scheduler does not support {', '.join(found)}; {CURE}" if found else ""


def _groups(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("workloadRef"):  # replaced in Kubernetes 1.36 by schedulingGroup
        yield "workloadRef of Kubernetes 1.35"
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    named = [name for name in _GROUP_LABELS if name in labels] + [
        one for one in _GROUP_ANNOTATIONS if one in annotations
    ]
    for name in named:
        yield f"pod groups ({name})"

"""Pods, nodes and budgets with their whole `spec` and `status`: the narrow kinds lack what some decisions read."""

from __future__ import annotations

from typing import Any, ClassVar

from kubekit.api.core import Node, Pod
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct


class RawPod(Struct):
    """A pod with its whole `spec` and `status`."""

    RESOURCE: ClassVar[Resource] = Pod.RESOURCE

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class RawNode(Struct):
    """A node with its whole `spec` and `status`."""

    RESOURCE: ClassVar[Resource] = Node.RESOURCE

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class RawBudget(Struct):
    """A PodDisruptionBudget with its whole `spec` and `status`."""

    RESOURCE: ClassVar[Resource] = built_in("policy/v1", "PodDisruptionBudget")

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

"""Pods and nodes with their whole `spec` and `status`, for decisions that read fields which the narrow kinds lack."""

from __future__ import annotations

from typing import Any, ClassVar

from kubekit.api.core import Node, Pod
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

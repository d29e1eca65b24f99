"""An API server with one Node and its GPUNode, for tests of operands that report stages."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuplane.api.gpunode import GPUNode, GPUNodeStatus
from kubekit.api.core import Node, NodeInfo, NodeStatus
from kubekit.api.meta import ObjectMeta


class FakeNodeClient:
    """A client as far as `report_stage` and the choice of a container runtime use it; records the writes.

    Each of `unreachable` is raised by one `get` of a `fails`.
    """

    def __init__(self, fails: type, runtime: str = "docker://24.0.7") -> None:
        self.fails = fails
        self.runtime = runtime
        self.status = GPUNodeStatus()
        self.writes: list[dict[str, Any]] = []
        self.unreachable: list[Exception] = []

    async def get(self, kind: type, name: str) -> Any:
        if kind is self.fails and self.unreachable:
            raise self.unreachable.pop(0)
        if kind is Node:
            info = NodeInfo(container_runtime_version=self.runtime)
            return Node(metadata=ObjectMeta(name=name), status=NodeStatus(node_info=info))
        assert kind is GPUNode
        return GPUNode(metadata=ObjectMeta(name=name, resource_version="1"), status=self.status)

    async def apply(self, body: dict[str, Any], manager: str, **_: object) -> dict[str, Any]:
        self.writes.append({"manager": manager, **body["status"]})
        new = msgspec.convert(body["status"], GPUNodeStatus)
        changes = {key: getattr(new, key) for key in ("machine", "gpus", "health", "summary") if key in body["status"]}
        self.status = msgspec.structs.replace(self.status, stages={**self.status.stages, **new.stages}, **changes)
        return body

    async def patch(self, kind: type, name: str, patch: dict[str, Any], **_: object) -> GPUNode:
        """A merge patch of `write_health`; `summary` and `health` are whole in it, apart from what is null."""
        assert kind is GPUNode
        whole = {part: {k: v for k, v in patch["status"][part].items() if v is not None} for part in patch["status"]}
        new = msgspec.convert(whole, GPUNodeStatus)
        self.status = msgspec.structs.replace(self.status, health=new.health, summary=new.summary)
        return GPUNode(metadata=ObjectMeta(name=name, resource_version="1"), status=self.status)

"""Writes of the operator about a node when its watches are not equally far."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane.api.gpunode import GPUNode
from gpuplane.operator.nodes import NodeWriter, Settling
from kubekit.api.core import Node
from kubekit.api.meta import to_dict
from kubekit.kube import NotFound
from packages.gpuplane.tests.operator.test_decide import NOW, settled

OLD = "nvidia-driver-daemonset-old"


class Server:
    """An API server that has some pods, and takes every patch."""

    def __init__(self, *pods: str) -> None:
        self.pods = pods
        self.patches: list[dict[str, Any]] = []

    async def get(self, kind: type, name: str, namespace: str) -> None:
        if name not in self.pods:
            raise NotFound(name, status=404, reason="NotFound")

    async def patch(self, kind: type, name: str, patch: dict[str, Any], **_: str) -> Any:
        self.patches.append(patch)
        return msgspec.convert({"metadata": {"name": name, "resourceVersion": "8"}}, kind)


@pytest.mark.parametrize("is_there", [True, False], ids=["old pod is there", "old pod is gone"])
async def test_the_report_of_the_next_driver_is_not_taken_for_the_old_ones(is_there: bool) -> None:
    """The watch of pods still has the old one. Once that is gone, only the next one can have reported."""
    have = settled()
    driver = have.pods["driver"]
    seen = msgspec.structs.replace(have, restarting=True, stale=(OLD,), pods={"driver": driver}, offered=0)
    metadata = {"name": "n1", "resourceVersion": "7"}
    node = msgspec.convert({"metadata": {**metadata, "labels": dict(seen.labels)}}, Node)
    gpunode = msgspec.convert({"metadata": metadata, "status": to_dict(seen.status)}, GPUNode)
    server = Server(OLD) if is_there else Server()
    await NodeWriter(server, lambda: NOW).carry_out(node, gpunode, seen, Settling(lambda: 0.0), 0)  # type: ignore[arg-type]  # a fake
    dropped = [patch["status"]["stages"]["driver"] for patch in server.patches if "status" in patch]
    assert dropped == ([None] if is_there else [])

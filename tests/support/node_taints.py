"""Sets the taints of played Nodes where an API server runs without controllers."""

from __future__ import annotations

from typing import Any

from tinykube.apiserver.registry import Registry
from tinykube.controllers.nodelifecycle import taints_of


async def follow_conditions(registry: Registry, name: str) -> dict[str, Any]:
    """Set a Node's taints by its conditions, as the node lifecycle controller does; return the Node.

    Every new Node has the taint not-ready of the API server's admission.
    """
    node = registry.get("nodes", None, name)
    assert node is not None, name
    taints = taints_of(node, registry.now()) or None
    return await registry.patch("nodes", None, name, {"spec": {"taints": taints}}, "merge")

"""Shares of nodes in the first page, made once for all boards that have a node in common."""

from __future__ import annotations

from gpuplane.cli.status_views import NodeView
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.snapshot import NodePart, node_part


class NodeParts:
    """`node_part` with a memory.

    Invariants: it returns what `node_part` returns. The document of a node that is equal to the previous one is the
    same object, so boards hold it once and compare it fast. Nodes that two moments in a row do not have are forgotten.
    """

    def __init__(self) -> None:
        # An entry has its node, so that no other one gets its id meanwhile.
        self._now: dict[int, tuple[NodeView, MeasuredUse, NodePart]] = {}
        self._before: dict[int, tuple[NodeView, MeasuredUse, NodePart]] = {}

    def begin(self) -> None:
        """Begin another moment of the cluster."""
        self._before, self._now = self._now, {}

    def __call__(self, node: NodeView, use: MeasuredUse) -> NodePart:
        """Return the share of a node, as `node_part` makes it."""
        found = self._now.get(id(node)) or self._before.get(id(node))
        if found is None:
            found = (node, use, node_part(node, use))
        elif found[1] is not use:
            made, document = node_part(node, use), found[2].document
            found = (node, use, made._replace(document=document) if made.document == document else made)
        self._now[id(node)] = found
        return found[2]

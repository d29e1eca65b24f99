"""Views of nodes of a cluster that is read again and again: a node that stays as it is costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuplane.api.gpunode import GPUNode
from gpuplane.api.offers import GpuUnits
from gpuplane.cli.holders import PodHolder
from gpuplane.cli.overview import node_view
from gpuplane.cli.status_views import NodeView, UpgradeView


class _Known(NamedTuple):
    node: GPUNode
    units: tuple[GpuUnits, ...]
    holders: Sequence[PodHolder]
    away: str
    upgrade: UpgradeView | None
    view: NodeView


class RememberedViews:
    """`node_view` with a memory.

    Invariant: it returns a view that is equal to that of `node_view`, the same object as long as the node is the same.
    Nodes that two readings in a row do not have are forgotten.
    """

    def __init__(self) -> None:
        self._before: dict[str, _Known] = {}
        self._now: dict[str, _Known] = {}

    def begin(self) -> None:
        """Begin another reading of the cluster."""
        self._before, self._now = self._now, {}

    def __call__(
        self,
        node: GPUNode,
        units: tuple[GpuUnits, ...],
        holders: Sequence[PodHolder],
        away: str = "",
        upgrade: UpgradeView | None = None,
    ) -> NodeView:
        """Return the view of a node, as `node_view` makes it."""
        name = node.metadata.name
        found = self._before.get(name)
        given = (units, holders, away, upgrade)
        if found is None or found.node is not node or found[1:5] != given:
            found = _Known(node, *given, node_view(node, *given))
        self._now[name] = found
        return found.view

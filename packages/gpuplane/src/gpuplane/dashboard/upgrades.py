"""The dashboard's page of upgrades: the driver node by node, and gpuplane's own operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from gpuplane import names
from gpuplane.api.upgrade import ACTIVE, UpgradeState
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.terminal import harmless
from kubekit.api.core import DaemonSet
from kubekit.kube import Client, Forbidden

NODES: Final = 200  # that are listed, those on their way first; all are counted
STATES: Final = tuple(state for state in UpgradeState if state not in (UpgradeState.UNKNOWN, UpgradeState.FAILED))
_ORDER: Final = {state.value: -at for at, state in enumerate(STATES)}


async def read_operands(client: Client) -> list[DaemonSet] | None:
    """Return the operands' DaemonSets; None where the user may not list them."""
    try:
        return await client.list(DaemonSet, namespace=names.OPERATOR_NAMESPACE)
    except Forbidden:
        return None


def upgrades_document(seen: Overview, operands: Iterable[DaemonSet] | None) -> dict[str, Any]:
    """Return the page as plain data. Pure.

    `states` are those of a node's upgrade in their order; `counts` are nodes by state. A node without upgrades of its
    driver is not listed.
    """
    found = [(node, node.upgrade) for node in seen.nodes if node.upgrade is not None]
    nodes = sorted((_rank(view.state), node.name, node) for node, view in found)
    paused = seen.paused
    return {
        "version": seen.version,
        "paused": {"policy": paused.policy, "since": paused.since} if paused is not None else {},
        "states": [state.value for state in STATES],
        "counts": dict(Counter(view.state for _, view in found)),
        "nodes": [_node(node) for _, _, node in nodes[:NODES]],
        "more": max(0, len(nodes) - NODES),
        "operands": [_operand(one) for one in sorted(operands or (), key=lambda one: one.metadata.name)],
        "operandsHidden": operands is None,
    }


def _rank(state: str) -> tuple[int, int]:
    """Return the order of a state: failed, then on the way, then waiting, then done."""
    first = (UpgradeState.FAILED, *ACTIVE, UpgradeState.REQUIRED)
    return (0 if state == UpgradeState.FAILED else 1 if state in first else 2), _ORDER.get(state, 0)


def _node(node: NodeView) -> dict[str, Any]:
    view = node.upgrade
    assert view is not None, "only nodes with an upgrade are listed"
    return {
        "name": node.name,
        "driver": harmless(node.driver, coloured=False),
        "state": view.state,
        "since": view.since,
        "why": harmless(view.why, coloured=False),
    }


def _operand(one: DaemonSet) -> dict[str, Any]:
    status = one.status
    images = [container.image for container in one.spec.template.spec.containers]
    return {
        "name": one.metadata.name,
        "image": images[0] if images else "",
        "nodes": status.desired_number_scheduled,
        # The numbers of an older generation say nothing about the newest template.
        "updated": status.updated_number_scheduled if status.observed_generation >= one.metadata.generation else 0,
        "ready": status.number_ready,
    }

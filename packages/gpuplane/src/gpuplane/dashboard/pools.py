"""The dashboard's page of node pools: their nodes with prices, what is on its way, and why a pool does not grow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api import karpenter, nodeclaim
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.cli.cost_prices import GPUPrices, node_gpus, node_prices
from gpuplane.cli.status_views import PoolView
from gpuplane.cli.terminal import harmless
from kubekit.api.core import Event, Node
from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Forbidden, NotFound

ROWS: Final = 200  # nodes, and launches, that are listed; all are counted
EVENTS: Final = 30
KINDS: Final = ("NodeClaim", "NodePool", "Provisioner")
REMEMBERED_SECONDS: Final = 5.0  # for which the objects are not read again
_STEPS: Final = (
    (nodeclaim.LAUNCHED, "launching"),
    (nodeclaim.REGISTERED, "joining"),
    (nodeclaim.INITIALIZED, "preparing"),
)


class NodePoolFacts:
    """Reads claims, nodes and events of pools, once for all viewers."""

    def __init__(self, client: Client, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._reading = asyncio.Lock()
        self._read: tuple[float, list[NodeClaim], list[Node], list[Event]] | None = None

    async def pools(self, pools: Sequence[PoolView], *, events: bool = True) -> dict[str, Any]:
        """Return the page; without events for a viewer who may not list them."""
        async with self._reading:
            if self._read is None or self._monotonic() - self._read[0] > REMEMBERED_SECONDS:
                found = await asyncio.gather(self._claims(), self._nodes(), self._events())
                self._read = self._monotonic(), *found
            _, claims, nodes, happened = self._read
        return pools_document(pools, claims, nodes, happened if events else [])

    async def _claims(self) -> list[NodeClaim]:
        with contextlib.suppress(Forbidden, NotFound):
            return await self._client.list(NodeClaim)
        return []

    async def _nodes(self) -> list[Node]:
        with contextlib.suppress(Forbidden):
            listed = [
                await self._client.list(Node, labels=label)
                for label in (karpenter.POOL_LABEL, karpenter.PROVISIONER_LABEL)
            ]
            return list({node.metadata.name: node for nodes in listed for node in nodes}.values())
        return []

    async def _events(self) -> list[Event]:
        with contextlib.suppress(Forbidden):
            listed = [await self._client.list(Event, fields=f"involvedObject.kind={kind}") for kind in KINDS]
            return [event for events in listed for event in events]
        return []


def pools_document(
    pools: Iterable[PoolView], claims: Iterable[NodeClaim], nodes: Iterable[Node], events: Iterable[Event]
) -> dict[str, Any]:
    """Return the page as plain data. Pure.

    `dollars` of a pool are the prices of its nodes together, an hour; `unpriced` are its nodes without a price.
    """
    nodes, claims = (
        sorted(nodes, key=lambda node: node.metadata.name),
        sorted(claims, key=lambda one: one.metadata.name),
    )
    prices = node_prices(nodes)
    rows = [_node(node, prices) for node in nodes]
    going = [found for claim in claims if (found := _launch(claim))]
    happened = sorted((_event(event) for event in events), key=lambda one: one["at"], reverse=True)
    return {
        "pools": [_pool(pool, [row for row in rows if row["pool"] == pool.name]) for pool in pools],
        "nodes": rows[:ROWS],
        "moreNodes": max(0, len(rows) - ROWS),
        "launches": going[:ROWS],
        "moreLaunches": max(0, len(going) - ROWS),
        "events": happened[:EVENTS],
    }


def _pool(pool: PoolView, nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    full = [limit for limit in pool.limits if _is_reached(limit.used, limit.limit)]
    trouble, cure = pool.trouble, pool.cure
    if not trouble and full:
        trouble = "at its limit: " + ", ".join(f"{limit.resource} {limit.used} of {limit.limit}" for limit in full)
        cure = f"kubectl edit {pool.kind.lower()} {pool.name}"
    elif trouble and not cure:
        cure = "kubectl describe nodeclaims"
    return {
        **msgspec.to_builtins(pool),
        "trouble": _text(trouble),
        "cure": _text(cure),
        "dollars": round(sum(row.get("dollars", 0.0) for row in nodes), 4),
        "unpriced": sum("dollars" not in row for row in nodes),
    }


def _is_reached(used: str, limit: str) -> bool:
    try:
        return parse_quantity(used) >= parse_quantity(limit)
    except InvalidInput:
        return False


def _node(node: Node, prices: GPUPrices) -> dict[str, Any]:
    labels = node.metadata.labels
    row: dict[str, Any] = {
        "name": node.metadata.name,
        "pool": _pool_of(labels),
        "type": labels.get(karpenter.TYPE_LABEL, ""),
        "capacity": labels.get(karpenter.CAPACITY_TYPE_LABEL, ""),
        "zone": labels.get(karpenter.ZONE_LABEL, ""),
        "since": node.metadata.creation_timestamp or "",
        "ending": bool(node.metadata.deletion_timestamp),
    }
    price, gpus = prices.nodes.get(node.metadata.name), node_gpus(node)
    if price is not None and gpus:
        row |= {"gpus": gpus, "dollars": round(price.dollars * gpus, 4), "from": price.source}
    return row


def _launch(claim: NodeClaim) -> dict[str, Any] | None:
    """Return a claim on its way or ending, and what it waits for; None for one whose node is there."""
    meta = claim.metadata
    states = {one.type: one for one in claim.status.conditions}
    ended = bool(meta.deletion_timestamp)
    step, why = ("ending" if ended else ""), ""
    for kind, name in () if ended else _STEPS:
        state = states.get(kind)
        if state is None or state.status != "True":
            step, why = name, "" if state is None else state.message or state.reason
            break
    if not step:
        return None
    return {
        "claim": meta.name,
        "pool": _pool_of(meta.labels),
        "type": meta.labels.get(karpenter.TYPE_LABEL, ""),
        "capacity": meta.labels.get(karpenter.CAPACITY_TYPE_LABEL, ""),
        "step": step,
        "since": meta.deletion_timestamp or meta.creation_timestamp or "",
        "why": _text(why),
        "node": claim.status.node_name,
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "at": event.last_timestamp or event.event_time or event.first_timestamp or "",
        "about": f"{event.involved_object.kind} {event.involved_object.name}",
        "reason": _text(event.reason),
        "message": _text(event.message),
        "warning": event.type == "Warning",
    }


def _pool_of(labels: dict[str, str]) -> str:
    return labels.get(karpenter.POOL_LABEL) or labels.get(karpenter.PROVISIONER_LABEL, "")


def _text(value: str) -> str:
    return harmless(value, coloured=False)

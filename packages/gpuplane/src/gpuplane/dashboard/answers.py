"""Answers of the dashboard about one node, one pod, or the pods that wait: with the rights of the client's user."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from gpuplane.cli.cost_source import StoredSums, no_store
from gpuplane.cli.explain import explained, explained_waiting
from gpuplane.cli.status_reading import Follower
from gpuplane.cli.terminal import harmless
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.costs import CostFacts, store_answer
from gpuplane.dashboard.day import DayFacts, StoredDay, no_day
from gpuplane.dashboard.documents import explained_document, node_document, pod_use
from gpuplane.dashboard.mine import NamespaceFacts
from gpuplane.dashboard.pools import NodePoolFacts
from gpuplane.dashboard.upgrades import read_operands, upgrades_document
from kubekit.api.core import Event
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Forbidden

WAITING: Final = 20  # pods that are explained at once, those that wait longest
EVENTS: Final = 30  # of a node, the newest
KEPT_SECONDS: Final = 5.0  # for which an explanation of the waiting pods is not made again


class PageFacts:
    """Facts about the objects of one cluster. To explain pods reads the whole cluster: one caller at a time does it."""

    def __init__(
        self,
        client: Client,
        follower: Follower,
        use: Callable[[], MeasuredUse],
        stored: StoredSums = no_store,
        stored_day: StoredDay = no_day,
    ) -> None:
        self._client = client
        self._use = use
        self._follower = follower
        self._costs = CostFacts(client, time.monotonic, stored)
        self._stored = stored
        self._pools = NodePoolFacts(client, time.monotonic)
        self._namespaces = NamespaceFacts(client, time.monotonic)
        self._day = DayFacts(client, time.time, time.monotonic, stored_day)
        self._explaining = asyncio.Lock()
        self._waiting: tuple[float, list[dict[str, Any]]] | None = None

    async def node(self, name: str) -> dict[str, Any]:
        """Return the stages, GPUs, holders and events of a node. Raises InvalidInput for an unknown one."""
        found = next((node for node in self._follower.seen().nodes if node.name == name), None)
        if found is None:
            raise InvalidInput(f"there is no GPU node {name}", cure="gpuplane status lists the GPU nodes")
        return {**node_document(found, self._use()), "events": await self.events(name)}

    async def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the explanation of a pod. Raises InvalidInput where there is no such pod."""
        async with self._explaining:
            answer = explained_document(await explained(self._client, namespace, name))
        return {**answer, "use": pod_use(f"{namespace}/{name}", self._follower.seen().nodes, self._use())}

    async def mine(self, namespace: str) -> dict[str, Any]:
        """Return what the pods of a namespace hold, use, wait for and may have. Raises InvalidInput for no name."""
        return await self._namespaces.mine(namespace, self._follower.seen(), self._use())

    async def cost(self, by: str, since: str, spaces: Collection[str] | None = None) -> dict[str, Any]:
        """Return what GPUs cost, of all pods or those of some namespaces. Raises InvalidInput for an unknown grouping
        or time.
        """
        return await self._costs.cost(by, since, spaces)

    async def sums(
        self, labels: Sequence[str], namespace: str, seconds: float, spaces: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Return the sums of the store for `gpuplane cost`, of all pods or those of some namespaces.

        Raises InvalidInput where there is no store.
        """
        return await store_answer(self._stored, labels, namespace, seconds, spaces)

    async def upgrades(self) -> dict[str, Any]:
        """Return the upgrades of drivers by node, and those of the operands."""
        return upgrades_document(self._follower.seen(), await read_operands(self._client))

    async def pools(self, *, events: bool = True) -> dict[str, Any]:
        """Return the node pools with their nodes and launches, and with events unless the viewer may not list them."""
        return await self._pools.pools(self._follower.seen().pools, events=events)

    async def day(self) -> dict[str, Any]:
        """Return what was held, busy and waited for in each of the last 24 hours."""
        return await self._day.day()

    async def waiting(self) -> list[dict[str, Any]]:
        """Return the explanations of the pods that wait longest, the longest first."""
        async with self._explaining:
            now = asyncio.get_running_loop().time()
            if self._waiting is None or now - self._waiting[0] > KEPT_SECONDS:
                found = await explained_waiting(self._client, "", most=WAITING)
                self._waiting = (asyncio.get_running_loop().time(), [explained_document(one) for one in found])
            return self._waiting[1]

    async def events(self, name: str) -> list[dict[str, Any]]:
        """Return the newest events about the Node and its GPUNode; none where the user may not read them."""
        found: list[Event] = []
        with contextlib.suppress(Forbidden):
            found = await self._client.list(Event, fields=f"involvedObject.name={name}")
        about = [event for event in found if event.involved_object.kind in ("Node", "GPUNode")]
        listed = [
            {"at": at, "reason": event.reason, "message": harmless(event.message, coloured=False)}
            for event in about
            if (at := event.last_timestamp or event.event_time or event.first_timestamp or "")
        ]
        return sorted(listed, key=lambda one: one["at"], reverse=True)[:EVENTS]

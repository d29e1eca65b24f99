"""Answers of the dashboard about one node, one pod, or the pods that wait: with the rights of the client's user."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from gpuplane.cli.explain import explained, explained_waiting
from gpuplane.cli.explain_text import page
from gpuplane.cli.gpus_text import amount_of, is_known
from gpuplane.cli.holders import in_units
from gpuplane.cli.models import short_model
from gpuplane.cli.status_reading import Follower
from gpuplane.cli.status_trouble import causes_of
from gpuplane.cli.status_views import NodeView
from gpuplane.cli.terminal import Console, harmless
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.costs import CostFacts
from gpuplane.dashboard.snapshot import texts
from gpuplane.explain.answer import Explanation
from gpuplane.metering.use import GPUUse, PodUse
from kubekit.api.core import Event
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Forbidden

WAITING: Final = 20  # pods that are explained at once, those that wait longest
EVENTS: Final = 30  # of a node, the newest
KEPT_SECONDS: Final = 5.0  # for which an explanation of the waiting pods is not made again


class PageFacts:
    """Facts about the objects of one cluster. To explain pods reads the whole cluster: one caller at a time does it."""

    def __init__(self, client: Client, follower: Follower, use: Callable[[], MeasuredUse]) -> None:
        self._client = client
        self._use = use
        self._follower = follower
        self._costs = CostFacts(client, time.monotonic)
        self._explaining = asyncio.Lock()
        self._waiting: tuple[float, list[dict[str, Any]]] | None = None

    async def node(self, name: str) -> dict[str, Any]:
        """Return the stages, GPUs, holders and events of a node. Raises InvalidInput for an unknown one."""
        found = next((node for node in self._follower.seen().nodes if node.name == name), None)
        if found is None:
            raise InvalidInput(f"there is no GPU node {name}", cure="gpuplane status lists the GPU nodes")
        return {**node_document(found, self._use()), "events": await self._events(name)}

    async def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the explanation of a pod. Raises InvalidInput where there is no such pod."""
        async with self._explaining:
            answer = explained_document(await explained(self._client, namespace, name))
        return {**answer, "use": pod_use(f"{namespace}/{name}", self._follower.seen().nodes, self._use())}

    async def cost(self, by: str, since: str) -> dict[str, Any]:
        """Return what GPUs cost. Raises InvalidInput for an unknown grouping or time."""
        return await self._costs.cost(by, since)

    async def waiting(self) -> list[dict[str, Any]]:
        """Return the explanations of the pods that wait longest, the longest first."""
        async with self._explaining:
            now = asyncio.get_running_loop().time()
            if self._waiting is None or now - self._waiting[0] > KEPT_SECONDS:
                found = await explained_waiting(self._client, "", most=WAITING)
                self._waiting = (asyncio.get_running_loop().time(), [explained_document(one) for one in found])
            return self._waiting[1]

    async def _events(self, name: str) -> list[dict[str, Any]]:
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


def pod_use(pod: str, nodes: Iterable[NodeView], use: MeasuredUse) -> list[dict[str, Any]]:
    """Return what a pod uses of each GPU that it holds, with its limits, where it is measured. Pure."""
    found = []
    for node in nodes:
        parts = {part.index: part for one in node.held_by if one.pod == pod for part in one.parts}
        for gpu in node.gpus:
            measured = use.gpus.get(gpu.uuid)
            own = measured.pods.get(pod) if measured is not None else None
            if own is None:
                continue
            part = parts.get(gpu.index)
            line: dict[str, Any] = {"gpu": f"{node.name}/{gpu.index}", **_present(own)}
            if part is not None:
                line |= {"coreLimit": part.core, "memoryLimitMib": part.memory_mib or gpu.memory_mib}
            found.append(line)
    return found


def node_document(node: NodeView, use: MeasuredUse) -> dict[str, Any]:
    """Return the page of a node as plain data. Pure."""
    trouble = causes_of(node)
    known = is_known(node)
    driver = f"driver {node.driver}" if node.driver else ""
    return {
        "name": node.name,
        "stage": node.stage,
        "ready": node.ready and not node.away,
        "since": node.since,
        "machine": [part for part in (node.os, node.kernel, node.runtime, driver) if part],
        "stages": [
            {"name": name, "state": state, "took": node.took.get(name, 0)} for name, state in node.stages.items()
        ],
        "trouble": texts(trouble) if trouble.effect else {},
        "known": known,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": short_model(gpu.model),
                "memoryMib": gpu.memory_mib,
                "use": _use_document(use.gpus.get(gpu.uuid)),
                "fault": harmless(node.sick.get(gpu.uuid, ""), coloured=False),
                "held": [
                    {"pod": holder.pod, "holds": amount_of(part), "core": part.core, "memoryMib": part.memory_mib}
                    for holder in node.held_by
                    for part in holder.parts
                    if known and part.index == gpu.index
                ],
            }
            for gpu in node.gpus
        ],
        "holders": [
            {"pod": holder.pod, "holds": in_units(holder.units, node.units) or f"{holder.gpus:g} GPU"}
            for holder in node.held_by
            if not known or not holder.parts
        ],
    }


def _use_document(found: GPUUse | None) -> dict[str, Any]:
    """Return what is measured of a GPU; nothing of what is not."""
    if found is None:
        return {}
    return _present(found) | {"idle": found.idle}


def _present(found: GPUUse | PodUse) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(found).items() if value is not None}


def explained_document(found: Explanation) -> dict[str, Any]:
    """Return an explanation as data and as the text of `gpuplane explain`. Pure."""
    screen = Console(io.StringIO(), io.StringIO(), colour="never")
    text = harmless(page(found, screen, wide=True), coloured=False)
    return {
        "pod": found.pod,
        "state": found.state,
        "since": found.since,
        "asks": found.asks,
        "canEverRun": {True: "yes", False: "no", None: "unknown"}[found.can_ever_run],
        "quota": found.quota,
        "node": found.node,
        "runsOn": found.runs_on,
        "findings": list(found.findings),
        "cures": [{"change": one.change, "place": one.place, "effect": one.effect} for one in found.cures],
        "text": text,
    }

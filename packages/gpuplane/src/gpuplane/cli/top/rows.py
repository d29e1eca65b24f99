"""The rows of `gpuplane top`: GPUs, nodes and pods with what they hold and use. Pure.

A row matters for the first reason of `Matter` that applies to it; rows without a reason are healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

import msgspec

from gpuplane.api.gpunode import GPU, is_lost
from gpuplane.cli.gpus_text import amount_of
from gpuplane.cli.holders import WHOLE, HeldPart
from gpuplane.cli.models import short_model
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.terminal import lasting
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.metering.use import GPUUse, PodUse

HOT_CELSIUS: Final = 85.0  # GPUs slow down a few degrees above
OVER_POINTS: Final = 5.0  # percent of the GPU above its share: averages of minutes are exact to some points


class Matter(IntEnum):
    """Reasons for which a row comes first, in this order."""

    LOST = 0
    BROKEN = 1
    NOT_READY = 2
    IDLE = 3
    OVER = 4
    HOT = 5
    WAITS = 6
    NONE = 9


WORDS: Final = {
    Matter.LOST: "lost",
    Matter.BROKEN: "not usable",
    Matter.NOT_READY: "not ready",
    Matter.IDLE: "idle",
    Matter.OVER: "over its limit",
    Matter.HOT: "hot",
    Matter.WAITS: "waits",
    Matter.NONE: "",
}


class HolderRow(msgspec.Struct, frozen=True):
    """One pod on a GPU: the percent of the GPU that it holds as `core`, and the percent that it uses, if measured."""

    pod: str
    core: int
    holds: str
    used: float | None = None
    memory_mib: float | None = None


class TopRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A GPU, a node, or a pod. Percents of nodes and pods are averages over their GPUs; None is not measured.

    `name` is node/index for a GPU, namespace/name for a pod. `held` is the percent that pods hold. `about` says why it
    matters; `since` is when a pod began to wait.
    """

    name: str
    node: str = ""
    model: str = ""
    gpus: float = 1.0
    held: float = 0.0
    busy: float | None = None
    memory_mib: float | None = None
    memory_total_mib: int = 0
    power_watts: float | None = None
    temperature_celsius: float | None = None
    idle_seconds: float = 0.0
    holders: tuple[HolderRow, ...] = ()
    matter: Matter = Matter.NONE
    about: str = ""
    since: str = ""


def gpu_rows(seen: Overview, use: MeasuredUse) -> list[TopRow]:
    """Return a row for each GPU, in the order of nodes and numbers."""
    return [_gpu(node, gpu, held, use.gpus.get(gpu.uuid)) for node in seen.nodes for gpu, held in _held(node)]


def _held(node: NodeView) -> Iterable[tuple[GPU, list[tuple[str, HeldPart]]]]:
    parts: dict[int, list[tuple[str, HeldPart]]] = {}
    for holder in node.held_by:
        for part in holder.parts:
            parts.setdefault(part.index, []).append((holder.pod, part))
    for gpu in node.gpus:
        yield gpu, parts.get(gpu.index, [])


def _gpu(node: NodeView, gpu: GPU, held: list[tuple[str, HeldPart]], use: GPUUse | None) -> TopRow:
    pods: Mapping[str, PodUse] = use.pods if use is not None else {}
    nothing = PodUse()
    holders = tuple(
        HolderRow(pod, part.core, amount_of(part), pods.get(pod, nothing).core, pods.get(pod, nothing).memory_mib)
        for pod, part in held
    )
    matter, about = _matter(node, gpu, held, use)
    return TopRow(
        name=f"{node.name}/{gpu.index}",
        node=node.name,
        model=short_model(gpu.model),
        held=min(WHOLE, sum(one.core for one in holders)),
        busy=use.busy_percent if use else None,
        memory_mib=use.memory_mib if use else None,
        memory_total_mib=gpu.memory_mib,
        power_watts=use.power_watts if use else None,
        temperature_celsius=use.temperature_celsius if use else None,
        idle_seconds=use.idle_seconds if use else 0.0,
        holders=holders,
        matter=matter,
        about=about,
    )


def _matter(node: NodeView, gpu: GPU, held: list[tuple[str, HeldPart]], use: GPUUse | None) -> tuple[Matter, str]:
    """Return the first reason for which a GPU needs a person, and its words."""
    fault = node.sick.get(gpu.uuid, "")
    if fault:
        return (Matter.LOST if is_lost(fault) else Matter.BROKEN), fault
    if node.away or not node.ready:
        return Matter.NOT_READY, node.away or node.what or node.waits_for or node.stage
    if use is None:
        return Matter.NONE, ""
    if use.idle and held:
        return Matter.IDLE, f"idle {lasting(use.idle_seconds)}"
    for pod, part in held:
        own = use.pods.get(pod, PodUse())
        if part.core < WHOLE and own.core is not None and own.core > part.core + OVER_POINTS:
            return Matter.OVER, f"{pod} uses {own.core:.0f} of {part.core}%"
        if part.memory_mib and own.memory_mib is not None and own.memory_mib > part.memory_mib:
            return Matter.OVER, f"{pod} holds {own.memory_mib / 1024:.1f} of {part.memory_mib / 1024:.1f} GiB"
    if (use.temperature_celsius or 0.0) >= HOT_CELSIUS:
        return Matter.HOT, f"{use.temperature_celsius:.0f} °C"
    return Matter.NONE, ""


def node_rows(gpus: Iterable[TopRow], seen: Overview) -> list[TopRow]:
    """Return a row for each node, from the rows of its GPUs."""
    of_node: dict[str, list[TopRow]] = {node.name: [] for node in seen.nodes}
    for row in gpus:
        of_node[row.node].append(row)
    return [_node(node, of_node[node.name]) for node in seen.nodes]


def _node(node: NodeView, rows: list[TopRow]) -> TopRow:
    worst = min(rows, key=lambda row: row.matter, default=None)
    matter, about = (worst.matter, f"{worst.name.rpartition('/')[2]}: {worst.about}") if worst else (Matter.NONE, "")
    if node.away or not node.ready:
        matter, about = Matter.NOT_READY, node.away or node.what or node.waits_for or node.stage
    busy, memory = _known(row.busy for row in rows), _known(row.memory_mib for row in rows)
    return TopRow(
        name=node.name,
        node=node.name,
        model=rows[0].model if rows else "",
        gpus=len(rows),
        held=100 * node.held / len(rows) if rows else 0.0,
        busy=sum(busy) / len(busy) if busy else None,
        memory_mib=sum(memory) if memory else None,
        memory_total_mib=sum(row.memory_total_mib for row in rows),
        power_watts=sum(_known(row.power_watts for row in rows)) or None,
        temperature_celsius=max(_known(row.temperature_celsius for row in rows), default=None),
        idle_seconds=max((row.idle_seconds for row in rows), default=0.0),
        matter=matter,
        about=about if matter is not Matter.NONE else "",
    )


def pod_rows(gpus: Iterable[TopRow], seen: Overview) -> list[TopRow]:
    """Return a row for each pod that waits, and for each that holds GPUs."""
    on: dict[str, list[tuple[TopRow, HolderRow]]] = {}
    for row in gpus:
        for holder in row.holders:
            on.setdefault(holder.pod, []).append((row, holder))
    waiting = [
        TopRow(name=one.pod, gpus=0.0, matter=Matter.WAITS, about="waits", since=one.since) for one in seen.waiting_pods
    ]
    known = {pod: _pod(pod, places) for pod, places in on.items()}
    unknown = [
        TopRow(name=one.pod, node=node.name, gpus=one.gpus, held=100.0, about="only the node knows its GPUs")
        for node in seen.nodes
        for one in node.held_by
        if one.pod not in known
    ]
    return [*waiting, *known.values(), *unknown]


def _pod(pod: str, places: list[tuple[TopRow, HolderRow]]) -> TopRow:
    used, memory = _known(own.used for _, own in places), _known(own.memory_mib for _, own in places)
    reasons = [(row.matter, row.about) for row, _ in places]
    # Another pod's fault on the same GPU is not this pod's.
    mine = [(matter, about) for matter, about in reasons if matter is not Matter.OVER or about.startswith(f"{pod} ")]
    matter, about = min(mine, default=(Matter.NONE, ""))
    gpus = sum(own.core for _, own in places) / WHOLE
    return TopRow(
        name=pod,
        node=places[0][0].node,
        model=places[0][0].model,
        gpus=gpus,
        held=100 * gpus / len(places),
        busy=sum(used) / len(places) if used else None,
        memory_mib=sum(memory) if memory else None,
        idle_seconds=min(row.idle_seconds for row, _ in places),
        holders=tuple(HolderRow(row.name, own.core, own.holds, own.used, own.memory_mib) for row, own in places),
        matter=matter,
        about=about,
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [one for one in values if one is not None]

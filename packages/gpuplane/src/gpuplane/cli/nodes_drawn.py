"""The nodes that `simulate nodes` would buy, as rows of filled cells: what the page of `--html` draws. Pure.

Nodes that look the same are one drawing with a count. Pods of one workload with one request have one
colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpuplane import names
from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.existing import hold_pod
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.explain.words import request_text
from gpuplane.sharing.node import NodeState

FREE = -1
"""The workload of a cell that no pod holds."""


class DrawnCell(msgspec.Struct, frozen=True):
    """A part of a row: `percent` of its width, held by a pod of workload number `workload`, or FREE."""

    workload: int
    percent: float


class DrawnRow(msgspec.Struct, frozen=True):
    """One GPU, one kind of device, or a resource of the node; its cells fill it."""

    label: str
    cells: tuple[DrawnCell, ...]


class DrawnNode(msgspec.Struct, frozen=True):
    """A node, `count` times. `pods` is workload -> its pods on one of them."""

    machine: str
    capacity_type: str
    pool: str
    price: float
    rows: tuple[DrawnRow, ...]
    pods: tuple[tuple[int, int], ...]
    count: int = 1


class Drawing(msgspec.Struct, frozen=True):
    """All nodes, those that cost most together first. `workloads` are names, by number."""

    nodes: tuple[DrawnNode, ...]
    workloads: tuple[str, ...]


def draw(bought: Sequence[BoughtNode], asks: Iterable[PodAsk]) -> Drawing:
    """Return the drawing of a purchase.

    Args:
        asks: all pods of the question, those that wait on among them.
    """
    by_key = {ask.key: ask for ask in asks}
    numbers: dict[str, int] = {}
    counted: dict[DrawnNode, int] = {}
    for node in bought:
        pods = [by_key[key] for key in node.pods]
        colours = [numbers.setdefault(workload_of(ask), len(numbers)) for ask in pods]
        drawn = _node(node.option, pods, colours)
        counted[drawn] = counted.get(drawn, 0) + 1
    nodes = [msgspec.structs.replace(drawn, count=count) for drawn, count in counted.items()]
    nodes.sort(key=lambda one: (-one.price * one.count, one.pool, one.machine))
    return Drawing(tuple(nodes), tuple(numbers))


def workload_of(ask: PodAsk) -> str:
    """Return the pod's name without the number of its copy, and its request for GPUs: copies have both in common."""
    head, _, number = ask.key.rpartition("-")
    name = head if head and number.isdigit() else ask.key
    return f"{name}: {request_text(ask.request, {})}" if ask.request else name


def _node(option: NodeOption, pods: Sequence[PodAsk], colours: Sequence[int]) -> DrawnNode:
    rows = [*_gpu_rows(option, pods, colours), *_device_rows(option, pods, colours)]
    rows += [_amount_row(option, pods, colours, name) for name in ("cpu", "memory")]
    each: dict[int, int] = {}
    for colour in colours:
        each[colour] = each.get(colour, 0) + 1
    return DrawnNode(
        machine=option.machine.name,
        capacity_type=option.capacity_type,
        pool=option.pool.name,
        price=option.price,
        rows=tuple(rows),
        pods=tuple(sorted(each.items())),
    )


def _gpu_rows(option: NodeOption, pods: Sequence[PodAsk], colours: Sequence[int]) -> Iterator[DrawnRow]:
    """Yield a row for each GPU that is held in shares, with the core of each pod on it."""
    if option.gpus is None or not option.places_shares:
        return
    state: NodeState = option.gpus
    cells: list[list[DrawnCell]] = [[] for _ in state.gpus]
    for ask, colour in zip(pods, colours, strict=True):
        after = hold_pod(option, {}, 0, state, ask)
        if not isinstance(after, NodeState):
            continue  # it asks for no GPU, or its GPU is chosen by the kubelet
        for at, (before, now) in enumerate(zip(state.core, after.core, strict=True)):
            if before > now:
                cells[at].append(DrawnCell(colour, 100 * (before - now) / state.scale))
        state = after
    for at, (some, free) in enumerate(zip(cells, state.core, strict=True)):
        rest = [DrawnCell(FREE, 100 * free / state.scale)] if free else []
        yield DrawnRow(f"GPU {at}", (*sorted(some, key=lambda cell: cell.workload), *rest))


def _device_rows(option: NodeOption, pods: Sequence[PodAsk], colours: Sequence[int]) -> Iterator[DrawnRow]:
    """Yield rows with a cell for each device that the kubelet counts: GPUs, replicas and MIG devices."""
    for name, amount in sorted(option.facts.allocatable.items()):
        if not name.startswith(names.NVIDIA_PREFIX) or amount <= 0:
            continue
        held = [
            colour for ask, colour in zip(pods, colours, strict=True) for _ in range(ask.info.requests.get(name, 0))
        ]
        slots = [*sorted(held), *[FREE] * (amount - len(held))]
        gpus = option.machine.gpus
        per = amount // gpus if name == names.GPU_RESOURCE and gpus and amount % gpus == 0 else amount
        for at in range(0, amount, per):
            label = f"GPU {at // per}" if per != amount or gpus == 1 else name.removeprefix(names.NVIDIA_PREFIX)
            yield DrawnRow(label, tuple(DrawnCell(slot, 100 / per) for slot in slots[at : at + per]))


def _amount_row(option: NodeOption, pods: Sequence[PodAsk], colours: Sequence[int], name: str) -> DrawnRow:
    total = option.facts.allocatable.get(name, 0)
    asked: dict[int, int] = {FREE: option.free.get(name, 0)}
    for ask, colour in zip(pods, colours, strict=True):
        amount = ask.info.requests.get(name, 0)
        asked[colour] = asked.get(colour, 0) + amount
        asked[FREE] -= amount
    free = asked.pop(FREE)
    parts: Mapping[int, int] = {**dict(sorted(asked.items())), FREE: free}
    # The part without a cell, at the right, belongs to the DaemonSets.
    return DrawnRow(name, tuple(DrawnCell(who, 100 * part / total) for who, part in parts.items() if part > 0 < total))

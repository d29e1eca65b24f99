"""opportunity: ours, and the default: a pod goes where it costs the least of what later pods could have had there.

A node is worth what its free parts are worth (see `prices`: dual prices of a linear program over the expected mix),
less the GPUs that its CPU will not suffice for: an idle GPU on a node whose CPU is used up helps no pod. A pod goes
where the node's worth falls least; of nodes that are alike to the first, so that machines fill one after the other and
whole ones stay free for those who need many GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final

from gpuplane.sharing.node import LedgerGPU, NodeState
from gpuplane.sharing.placement.mix import Mix, Shape
from gpuplane.sharing.placement.policy import BEST, GPUPolicy, ShareOnGPU
from gpuplane.sharing.placement.prices import UNITS, RequestKind, Worth, solve
from gpuplane.sharing.placement.room import room, room_after
from gpuplane.sharing.placement.steps import finish
from gpuplane.sharing.request import Ask, Request, matches

_PRECISION: Final = 1000  # worths are whole thousandths of a unit: equal worths must be exactly equal
GPU_WORTH: Final = UNITS * _PRECISION  # of a GPU, were everything asked for
_CROWDED: Final = 1.02  # prices are those of a cluster that is asked for a little more than it has
_MOST_KINDS: Final = 40  # rarer ones count as the nearest that asks no model
_EVERY_MODEL: Final = ""
_MOST_NODES: Final = 20_000  # remembered; far more than a cluster has
# The expected requests before any was seen: (core in percent, how often).
_PRIOR: Final = ((100, 5.0), (50, 2.0), (30, 1.0), (25, 1.0), (20, 1.0), (10, 1.0))

Table = tuple[int, ...]


class OpportunityPolicy(GPUPolicy):
    name = "opportunity"

    def __init__(self, worth: Worth, cpu_per_gpu: float, scale: int = 100) -> None:
        """
        Args:
            cpu_per_gpu: milli-CPU that pods take with a GPU; 0 if unknown.
            scale: what the core of one GPU counts on the nodes.
        """
        # The worth of each free amount of core, so that nothing is left to calculate.
        units = [free * UNITS // scale for free in range(scale + 1)]
        self._worth = {model: tuple(round(table[at] * _PRECISION) for at in units) for model, table in worth.items()}
        self._any = self._worth.get(_EVERY_MODEL) or max(self._worth.values(), default=(0,) * (scale + 1))
        self._cpu_per_gpu = cpu_per_gpu
        self._before: dict[str, tuple[NodeState, float]] = {}  # a node is asked about for one request after another
        self._of_gpus: dict[int, tuple[tuple[LedgerGPU, ...], tuple[Table, ...]]] = {}

    def order(self, node: NodeState, ask: Ask, fitting: Sequence[int]) -> Iterable[int]:
        free = room(node)
        return sorted(fitting, key=lambda at: (self.share(node, free, at, ask).rank, at))

    def value(self, before: NodeState, after: NodeState, request: Request) -> float:
        known = self._before.get(before.name)
        if known is None or known[0] is not before:
            if len(self._before) >= _MOST_NODES:
                self._before.clear()
            known = self._before[before.name] = before, self._node(before)
        return self._node(after) - known[1]

    def share(self, node: NodeState, free: tuple[int, ...], at: int, ask: Ask) -> ShareOnGPU:
        table, had, left = self._tables(node)[at], free[at], room_after(node, ask, at)
        loss = table[had] - table[left] + self._rise(node, at)
        return ShareOnGPU(loss * (node.scale + 1) + had, loss, had - left)

    def value_of_share(self, node: NodeState, left: int, share: ShareOnGPU, request: Request) -> float:
        value = float(-share.loss)
        if node.cpu_milli is not None:
            value += self._idle(left, node.cpu_milli, node.scale)
            value -= self._idle(left - share.fall, node.cpu_milli - request.cpu_milli, node.scale)
        return value

    def score(self, value: float) -> int:
        return round(BEST * GPU_WORTH / (GPU_WORTH + max(0.0, -value)))

    def _rise(self, node: NodeState, at: int) -> int:
        """Return the cost of a share on the GPU besides the loss of its worth."""
        return 0

    def _node(self, node: NodeState) -> float:
        free = room(node)
        worth = sum([table[left] for table, left in zip(self._tables(node), free, strict=True)])
        return worth if node.cpu_milli is None else worth - self._idle(sum(free), node.cpu_milli, node.scale)

    def _tables(self, node: NodeState) -> tuple[Table, ...]:
        """The worths of each GPU's free amounts; nodes keep the tuple of their GPUs, so it is looked up by that."""
        known = self._of_gpus.get(id(node.gpus))
        if known is None or known[0] is not node.gpus:
            if len(self._of_gpus) >= _MOST_NODES:
                self._of_gpus.clear()
            known = node.gpus, tuple(self._worth.get(gpu.model, self._any) for gpu in node.gpus)
            self._of_gpus[id(node.gpus)] = known
        return known[1]

    def _idle(self, free: int, cpu_milli: int, scale: int) -> float:
        """Return the worth of the GPUs that stay idle when the node's CPU is used up."""
        if not self._cpu_per_gpu:
            return 0.0
        idle = free / scale - cpu_milli / self._cpu_per_gpu
        return round(idle * GPU_WORTH, 3) if idle > 0 else 0.0


def learn(mix: Mix, gpus: Iterable[tuple[LedgerGPU, ...]], scale: int = 100) -> OpportunityPolicy:
    """Return the policy for the mix of requests seen and the nodes' GPUs."""
    return finish(learning(mix, gpus, scale))


def learning(
    mix: Mix,
    gpus: Iterable[tuple[LedgerGPU, ...]],
    scale: int = 100,
    make: Callable[[Worth, float, int], OpportunityPolicy] = OpportunityPolicy,
) -> Generator[None, None, OpportunityPolicy]:
    """Learn in steps of about a millisecond; the generator's value is the policy, as `make` makes it of the prices."""
    capacity, memory = dict[str, int](), dict[str, int]()
    for node in gpus:
        for gpu in node:
            capacity[gpu.model] = capacity.get(gpu.model, 0) + 1
            memory[gpu.model] = max(memory.get(gpu.model, 0), gpu.memory_mib)
    asked = {shape: count for shape, count in mix.counts.items() if shape.gpus}
    demand = _kinds(asked, memory, scale)
    if not demand:
        asked = {Shape(0, 1, core * scale // 100): count for core, count in _PRIOR}
        demand = _kinds(asked, memory, scale)
    if all(not kind.models for kind in demand):
        capacity = {_EVERY_MODEL: sum(capacity.values())}
    units = sum(kind.units * count for kind, count in demand.items())
    crowd = _CROWDED * UNITS * sum(capacity.values()) / units
    worth = yield from solve(capacity, {kind: count * crowd for kind, count in demand.items()})
    held = sum(count * shape.gpus * shape.core for shape, count in asked.items()) / scale
    return make(worth, sum(count * shape.cpu_milli for shape, count in asked.items()) / held, scale)


def _kinds(asked: Mapping[Shape, float], memory: Mapping[str, int], scale: int) -> dict[RequestKind, float]:
    """Return the requests of the shapes for single GPUs."""
    found: dict[RequestKind, float] = {}
    for shape, count in asked.items():
        models = frozenset(model for model in memory if any(matches(model, wanted) for wanted in shape.models))
        largest = max((memory[model] for model in models or memory), default=0)
        units = -(-shape.core * UNITS // scale)
        if largest and shape.core < scale:
            units = max(units, min(UNITS, -(-shape.memory_mib * UNITS // largest)))
        if shape.models and not models:
            continue  # no GPU of the cluster will ever do
        kind = RequestKind(units, models if len(models) < len(memory) else frozenset())
        found[kind] = found.get(kind, 0.0) + count * shape.gpus
    common = sorted(found, key=lambda kind: (-found[kind], -kind.units, sorted(kind.models)))
    for kind in common[_MOST_KINDS:]:
        rest = RequestKind(kind.units)
        count = found.pop(kind)
        found[rest] = found.get(rest, 0.0) + count
    return found

"""The interface of placement policies: an order of GPUs within a node, and a value by which nodes are compared.

A policy never decides whether something fits; `gpuplane.sharing.placement.fit` does, the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import msgspec

from gpuplane.sharing.assignment import Assignment
from gpuplane.sharing.node import NodeState
from gpuplane.sharing.placement.nearness import nearness
from gpuplane.sharing.placement.room import room
from gpuplane.sharing.request import Ask, Request

BEST: Final = 100  # of scores, which are 0-100; `/prioritize` scales them


class ShareOnGPU(msgspec.Struct, frozen=True):
    """A share on a GPU: its rank among GPUs (the least is the best), what the GPU's worth loses, and how much its free
    room falls.
    """

    rank: int
    loss: int = 0
    fall: int = 0


class Policy(ABC):
    """One way to prefer GPUs and nodes. Pure: the same arguments, the same answer."""

    name: ClassVar[str]
    in_order: ClassVar[bool] = False  # containers are placed as they stand in the pod, not the largest first

    @abstractmethod
    def order(self, node: NodeState, ask: Ask, fitting: Sequence[int]) -> Iterable[int]:
        """Return the GPUs `fitting` (positions in `node.gpus`) for a share, the preferred GPU first."""

    def choose(self, node: NodeState, ask: Ask, free: Sequence[int]) -> tuple[int, ...]:
        """`ask.gpus` of the wholly free GPUs `free`, of which there are enough: for all policies those that are near
        each other."""
        return nearness(node.gpus).choose(tuple(free), ask.gpus)

    @abstractmethod
    def value(self, before: NodeState, after: NodeState, request: Request) -> float:
        """Return the value of the change from `before` to `after`: to compare nodes for one request, higher is
        better.
        """

    def quick(self, node: NodeState, ask: Ask, request: Request, fitting: Sequence[int]) -> tuple[int, float] | None:
        """For a pod that is one share: the best of the GPUs `fitting`, which are not empty, with the value.

        The result equals that of `order` and `value`, without making the node after it; None from policies that have
        no such short cut.
        """
        return None

    def score(self, value: float) -> int:
        """Convert the value to 0-100, for people and for kube-scheduler."""
        return max(0, min(BEST, round(value)))


class GPUPolicy(Policy):
    """A policy that rates a share on a GPU without a look at the node's other GPUs."""

    @abstractmethod
    def share(self, node: NodeState, free: tuple[int, ...], at: int, ask: Ask) -> ShareOnGPU:
        """For a pod that is one share: rate it on a GPU that it fits.

        Args:
            free: the `room` of the node.
            at: the position of the GPU in `node.gpus`.
        """

    @abstractmethod
    def value_of_share(self, node: NodeState, left: int, share: ShareOnGPU, request: Request) -> float:
        """Return the value of a node whose best GPU for the pod is `share`; `left` is the free room of all its GPUs."""

    def quick(self, node: NodeState, ask: Ask, request: Request, fitting: Sequence[int]) -> tuple[int, float]:
        """Return the first GPU of the least rank, and the node's value with it."""
        free = room(node)
        chosen = fitting[0]
        best = self.share(node, free, chosen, ask)
        for at in fitting[1:]:
            share = self.share(node, free, at, ask)
            if share.rank < best.rank:
                chosen, best = at, share
        return chosen, self.value_of_share(node, sum(free), best, request)


class Lack(msgspec.Struct, frozen=True):
    """Why one GPU would not do: its first failing reason, in the order of REASONS; `reason` is empty where it would.

    `core` and `memory_mib` are what is missing.
    """

    gpu: int  # its index on the node
    reason: str = ""
    core: int = 0
    memory_mib: int = 0


REASONS: Final = {
    "lost": "not usable",
    "divided": "in MIG mode or shared by MPS",
    "model": "of another model",
    "uuid": "not one of those it names",
    "held": "not wholly free",
    "core": "core short",
    "memory": "memory short",
}
"""The reasons of a Lack with the words for them."""


class Refusal(msgspec.Struct, frozen=True):
    """Why the node cannot take the pod: one line, the container it is about, and why each GPU would not do."""

    reason: str
    container: str = ""
    gpus: tuple[Lack, ...] = ()


class Placement(msgspec.Struct, frozen=True):
    """The pod's placement on the node, and its value: `score` is 0-100, `value` finer, both by the policy."""

    assignment: Assignment
    score: int
    value: float = 0.0

"""What a placement policy is: an order of GPUs within a node, and a score of the outcome for the node.

A policy never decides whether something fits; `gpuplane.sharing.placement.fit` does, the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from gpuplane.sharing.assignment import Assignment
from gpuplane.sharing.node import NodeState
from gpuplane.sharing.request import Ask, Request

BEST = 100  # scores are 0-100, higher is better; `/prioritize` scales them


class Policy(Protocol):
    """One way to prefer GPUs and nodes. Pure: the same arguments, the same answer."""

    name: str

    def order(self, node: NodeState, ask: Ask, fitting: Sequence[int]) -> Iterable[int]:
        """The GPUs `fitting` (positions in `node.gpus`) for a share, the preferred one first."""

    def choose(self, node: NodeState, ask: Ask, free: Sequence[int]) -> tuple[int, ...]:
        """`ask.gpus` of the wholly free GPUs `free`, of which there are enough."""

    def score(self, before: NodeState, after: NodeState, request: Request) -> int:
        """How good it is to take `before` to `after`, 0-100, to compare nodes by."""


class Lack(msgspec.Struct, frozen=True):
    """Why one GPU would not do: its first failing reason, in the order of REASONS; `reason` is empty where it would.

    `core` and `memory_mib` are what is missing.
    """

    gpu: int  # its index on the node
    reason: str = ""
    core: int = 0
    memory_mib: int = 0


REASONS = {
    "lost": "not usable",
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
    """What the pod would hold on the node, and how good that is by the policy, 0-100."""

    assignment: Assignment
    score: int

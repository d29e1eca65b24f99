"""Disruptions under way: nodes that go as soon as their replacements take pods.

In memory only. A restart forgets them: their nodes get pods again, and the next plan finds the replacements there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gpuplane.api import nodeclaim
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.disruption.facts import DisruptionPlan
from gpuplane.autoscaler.termination.claim_conditions import holds

log = logging.getLogger("gpuplane.autoscaler")
LONGEST_SECONDS: Final = 600.0  # until a replacement must take pods


class CommandState(msgspec.Struct, frozen=True):
    """The progress of a command: `ready` to delete its nodes, or `failed` with the reason why."""

    ready: bool = False
    failed: str = ""


class DisruptionCommand(msgspec.Struct, frozen=True):
    """Nodes that go, the claims that replace them, and since when (seconds of a monotonic clock)."""

    plan: DisruptionPlan
    replacements: tuple[str, ...]
    started: float

    @property
    def claims(self) -> frozenset[str]:
        """Return the claims of the nodes that go."""
        return frozenset(node.claim for node in self.plan.nodes)


def command_state(command: DisruptionCommand, claim: Callable[[str], NodeClaim | None], now: float) -> CommandState:
    """Return the progress of a command; `claim` looks a claim up by its name."""
    found: Sequence[NodeClaim | None] = [claim(name) for name in command.replacements]
    gone = [name for name, one in zip(command.replacements, found, strict=True) if is_gone(one)]
    if gone:
        return CommandState(failed=f"the replacement {gone[0]} is gone")
    if all(one is not None and holds(one, nodeclaim.INITIALIZED) for one in found):
        return CommandState(ready=True)
    if now - command.started > LONGEST_SECONDS:
        return CommandState(failed=f"the replacements took no pods within {LONGEST_SECONDS:g} s")
    return CommandState()


def is_gone(claim: NodeClaim | None) -> bool:
    """Return whether a claim is deleted, or is being deleted."""
    return claim is None or bool(claim.metadata.deletion_timestamp)

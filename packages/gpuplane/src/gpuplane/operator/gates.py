"""Decides the value of each gate of a node, by a table with a reason for each case. Pure.

An operand's gate is the node label that its DaemonSet selects. Invariants:

- A gate, once open, stays open while no stage *before* it has failed.
- Gates close in reverse order, each only when no pod that stands on it is left, so that the stage below is never taken
  from under a running operand.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import Stage, StageName, StageState
from gpuplane.operator.observed import ObservedNode
from gpuplane.operator.stages import OPERANDS, Operand, below, users

OPEN: Final = "true"
PRE_INSTALLED: Final = "pre-installed"
PAUSED: Final = "paused-for-driver-upgrade"
REMOVING: Final = "removing"  # selects the DaemonSet that undoes the operand's work on the node
DRIVER: Final = next(operand for operand in OPERANDS if StageName.DRIVER in operand.makes)


class GateFacts(msgspec.Struct, frozen=True):
    """The facts about one gate of a node.

    `wanted`: the policy wants the operand. `value` is the label's, None for a closed gate. `used`: a pod of a later
    operand needs what this operand makes. `failed`: a stage below has failed. `aside`: an upgrade replaces the driver
    that the operand stands on. `needs_hold`: the stages that the operand needs hold. `present`: the machine had before
    what the operand makes. `undoes`: the operand's work on the node is still to be undone, and the node can undo it.
    """

    wanted: bool
    value: str | None = None
    used: bool = False
    failed: bool = False
    aside: bool = False
    needs_hold: bool = False
    present: bool = False
    undoes: bool = False

    @property
    def is_open(self) -> bool:
        return self.value in (OPEN, PRE_INSTALLED)


class Keep(enum.Enum):
    """The value of a gate that stays as it is."""

    AS_IT_IS = enum.auto()


AS_IT_IS: Final = Keep.AS_IT_IS


class GateRule(msgspec.Struct, frozen=True):
    """The next value of a gate in one case: None closes it."""

    reason: str
    case: Callable[[GateFacts], bool]
    value: str | Keep | None


RULES: Final = (
    GateRule("not wanted: it is closed", lambda gate: not gate.wanted and gate.value is None, None),
    GateRule("not wanted: a later operand still needs it", lambda gate: not gate.wanted and gate.used, AS_IT_IS),
    GateRule("not wanted: the operand undoes its work first", lambda gate: not gate.wanted and gate.undoes, REMOVING),
    GateRule("not wanted: nothing is left to undo", lambda gate: not gate.wanted, None),
    GateRule(
        "a stage below failed: a later operand still needs it",
        lambda gate: gate.failed and gate.is_open and gate.used,
        AS_IT_IS,
    ),
    GateRule("a stage below failed", lambda gate: gate.failed, None),
    GateRule(
        "the driver is replaced: a later operand still needs it",
        lambda gate: gate.aside and gate.is_open and gate.used,
        AS_IT_IS,
    ),
    GateRule("the driver is replaced: it opens afterwards", lambda gate: gate.aside and not gate.is_open, AS_IT_IS),
    GateRule("the driver is replaced: the operand stands aside", lambda gate: gate.aside, PAUSED),
    GateRule("a stage that it needs does not hold yet", lambda gate: not gate.is_open and not gate.needs_hold, None),
    GateRule("the machine had it before", lambda gate: gate.present, PRE_INSTALLED),
    GateRule("every stage that it needs holds, or has held", lambda gate: True, OPEN),
)
"""The rules for the value of a gate. The first rule whose case holds counts."""


def rule_of(gate: GateFacts) -> GateRule:
    """Return the rule that decides about a gate."""
    return next(rule for rule in RULES if rule.case(gate))


def gates(seen: ObservedNode, stages: Mapping[str, Stage]) -> dict[str, str | None]:
    """The value of each gate label; None for a closed gate."""
    return {
        names.DEPLOY_PREFIX + operand.gate: _next(_facts(seen, operand, stages, wanted=operand.gate in seen.enabled))
        for operand in OPERANDS
    }


def closing_gates(seen: ObservedNode, stages: Mapping[str, Stage]) -> dict[str, str | None]:
    """The value of each gate label of a node that is given back."""
    return {
        names.DEPLOY_PREFIX + operand.gate: _next(_facts(seen, operand, stages, wanted=False)) for operand in OPERANDS
    }


def gate_is_open(seen: ObservedNode, gate: str) -> bool:
    """Return whether a gate is open on the node now."""
    return seen.labels.get(names.DEPLOY_PREFIX + gate) in (OPEN, PRE_INSTALLED)


def state_of(stages: Mapping[str, Stage], name: StageName) -> StageState | None:
    """Return the stored state of a stage; None where none is."""
    # NB: a member is its text, and reading `.value` costs more than the rest.
    stage = stages.get(name)
    return stage.state if stage is not None else None


def holds(stages: Mapping[str, Stage], name: StageName) -> bool:
    """Return whether a stage is stored and holds."""
    stage = stages.get(name)
    return stage is not None and stage.state.holds


def all_hold(stages: Mapping[str, Stage], wanted: tuple[StageName, ...]) -> bool:
    """Return whether each of these stages holds."""
    return all(holds(stages, name) for name in wanted)


def fails_below(operand: Operand, stages: Mapping[str, Stage]) -> bool:
    """Return whether a stage that `operand` stands on was seen to be false."""
    for name in below(operand):  # noqa: SIM110 - asked for every operand of every node: any() takes three times as long
        if state_of(stages, name) is StageState.FAILED:
            return True
    return False


def is_used(seen: ObservedNode, operand: Operand) -> bool:
    """Return whether a later operand's pod on the node needs what `operand` makes, or what follows from it."""
    return any(other.gate in seen.pods for other in users(operand))


def _next(gate: GateFacts) -> str | None:
    value = rule_of(gate).value
    return gate.value if isinstance(value, Keep) else value


def _facts(seen: ObservedNode, operand: Operand, stages: Mapping[str, Stage], *, wanted: bool) -> GateFacts:
    made = [state_of(stages, name) for name in operand.makes]
    return GateFacts(
        wanted=wanted,
        value=seen.labels.get(names.DEPLOY_PREFIX + operand.gate),
        used=is_used(seen, operand),
        failed=fails_below(operand, stages),
        aside=seen.restarting and operand in users(DRIVER),
        needs_hold=all_hold(stages, operand.needs),
        present=StageState.PRESENT in made,
        # A node that does not answer cannot undo anything; waiting for it would hold up all others for ever.
        undoes=operand.undo and StageState.REMOVED not in made and seen.status is not None and seen.answers,
    )

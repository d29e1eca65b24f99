"""Plans an installation on a host without doing it: the same decisions and steps, on the facts that each step leaves.

Facts that only a step finds (the edition of a package, a failing download, other holders of a GPU than the daemons) are
not in a plan.
"""

from __future__ import annotations

import msgspec

from gpuplane.driver.decide import Action, DriverDecision, DriverFacts, decide
from gpuplane.driver.families import Parameter, Put, Step, Unless
from gpuplane.driver.observing import observe
from gpuplane.driver.released import WantedDriver
from gpuplane.driver.steps import ROOT, steps
from gpuplane.host import Command, Host

_MOST = 16


class PlannedAction(msgspec.Struct, frozen=True):
    """One action and its commands, as one would type them on the host."""

    action: Action
    commands: tuple[str, ...] = ()


class DriverPlan(msgspec.Struct, frozen=True):
    """The actions in their order, and how it ends: DONE, PRESENT, or FAIL with the reason."""

    actions: tuple[PlannedAction, ...]
    end: DriverDecision


def plan(host: Host, wanted: WantedDriver) -> DriverPlan:
    """Ask for decisions until nothing is left to do."""
    facts = observe(host, wanted=wanted)
    planned: list[PlannedAction] = []
    decision = decide(facts)
    while decision.action not in (Action.DONE, Action.PRESENT, Action.FAIL) and len(planned) < _MOST:
        planned.append(PlannedAction(decision.action, _commands(decision.action, facts)))
        facts = after(facts, decision.action)
        decision = decide(facts)
    return DriverPlan(tuple(planned), decision)


def after(facts: DriverFacts, action: Action) -> DriverFacts:
    """The facts that an action leaves when it succeeds."""
    package = facts.package
    changes: dict[str, object] = {}
    if action is Action.RELEASE:
        changes = {"nouveau": False}
    elif action is Action.CLEAR:
        changes = {"begun": "", "broken": False, "built": (), "mounted": False, "mounted_other": False}
    elif action is Action.MOUNT:
        changes = {"mounted": True, "begun": facts.begun or package.digest}
    elif action is Action.INSTALL:
        changes = {"installed": package.digest}
    elif action is Action.BUILD:
        changes = {"built": (*facts.built, facts.kernel)}
    elif action is Action.LOAD:
        changes = {"module": package.version, "unloaded": ()}
    elif action is Action.START:
        changes = {"daemons_missing": ()}
    elif action is Action.STOP:
        names = tuple(name for name, _ in facts.daemons)
        changes = {"daemons": (), "users": 0, "daemons_missing": (*facts.daemons_missing, *names)}
    elif action is Action.UNLOAD:
        changes = {"module": "", "loaded": (), "unloaded": package.modules, "users": 0}
    return msgspec.structs.replace(facts, **changes)


def _commands(action: Action, facts: DriverFacts) -> tuple[str, ...]:
    return tuple(line for step in steps(action, facts) for line in _typed(step))


def _typed(step: Step) -> tuple[str, ...]:
    """The lines of a step; those that it may turn out not to need begin with `if not: `."""
    if isinstance(step, Unless):
        asked = (line for probe in step.probes for line in _typed(probe))
        return (*asked, *(f"if not: {line}" for inner in step.steps for line in _typed(inner)))
    if isinstance(step, Put):
        return (f"write {ROOT}/{step.path}",)
    if isinstance(step, Parameter):
        return (f"write {step.path}",)
    text = str(Command(step.argv))
    return (f"chroot {ROOT} {text}" if step.in_root else text,)

"""The positive conditions of a GPUNode, for `kubectl wait` and for eyes. A reason is a cause, never "not X"."""

from __future__ import annotations

from gpuplane.api.gpunode import UNHEALTHY, GPUNodeStatus, Stage, StageName, view
from kubekit.api.meta import Condition


def conditions(status: GPUNodeStatus, offered: int, now: str) -> tuple[Condition, ...]:
    """The conditions that belong to `status`; `lastTransitionTime` stays where True stays True and False False.

    `offered` is the percent of GPUs that the node's kubelet offers.
    """
    stages = view(status.stages)
    summary = status.summary
    ready = stages[StageName.READY].state.holds
    wanted = [
        (
            "Ready",
            ready,
            "AllStagesHold" if ready else summary.reason or _camel(summary.stage),
            "" if ready else summary.message,
        ),
        _of_stage("DriverReady", stages[StageName.DRIVER]),
        _of_stage("ToolkitReady", stages[StageName.TOOLKIT]),
        ("Advertised", offered > 0, "Allocatable" if offered else "NoneAllocatable", ""),
    ]
    if status.gpus:
        sick = "; ".join(f"{uuid}: {why}" for uuid, why in sorted(status.health.items()))
        wanted.append(("GPUsHealthy", not sick, UNHEALTHY if sick else "AllHealthy", sick))
    old = {one.type: one for one in status.conditions}
    return tuple(condition(*facts, old=old.get(facts[0]), now=now) for facts in wanted)


def _of_stage(kind: str, stage: Stage) -> tuple[str, bool, str, str]:
    return kind, stage.state.holds, stage.reason or _camel(stage.state.value), stage.message


def condition(kind: str, holds: bool, reason: str, message: str, *, old: Condition | None, now: str) -> Condition:
    """A condition; its time is that of the last change between True and False."""
    status = "True" if holds else "False"
    since = old.last_transition_time if old is not None and old.status == status else now
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)


def _camel(text: str) -> str:
    return "".join(part.capitalize() for part in text.split("-"))

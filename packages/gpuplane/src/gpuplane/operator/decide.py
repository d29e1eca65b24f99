"""Decides the writes for one node: a pure function of the observed state.

Invariants:

- A stage that holds goes only when its operand reports so, an earlier stage failed or was undone, or an upgrade
  replaces the driver. A pod that restarts, a plugin that is away for a moment, an operator that was killed: none of
  them takes a stage away or closes a gate (`gpuplane.operator.gates`).
- Only differences are written; a settled node costs no write.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import STAGES, GPUNodeStatus, Stage, StageName, StageState, summarize
from gpuplane.api.offers import in_gpus
from gpuplane.operator.conditions import conditions
from gpuplane.operator.gates import (
    DRIVER,
    OPEN,
    all_hold,
    closing_gates,
    fails_below,
    gate_is_open,
    gates,
    holds,
    is_used,
    state_of,
)
from gpuplane.operator.observed import ObservedNode
from gpuplane.operator.stages import OPERANDS, before, operand_of, users
from gpuplane.operator.troubles import trouble

GPU_LABELLED = "nvidia.com/gpu.product"


class NodePlan(msgspec.Struct, frozen=True):
    """The writes for one node.

    `labels`: None removes one. `status` is the whole new status, None when it stays. `urgent` is False for progress
    that the next write will carry as well. `taint`: True sets it, False takes it away, None leaves it. `release`: the
    labels of GPU feature discovery go too. `only_free`: nothing changed but the number of free GPUs.
    """

    labels: Mapping[str, str | None] = {}
    status: GPUNodeStatus | None = None
    urgent: bool = True
    delete: bool = False
    taint: bool | None = None
    release: bool = False
    only_free: bool = False

    @property
    def empty(self) -> bool:
        return msgspec.structs.replace(self, urgent=True, only_free=False) == NodePlan()


def decide(seen: ObservedNode, now: str) -> NodePlan:
    """The plan for one node; `now` is RFC 3339."""
    if not seen.has_gpus or seen.opted_out or not seen.enabled:
        return _take_back(seen)
    old = seen.status or GPUNodeStatus()
    stages = _stages(seen, old.stages, now)
    status = msgspec.structs.replace(
        old,
        stages=stages,
        machine=msgspec.structs.replace(
            old.machine,
            os=seen.os,
            kernel=seen.kernel,
            arch=seen.arch,
            runtime=old.machine.runtime or seen.runtime,
        ),
        summary=msgspec.structs.replace(old.summary, free=in_gpus(max(0, seen.offered - seen.held))),
    )
    status = msgspec.structs.replace(status, summary=summarize(status))
    status = msgspec.structs.replace(status, conditions=conditions(status, seen.offered, now))
    summary = msgspec.structs.replace(status.summary, free=old.summary.free)
    only_free = msgspec.structs.replace(status, summary=summary) == seen.status
    ready = holds(stages, StageName.READY)
    taint = seen.taint_wanted and not ready
    return NodePlan(
        labels=_changes(
            seen.labels,
            {
                names.GPU_PRESENT_LABEL: OPEN,
                names.DRIVER_OWNER_LABEL: seen.driver_owner or None,
                names.RUNTIME_CLASS_LABEL: OPEN if _has_runtime_class(seen, status) else None,
                **gates(seen, stages),
            },
        ),
        status=status if status != seen.status else None,
        urgent=not only_free
        and (
            seen.status is None
            or seen.restarting
            or ready
            or holds(old.stages, StageName.READY)
            or _failures(stages) != _failures(old.stages)
        ),
        only_free=only_free,
        taint=taint if taint != seen.tainted else None,
    )


def _has_runtime_class(seen: ObservedNode, status: GPUNodeStatus) -> bool:
    """Return whether pods of RuntimeClass nvidia can run on the node: the toolkit has configured its runtime.

    The operator adds the label once CUDA runs, with the gate that opens then: a write less for each node.
    """
    done = state_of(status.stages, StageName.TOOLKIT) in (StageState.DONE, StageState.PRESENT)
    due = names.RUNTIME_CLASS_LABEL in seen.labels or holds(status.stages, StageName.CUDA)
    return done and due and names.RUNTIME_HANDLER in (status.machine.handlers or ())


def _stages(seen: ObservedNode, reported: Mapping[str, Stage], now: str) -> dict[str, Stage]:
    """The stages as they are: what operands reported, and what only the operator can see."""
    stages = _still_founded(reported)

    def put(name: StageName, state: StageState, **details: str) -> None:
        if state_of(stages, name) is not state:
            stages[name.value] = Stage(state=state, since=now, **details)

    put(StageName.DISCOVERED, StageState.DONE)
    for operand in OPERANDS:
        closed = operand.gate in seen.enabled and fails_below(operand, stages)
        for name in operand.makes:
            if operand.gate not in seen.enabled:
                if names.DEPLOY_PREFIX + operand.gate not in seen.labels:
                    put(name, StageState.SKIPPED, reason="Disabled")
            elif state_of(stages, name) is StageState.SKIPPED or (closed and operand.gate not in seen.pods):
                stages.pop(name.value, None)
    if seen.restarting:
        _forget(seen, stages)
    # NB: with a gate closed, or no pod behind it, the same signs are what an operand has left behind.
    advertised = seen.offered > 0 and gate_is_open(seen, "device-plugin") and "device-plugin" in seen.pods
    if advertised and state_of(stages, StageName.DEVICE_PLUGIN) is not StageState.FAILED:
        _hold(stages, StageName.DEVICE_PLUGIN, now)
    if _is_driven_off(seen) and holds(stages, StageName.DEVICE_PLUGIN):
        stages.pop(StageName.DEVICE_PLUGIN.value, None)
    exporter = seen.pods.get("dcgm-exporter")
    if exporter is not None and exporter.ready:
        _hold(stages, StageName.EXPORTER, now)
    if GPU_LABELLED in seen.labels and gate_is_open(seen, "gpu-feature-discovery"):
        _hold(stages, StageName.LABELS, now)
    _explain_running(seen, stages, now)
    if all_hold(stages, before(StageName.READY)):
        _hold(stages, StageName.READY, now)
    else:
        stages.pop(StageName.READY.value, None)
    return stages


def _is_driven_off(seen: ObservedNode) -> bool:
    """Return whether a taint has evicted the device plugin, so that the kubelet offers no GPU any more."""
    gone = "device-plugin" not in seen.pods and not seen.offered
    return bool(seen.off[0]) and gone and gate_is_open(seen, "device-plugin")


def _forget(seen: ObservedNode, stages: dict[str, Stage]) -> None:
    """Drop the stages of the driver that is being replaced, as soon as no operand on the node can report them again."""
    for operand in users(DRIVER):
        if operand.gate not in seen.pods:
            for name in operand.makes:
                if state_of(stages, name) is not StageState.SKIPPED:
                    stages.pop(name.value, None)
    if seen.stale and not is_used(seen, DRIVER):
        stages.pop(StageName.DRIVER.value, None)


def _still_founded(reported: Mapping[str, Stage]) -> dict[str, Stage]:
    """The stages without those that stand on one that was undone: a node that comes back half way out begins there."""
    order = [name for name in STAGES if name in reported]
    undone = next((name for name in order if state_of(reported, name) is StageState.REMOVED), None)
    return {
        name.value: reported[name]
        for name in order
        if undone is None or name in before(undone) or state_of(reported, name) is StageState.REMOVED
    }


def _explain_running(seen: ObservedNode, stages: dict[str, Stage], now: str) -> None:
    """Store why a stage is not there yet when its pod has a problem, and forget it when the problem is gone."""
    for name in STAGES:
        operand = operand_of(name)
        if operand is None or state_of(stages, name) not in (None, StageState.RUNNING):
            continue
        pod = seen.pods.get(operand.gate)
        if name is StageName.DRIVER and pod is None and seen.no_driver[0]:
            reason, message, cure = seen.no_driver
            why = Stage(state=StageState.RUNNING, reason=reason, message=message, cure=cure)
        elif pod is None and seen.off[0] and gate_is_open(seen, operand.gate):
            reason, message, cure = seen.off
            why = Stage(state=StageState.RUNNING, reason=reason, message=message, cure=cure)
        elif pod is not None and pod.problem:
            why = trouble(seen, operand, pod, stages.get(name.value))
        else:
            stages.pop(name.value, None)
            continue
        old = stages.get(name.value)
        since = old.since if old is not None and old.reason == why.reason else now
        stages[name.value] = msgspec.structs.replace(why, since=since)


def _take_back(seen: ObservedNode) -> NodePlan:
    """Close every gate in reverse order; at the end the node carries nothing of ours."""
    if not seen.answers:
        # Pods there do not end before their kubelet is back, which may be never.
        seen = msgspec.structs.replace(seen, pods={})
    stages = seen.status.stages if seen.status is not None else {}
    wanted = closing_gates(seen, stages)
    closed = not any(wanted.values()) and not any(operand.gate in seen.pods for operand in OPERANDS)
    if closed:
        ours = (names.GPU_PRESENT_LABEL, names.DRIVER_OWNER_LABEL, names.RUNTIME_CLASS_LABEL)
        wanted |= dict.fromkeys(ours)
    return NodePlan(
        labels=_changes(seen.labels, wanted),
        delete=closed and seen.status is not None,
        taint=False if seen.tainted else None,
        release=closed and GPU_LABELLED in seen.labels,
    )


def _hold(stages: dict[str, Stage], name: StageName, now: str) -> None:
    if not holds(stages, name):
        stages[name.value] = Stage(state=StageState.DONE, since=now)


def _failures(stages: Mapping[str, Stage]) -> dict[str, tuple[str, str]]:
    return {name: (stage.reason, stage.message) for name, stage in stages.items() if not stage.state.holds}


def _changes(have: Mapping[str, str], want: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: value for name, value in want.items() if have.get(name) != value}

"""The report of an operand: one server-side apply of its own section of the GPUNode, and only on change.

The summary travels in the same write (see `gpuplane.api.gpunode`). Several operands share its fields, so they are taken
with force; all compute them with the same pure function from the same object, so that it does not matter who was last.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPU, GPUNode, GPUNodeStatus, Machine, Stage, StageName, summarize
from gpuplane.operand.context import OperandContext
from kubekit.api.meta import to_dict
from kubekit.kube import Conflict

log = logging.getLogger("gpuplane.operand")


async def report_stage(
    context: OperandContext,
    name: StageName,
    stage: Stage,
    *,
    machine: Machine | None = None,
    gpus: tuple[GPU, ...] | None = None,
) -> bool:
    """Write `stage` (and facts seen with it) into the node's GPUNode; False when it stood there already.

    `since` of a stage that only repeats what is known is kept, so a restarted operand takes nothing back and writes
    nothing. Raises `NotFound` while the operator has not created the GPUNode.
    """
    while True:
        try:
            return await _report_once(context, name, stage, machine, gpus)
        except Conflict:
            # Another writer was between our read and our write; the summary has to include that write.
            continue


async def _report_once(
    context: OperandContext, name: StageName, stage: Stage, machine: Machine | None, gpus: tuple[GPU, ...] | None
) -> bool:
    node = await context.client.get(GPUNode, context.node_name)
    after = changed_status(node.status, name, stage, machine=machine, gpus=gpus)
    if after is None:
        return False
    body: dict[str, Any] = {
        "metadata": {"name": context.node_name, "resourceVersion": node.metadata.resource_version},
        "status": {
            "stages": {name.value: to_dict(after.stages[name.value])},
            "summary": to_dict(after.summary),
        },
    }
    if machine is not None:
        body["status"]["machine"] = to_dict(machine)
    if gpus is not None:
        body["status"]["gpus"] = to_dict(gpus)
    await context.client.apply(body, names.FIELD_MANAGER_PREFIX + name.value, resource=GPUNode.RESOURCE)
    why = stage.message or stage.reason
    log.info("stage reported stage=%s state=%s%s", name.value, stage.state.value, f": {why}" if why else "")
    return True


def changed_status(
    before: GPUNodeStatus,
    name: StageName,
    stage: Stage,
    *,
    machine: Machine | None = None,
    gpus: tuple[GPU, ...] | None = None,
) -> GPUNodeStatus | None:
    """The status with the report in it, or None when the report says nothing new (times are no news)."""
    old = before.stages.get(name.value)
    merged_machine = before.machine if machine is None else _overlay(before.machine, machine)
    same_stage = old is not None and _without_times(old) == _without_times(stage)
    if same_stage and merged_machine == before.machine and (gpus is None or gpus == before.gpus):
        return None
    if old is not None and old.state is stage.state:
        stage = msgspec.structs.replace(stage, since=old.since)
    after = msgspec.structs.replace(
        before,
        stages={**before.stages, name.value: stage},
        machine=merged_machine,
        gpus=before.gpus if gpus is None else gpus,
    )
    return msgspec.structs.replace(after, summary=summarize(after))


def _without_times(stage: Stage) -> Stage:
    return msgspec.structs.replace(stage, since="")


def _overlay(base: Machine, new: Machine) -> Machine:
    """`base` with the fields that `new` knows."""
    known = {k: v for k, v in msgspec.structs.asdict(new).items() if v}
    return msgspec.structs.replace(base, **known)

"""The report of an operand: one server-side apply of its own section of the GPUNode, and only on change.

The summary travels in the same write (see `gpuplane.api.gpunode`). Several operands share its fields, so they are taken
with force; all compute them with the same pure function from the same object, so that it does not matter who was last.

An apply keeps the entries that another manager owns. A GPU that answers again is therefore taken out of the health by a
merge patch before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPU, NOT_LISTED, GPUNode, GPUNodeStatus, Machine, Stage, StageName, summarize
from gpuplane.operand.context import OperandContext
from kubekit.api.meta import to_dict
from kubekit.kube import Conflict

log = logging.getLogger("gpuplane.operand")

HEALTH_MANAGER: Final = names.FIELD_MANAGER_PREFIX + "health"


async def report_stage(
    context: OperandContext,
    name: StageName,
    stage: Stage,
    *,
    machine: Machine | None = None,
    gpus: tuple[GPU, ...] | None = None,
) -> bool:
    """Write `stage` (and facts seen with it) into the node's GPUNode; False when it stood there already.

    `gpus` are those that answer, then `unanswering` ones: these keep what was known of them, and are lost.

    `since` of a stage that only repeats known facts stays, so a restarted operand takes nothing back and writes
    nothing. Raises `NotFound` while the operator has not created the GPUNode.
    """
    while True:
        try:
            return await _report_once(context, name, stage, machine, gpus)
        except Conflict:
            # Another writer was between our read and our write; the summary has to include that write.
            continue


async def write_health(context: OperandContext, node: GPUNode, health: Mapping[str, str]) -> GPUNode:
    """Write `health` (UUID -> why the GPU is not usable) and its summary; return the GPUNode as it is then.

    `node` is the GPUNode as it was read. Raises Conflict when another writer has changed it since.
    """
    before = node.status
    after = msgspec.structs.replace(before, health=dict(health))
    # A merge patch, not an apply: a removed entry must go, also if another writer owns it. With its version, because
    # the summary has to be made from what others wrote meanwhile.
    patch = {
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "status": {
            "health": _merge(before.health, after.health),
            "summary": _merge(to_dict(before.summary), to_dict(summarize(after))),
        },
    }
    return await context.client.patch(GPUNode, context.node_name, patch, manager=HEALTH_MANAGER)


def _merge(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the merge patch that makes `after` of `before`."""
    return {**dict.fromkeys(before), **after}


async def _report_once(
    context: OperandContext, name: StageName, stage: Stage, machine: Machine | None, gpus: tuple[GPU, ...] | None
) -> bool:
    node = await context.client.get(GPUNode, context.node_name)
    _, health = _listed(node.status, gpus)
    answering_again = node.status.health.keys() - health.keys()
    if answering_again:
        kept = {uuid: why for uuid, why in node.status.health.items() if uuid in health}
        node = await write_health(context, node, kept)
        log.info("GPUs answer again gpus=%s", ",".join(sorted(answering_again)))
    after = changed_status(node.status, name, stage, machine=machine, gpus=gpus)
    if after is None:
        return bool(answering_again)
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
        body["status"]["gpus"] = to_dict(after.gpus)
        lost = {gpu.uuid for gpu in after.gpus} - {gpu.uuid for gpu in gpus}
        if lost:
            body["status"]["health"] = {uuid: after.health[uuid] for uuid in sorted(lost)}
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
    listed, health = _listed(before, gpus)
    if same_stage and merged_machine == before.machine and listed == before.gpus and health == before.health:
        return None
    if old is not None and old.state is stage.state:
        stage = msgspec.structs.replace(stage, since=old.since)
    after = msgspec.structs.replace(
        before,
        stages={**before.stages, name.value: stage},
        machine=merged_machine,
        gpus=listed,
        health=health,
    )
    return msgspec.structs.replace(after, summary=summarize(after))


def unanswering(address: str) -> GPU:
    """Return a GPU of which the PCI address is all that is seen."""
    return GPU(index=-1, uuid="", model="", memory_mib=0, pci=address)


def _listed(before: GPUNodeStatus, gpus: tuple[GPU, ...] | None) -> tuple[tuple[GPU, ...], dict[str, str]]:
    """Return the GPUs to list and their health: one that does not answer keeps its UUID and its fault.

    Its index comes after those of the others, since the driver numbers those that it has.
    """
    if gpus is None:
        return before.gpus, before.health
    answering = tuple(gpu for gpu in gpus if gpu.uuid)
    # A GPU that has never answered before is known by its address.
    there = {identity for gpu in answering for identity in (gpu.uuid, gpu.pci)}
    known = {gpu.pci: gpu for gpu in before.gpus if gpu.uuid not in there}
    lost = tuple(
        msgspec.structs.replace(known.get(gpu.pci, gpu), index=number, uuid=_identity(known, gpu), links=())
        for number, gpu in enumerate((gpu for gpu in gpus if not gpu.uuid), len(answering))
    )
    health = {uuid: why for uuid, why in before.health.items() if uuid not in there or why != NOT_LISTED}
    return answering + lost, health | {gpu.uuid: health.get(gpu.uuid, NOT_LISTED) for gpu in lost}


def _identity(known: dict[str, GPU], gpu: GPU) -> str:
    """Return the UUID that was seen at the GPU's PCI address; the address, where NVML has never listed the GPU."""
    return known[gpu.pci].uuid if gpu.pci in known else gpu.pci


def _without_times(stage: Stage) -> Stage:
    return msgspec.structs.replace(stage, since="")


def _overlay(base: Machine, new: Machine) -> Machine:
    """`base` with the fields that `new` knows."""
    known = {k: v for k, v in msgspec.structs.asdict(new).items() if v not in ("", None)}
    return msgspec.structs.replace(base, **known)

"""Proves idle GPUs of a ready node again, so that a GPU which begins to compute wrongly is found without a restart.

Invariants:

- A GPU that some process uses, or of which a pod holds a share, is left alone: a context costs memory, and a job may
  need all of it.
- A GPU is called wrong when the vectorAdd failed twice and no process used the GPU before and after. Other failures (no
  memory, a mode that allows one process) say nothing about the GPU.
- A GPU that NVML cannot ask keeps its verdict, and no other GPU of the node from being checked.
- A wrong GPU is tried again like the others, and is trusted when it passes.
- A GPU that is usable again after another fault is proved at once. The device plugin offers it already: with a wait for
  the proof the GPU would stay out for as long as a pod holds a share of it, or the validator is away.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplane.api.gpunode import GPU, GPUNode, GPUNodeStatus, StageName
from gpuplane.host import HostError
from gpuplane.operand import OperandContext, VectorAdd
from gpuplane.operand.wrong_gpus import COMPUTES_WRONG, read_wrong_gpus, write_wrong_gpus
from gpuplane.validator import checks, decide
from gpuplane.validator.process import VectorAddProcess
from kubekit.errors import KubekitError, Terminal
from kubekit.kube.tasks import first_of

if TYPE_CHECKING:
    from gpuplane.hardware import GPUSource

log = logging.getLogger("gpuplane.validator")

CHECK_SECONDS: Final = 600.0


async def keep_checking(context: OperandContext, get: Callable[[], GPUNode | None], again: asyncio.Event) -> None:
    """Prove the idle GPUs of the node every ten minutes, and when `again` is set, until cancelled."""
    pause = CHECK_SECONDS * (zlib.crc32(context.node_name.encode()) % 1000 + 1) / 1000  # nodes take different moments
    while True:
        await first_of(context.sleep(pause), again.wait())
        again.clear()
        pause = CHECK_SECONDS
        node = get()
        if node is not None:
            try:
                await check_idle(context, node.status)
            except (KubekitError, OSError) as error:
                log.warning("GPUs not checked, tried again in %d s: %s", CHECK_SECONDS, error)


def any_returned(before: GPUNodeStatus, after: GPUNodeStatus) -> bool:
    """Return whether a GPU is usable again. A GPU that computed wrongly has been proved by then."""
    was = {uuid for uuid, fault in before.health.items() if not fault.startswith(COMPUTES_WRONG)}
    return any(gpu.uuid in was and gpu.uuid not in after.health for gpu in after.gpus)


async def check_idle(context: OperandContext, status: GPUNodeStatus) -> None:
    """Prove the GPUs that no process uses, and record those that fail. Raises KubekitError."""
    before = read_wrong_gpus(context.host)
    wanted = due(status, before)
    vector_add = _vector_add(context) if wanted else None
    if vector_add is None:
        return
    idle = await _idle(context, wanted)
    found = {gpu.uuid: await _fault(vector_add, gpu) for gpu in idle}
    still = {gpu.uuid for gpu in await _idle(context, idle)}
    after = judged(before, {uuid: fault for uuid, fault in found.items() if uuid in still or not fault})
    after = {uuid: fault for uuid, fault in after.items() if uuid in {gpu.uuid for gpu in status.gpus}}
    if after != before:
        write_wrong_gpus(context.host, after)
    for gpu in idle:
        if (gpu.uuid in before) != (gpu.uuid in after):
            log.warning("GPU checked gpu=%d: %s", gpu.index, after.get(gpu.uuid, "computes correctly again"))


def due(status: GPUNodeStatus, wrong: Mapping[str, str]) -> tuple[GPU, ...]:
    """The GPUs to prove on a node whose driver and CUDA hold: usable ones, and those that were wrong."""
    if not decide.holds(status, StageName.DRIVER, StageName.TOOLKIT, StageName.CUDA):
        return ()
    return tuple(
        gpu
        for gpu in status.gpus
        if gpu.mig != "enabled"  # a GPU that is cut by MIG takes no context of its own
        and not status.held.get(gpu.uuid)  # the agent of shares would report the vectorAdd as an escape
        and (gpu.uuid not in status.health or gpu.uuid in wrong)
    )


def judged(before: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """The wrong GPUs after a check; `found` has the fault of each GPU that was proved, empty for none."""
    known = {uuid: fault for uuid, fault in before.items() if uuid not in found}
    return known | {uuid: COMPUTES_WRONG + fault for uuid, fault in found.items() if fault}


async def _idle(context: OperandContext, gpus: tuple[GPU, ...]) -> tuple[GPU, ...]:
    def unused() -> tuple[GPU, ...]:
        source = context.open_gpus()
        try:
            return tuple(gpu for gpu in gpus if _is_unused(source, gpu))
        finally:
            source.close()

    return await asyncio.to_thread(unused)


def _is_unused(source: GPUSource, gpu: GPU) -> bool:
    try:
        return not source.processes(gpu.uuid)
    except KubekitError as error:  # it is lost: the others of the node are still to be checked
        log.warning("GPU not checked gpu=%d: %s", gpu.index, error)
        return False


async def _fault(vector_add: VectorAdd, gpu: GPU) -> str:
    """Return why the GPU fails, empty when it passes once in two tries."""
    fault = ""
    for _ in range(2):
        try:
            await vector_add(gpu.uuid)
        except Terminal as error:
            fault = error.what
        else:
            return ""
    return fault


def _vector_add(context: OperandContext) -> VectorAdd | None:
    if context.vector_add is not None:
        return context.vector_add
    try:
        library = checks.read_facts(context.host).library
    except HostError:
        return None
    return VectorAddProcess(Path(library)) if library is not None else None

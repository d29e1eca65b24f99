"""The driver operand: makes its node's driver work, says so in the GPUNode, and looks again when the host changes.

A stage is a fact about the node: when this ends, the driver stays. Only `uninstall` takes it back.
"""

from __future__ import annotations

import asyncio
import os

from gpuplane import names
from gpuplane.api.gpunode import GPU, Machine, Stage, StageName, StageState
from gpuplane.driver.decide import Action, Facts
from gpuplane.driver.installer import DriverError, install
from gpuplane.driver.installer import uninstall as uninstall_from
from gpuplane.errors import GpuplaneError, Retryable, Terminal
from gpuplane.hardware import to_api
from gpuplane.host import DriverReady, Host, HostError, Locked, mark_ready
from gpuplane.operand import OperandContext, Outcome, keep_stage, remove_stage

_ANSWER_TRIES = 5  # device nodes come a moment after the module
_WATCHED = (names.DRIVER_READY, "sys/module/nvidia/version", "proc/driver/nvidia/version")


async def run(context: OperandContext) -> None:
    """Install the driver or find it, report the stage, repeat when what it consists of changes; until cancelled."""
    host = Host(context.host_root, context.runner, flush=not context.in_process)
    may_install = os.environ.get(names.DRIVER_INSTALL_ENV, "true") != "false"
    seen: list[bytes | None] = []

    async def attempt() -> Outcome:
        outcome = await _settle(context, host, may_install)
        seen[:] = _watched(host)
        return outcome

    async def until_changed() -> None:
        if context.in_process:
            await asyncio.Event().wait()  # a light node's driver is an object in this process
        async for _ in host.watch(*_WATCHED):
            if _watched(host) != seen:
                return

    await keep_stage(context, StageName.DRIVER, attempt, until_changed, reason_of)


async def uninstall(context: OperandContext) -> None:
    """Take back what was installed on this node, byte for byte; a driver of the host's own stays."""
    host = Host(context.host_root, context.runner, flush=not context.in_process)

    async def undo() -> None:
        await uninstall_from(host)

    await remove_stage(context, StageName.DRIVER, undo, reason_of)


async def _settle(context: OperandContext, host: Host, may_install: bool) -> Outcome:
    facts, decision = await install(host, may_install=may_install)
    version, cuda, gpus = await _ask_gpus(context)
    present = decision.action is Action.PRESENT
    mark_ready(host, names.DRIVER_READY, DriverReady(host_driver=present).encode())
    return Outcome(
        Stage(
            state=StageState.PRESENT if present else StageState.DONE,
            since=context.now(),
            message=_message(facts, gpus),
            digest=version if present or facts.package is None else facts.package.digest,
        ),
        Machine(driver=version, cuda=f"{cuda[0]}.{cuda[1]}"),
        gpus,
    )


async def _ask_gpus(context: OperandContext) -> tuple[str, tuple[int, int], tuple[GPU, ...]]:
    """Driver version, CUDA version and GPUs as NVML gives them.

    Raises:
        DriverError: GPUsDoNotAnswer, when there is no answer after some tries; DriverUnusable, when trying again is no
            use: libraries and module do not fit, for one.
    """
    for attempt in range(_ANSWER_TRIES):
        try:
            source = context.open_gpus()
            try:
                gpus = tuple(to_api(gpu) for gpu in source.inventory())
                if gpus:
                    return source.driver_version(), source.cuda_version(), gpus
            finally:
                source.close()
            what, where, cure = "NVML answers, but lists no GPU", "nvmlDeviceGetCount", "see `dmesg` on the node"
        except Retryable as error:
            what, where, cure = error.what, error.where, error.cure
        except Terminal as error:
            raise DriverError("DriverUnusable", error.what, where=error.where, cure=error.cure) from error
        if attempt + 1 < _ANSWER_TRIES:
            await context.sleep(0.1 * 2**attempt)
    raise DriverError("GPUsDoNotAnswer", what, where=where, cure=cure)


def _message(facts: Facts, gpus: tuple[GPU, ...]) -> str:
    return f"{len(gpus)} of {facts.gpus} GPUs answer" if len(gpus) < facts.gpus else ""


def _watched(host: Host) -> list[bytes | None]:
    """What shows that the driver is still there."""
    return [host.read(path) for path in _WATCHED]


def reason_of(error: GpuplaneError) -> str:
    """The stable CamelCase cause that a failed stage shows for an error."""
    if isinstance(error, DriverError):
        return error.reason
    if isinstance(error, Locked):
        return "InstallerBusy"
    if isinstance(error, HostError):
        return "HostFileSystem"
    return type(error).__name__

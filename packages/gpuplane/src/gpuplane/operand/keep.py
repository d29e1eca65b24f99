"""The life of an operand that makes one stage of its node hold: try, report, look again when something changed.

Invariants:

- A stage that holds is reported once and then left alone until what it consists of changes; nothing polls, but where
  the kernel grants no watches.
- A failure is a report as well, with its reason and cure, and is tried again after a pause that doubles up to a minute.
- An API server that cannot be asked is no failure of the stage: it is logged, and reporting is tried again.
- A stage is a fact: when the operand is cancelled it stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from gpuplane.api.gpunode import GPU, Machine, Stage, StageName, StageState
from gpuplane.operand.context import OperandContext
from gpuplane.operand.report import report_stage
from kubekit.errors import KubekitError
from kubekit.kube import ApiError, NotFound

FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds


class StageOutcome(msgspec.Struct, frozen=True):
    """The result of an attempt: the stage, and facts about the node that were seen with it."""

    stage: Stage
    machine: Machine | None = None
    gpus: tuple[GPU, ...] | None = None


async def keep_stage(
    context: OperandContext,
    name: StageName,
    attempt: Callable[[], Awaitable[StageOutcome]],
    until_changed: Callable[[], Awaitable[None]],
    reason_of: Callable[[KubekitError], str],
) -> None:
    """Make the stage hold and keep it so, until cancelled.

    Args:
        attempt: does the work, raises KubekitError when it cannot.
        until_changed: returns when `attempt` may find something else than last time.
        reason_of: the stable CamelCase cause that a failed stage shows for an error.
    """
    log = logging.getLogger(f"gpuplane.{name.value}")
    pause = FIRST_PAUSE
    while True:
        try:
            outcome = await attempt()
        except ApiError as error:
            log.warning("API server not reachable node=%s: %s", context.node_name, error)
            await context.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)
            continue
        except KubekitError as error:
            log.warning("attempt failed node=%s: %s", context.node_name, error)
            outcome = StageOutcome(failed(error, reason_of(error), context.now()))
        try:
            await report_stage(context, name, outcome.stage, machine=outcome.machine, gpus=outcome.gpus)
            settled = outcome.stage.state.holds
        except KubekitError as error:
            log.warning("stage not reported node=%s: %s", context.node_name, error)
            settled = False
        if settled:
            pause = FIRST_PAUSE
            try:
                await until_changed()
            except KubekitError as error:
                log.warning("no watch, polling every minute node=%s: %s", context.node_name, error)
                await context.sleep(MAX_PAUSE)
        else:
            await context.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)


def failed(error: KubekitError, reason: str, since: str) -> Stage:
    """The stage that an error leaves."""
    return Stage(
        state=StageState.FAILED,
        since=since,
        reason=reason,
        message=error.what,
        where=error.where,
        cure=error.cure,
    )


async def remove_stage(
    context: OperandContext,
    name: StageName,
    undo: Callable[[], Awaitable[None]],
    reason_of: Callable[[KubekitError], str],
) -> None:
    """Undo what makes a stage hold, and report it as removed; tried again until both are done.

    In a pod this does not return, since a DaemonSet would start it over; it is cancelled when the pod is deleted.
    """
    log = logging.getLogger(f"gpuplane.{name.value}")
    pause = FIRST_PAUSE
    while True:
        try:
            await undo()
            stage = Stage(state=StageState.REMOVED, since=context.now())
        except KubekitError as error:
            log.warning("changes not undone yet node=%s: %s", context.node_name, error)
            stage = failed(error, reason_of(error), context.now())
        try:
            await report_stage(context, name, stage)
        except NotFound:
            pass  # the GPUNode was deleted first, so there is nothing to report to
        except KubekitError as error:
            log.warning("stage not reported node=%s: %s", context.node_name, error)
            stage = failed(error, reason_of(error), context.now())
        if stage.state is StageState.REMOVED:
            break
        await context.sleep(pause)
        pause = min(pause * 2, MAX_PAUSE)
    if context.pod_name:
        await asyncio.Event().wait()

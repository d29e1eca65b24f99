"""The device plugin of one node: offers its GPUs to the kubelet, follows their health, and says what is wrong.

Invariants:

- What works is not reported: that the GPUs are advertised is seen at the Node's allocatable.
- `health` in GPUNode has this writer only, and is written when it changes. An API server that is away never keeps a
sick
  GPU advertised: the kubelet is told first.
- Nothing polls while all GPUs are well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, Stage, StageName, StageState, summarize
from gpuplane.api.meta import to_dict
from gpuplane.device_plugin import decide
from gpuplane.device_plugin.config import load
from gpuplane.device_plugin.plugin import GPUPlugin
from gpuplane.errors import GpuplaneError, InvalidInput, Retryable
from gpuplane.hardware import GPUSource
from gpuplane.host import Host
from gpuplane.kube import ApiError
from gpuplane.operand import Kubelet, OperandContext, report_stage
from gpuplane.operand.keep import failed

log = logging.getLogger("gpuplane.device-plugin")

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
# How often a GPU that is not usable is asked how it is. Drivers that announce a recovery are not waited for.
RECHECK_SECONDS = 60.0
HEALTH_MANAGER = names.FIELD_MANAGER_PREFIX + "health"


async def run(context: OperandContext) -> None:
    """Runs until cancelled. Raises Terminal where only a new process helps: another driver version, no permission."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        config = _read_config(context)
        try:
            await _session(context, config)
            pause = FIRST_PAUSE_SECONDS
        except ApiError as error:
            # That the cluster cannot be asked says nothing about the node.
            log.warning("the cluster cannot be asked: %s", error)
            await context.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except InvalidInput as error:
            await _report_failure(context, error)
            await _config_changed(context, config)
        except GpuplaneError as error:
            await _report_failure(context, error)
            if not isinstance(error, Retryable):
                raise
            await context.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _session(context: OperandContext, seen: bytes | None) -> None:
    """From one look at configuration and GPUs to the next; returns when the configuration is not `seen` any more."""
    config = load(context.config)
    source = await asyncio.to_thread(context.open_gpus)
    try:
        node = await context.client.get(GPUNode, context.node_name)
        inventory = await asyncio.to_thread(source.inventory)
        says = await asyncio.to_thread(source.health)
        health = decide.first_health(inventory, says, [gpu.uuid for gpu in node.status.gpus])
        report = HealthReport(context, node.status.health)
        report.set(health)
        plugin = GPUPlugin(inventory, health, config)
        await _first_of(
            _offer(context, plugin),
            _take_back_failure(context, plugin, node),
            _follow(source, plugin, report),
            _recheck(context, source, plugin, report),
            report.run(),
            _config_changed(context, seen),
        )
    finally:
        source.close()


async def _first_of(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, with or without an error; end the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _take_back_failure(context: OperandContext, plugin: GPUPlugin, node: GPUNode) -> None:
    """Once a kubelet listens, a failure that was reported before holds no more; that the stage is done is the
    operator's to see."""
    stage = node.status.stages.get(StageName.DEVICE_PLUGIN.value)
    if stage is not None and stage.state is StageState.FAILED:
        await plugin.offered.wait()
        await report_stage(context, StageName.DEVICE_PLUGIN, Stage(state=StageState.RUNNING, since=context.now()))
    await asyncio.Event().wait()


def _read_config(context: OperandContext) -> bytes | None:
    path = context.config
    return None if path is None else Host(path.parent).read(path.name)


async def _config_changed(context: OperandContext, seen: bytes | None) -> None:
    """Returns when the configuration file is not what was seen before it was loaded; never without a file."""
    if context.config is None:
        await asyncio.Event().wait()
        return
    # A mounted ConfigMap changes by its `..data` link being pointed elsewhere.
    async for _ in Host(context.config.parent).watch(context.config.name, "..data"):
        if _read_config(context) != seen:
            log.info("the configuration changed: %s", context.config)
            return


async def _offer(context: OperandContext, plugin: GPUPlugin) -> None:
    kubelet = context.kubelet or _real_kubelet(context)
    while True:
        await kubelet.serve(plugin.resource, plugin)


def _real_kubelet(context: OperandContext) -> Kubelet:
    # Late: HTTP/2 and the protocol's messages are 7 MB that light nodes do not need.
    from gpuplane.device_plugin.grpc_kubelet import GrpcKubelet

    return GrpcKubelet(context.kubelet_dir, context.sleep)


async def _follow(source: GPUSource, plugin: GPUPlugin, report: HealthReport) -> None:
    async for event in source.events():
        text = event.reason or event.kind.value
        if plugin.set_health(decide.health_after(plugin.health, event)):
            log.warning("%s: %s", event.uuid, text)
            report.set(plugin.health)
        else:
            log.info("%s: %s; nothing changes", event.uuid, text)
    raise Retryable("the driver tells no health events any more", where="NVML")


async def _recheck(context: OperandContext, source: GPUSource, plugin: GPUPlugin, report: HealthReport) -> None:
    """Trust a GPU again that has answered well for some time, for drivers that tell no recovery."""
    quiet: dict[str, int] = {}
    async for _ in plugin.states():
        while plugin.has_unusable:
            await context.sleep(RECHECK_SECONDS)
            says = await asyncio.to_thread(source.health)
            after, quiet = decide.health_after_quiet(plugin.health, says, quiet)
            if plugin.set_health(after):
                log.info("usable again after it answered well: %s", ", ".join(sorted(set(quiet) - set(after))))
                report.set(after)


class HealthReport:
    """Writes the node's health into GPUNode, the newest state only, for as long as it takes.

    `written` is what stands there at the start.
    """

    def __init__(self, context: OperandContext, written: Mapping[str, str]) -> None:
        self._context = context
        self._written = dict(written)
        self._wanted = dict(written)
        self._changed = asyncio.Event()

    def set(self, health: Mapping[str, str]) -> None:
        self._wanted = dict(health)
        if self._wanted != self._written:
            self._changed.set()

    async def run(self) -> None:
        pause, said = FIRST_PAUSE_SECONDS, ""
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._wanted
            try:
                await self._write(wanted)
                self._written = wanted
                pause, said = FIRST_PAUSE_SECONDS, ""
            except GpuplaneError as error:
                if said != str(error):
                    said = str(error)
                    log.warning("health is not written yet: %s", error)
                self._changed.set()
                await self._context.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _write(self, health: dict[str, str]) -> None:
        client, name = self._context.client, self._context.node_name
        node = await client.get(GPUNode, name)
        if node.status.health == health:
            return
        status = msgspec.structs.replace(node.status, health=health)
        gone = dict.fromkeys(set(node.status.health) - set(health))
        # A merge patch, not an apply: what is taken out must go whoever else has written it. With its version, because
        # the summary has to be made from what others wrote meanwhile.
        patch = {
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "status": {"health": {**health, **gone}, "summary": to_dict(summarize(status))},
        }
        await client.patch(GPUNode, name, patch, manager=HEALTH_MANAGER)
        log.info("health written: %s", ", ".join(sorted(health)) or "all GPUs are usable")


async def _report_failure(context: OperandContext, error: GpuplaneError) -> None:
    """Say in GPUNode why nothing is advertised; the log has it in any case."""
    stage = failed(error, decide.failure_reason(error), context.now())
    log.error("%s", error)
    try:
        await report_stage(context, StageName.DEVICE_PLUGIN, stage)
    except GpuplaneError as unreachable:
        log.error("and it cannot be reported: %s", unreachable)

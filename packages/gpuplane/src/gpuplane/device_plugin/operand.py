"""The device plugin of one node: offers its GPUs to the kubelet, follows their health, and says what is wrong.

Invariants:

- Success is not reported: the Node's allocatable has the advertised GPUs.
- `health` in GPUNode has this writer only, and is written when it changes. A sick GPU is not advertised even if the API
  server is down: the kubelet gets the change first.
- Nothing polls while all GPUs are well, but where GPUs can be cut by MIG, of which NVML tells no news.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, Stage, StageName, StageState
from gpuplane.api.pluginconfig import DeviceListStrategy, PluginConfig, load
from gpuplane.device_plugin.allocation import NodeFiles, read_node_files
from gpuplane.device_plugin.health import failure_reason, first_health
from gpuplane.device_plugin.health_report import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, HealthReport
from gpuplane.device_plugin.health_watch import (
    follow_events,
    follow_wrong_gpus,
    missing_gpu_comes,
    read_gpu_files,
    recheck,
)
from gpuplane.device_plugin.mps_daemons import MpsDaemons
from gpuplane.device_plugin.nri import NriScope, nri_connection, nri_scope
from gpuplane.device_plugin.plugin import HealthAwarePlugin, NodePlugins, UnitPlugin
from gpuplane.hardware import GPUFacts, GPUSource, MigMode
from gpuplane.operand import OperandContext, PluginRegistrar, report_stage
from gpuplane.operand.configs import NodeConfig, NodeConfiguration, NodeLabels, own_labels
from gpuplane.operand.keep import failed
from gpuplane.operand.wrong_gpus import read_wrong_gpus
from gpuplane.sharing.dialects import Dialect, offered
from gpuplane.sharing.units import resources, sharable
from kubekit.errors import InvalidInput, KubekitError, Retryable
from kubekit.kube import ApiError
from kubekit.kube.tasks import first_of

if TYPE_CHECKING:
    from gpuplane.device_plugin.nri.connection import NriConnection
    from gpuplane.device_plugin.shares import ShareNode

log = logging.getLogger("gpuplane.device-plugin")

MIG_CHECK_SECONDS: Final = 60.0  # NVML sends no event when a GPU is cut otherwise


class HoldShares(Protocol):
    """The enforcement of shares, while in the context; None where no container can be held to its share.

    Raises Terminal when the driver's libraries or those that hold a share are missing.
    """

    def __call__(
        self, context: OperandContext, inventory: Sequence[GPUFacts], source: GPUSource
    ) -> contextlib.AbstractAsyncContextManager[ShareNode | None]: ...


@contextlib.asynccontextmanager
async def hold_shares(
    context: OperandContext, inventory: Sequence[GPUFacts], source: GPUSource
) -> AsyncIterator[ShareNode | None]:
    from gpuplane.device_plugin.shares import share_node  # late: most nodes have no shares

    async with share_node(context, inventory, source) as shares:
        yield shares


async def run(context: OperandContext, hold: HoldShares = hold_shares) -> None:
    """Runs until cancelled. Raises Terminal where only a new process helps: another driver version, no permission."""
    async with own_labels(context) as labels:
        await _Node(context, context.variables, labels, hold).run()


class _Node:
    """The plugins of one node from start to end."""

    def __init__(
        self, context: OperandContext, environment: Mapping[str, str], labels: NodeLabels, hold: HoldShares
    ) -> None:
        self._context = context
        self._hold = hold
        self._environment = environment
        self._labels = labels
        self._configs = NodeConfig(context, environment, labels)

    async def run(self) -> None:
        context, pause = self._context, FIRST_PAUSE_SECONDS
        while True:
            chosen = self._configs.attempt()
            try:
                if isinstance(chosen, InvalidInput):
                    raise chosen
                await self._session(chosen)
                pause = FIRST_PAUSE_SECONDS
            except ApiError as error:
                # That the cluster cannot be asked says nothing about the node.
                log.warning("API server not reachable: %s", error)
                await context.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            except InvalidInput as error:
                await _report_failure(context, error)
                await self._configs.changed(chosen)
            except KubekitError as error:
                if self._waits(chosen, error):
                    log.info("no GPUs yet: %s", error)
                else:
                    await _report_failure(context, error)
                if not isinstance(error, Retryable):
                    raise
                await context.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _waits(self, chosen: NodeConfiguration | InvalidInput, error: KubekitError) -> bool:
        """Return whether a node without a driver is left alone, by `failOnInitError: false`."""
        if not isinstance(error, Retryable) or isinstance(chosen, InvalidInput):
            return False
        return not self._load(chosen).fail_on_init_error

    def _load(self, chosen: NodeConfiguration) -> PluginConfig:
        return load(chosen.text or b"", self._environment, where=chosen.where)

    async def _session(self, chosen: NodeConfiguration) -> None:
        """From one look at configuration and GPUs to the next; returns when either is another one."""
        context = self._context
        config = self._load(chosen)
        dialects = self._dialects()
        files = read_gpu_files(context.host)
        source = await asyncio.to_thread(context.open_gpus)
        try:
            node = await context.client.get(GPUNode, context.node_name)
            inventory = await asyncio.to_thread(source.inventory)
            mps = MpsDaemons(context.host_root, inventory, config)
            mps.refuse(dialects)
            if not mps.ready():
                others = (self._configs.changed(chosen), self._dialects_changed(dialects))
                await first_of(mps.come(context.sleep), *others)
                return
            says = await asyncio.to_thread(source.health)
            says |= read_wrong_gpus(context.host)
            health = first_health(inventory, says, [gpu.uuid for gpu in node.status.gpus], node.status.health)
            report = HealthReport(context, node.status.health)
            report.set(health)
            async with contextlib.AsyncExitStack() as stack:
                shares = None
                if Dialect.TENCENT in dialects:
                    shares = await stack.enter_async_context(self._hold(context, inventory, source))
                link, until_other = await self._nri(stack, dialects, shares)
                plugins = self._plugins(inventory, config, dialects, shares, link)
                offer = NodePlugins(plugins, health, [gpu.uuid for gpu in inventory])
                await first_of(
                    *(_offer(context, plugin) for plugin in offer.plugins),
                    *((shares.run(),) if shares is not None else ()),
                    until_other(),
                    mps.gone(),
                    _take_back_failure(context, offer, node),
                    follow_events(context, source, offer, report),
                    follow_wrong_gpus(context, offer, report),
                    recheck(context, source, offer, report),
                    missing_gpu_comes(context, offer, len(node.status.gpus), files),
                    _mig_changed(context, source, inventory),
                    report.run(),
                    self._configs.changed(chosen),
                    self._dialects_changed(dialects),
                )
        finally:
            source.close()

    async def _nri(
        self, stack: contextlib.AsyncExitStack, dialects: frozenset[Dialect], shares: ShareNode | None
    ) -> tuple[NriConnection | None, Callable[[], Coroutine[Any, Any, None]]]:
        """The link to the runtime, None where GPUs go another way; and what ends when that is no longer so."""

        async def never() -> None:
            await asyncio.Event().wait()

        wanted = nri_scope(self._environment)
        if wanted is NriScope.NOTHING:
            return None, never
        if wanted is NriScope.SHARES and Dialect.TENCENT not in dialects:
            return None, never
        link = await stack.enter_async_context(nri_connection(self._context, shares))
        return (link, link.keep) if await link.open() else (None, link.comes)

    def _dialects(self) -> frozenset[Dialect]:
        return offered(self._labels.get(names.SHARE_LABEL), self._environment)

    async def _dialects_changed(self, seen: frozenset[Dialect]) -> None:
        """Returns when the node is to offer its GPUs under other names."""
        while True:
            relabelled = self._labels.news()
            if self._dialects() != seen:
                log.info("offered resources changed")
                return
            await relabelled.wait()

    def _plugins(
        self,
        inventory: tuple[GPUFacts, ...],
        config: PluginConfig,
        dialects: frozenset[Dialect],
        shares: ShareNode | None,
        link: NriConnection | None,
    ) -> list[HealthAwarePlugin]:
        files = read_node_files(self._context.host_root, config.dev_root) if config.pass_device_specs else NodeFiles()
        steering, limits = (shares.steering, shares.limits) if shares is not None else (None, None)
        others = link if nri_scope(self._environment) is NriScope.ALL else None
        found: list[HealthAwarePlugin] = []
        if Dialect.NVIDIA in dialects:
            _warn(inventory, config)
            for resource, units in resources(inventory, config).items():
                # Replicas and MIG devices are no GPUs that a share could lie on.
                whole = steering if all(unit.id == unit.gpu for unit in units) else None
                found.append(UnitPlugin(resource, units, inventory, config, files, whole, others))
        if Dialect.TENCENT in dialects:
            from gpuplane.device_plugin.shares import share_plugins

            found += share_plugins(sharable(inventory), config, steering, limits, files, link)
        if Dialect.ALPHA in dialects:
            units = resources(sharable(inventory), PluginConfig()).get(names.GPU_RESOURCE, ())
            found.append(UnitPlugin(names.ALPHA_GPU, units, inventory, config, files, steering, others))
        return found


def _warn(inventory: tuple[GPUFacts, ...], config: PluginConfig) -> None:
    """Log which devices are not offered, since nothing else shows it."""
    for gpu in inventory:
        if gpu.mig is MigMode.ENABLED and config.mig_strategy == "none":
            log.warning("GPU not offered gpu=%d: it is in MIG mode, and migStrategy=none", gpu.index)
        elif gpu.mig is MigMode.ENABLED and not gpu.mig_devices:
            log.warning("GPU not offered gpu=%d: it is in MIG mode without a MIG device", gpu.index)
    if config.device_list == {DeviceListStrategy.CDI_ANNOTATIONS}:
        log.info("devices are passed by annotations, which only runtimes with CDI enabled read")


async def _take_back_failure(context: OperandContext, offer: NodePlugins, node: GPUNode) -> None:
    """Once a kubelet listens, a failure that was reported before holds no more; that the stage is done is the
    operator's to see."""
    stage = node.status.stages.get(StageName.DEVICE_PLUGIN.value)
    if stage is not None and stage.state is StageState.FAILED:
        await offer.offered()
        await report_stage(context, StageName.DEVICE_PLUGIN, Stage(state=StageState.RUNNING, since=context.now()))
    await asyncio.Event().wait()


async def _offer(context: OperandContext, plugin: HealthAwarePlugin) -> None:
    kubelet = context.kubelet or _real_kubelet(context)
    while True:
        await kubelet.serve(plugin.resource, plugin)


def _real_kubelet(context: OperandContext) -> PluginRegistrar:
    # Late: HTTP/2 and the protocol's messages are 7 MB that light nodes do not need.
    from gpuplane.device_plugin.grpc_kubelet import GrpcKubelet

    return GrpcKubelet(context.kubelet_dir, context.sleep)


async def _mig_changed(context: OperandContext, source: GPUSource, seen: tuple[GPUFacts, ...]) -> None:
    """Returns when a GPU is cut otherwise than it was; never where none can be cut."""
    before = [(gpu.mig, gpu.mig_devices) for gpu in seen]
    while any(mode is not MigMode.UNSUPPORTED for mode, _ in before):
        await context.sleep(MIG_CHECK_SECONDS)
        if [(gpu.mig, gpu.mig_devices) for gpu in await asyncio.to_thread(source.inventory)] != before:
            log.info("MIG devices changed")
            return
    await asyncio.Event().wait()


async def _report_failure(context: OperandContext, error: KubekitError) -> None:
    """Say in GPUNode why nothing is advertised; the log has it in any case."""
    stage = failed(error, failure_reason(error), context.now())
    log.error("%s", error)
    try:
        await report_stage(context, StageName.DEVICE_PLUGIN, stage)
    except KubekitError as unreachable:
        log.error("failure not reported: %s", unreachable)

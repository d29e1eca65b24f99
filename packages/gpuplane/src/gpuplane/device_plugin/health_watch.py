"""Follows the health of a node's GPUs: by the driver's events, by the validator's checks of idle GPUs, by checks of
GPUs that are not usable, and by the files that come with a GPU.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.device_plugin.health import health_after, health_after_quiet
from gpuplane.device_plugin.health_report import HealthReport
from gpuplane.device_plugin.plugin import NodePlugins
from gpuplane.hardware import GPUSource
from gpuplane.host import Host
from gpuplane.operand import OperandContext
from gpuplane.operand.wrong_gpus import COMPUTES_WRONG, read_wrong_gpus
from kubekit.errors import KubekitError, Retryable

log = logging.getLogger("gpuplane.device-plugin")

RECHECK_SECONDS: Final = 60.0
"""How often a GPU that is not usable is checked: some drivers announce no recovery."""

_GPU_NODE: Final = re.compile("nvidia[0-9]+")


class GPUFiles(msgspec.Struct, frozen=True):
    """The files that show whether the driver may list another GPU: `driver-ready`, and the device nodes of GPUs."""

    driver_ready: bytes | None
    nodes: frozenset[str]


def read_gpu_files(host: Host) -> GPUFiles:
    """Read these files. Raises HostError."""
    nodes = frozenset(name for name in host.list("dev") if _GPU_NODE.fullmatch(name))
    return GPUFiles(host.read(names.DRIVER_READY), nodes)


async def follow_events(context: OperandContext, source: GPUSource, offer: NodePlugins, report: HealthReport) -> None:
    """Change the health after each event of the driver. Raises Retryable when the driver sends no more events."""
    async for event in source.events():
        text = event.reason or event.kind.value
        if offer.set_health(health_after(offer.health, event) | read_wrong_gpus(context.host)):
            log.warning("GPU unusable gpu=%s: %s", event.uuid, text)
            report.set(offer.health)
        else:
            log.info("GPU event without effect gpu=%s: %s", event.uuid, text)
    raise Retryable("the driver reports no health events any more", where="NVML")


async def recheck(context: OperandContext, source: GPUSource, offer: NodePlugins, report: HealthReport) -> None:
    """Trust a GPU again that has answered well for some time, for drivers that tell no recovery."""
    quiet: dict[str, int] = {}
    while True:
        await offer.until_unusable()
        await context.sleep(RECHECK_SECONDS)
        says = await asyncio.to_thread(source.health) | read_wrong_gpus(context.host)
        after, quiet = health_after_quiet(offer.health, says, quiet, offer.listed)
        if offer.set_health(after):
            log.info("GPUs usable again after answers without error gpus=%s", ",".join(sorted(set(quiet) - set(after))))
            report.set(after)


async def follow_wrong_gpus(context: OperandContext, offer: NodePlugins, report: HealthReport) -> None:
    """Take GPUs out that the validator finds to compute wrongly, and trust them again when they pass."""
    try:
        async for _ in context.host.watch(names.WRONG_GPUS):
            # A GPU that NVML does not list stays lost, whatever its first fault was.
            others = {
                uuid: why
                for uuid, why in offer.health.items()
                if uuid not in offer.listed or not why.startswith(COMPUTES_WRONG)
            }
            if offer.set_health(read_wrong_gpus(context.host) | others):
                log.warning("health of GPUs changed unusable=%s", ",".join(sorted(offer.health)) or "none")
                report.set(offer.health)
    except KubekitError as error:
        log.warning("checks of idle GPUs not followed, read at the next start: %s", error)
    await asyncio.Event().wait()


async def missing_gpu_comes(context: OperandContext, offer: NodePlugins, gpus: int, before: GPUFiles) -> None:
    """Return when NVML may list a GPU that it did not list when it was opened; never where it lists all of them.

    After a boot the plugin may open NVML before the device node of a GPU exists. NVML looks for GPUs only once, so it
    has to be opened again. A GPU that stays lost changes no file, so it makes no plugin register again.

    Args:
        gpus: how many GPUs the node has, with those that are missing.
        before: the files before NVML was opened, so that no change since is missed.
    """
    if offer.health.keys() - offer.listed:
        try:
            async for _ in context.host.watch(names.DRIVER_READY, *(f"dev/nvidia{minor}" for minor in range(gpus))):
                if read_gpu_files(context.host) != before:
                    log.info("GPU files changed, NVML is opened again")
                    return
        except KubekitError as error:
            log.warning("missing GPUs not followed, NVML is opened again at the next start: %s", error)
    await asyncio.Event().wait()

"""The two operands that label their own Node: machine features, and GPU features.

Each pass observes, decides and writes only when the Node does not carry what it should: one server-side apply, which
also takes away labels of ours that no longer hold, since their owner stops naming them. A pass every 60 seconds is what
node feature discovery does; nothing else polls.

NB: `gfd.timestamp` says when the other labels were written, not when the pod started. Theirs is new with every start
and every interval, a write of each Node each time for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from gpuplane import names
from gpuplane.api.core import Node
from gpuplane.discovery.facts import Facts, observe
from gpuplane.discovery.gpu import TIMESTAMP_LABEL, GpuFacts, gpu_labels, is_gpu_label
from gpuplane.discovery.labels import feature_labels, is_feature_label
from gpuplane.discovery.vgpu import read_vgpu
from gpuplane.errors import GpuplaneError
from gpuplane.host import Host
from gpuplane.operand import OperandContext

log = logging.getLogger("gpuplane.discovery")

INTERVAL = 60.0  # seconds between passes
_FIRST_RETRY = 1.0
FEATURES_MANAGER = names.FIELD_MANAGER_PREFIX + "discovery"
GPU_MANAGER = names.FIELD_MANAGER_PREFIX + "gpu-feature-discovery"

Labels = Mapping[str, str]


def needs_write(on_node: Labels, wanted: Labels, last: Labels | None, ours: Callable[[str], bool]) -> bool:
    """Whether an apply of `wanted` would change anything.

    Args:
        on_node: the Node's labels.
        last: what this process applied last, None before its first. A label of our kind that stays after that belongs
            to somebody else, whom another apply would not move either.
        ours: tells labels of our kind.
    """
    if any(on_node.get(name) != value for name, value in wanted.items()):
        return True
    stale = any(ours(name) and name not in wanted for name in on_node)
    return stale and last != wanted


async def apply_labels(
    context: OperandContext, manager: str, wanted: Labels, last: Labels | None, ours: Callable[[str], bool]
) -> bool:
    """Bring the labels of this node's Node to `wanted` under `manager`; True when that took a write."""
    node = await context.client.get(Node, context.node_name)
    on_node = {name: value for name, value in node.metadata.labels.items() if name != TIMESTAMP_LABEL}
    if not needs_write(on_node, wanted, last, ours):
        return False
    labels = dict(wanted)
    if manager == GPU_MANAGER and wanted:
        labels[TIMESTAMP_LABEL] = str(int(datetime.fromisoformat(context.now()).timestamp()))
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": context.node_name, "labels": labels}}
    await context.client.apply(body, manager, resource=Node.RESOURCE)
    log.info("%s: %d labels applied by %s", context.node_name, len(labels), manager)
    return True


async def run(context: OperandContext) -> None:
    """Keep this node's feature labels true until cancelled. They stay when this ends: they are facts of the machine."""
    host = Host(context.host_root)
    facts: Facts | None = None
    last: Labels | None = None

    async def step() -> None:
        nonlocal facts, last
        facts = observe(host, facts)
        wanted = feature_labels(facts)
        await apply_labels(context, FEATURES_MANAGER, wanted, last, is_feature_label)
        last = wanted

    await _every_interval(context, step)


async def run_gpu(context: OperandContext) -> None:
    """Keep this node's GPU labels true until cancelled.

    NVML is opened for each pass and closed after it: a driver that is in use cannot be upgraded.
    """
    host = Host(context.host_root)
    last: Labels | None = None

    async def step() -> None:
        nonlocal last
        wanted = gpu_labels(observe_gpus(context, host))
        await apply_labels(context, GPU_MANAGER, wanted, last, is_gpu_label)
        last = wanted

    await _every_interval(context, step)


async def uninstall(context: OperandContext) -> None:
    """Take all labels made here, of both workers, off this node's Node."""
    for manager, ours in ((FEATURES_MANAGER, is_feature_label), (GPU_MANAGER, is_gpu_label)):
        await apply_labels(context, manager, {}, None, ours)
    if context.pod_name:
        await asyncio.Event().wait()  # a DaemonSet would start it over; cancelled when the pod is deleted


def observe_gpus(context: OperandContext, host: Host) -> GpuFacts:
    """What NVML and sysfs say of the GPUs now."""
    source = context.open_gpus()
    try:
        gpus = source.inventory()
        driver, cuda = source.driver_version(), source.cuda_version()
    finally:
        source.close()
    devices = {gpu.pci: f"sys/bus/pci/devices/{gpu.pci}" for gpu in gpus}
    virtual = (read_vgpu(host.read(f"{path}/config") or b"") for path in devices.values())
    return GpuFacts(
        driver=driver,
        cuda=cuda,
        gpus=gpus,
        machine=host.read_text("sys/class/dmi/id/product_name") or "",
        classes={pci: host.read_text(f"{path}/class") or "" for pci, path in devices.items()},
        vgpus=tuple(vgpu for vgpu in virtual if vgpu is not None),
    )


async def _every_interval(context: OperandContext, step: Callable[[], Awaitable[None]]) -> None:
    """Run `step` for ever: every INTERVAL, and after an error sooner at first, with doubling pauses up to INTERVAL."""
    retry = _FIRST_RETRY
    said = ""
    while True:
        try:
            await step()
            pause, retry, said = INTERVAL, _FIRST_RETRY, ""
        except GpuplaneError as error:
            if str(error) != said:
                said = str(error)
                log.warning("%s: %s", context.node_name, said)
            pause, retry = retry, min(retry * 2, INTERVAL)
        await context.sleep(pause)

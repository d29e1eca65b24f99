"""The two operands that label their own Node: machine features, and GPU features.

Each pass observes, decides and writes only when the Node does not carry what it should: one server-side apply, which
also takes away labels of ours that no longer hold, since their owner stops naming them. A pass every 60 seconds is what
node feature discovery does; nothing else polls.

NB: `gfd.timestamp` says when the other labels were written, not when the pod started. Theirs is new with every start
and every interval, a write of each Node each time for nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from gpuplane import names
from gpuplane.api.nodefeature import NodeFeatureRule
from gpuplane.api.nodefeature_node import labels_of_others, labels_of_rules, other_discovery
from gpuplane.api.pluginconfig import MACHINE_FILE
from gpuplane.discovery.features import Features, union
from gpuplane.discovery.gpu import TIMESTAMP_LABEL, GpuFacts, gpu_labels, is_gpu_label
from gpuplane.discovery.gpu_config import load
from gpuplane.discovery.labels import feature_labels, is_feature_label
from gpuplane.discovery.match import RuleError, evaluate_object
from gpuplane.discovery.publish import Publisher, wanted_object
from gpuplane.discovery.sources import CustomRules, LocalFeatures, load_rules, observe, read_local
from gpuplane.discovery.sources.reading import text
from gpuplane.discovery.vgpu import read_vgpu
from gpuplane.host import Host
from gpuplane.operand import OperandContext
from gpuplane.operand.configs import NodeConfig, NodeConfiguration, own_labels
from kubekit.api.core import Node
from kubekit.errors import KubekitError
from kubekit.kube import Informer
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.discovery")

INTERVAL = 60.0  # seconds between passes
_FIRST_RETRY = 1.0
FEATURES_MANAGER = names.FIELD_MANAGER_PREFIX + "discovery"
GPU_MANAGER = names.FIELD_MANAGER_PREFIX + "gpu-feature-discovery"

Labels = Mapping[str, str]


def needs_write(on_node: Labels, wanted: Labels, last: Labels | None, ours: Callable[[str], bool]) -> bool:
    """Return whether an apply of `wanted` would change anything.

    Args:
        on_node: the Node's labels.
        last: what this process applied last, None before its first. A label of our kind that stays after that belongs
            to another writer, and another apply would not remove it.
        ours: tells labels of our kind.
    """
    if any(on_node.get(name) != value for name, value in wanted.items()):
        return True
    stale = any(ours(name) and name not in wanted for name in on_node)
    return stale and last != wanted


async def apply_labels(
    context: OperandContext,
    node: Node,
    manager: str,
    wanted: Labels,
    last: Labels | None,
    ours: Callable[[str], bool],
    annotations: Labels | None = None,
    *,
    timestamp: bool = True,
) -> bool:
    """Bring the labels of this node's Node to `wanted` under `manager`; True when that took a write."""
    on_node = {name: value for name, value in node.metadata.labels.items() if name != TIMESTAMP_LABEL}
    if not needs_write(on_node, wanted, last, ours):
        return False
    labels = dict(wanted)
    if manager == GPU_MANAGER and wanted and timestamp:
        labels[TIMESTAMP_LABEL] = str(int(datetime.fromisoformat(context.now()).timestamp()))
    meta: dict[str, Any] = {"name": context.node_name, "labels": labels}
    if annotations:
        meta["annotations"] = dict(annotations)
    body = {"apiVersion": "v1", "kind": "Node", "metadata": meta}
    await context.client.apply(body, manager, resource=Node.RESOURCE)
    log.info("labels applied node=%s count=%d manager=%s", context.node_name, len(labels), manager)
    return True


class DiscoveryWorker:
    """One node's features, from pass to pass."""

    def __init__(self, context: OperandContext, rules: Informer[NodeFeatureRule]) -> None:
        self._context = context
        self._rules = rules
        self._host = context.host
        self._publisher = Publisher(context.client, context.namespace)
        self._machine: Features | None = None
        self._local: LocalFeatures | None = None
        self._custom: CustomRules | None = None
        self._last: Labels | None = None
        self._said: set[str] = set()

    async def step(self) -> None:
        """One pass."""
        features, user_labels = self._observe()
        node = await self._context.client.get(Node, self._context.node_name)
        books = node.metadata.annotations
        wanted = {**feature_labels(features), **user_labels}
        aside = other_discovery(books)
        if aside:
            # A label in the other installation's books stays unchanged, also if this worker wrote it first: no label
            # disappears for a moment.
            kept = labels_of_others(books) & wanted.keys()
            wanted = {name: node.metadata.labels[name] for name in kept if name in node.metadata.labels}
            self._say("node feature discovery of another installation labels this node; standing aside")
        # A rule's label has the last word, as in node feature discovery.
        by_rules = labels_of_rules(books)
        wanted = {name: value for name, value in wanted.items() if name not in by_rules}
        users = frozenset(filter(None, books.get(names.USER_LABELS_ANNOTATION, "").split(",")))
        book = ",".join(sorted(name for name in user_labels if name in wanted))

        def ours(name: str) -> bool:
            return (is_feature_label(name) and name not in by_rules) or name in users

        annotations = {names.USER_LABELS_ANNOTATION: book} if book else None
        await apply_labels(self._context, node, FEATURES_MANAGER, wanted, self._last, ours, annotations)
        self._last = wanted
        if self._rules.has_synced:
            rules = [] if aside else self._rules.items()
            await self._publisher.keep(self._context.node_name, wanted_object(node, features, rules))

    def _observe(self) -> tuple[Features, Labels]:
        """Everything that the machine has, and the labels that users' files make."""
        self._machine = observe(self._host, self._context.node_name, self._machine)
        self._local = read_local(self._host, self._context.now(), self._local)
        self._custom = load_rules(self._host, self._custom)
        for problem in (*self._local.problems, *self._custom.problems):
            self._say(str(problem))
        features = union(self._machine, self._local.features)
        labels: Labels = {}
        try:
            made, left = evaluate_object(self._custom.rules, features)
            labels = made.labels
            features = union(features, Features(attributes={"rule.matched": left}))
        except RuleError as error:
            self._say(f"custom rules: {error}")
        return features, {**labels, **self._local.labels}

    def _say(self, text: str) -> None:
        """Each thing once."""
        if text not in self._said:
            self._said.add(text)
            log.warning("feature file ignored node=%s: %s", self._context.node_name, text)


async def run(context: OperandContext) -> None:
    """Keep this node's feature labels true until cancelled. They stay when this ends: they are facts of the machine."""
    rules = Informer(context.client, NodeFeatureRule)
    changed = asyncio.Event()
    rules.add_handler(lambda old, new: changed.set())
    worker = DiscoveryWorker(context, rules)
    rules.start()
    try:
        await _every_interval(context, worker.step, changed)
    finally:
        await rules.stop()


async def run_gpu(context: OperandContext) -> None:
    """Keep this node's GPU labels true until cancelled.

    The configuration is the device plugin's, chosen by the Node's label, and followed when label or files change; one
    that cannot be read leaves the labels as they are. NVML is opened for each pass and closed after it: a driver that
    is in use cannot be upgraded.
    """
    host = context.host
    last: Labels | None = None
    environment = context.variables

    changed = asyncio.Event()

    async def step(configs: NodeConfig | None) -> float:
        nonlocal last
        config = load(configs.read() if configs is not None else NodeConfiguration(), environment)
        wanted = gpu_labels(observe_gpus(context, host, config.machine_file), config)
        node = await context.client.get(Node, context.node_name)
        written = config.timestamp
        await apply_labels(context, node, GPU_MANAGER, wanted, last, is_gpu_label, timestamp=written)
        last = wanted
        return config.interval

    if context.config is None:
        await _every_interval(context, functools.partial(step, None))
        return
    async with own_labels(context) as labels:
        configs = NodeConfig(context, environment, labels)
        following = asyncio.create_task(_follow(configs, changed))
        try:
            await _every_interval(context, functools.partial(step, configs), changed, eager=True)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _follow(configs: NodeConfig, changed: asyncio.Event) -> None:
    """Set `changed` whenever there is another configuration to follow, or another reason why there is none."""
    while True:
        seen = configs.attempt()
        await configs.changed(seen)
        changed.set()


async def uninstall(context: OperandContext) -> None:
    """Take all labels made here, of both workers, off this node's Node, and its NodeFeature away."""
    await Publisher(context.client, context.namespace).keep(context.node_name, None)
    for manager, ours in ((FEATURES_MANAGER, is_feature_label), (GPU_MANAGER, is_gpu_label)):
        node = await context.client.get(Node, context.node_name)
        users = frozenset(filter(None, node.metadata.annotations.get(names.USER_LABELS_ANNOTATION, "").split(",")))
        mine = users if manager == FEATURES_MANAGER else frozenset()
        await apply_labels(context, node, manager, {}, None, _either(ours, mine))
    if context.pod_name:
        await asyncio.Event().wait()  # a DaemonSet would start it over; cancelled when the pod is deleted


def _either(ours: Callable[[str], bool], mine: frozenset[str]) -> Callable[[str], bool]:
    return lambda name: ours(name) or name in mine


def observe_gpus(context: OperandContext, host: Host, machine_file: str = MACHINE_FILE) -> GpuFacts:
    """Read the GPUs from NVML and sysfs; the machine's name is in `machine_file` of the host."""
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
        machine=text(host, machine_file) or "",
        classes={pci: host.read_text(f"{path}/class") or "" for pci, path in devices.items()},
        vgpus=tuple(vgpu for vgpu in virtual if vgpu is not None),
    )


async def _every_interval(
    context: OperandContext,
    step: Callable[[], Awaitable[float | None]],
    changed: asyncio.Event | None = None,
    *,
    eager: bool = False,
) -> None:
    """Run `step` for ever: after the seconds that it returns (INTERVAL for None) or when something `changed`, and after
    an error sooner at first, with doubling pauses up to INTERVAL.

    Args:
        eager: a change is the cure of most errors, so it ends their pauses too.
    """
    retry = _FIRST_RETRY
    said = ""
    while True:
        if changed is not None:
            changed.clear()
        try:
            pause = await step() or INTERVAL
            retry, said = _FIRST_RETRY, ""
        except KubekitError as error:
            if str(error) != said:
                said = str(error)
                log.warning("pass failed node=%s: %s", context.node_name, said)
            pause, retry = retry, min(retry * 2, INTERVAL)
        await _pause(context, pause, changed, eager=eager)


async def _pause(context: OperandContext, seconds: float, changed: asyncio.Event | None, *, eager: bool) -> None:
    """Sleep, or less when something changed. A change while an error lasts waits, unless `eager`: it would meet the
    same error.
    """
    if changed is None or (seconds < INTERVAL and not eager):
        await context.sleep(seconds)
        return
    await first_of(context.sleep(seconds), changed.wait())

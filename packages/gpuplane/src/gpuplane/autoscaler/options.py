"""The nodes that could be bought: each type of the catalogue as each pool would make it, with its price.

An option is a concrete node to come: labels, taints, allocatable and GPUs are those that its kubelet and its device
plugin will report, less the DaemonSets that will run there. So the filters of kube-scheduler and the placement of
shares decide about it as about a node that exists. Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.karpenter import DeclaredClass, DeclaredPool, PoolKubelet
from gpuplane.api.karpenter_disk import disk_of_class
from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.api.pluginconfig import load as load_plugin_config
from gpuplane.autoscaler.catalogue import REGION_LABEL, InstanceType
from gpuplane.autoscaler.overhead import DISK, UNKNOWN_DISK, allocatable, disk_for_pods, memory_of
from gpuplane.autoscaler.requirements import NodeConditions, admits_labels, pool_conditions
from gpuplane.autoscaler.volume_limits import VolumeLimits
from gpuplane.operand.configs import FALLBACKS, choose
from gpuplane.sharing.forecast import FutureGPUs, forecast
from gpuplane.sharing.node import NodeState, empty
from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput
from kubekit.scheduling import filters
from kubekit.scheduling.podinfo import NodeFacts, NodeTaint, PodInfo, Requests, amounts

_GB: Final = 10**9  # data sheets state disks in these
_MOST_COMBINATIONS: Final = 64  # of values of a pool's own labels; more are not tried


class SharingSettings(msgspec.Struct, frozen=True):
    """The cluster's configuration of GPUs: the device plugin's named configurations, and its environment.

    `known` is False for an autoscaler that knows nothing of sharing: then each GPU is one `nvidia.com/gpu`.
    """

    configs: dict[str, str] = {}
    default: str = ""
    environment: dict[str, str] = {}
    known: bool = True


LessonKey = tuple[str, tuple[tuple[str, int], ...]]
"""(instance type, the sorted allocatable that was predicted)."""
Learned = Mapping[LessonKey, Requests]
"""Prediction -> what nodes of it really offer."""


class NodeOption(msgspec.Struct, frozen=True, eq=False):
    """One node that could be bought. `free` is what its DaemonSets leave of `facts.allocatable`.

    `predicted` is the allocatable before it was corrected by what other nodes turned out to offer. `price` is in
    dollars an hour. `capacity` is what counts against the pool's limits. `gpus` is None where no GPU is placed, only
    counted. Options are compared by identity.
    """

    pool: DeclaredPool
    machine: InstanceType
    capacity_type: str
    zone: str
    price: float
    facts: NodeFacts
    free: Requests
    capacity: Requests
    daemons: tuple[PodInfo, ...] = ()
    gpus: NodeState | None = None
    predicted: Requests = {}

    @property
    def places_shares(self) -> bool:
        return self.gpus is not None and names.VCUDA_CORE in self.facts.allocatable


class PoolOptions(msgspec.Struct, frozen=True, eq=False):
    """The options of one pool, the cheapest first, or `trouble`: why it has none.

    `volume_limits` are those of each of its nodes: no node here attaches more volumes.
    """

    pool: DeclaredPool
    conditions: NodeConditions
    options: tuple[NodeOption, ...]
    trouble: str = ""
    volume_limits: VolumeLimits = {}

    @property
    def has_min_values(self) -> bool:
        return any(condition.min_values for condition in self.conditions.values())


def make_options(
    pool: DeclaredPool,
    classes: Iterable[DeclaredClass],
    catalogue: Sequence[InstanceType],
    sharing: SharingSettings,
    daemons: Sequence[PodInfo] = (),
    *,
    region: str = "",
    zones: Sequence[str] = (),
    asked: Mapping[str, frozenset[str]] = {},
    learned: Learned | None = None,
    disk: int = 0,
) -> PoolOptions:
    """Return what a pool could buy.

    Args:
        daemons: a pod of each DaemonSet.
        zones: where types are offered, unless the pool's class names the zones of its subnets.
        asked: values that pods select of labels, for the pool's own labels that may have any value.
        learned: corrections of what was predicted.
        disk: bytes of the disk of nodes where neither the pool nor its class declares it; 0 for an unknown size.
    """
    settings = next((one for one in classes if (one.kind, one.name) == (pool.class_kind, pool.class_name)), None)
    kubelet = settings.kubelet if settings is not None and pool.kubelet == PoolKubelet() else pool.kubelet
    places = (settings.zones if settings is not None else ()) or tuple(zones) or ("",)
    conditions = pool_conditions(pool.requirements, pool.labels)
    size = (settings.disk_bytes if settings is not None else _own_disk(pool)) or disk
    found: list[NodeOption] = []
    troubles: dict[str, None] = {}
    for machine in catalogue:
        if not all(conditions[key].admits(value) for key, value in machine.labels().items() if key in conditions):
            continue
        joined = machine.nvme_gb * _GB if settings is not None and settings.joins_local_disks else 0
        for own in _own_labels(conditions, machine, asked):
            try:
                template = _template(pool, machine, kubelet, own, sharing, learned or {}, joined or size)
            except InvalidInput as error:
                troubles[f"{machine.name}: {error}"] = None
                continue
            for (capacity_type, price), zone in itertools.product(machine.prices, places):
                if not 0.0 < price < math.inf:  # NaN too: no purchase can be decided by such a price
                    troubles[f"{machine.name}: the price {price} is no price above 0"] = None
                    continue
                labels = {**template.facts.labels, karpenter.CAPACITY_TYPE_LABEL: capacity_type}
                labels |= {karpenter.ZONE_LABEL: zone} if zone else {}
                labels |= {REGION_LABEL: region} if region else {}
                if admits_labels(conditions, labels):
                    found.append(_offering(template, labels, capacity_type, zone, price, daemons))
    found.sort(key=lambda option: (option.price, option.machine.name, option.zone, option.capacity_type))
    trouble = "" if found else next(iter(troubles), "no instance type with a known price satisfies its requirements")
    return PoolOptions(pool, conditions, tuple(found), trouble)


def _own_labels(
    conditions: NodeConditions, machine: InstanceType, asked: Mapping[str, frozenset[str]]
) -> Iterator[dict[str, str]]:
    """Yield the choices of values for the labels that only the pool defines."""
    given = {*machine.labels(), karpenter.CAPACITY_TYPE_LABEL, karpenter.ZONE_LABEL, REGION_LABEL}
    choices: list[list[tuple[str, str]]] = []
    for key, condition in sorted(conditions.items()):
        if key in given or key.startswith(karpenter.INSTANCE_LABEL_PREFIX):
            continue
        values = set(condition.values) if not condition.complement else set(asked.get(key, ()))
        admitted = sorted(value for value in values if condition.admits(value))
        if admitted:
            choices.append([(key, value) for value in admitted])
    for combination in itertools.islice(itertools.product(*choices), _MOST_COMBINATIONS):
        yield dict(combination)


def _template(
    pool: DeclaredPool,
    machine: InstanceType,
    kubelet: PoolKubelet,
    own: Mapping[str, str],
    sharing: SharingSettings,
    learned: Learned,
    disk: int,
) -> NodeOption:
    """Return the option without its offering. Raises InvalidInput for a configuration that cannot be followed."""
    pool_label = (
        karpenter.PROVISIONER_LABEL if pool.kind == karpenter.Provisioner.RESOURCE.kind else karpenter.POOL_LABEL
    )
    # Nodes carry the labels of both generations, so that selectors of either find them.
    labels = {**machine.labels(), **pool.labels, **own, pool_label: pool.name, karpenter.POOL_LABEL: pool.name}
    offers = allocatable(machine, kubelet)
    gpus = _future_gpus(machine, labels, sharing)
    capacity = {"cpu": machine.vcpu * 1000, "memory": memory_of(machine), "pods": offers["pods"]}
    if disk:
        offers[DISK] = disk_for_pods(disk, kubelet)
        capacity[DISK] = disk
    state = None
    if gpus is not None:
        offers |= gpus.offered
        capacity |= gpus.offered
        state = gpus.state
    taints = tuple(NodeTaint(taint.key, taint.value, taint.effect) for taint in pool.taints)
    real = learned.get((machine.name, tuple(sorted(offers.items()))))
    corrected = dict(offers) if real is None else {name: real.get(name, 0) for name in offers} | real
    corrected.setdefault(DISK, UNKNOWN_DISK)
    facts = NodeFacts("", labels, corrected, taints)
    return NodeOption(pool, machine, "", "", 0.0, facts, corrected, capacity, gpus=state, predicted=offers)


def _own_disk(pool: DeclaredPool) -> int:
    """Return the disk that a pool without a class declares; 0 for an unknown size."""
    return disk_of_class(pool.machines) if pool.machines else 0


def _future_gpus(machine: InstanceType, labels: Mapping[str, str], sharing: SharingSettings) -> FutureGPUs | None:
    gpu = machine.gpu
    if gpu is None:
        return None
    if not sharing.known:
        return FutureGPUs({names.GPU_RESOURCE: machine.gpus}, empty("", ()))
    config = _plugin_config(labels.get(names.PLUGIN_CONFIG_LABEL, ""), sharing)
    return forecast(gpu.model, gpu.memory_mib, machine.gpus, config, labels, sharing.environment)


def _plugin_config(label: str, sharing: SharingSettings) -> PluginConfig:
    if not sharing.configs and not label:
        return load_plugin_config(b"", sharing.environment)
    fallbacks = sharing.environment.get(names.PLUGIN_FALLBACKS_ENV) or ",".join(FALLBACKS)
    name = choose(sorted(sharing.configs), label, sharing.default, fallbacks.split(","))
    return load_plugin_config(sharing.configs.get(name, "").encode(), sharing.environment, where=name)


def _offering(
    template: NodeOption,
    labels: dict[str, str],
    capacity_type: str,
    zone: str,
    price: float,
    daemons: Sequence[PodInfo],
) -> NodeOption:
    facts = msgspec.structs.replace(template.facts, labels=labels)
    running = tuple(pod for pod in daemons if admits_pod(pod, facts))
    free = dict(facts.allocatable)
    for pod in running:
        for name, amount in pod.requests.items():
            if name in free:
                free[name] -= amount
        free["pods"] -= 1
    return msgspec.structs.replace(
        template,
        capacity_type=capacity_type,
        zone=zone,
        price=price,
        facts=facts,
        free=free,
        daemons=running,
    )


def admits_pod(pod: PodInfo, facts: NodeFacts) -> bool:
    """Return whether taints and labels of a node admit a pod, whatever room there is."""
    return filters.check_taints(pod, facts) is None and filters.check_affinity(pod, facts) is None


class PoolLimits:
    """The rest of each pool's limits, while nodes are bought."""

    def __init__(self, pools: Iterable[DeclaredPool]) -> None:
        self._left: dict[str, dict[str, int]] = {}
        for pool in pools:
            used, limits = amounts(pool.used), amounts(pool.limits)
            self._left[pool.name] = {name: limit - used.get(name, 0) for name, limit in limits.items()}
        self._largest: dict[int, tuple[Sequence[NodeOption], Requests]] = {}  # by id; the options are held

    def lacking(self, option: NodeOption) -> str:
        """Return the limit that one more node of the option would exceed, as words; empty for none."""
        for name, left in self._left[option.pool.name].items():
            if _counted(option, name) > left:
                limit = parse_quantity(option.pool.limits[name]).normalize()
                return f"the limit {name} {limit:f} of the pool is reached"
        return ""

    def within(self, options: tuple[NodeOption, ...]) -> tuple[NodeOption, ...]:
        """Return those of one pool's options of which one more node exceeds no limit."""
        if not options:
            return options
        left, largest = self._left[options[0].pool.name], self._largest_of(options)
        if all(largest[name] <= left[name] for name in left):
            return options
        return tuple(one for one in options if not self.lacking(one))

    def take(self, options: Sequence[NodeOption]) -> None:
        """Count one node, the largest of the options: so no later choice among them exceeds a limit."""
        self._add(options, -1)

    def give_back(self, options: Sequence[NodeOption]) -> None:
        """Take back a `take`."""
        self._add(options, 1)

    def _add(self, options: Sequence[NodeOption], sign: int) -> None:
        left, largest = self._left[options[0].pool.name], self._largest_of(options)
        for name in left:
            left[name] += sign * largest[name]

    def _largest_of(self, options: Sequence[NodeOption]) -> Requests:
        known = self._largest.get(id(options))
        if known is None:
            names_of = self._left[options[0].pool.name]
            largest = {name: max(_counted(option, name) for option in options) for name in names_of}
            known = self._largest[id(options)] = (options, largest)
        return known[1]


def _counted(option: NodeOption, name: str) -> int:
    return 1 if name == "nodes" else option.capacity.get(name, 0)

"""A cluster as `gpuplane explain` sees it at one moment, and every node's verdict on one pod. Pure.

The decisions are the production ones: the filters as kube-scheduler has them, quotas and placement as the extender has
them. So a changed pod, or a pod less, can be evaluated too, and a cure is proved before it is listed.

Invariants:

- Every node has one verdict, with its first failing reason from the outside in: no GPUs, what kube-scheduler asks of
  nodes, what gpuplane has prepared, quota, GPUs.
- The GPUs of a node are counted only where GPUs are what fails, each under its own first failing reason. A node
  whose GPUs are all lost is such a node, although its kubelet offers no GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, GPUNodeStatus, StageName
from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.api.offers import WHOLE, GpuUnits, UnitKind, offered_units, shared_by_mps, units_asked
from gpuplane.api.requests import is_gpu
from gpuplane.explain.holdings import Holdings, mended
from gpuplane.explain.scheduling_reading import SchedulingFacts
from gpuplane.scheduler.quota import NamespaceQuota, QuotaCheck, QuotaSettings, QuotaUsage
from gpuplane.scheduler.transforms import CachedPod, by_count, place_of, transform_node, transform_pod
from gpuplane.sharing import POLICIES, Assignment, LedgerGPU, Request, empty, gpus_of, request_of
from gpuplane.sharing.node import shared_gpus
from gpuplane.sharing.placement import Lack, Placement, Policy, Refusal, place
from gpuplane.sharing.placement.lacking import ALL_LOST
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.registry import policy_named
from kubekit.api.core import Node, Pod, has_ended
from kubekit.api.quantity import whole
from kubekit.errors import InvalidInput
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.filters import UNSCHEDULABLE_TAINT, Failure, node_matches, tolerates, untolerated
from kubekit.scheduling.podinfo import Affinity, NodeFacts, PodInfo, compile_node, compile_pod

if TYPE_CHECKING:
    from gpuplane.explain.scheduler_view import SchedulerView

Object = dict[str, Any]
GPU_RESOURCES: Final = frozenset({names.GPU_RESOURCE, names.VCUDA_CORE, names.VCUDA_MEMORY, names.ALPHA_GPU})
# kube-scheduler's words as people would say them of one node.
_SAID: Final = {
    "NodePorts": "has its host port in use",
    "PodTopologySpread": "does not fit its topology spread",
    "InterPodAffinity": "does not fit its pod affinity",
}
TOO_MANY: Final = "Too many pods"
_NO_GPUS: Final = "no GPUs"
CORDONED: Final = "cordoned"


class ClusterFacts(msgspec.Struct, frozen=True):
    """The objects read from the cluster: pods and nodes as received, everything else decoded."""

    pods: Sequence[Object]
    nodes: Sequence[Object]
    gpunodes: Sequence[GPUNode] = ()
    namespaces: Mapping[str, dict[str, str]] = {}
    quotas: Mapping[str, NamespaceQuota] = {}
    naming: QuotaSettings = QuotaSettings()
    queues: Sequence[GPUQueue] = ()
    scheduling: SchedulingFacts = SchedulingFacts()
    viewer: str = ""  # the namespace whose pods may be named; empty for all


class NodeVerdict(msgspec.Struct, frozen=True):
    """One node's: `reason` is empty where the pod may go. `about` is what it is about: node, quota or gpus.

    `lacks` says of each GPU why it would not do, where GPUs are what fails; `placement` what it would hold.
    """

    node: str
    reason: str = ""
    about: str = ""
    lacks: tuple[Lack, ...] = ()
    placement: Placement | None = None


class World:
    """The cluster; `judge` asks it about a pod."""

    def __init__(self, facts: ClusterFacts) -> None:
        self.holdings = Holdings()
        self.usage = QuotaUsage()
        self.facts = facts
        self.nodes: dict[str, NodeFacts] = {}
        self.gpunodes = {node.metadata.name: node for node in facts.gpunodes}
        self.pods: dict[str, CachedPod] = {}  # with GPUs, by UID
        self.assigned = False  # an annotation says which GPUs a pod holds, so the extender is at work
        self._cache = SchedulerCache()
        self._ready: set[str] = set()
        self._mix = Mix()
        self._made: dict[str, Policy] = {}
        self._raw: dict[str, Object] = {}
        self.scheduler: SchedulerView | None = None  # made for the first pod that needs it
        for raw in facts.nodes:
            # An object that does not decode is absent, as it is for informers: it must not stop every explanation.
            with contextlib.suppress(msgspec.ValidationError):
                self._set_node(raw)
        for name, labels in facts.namespaces.items():
            self._cache.set_namespace(name, labels)
        for raw in facts.pods:
            with contextlib.suppress(msgspec.ValidationError):
                self._count(raw)

    # -- what there is -------------------------------------------------------------------------------------------------

    def _set_node(self, raw: Object) -> None:
        node = transform_node(msgspec.convert(raw, Node))
        name = node.metadata.name
        try:
            known = compile_node(raw)
        except InvalidInput:
            return  # an invalid quantity: the scheduler places no pod there
        self._raw[name], self.nodes[name] = raw, known
        self._cache.set_node(known)
        if node.ready:
            self._ready.add(name)
        gpunode = self.gpunodes.get(name)
        gpus = gpus_of(gpunode) if gpunode is not None else node.gpus
        gpus = shared_gpus(gpus, by_mps=shared_by_mps(node.labels))
        self.usage.set_place(name, place_of(node, self.facts.naming, gpus))
        if gpus:
            self.holdings.set_node(name, gpus, by_count=by_count(node, gpus))

    def raw(self, node: str) -> Object:
        """The node as it came."""
        return self._raw[node]

    @contextlib.contextmanager
    def with_node(self, raw: Object, gpunode: GPUNode | None = None) -> Iterator[None]:
        """The cluster with one node more, or with another one of that name, for as long as the context lasts."""
        name = raw["metadata"]["name"]
        before, known = self._raw.get(name), self.gpunodes.get(name)
        if gpunode is not None:
            self.gpunodes[name] = gpunode
        self._set_node(raw)
        try:
            yield
        finally:
            self.gpunodes.pop(name, None)
            if known is not None:
                self.gpunodes[name] = known
            if before is not None:
                self._set_node(before)
            else:
                del self._raw[name], self.nodes[name]
                self._ready.discard(name)
                self._cache.remove_node(name)
                self.usage.set_place(name, None)
                self.holdings.drop_node(name)

    def _count(self, raw: Object) -> None:
        """Counts a bound pod on its node."""
        if has_ended((raw.get("status") or {}).get("phase")):
            return
        with contextlib.suppress(InvalidInput):
            info = compile_pod(raw)
            if info.node_name:
                self._cache.place(info)
            if not any(map(is_gpu, info.requests)):
                return
        whole = msgspec.convert(raw, Pod)
        pod = transform_pod(whole) or _of_devices(whole)
        if pod is None:
            return
        self.pods[pod.metadata.uid] = pod
        self._mix.seen(pod.request)
        if pod.spec.node_name:
            self.assigned |= pod.assignment is not None
            self.holdings.add(pod)
            self._use(pod)

    def _use(self, pod: CachedPod) -> None:
        """Counts what a bound pod uses of its namespace's quota."""
        meta, request = pod.metadata, pod.request
        where = meta.uid, meta.namespace, pod.spec.node_name
        self.usage.add(*where, request.core, meta.name, by_count=request.by_count)

    def has_lower(self, priority: int) -> bool:
        """Return whether a bound pod has a lower priority."""
        return any(other < priority for other in self._cache.priorities)

    def shown(self, pod: CachedPod) -> str:
        """Return the pod as namespace/name, or without both where the viewer may not know them."""
        if self.facts.viewer not in ("", pod.metadata.namespace):
            return "a pod of another namespace"
        return pod.shown

    def gpus(self, node: str) -> tuple[LedgerGPU, ...]:
        return self.holdings.gpus(node)

    @contextlib.contextmanager
    def without(self, uid: str) -> Iterator[None]:
        """The cluster without one of its pods, for as long as the context lasts."""
        pod = self.pods[uid]
        info = self._cache.remove(pod.shown)
        self.usage.remove(uid)
        try:
            with self.holdings.without(pod):
                yield
        finally:
            if info is not None:
                self._cache.place(info)
            self._use(pod)

    # -- verdicts ------------------------------------------------------------------------------------------------------

    def judge(self, raw: Object, nodes: Iterable[str] | None = None) -> list[NodeVerdict]:
        """Every node's verdict on a pod, or that of some, by name. Raises InvalidInput for what can never run."""
        request = request_of(msgspec.convert(raw, Pod))
        # NB: where its volumes may be is explained by what `volume_reading` reads of them.
        info = msgspec.structs.replace(compile_pod(raw), volumes=())
        check = FilterCheck(info, self._cache, GPU_RESOURCES.union(_devices(info)))
        quota = self.facts.quotas.get(info.namespace)
        allowed = QuotaCheck(quota, self.usage, info.namespace, info.uid, request.core, by_count=request.by_count)
        wanted = self.nodes if nodes is None else nodes
        return [self._verdict(name, info, request, check, allowed) for name in sorted(wanted)]

    def _verdict(
        self, name: str, pod: PodInfo, request: Request, check: FilterCheck, allowed: QuotaCheck
    ) -> NodeVerdict:
        facts, gpus = self.nodes[name], self.gpus(name)
        dialects = dict.fromkeys([*(ask.dialect for ask in request.asks), *_devices(pod)])
        if not gpus and not any(map(facts.allocatable.get, dialects)):
            return NodeVerdict(name, _NO_GPUS, "node")
        if failure := check(self._cache.nodes[name]):
            return NodeVerdict(name, _words(failure, pod, facts), "node")
        if name not in self._ready:
            return NodeVerdict(name, "not Ready", "node")
        for dialect in dialects:
            if not facts.allocatable.get(dialect):
                return self._not_offered(name, dialect)
        verdict = allowed(name)
        if verdict.reason:
            return NodeVerdict(name, verdict.reason, "quota")
        for resource in _devices(pod):
            if lack := self._by_count(name, pod, resource):
                return lack
        if not request:
            return NodeVerdict(name, placement=Placement(Assignment({}, node=name), 0))
        if not self._by_ledger(request) or (state := self.holdings.node(name)) is None:
            whole = self._by_count(name, pod, names.GPU_RESOURCE)
            return whole or NodeVerdict(name, placement=Placement(Assignment({}, node=name), 0))
        policy, gpu_policy = self._policies(request)
        placed = place(state, request, policy, gpu_policy)
        if isinstance(placed, Refusal):
            return NodeVerdict(name, placed.reason, "gpus", placed.gpus)
        if not placed.assignment.containers and (lack := self._by_count(name, pod, names.GPU_RESOURCE)):
            return lack
        return NodeVerdict(name, placement=placed)

    def _policies(self, request: Request) -> tuple[Policy, Policy]:
        """Those that the pod names, else the extender's default, knowing of the pods and nodes that there are.

        How an extender was started is not written in the cluster.
        """
        node = self._policy(request.node_policy or POLICIES[0])
        return node, self._policy(request.gpu_policy) if request.gpu_policy else node

    def _policy(self, name: str) -> Policy:
        if name not in self._made:
            self._made[name] = policy_named(name, self._mix, [state.gpus for state in self.holdings.bare_nodes()])
        return self._made[name]

    def _by_ledger(self, request: Request) -> bool:
        """Return whether the extender places this pod: shares always, whole GPUs where it is at work."""
        return self.assigned or any(ask.dialect != names.GPU_RESOURCE for ask in request.asks)

    def _by_count(self, name: str, pod: PodInfo, resource: str) -> NodeVerdict | None:
        """As kube-scheduler decides by itself: it counts devices, and the kubelet chooses; None where enough are
        free.
        """
        asked, gpus = pod.requests.get(resource, 0), self.gpus(name)
        free = self.nodes[name].allocatable[resource] - self._cache.nodes[name].requested.get(resource, 0)
        if asked <= free:
            return None
        unit = self._unit(name, resource)
        words = unit.named(asked)
        if unit.kind is UnitKind.WHOLE:
            words = f"{asked} whole {words.partition(' ')[2]}"
        reason = f"{words} asked, {max(0, free)} free"
        if unit.kind is not UnitKind.WHOLE or not gpus or len(gpus) < unit.count:
            return NodeVerdict(name, reason, "gpus")
        return NodeVerdict(name, reason, "gpus", tuple(_counted(gpus, max(0, free))))

    def _unit(self, name: str, resource: str) -> GpuUnits:
        """Return what the node offers under the name of the resource."""
        units = {unit.resource: unit for unit in self.units(name)}
        amount = self.nodes[name].allocatable[resource]
        return units.get(resource) or GpuUnits(resource, UnitKind.WHOLE, amount, WHOLE)

    def units(self, name: str) -> tuple[GpuUnits, ...]:
        """Return the units that the node offers; while its GPUs are lost, those that its kubelet counts with them."""
        gpunode = self.gpunodes.get(name)
        status = gpunode.status if gpunode is not None else GPUNodeStatus()
        raw, by_mps = self.raw(name), shared_by_mps(self.nodes[name].labels)
        offered = offered_units(devices_of(raw, "allocatable"), status.gpus, status.health, by_mps=by_mps)
        return offered or offered_units(devices_of(raw), status.gpus, by_mps=by_mps)

    def _not_offered(self, name: str, dialect: str) -> NodeVerdict:
        if waits_for := self._unprepared(name):
            return NodeVerdict(name, f"not prepared: waits for {waits_for}", "node")
        gpus = self.gpus(name)
        if not gpus or not all(gpu.fault for gpu in gpus):
            return NodeVerdict(name, not_offered(dialect), "node")
        # The kubelet's capacity has the devices of lost GPUs, unless the device plugin started after the loss.
        devices = devices_of(self.raw(name))
        if devices and dialect not in devices:
            return NodeVerdict(name, not_offered(dialect), "node")
        return NodeVerdict(name, ALL_LOST, "gpus", tuple(Lack(gpu.index, "lost") for gpu in gpus))

    def _unprepared(self, name: str) -> str:
        """Return what the node's preparation waits for; empty for a node that is ready or not gpuplane's."""
        gpunode = self.gpunodes.get(name)
        summary = gpunode.status.summary if gpunode is not None else None
        unready = summary is not None and summary.stage and summary.stage != StageName.READY
        return summary.waits_for or summary.stage if summary is not None and unready else ""

    def can_ever_run(self, raw: Object) -> bool:
        """Return whether some node could take the pod if the cluster had no other pods, and no GPU were lost."""
        request = request_of(msgspec.convert(raw, Pod))
        policy, gpu_policy = self._policies(request)
        pod = compile_pod(raw)
        counted = _devices(pod) or (() if self._by_ledger(request) else (names.GPU_RESOURCE,))
        if counted and any(
            self._unprepared(name) or all(self._most(name, one) >= pod.requests[one] for one in counted)
            for name in self.nodes
        ):
            return True
        for state in self.holdings.bare_nodes() if request else ():
            free = msgspec.structs.replace(empty(state.name, mended(state).gpus), by_count=state.by_count)
            placed = place(free, request, policy, gpu_policy)
            asked = pod.requests.get(names.GPU_RESOURCE, 0)
            enough = not state.by_count or self._most(state.name, names.GPU_RESOURCE) >= asked
            if isinstance(placed, Placement) and enough:
                return True
        return False

    def _most(self, name: str, resource: str) -> int:
        """Return how much of the resource the node offers while no GPU is lost."""
        offered = self.nodes[name].allocatable.get(resource, 0)
        if not any(gpu.fault for gpu in self.gpus(name)):
            return offered
        known = devices_of(self.raw(name)).get(resource, 0)
        # Before a device plugin that started after the loss, there were whole GPUs, as far as anyone knows.
        return max(offered, known) or (len(self.gpus(name)) if resource == names.GPU_RESOURCE else 0)


def not_offered(dialect: str) -> str:
    """The reason of a node that is prepared and does not offer what the pod asks by."""
    return f"{dialect} not offered"


def devices_of(node: Object, amounts: str = "capacity") -> dict[str, int]:
    """Return the GPUs, their parts and shares that a node's kubelet counts: numbers above 0 by resource.

    Args:
        amounts: the field of the node's status; `capacity` has lost ones too, `allocatable` has not.
    """
    found = {}
    for name, amount in ((node.get("status") or {}).get(amounts) or {}).items():
        if name.startswith(names.NVIDIA_PREFIX) or name in GPU_RESOURCES:
            with contextlib.suppress(InvalidInput):
                found[name] = whole(amount)
    return {name: number for name, number in found.items() if number > 0}


def _devices(pod: PodInfo) -> tuple[str, ...]:
    """Return the resources that only kube-scheduler and the kubelet count: renamed replicas, MIG devices."""
    return tuple(
        sorted(
            name
            for name, number in pod.requests.items()
            if number and name.startswith(names.NVIDIA_PREFIX) and name != names.GPU_RESOURCE
        )
    )


def _of_devices(pod: Pod) -> CachedPod | None:
    """Return a pod that holds devices of which placement knows nothing; None for other pods."""
    if not pod.spec.node_name or not units_asked(pod).keys() - GPU_RESOURCES:
        return None
    return CachedPod(metadata=pod.metadata, spec=pod.spec, status=pod.status)


def _counted(gpus: Iterable[LedgerGPU], free: int) -> Iterator[Lack]:
    """The GPUs where only their number is known: the lost ones, as many as are free, the others held."""
    for gpu in gpus:
        if gpu.fault:
            yield Lack(gpu.index, "lost")
        elif free > 0:
            free -= 1
            yield Lack(gpu.index)
        else:
            yield Lack(gpu.index, "held")


def _words(failure: Failure, pod: PodInfo, node: NodeFacts) -> str:
    if failure.plugin == "NodeUnschedulable":
        return CORDONED
    if failure.plugin == "TaintToleration":
        taint = untolerated(node.taints, pod.tolerations)
        if taint is not None:
            if taint.key == UNSCHEDULABLE_TAINT.key and not tolerates(pod.tolerations, taint):
                return CORDONED
            value = f"={taint.value}" if taint.value else ""
            return f"taint {taint.key}{value}:{taint.effect} not tolerated"
    if failure.plugin == "NodeAffinity":
        for wanted in pod.affinity.node_selector:
            if not node_matches(Affinity(node_selector=(wanted,)), node.name, node.labels):
                return f"nodeSelector {wanted.key}={','.join(wanted.values)} does not match"
        return "node affinity does not match"
    if failure.plugin == "NodeResourcesFit":
        short = [reason.removeprefix("Insufficient ") for reason in failure.reasons if reason != TOO_MANY]
        said = [f"{' and '.join(short)} short"] if short else []
        return ", ".join(said + ["too many pods"] * (TOO_MANY in failure.reasons))
    return _SAID.get(failure.plugin, "; ".join(failure.reasons))

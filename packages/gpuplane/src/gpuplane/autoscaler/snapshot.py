"""The cluster and the cloud at one moment, for decisions about nodes: pods that wait, nodes, and offers.

Pure: objects in, one Struct out. Nodes that are about to go hold nothing any more, and their pods wait for another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.karpenter import DeclaredClass, DeclaredPool
from gpuplane.api.nodeclaim import DISRUPTED_TAINT, INITIALIZED, NodeClaim
from gpuplane.api.nodeoverlay import NodeOverlay
from gpuplane.autoscaler.asks import PodAsk, PodReading, asks_of, selected_values
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.existing import ExistingNode
from gpuplane.autoscaler.nodes import OptionIndex, claim_options, is_true, node_of_claim, node_without_claim
from gpuplane.autoscaler.observed import DaemonView, PodView
from gpuplane.autoscaler.options import Learned, PoolOptions, SharingSettings, make_options
from gpuplane.autoscaler.overlays import apply_overlays
from gpuplane.autoscaler.preferences import PreferenceRules, preference_rules
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.autoscaler.volume_limits import AttachedVolumes, VolumeLimits, VolumeRoom
from gpuplane.autoscaler.volumes import PodVolumeClaim, VolumeFacts
from kubekit.api.core import Node
from kubekit.scheduling.podinfo import Requests, amounts

ClosedOffering = tuple[str, str, str]
"""(capacity type, instance type, zone) that the cloud refused."""


class ScalingFacts(msgspec.Struct, frozen=True, dict=True):
    """The objects of the cluster that decisions read.

    `gpunodes` and `volume_limits` are by the name of their node, `overlays` those without a conflict. `most_volumes`
    are the most of each driver that any node has stated, also one that is gone.
    `respect_preferences`: what pods prefer counts, until no node keeps it.
    """

    pods: Sequence[PodView] = ()
    nodes: Sequence[Node] = ()
    claims: Sequence[NodeClaim] = ()
    gpunodes: Mapping[str, GPUNode] = {}
    pools: Sequence[DeclaredPool] = ()
    classes: Sequence[DeclaredClass] = ()
    daemons: Sequence[DaemonView] = ()
    sharing: SharingSettings = SharingSettings()
    overlays: Sequence[NodeOverlay] = ()
    respect_preferences: bool = True
    volumes: VolumeFacts = VolumeFacts()
    volume_limits: Mapping[str, VolumeLimits] = {}
    most_volumes: VolumeLimits = {}

    @cached_property
    def attached(self) -> AttachedVolumes:
        """Return the volumes of all pods, as they count on nodes."""
        return AttachedVolumes(self.volumes, self.volume_limits, self.most_volumes, _claimed(self.pods))

    def reading(self, pod: PodView) -> PodReading:
        """Return a pod as an ask is made of it."""
        return pod.reading(self.volumes, self.attached)

    def volume_room(self, node: str, pods: Iterable[PodView], claim: NodeClaim | None) -> VolumeRoom:
        """Return the volumes that a node can attach next to those of pods.

        Args:
            claim: its own; until it is initialised, its drivers may still have to state their numbers.
        """
        joins = claim is not None and not is_true(claim.status.conditions, INITIALIZED)
        return self.attached.room(node, _claimed(pods), joins=joins)

    def rules(self) -> PreferenceRules:
        """Return how the preferences of pods count."""
        return preference_rules(self.respect_preferences, self.pools, self.nodes)


class CloudFacts(msgspec.Struct, frozen=True):
    """The offers of the cloud at this moment.

    `zones` are those of each pool's subnets, `troubles` say why nothing can be launched of a pool; both by its name.
    `learned` corrects what real nodes turned out to offer. `disks` are the bytes of the disks of launch templates that
    pools name, by the name of the pool.
    """

    types: Sequence[InstanceType] = ()
    region: str = ""
    zones: Mapping[str, tuple[str, ...]] = {}
    troubles: Mapping[str, str] = {}
    closed: Collection[ClosedOffering] = frozenset()
    learned: Learned = {}
    disks: Mapping[str, int] = {}


class ClusterSnapshot(msgspec.Struct, frozen=True, eq=False):
    """One moment. `offers` are what can be bought now, `nodes` what pods may be placed on without buying.

    `all_offers` have the closed offerings too. `displaced` are those pods of `asks`, as namespace/name, that run on
    nodes that go.
    """

    asks: tuple[PodAsk, ...]
    offers: tuple[PoolOptions, ...]
    nodes: tuple[ExistingNode, ...]
    all_offers: tuple[PoolOptions, ...]
    displaced: frozenset[str] = frozenset()

    def offers_of(self, pool: str) -> PoolOptions | None:
        """Return what a pool can buy now; None for an unknown pool."""
        return next((found for found in self.offers if found.pool.name == pool), None)


def take_snapshot(facts: ScalingFacts, cloud: CloudFacts, without: Collection[str] = ()) -> ClusterSnapshot:
    """Return the cluster at this moment.

    Args:
        without: nodes, or claims without a node, that are taken as gone: to ask what their pods would need.
    """
    by_node: dict[str, list[PodView]] = {}
    for pod in facts.pods:
        if pod.info is not None and pod.info.node_name:
            by_node.setdefault(pod.info.node_name, []).append(pod)
    claims = {claim.status.node_name or claim.metadata.name: claim for claim in facts.claims}
    by_provider = {claim.status.provider_id: claim for claim in facts.claims if claim.status.provider_id}
    ending = _ending(facts, by_provider, without)
    # A node that only has the taint goes once its replacements are there, and disruption buys these.
    tainted = {
        node.metadata.name for node in facts.nodes if any(taint.key == DISRUPTED_TAINT for taint in node.spec.taints)
    }
    going = ending | tainted
    displaced = [pod for name in sorted(ending) for pod in by_node.get(name, ()) if pod.moves]
    running = [pod.info for name, pods in by_node.items() if name not in ending for pod in pods if pod.info is not None]
    asking = [*(pod for pod in facts.pods if pod.waits), *displaced]
    asks = asks_of([facts.reading(pod) for pod in asking], running, facts.rules())
    all_offers = make_offers(facts, cloud, selected_values(asks))
    index = OptionIndex(all_offers)
    nodes: list[ExistingNode] = []
    joined: set[str] = set()
    for node in facts.nodes:
        name = node.metadata.name
        claim = claims.get(name) or by_provider.get(node.spec.provider_id)
        if claim is not None:
            joined.add(claim.metadata.name)
        if name in going:
            continue
        here, gpunode = by_node.get(name, ()), facts.gpunodes.get(name)
        volumes = facts.volume_room(name, here, claim)
        if claim is None:
            nodes.append(node_without_claim(node, gpunode, here, facts.daemons, volumes))
        else:
            nodes.append(node_of_claim(claim, node, gpunode, here, facts.daemons, index.of(claim), volumes))
    for claim in facts.claims:
        name = claim.metadata.name
        if name in joined or name in without or claim.metadata.deletion_timestamp:
            continue
        volumes = facts.volume_room("", (), claim)
        nodes.append(node_of_claim(claim, None, None, (), facts.daemons, index.of(claim), volumes))
    return ClusterSnapshot(
        asks=tuple(asks),
        offers=tuple(_open(one, cloud) for one in all_offers),
        nodes=tuple(nodes),
        all_offers=all_offers,
        displaced=frozenset(pod.info.key for pod in displaced if pod.info is not None),
    )


def make_offers(facts: ScalingFacts, cloud: CloudFacts, asked: Mapping[str, frozenset[str]]) -> tuple[PoolOptions, ...]:
    """Return what each pool offers, closed offerings among it. Its `used` is counted from the claims themselves.

    Args:
        asked: values that pods select of labels, for the pools' own labels that may have any value.
    """
    daemons = [daemon.info for daemon in facts.daemons if daemon.info is not None]
    offers = []
    for pool in facts.pools:
        found = make_options(
            pool,
            facts.classes,
            cloud.types,
            facts.sharing,
            daemons,
            region=cloud.region,
            zones=cloud.zones.get(pool.name, ()),
            asked=asked,
            learned=cloud.learned,
            disk=cloud.disks.get(pool.name, 0),
        )
        found = apply_overlays(found, facts.overlays)
        used = used_of_pool(pool.name, facts.claims, found)
        counted = msgspec.structs.replace(pool, used=as_quantities(used))
        offers.append(msgspec.structs.replace(found, pool=counted, volume_limits=facts.most_volumes))
    return tuple(offers)


def used_of_pool(pool: str, claims: Iterable[NodeClaim], found: PoolOptions | None) -> Requests:
    """Return what the nodes of a pool count against its limits: `nodes` and their capacity, `cpu` in thousandths.

    A claim that has launched nothing yet counts as the largest of the nodes that it may become.
    """
    used: Requests = {"nodes": 0}
    for claim in claims:
        if _pool_of(claim) != pool:
            continue
        used["nodes"] += 1
        capacity = amounts(claim.status.capacity)
        if not capacity:
            for option in claim_options(claim, found):
                for name, amount in option.capacity.items():
                    capacity[name] = max(capacity.get(name, 0), amount)
        for name, amount in capacity.items():
            used[name] = used.get(name, 0) + amount
    return used


def _claimed(pods: Iterable[PodView]) -> Iterable[tuple[str, tuple[PodVolumeClaim, ...]]]:
    return ((pod.info.namespace, pod.claims) for pod in pods if pod.claims and pod.info is not None)


def _pool_of(claim: NodeClaim) -> str:
    return claim.metadata.labels.get(karpenter.POOL_LABEL, "")


def _ending(facts: ScalingFacts, by_provider: Mapping[str, NodeClaim], without: Collection[str]) -> frozenset[str]:
    """Return the nodes that are being deleted, or taken as gone, by name: their pods need another node."""
    deleting = {claim.status.node_name for claim in facts.claims if claim.metadata.deletion_timestamp}
    ending = set()
    for node in facts.nodes:
        name = node.metadata.name
        claim = by_provider.get(node.spec.provider_id)
        ends = claim is not None and bool(claim.metadata.deletion_timestamp)
        if name in without or name in deleting or ends or node.metadata.deletion_timestamp:
            ending.add(name)
    return frozenset(ending)


def _open(found: PoolOptions, cloud: CloudFacts) -> PoolOptions:
    """Return the options that the cloud has at this moment."""
    trouble = cloud.troubles.get(found.pool.name, "")
    if trouble:
        return msgspec.structs.replace(found, options=(), trouble=trouble)
    if not cloud.closed or not found.options:
        return found
    options = tuple(one for one in found.options if (one.capacity_type, one.machine.name, one.zone) not in cloud.closed)
    return msgspec.structs.replace(
        found,
        options=options,
        trouble="" if options else "the cloud has no capacity of its types; tried again in 3 min",
    )

"""The autoscaler's view of the cluster, kept by watches: the facts from which decisions are made."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.karpenter import (
    AWSNodeTemplate,
    DeclaredClass,
    DeclaredPool,
    EC2NodeClass,
    NodePool,
    Provisioner,
    declared_class,
    declared_pool,
)
from gpuplane.api.nodeclaim import INITIALIZED, NodeClaim
from gpuplane.api.nodeoverlay import NodeOverlay
from gpuplane.autoscaler.lessons import OF_MACHINES, JoinedNode, Lessons
from gpuplane.autoscaler.nodes import is_true
from gpuplane.autoscaler.observed import DaemonView, PodView, RawDaemonSet, view_daemon, view_pod
from gpuplane.autoscaler.options import Learned, SharingSettings
from gpuplane.autoscaler.overlays import is_applied
from gpuplane.autoscaler.policies import policy_sharing
from gpuplane.autoscaler.requirements import pool_conditions
from gpuplane.autoscaler.snapshot import ScalingFacts
from gpuplane.autoscaler.volume_limits import NodeDrivers, view_drivers
from gpuplane.autoscaler.volumes import (
    PlacedVolume,
    VolumeClass,
    VolumeFacts,
    WantedVolume,
    view_claim,
    view_class,
    view_volume,
)
from kubekit.api.core import ConfigMap, Node, Pod
from kubekit.api.raw import RawPod
from kubekit.documents import LONGEST_VALUE, DocumentError, decode_json
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Clock, Informer, SharedInformers
from kubekit.scheduling.podinfo import Requests, amounts

log = logging.getLogger("gpuplane.autoscaler")
BY_PROVIDER: Final = "provider-id"  # index of nodes and of claims; the name that `termination` uses
WAITING: Final = "waiting"  # index of pods: those that wait for a node, under this name
BY_NODE: Final = "node"  # index of pods
_SHORTEST_LIFE_SECONDS: Final = 60.0  # a machine takes longer to boot and to join
_LONGEST_NAME: Final = 63  # nodes carry the name of their pool as a label


class ClusterWatch:
    """The informers that decisions read. `overlays` is None where NodeOverlays have no effect."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        clock: Clock,
        *,
        overlays: bool = False,
        respect_preferences: bool = True,
        relax_min_values: bool = False,
    ) -> None:
        self._respect_preferences = respect_preferences
        self._relax_min_values = relax_min_values
        self.nodes = informers.of(Node)
        self.claims = informers.of(NodeClaim)
        self.gpunodes = informers.of(GPUNode)
        self.provisioners = informers.of(Provisioner)
        self.node_pools = informers.of(NodePool)
        self.templates = informers.of(AWSNodeTemplate)
        self.node_classes = informers.of(EC2NodeClass)
        self.overlays = informers.of(NodeOverlay) if overlays else None
        self.policies = informers.of(ClusterPolicy)
        self.configs = informers.of(ConfigMap, names.OPERATOR_NAMESPACE)
        # Controllers that ask for pods get these views: pods are in memory once.
        raw: Informer[Any] = Informer(client, RawPod, keep=view_pod, clock=clock)
        self.pods: Informer[Pod] = informers.share(Pod, raw)
        self.daemons: Informer[RawDaemonSet] = Informer(client, RawDaemonSet, keep=view_daemon, clock=clock)
        self.volume_claims = Informer(client, WantedVolume, keep=view_claim, clock=clock)
        self.volumes = Informer(client, PlacedVolume, keep=view_volume, clock=clock)
        self.storage_classes = Informer(client, VolumeClass, keep=view_class, clock=clock)
        self.node_drivers = Informer(client, NodeDrivers, keep=view_drivers, clock=clock)
        self.pods.add_index(WAITING, lambda pod: (WAITING,) if isinstance(pod, PodView) and pod.waits else ())
        self.pods.add_index(BY_NODE, _node_of)
        self.nodes.add_index(BY_PROVIDER, lambda node: (node.spec.provider_id,) if node.spec.provider_id else ())
        self.claims.add_index(
            BY_PROVIDER, lambda claim: (claim.status.provider_id,) if claim.status.provider_id else ()
        )
        self._most_volumes: dict[str, int] = {}  # driver -> the most that a node has stated, also one that is gone
        self._lessons = Lessons(clock)
        self._refused: dict[str, str] = {}  # objects that cannot be read -> why, as it was logged

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """Return all of them, for controllers to wait for."""
        return (
            *(self.nodes, self.claims, self.gpunodes, self.provisioners, self.node_pools, self.templates),
            *(self.node_classes, self.policies, self.configs, self.pods, self.daemons),
            *([self.overlays] if self.overlays is not None else ()),
            *(self.volume_claims, self.volumes, self.storage_classes, self.node_drivers),
        )

    def waiting(self) -> list[PodView]:
        """Return the pods that wait for a node."""
        return [pod for pod in self.pods.by_index(WAITING, WAITING) if isinstance(pod, PodView)]

    def pool_objects(self) -> list[Provisioner | NodePool]:
        """Return the pools of both generations that are not being deleted."""
        found: list[Provisioner | NodePool] = [*self.provisioners.items(), *self.node_pools.items()]
        return [pool for pool in found if not pool.metadata.deletion_timestamp]

    def pool_object(self, name: str) -> Provisioner | NodePool | None:
        """Return a pool by its name; of two generations the newer one."""
        return self.node_pools.get(name) or self.provisioners.get(name)

    def pools(self) -> list[DeclaredPool]:
        """Return what the pools declare that can be bought for; of two with one name the newer generation's."""
        found = {pool.metadata.name: declared_pool(pool) for pool in self.pool_objects() if not why_refused(pool)}
        if self._relax_min_values:
            found = {name: msgspec.structs.replace(pool, relaxes_min_values=True) for name, pool in found.items()}
        return [found[name] for name in sorted(found)]

    def classes(self) -> list[DeclaredClass]:
        """Return what the classes declare; one that cannot be read is left out and logged."""
        found = []
        objects: list[AWSNodeTemplate | EC2NodeClass] = [*self.templates.items(), *self.node_classes.items()]
        for one in objects:
            try:
                found.append(declared_class(one))
            except InvalidInput as error:
                self._log_once(f"{one.RESOURCE.kind}/{one.metadata.name}", str(error))
        return found

    def applied_overlays(self) -> list[NodeOverlay]:
        """Return the NodeOverlays that were found sound."""
        return [one for one in self.overlays.items() if is_applied(one)] if self.overlays is not None else []

    def sharing(self) -> SharingSettings:
        """Return how the ClusterPolicy in force shares GPUs; without one each GPU is one `nvidia.com/gpu`."""
        policy = chosen(self.policies.items())[0]
        if policy is None:
            return SharingSettings(known=False)
        config = policy.spec.device_plugin.config
        found = self.configs.get(f"{names.OPERATOR_NAMESPACE}/{config.name}") if config and config.name else None
        return policy_sharing(policy.spec, found.data if found is not None else {})

    def prepares_nodes(self) -> bool:
        """Return whether gpuplane prepares GPU nodes here, so that they report their stages."""
        policy = chosen(self.policies.items())[0]
        return policy is not None and not policy.metadata.deletion_timestamp

    def learned(self) -> Learned:
        """Return what nodes that have joined offer other than predicted.

        A claim whose annotation cannot be read teaches nothing, and is logged.
        """
        found: list[JoinedNode] = []
        for claim in sorted(self.claims.items(), key=lambda claim: claim.metadata.creation_timestamp):
            text = claim.metadata.annotations.get(names.PREDICTED_ANNOTATION)
            if text is None:
                continue
            try:
                predicted = decode_json(text, dict[str, int], limit=LONGEST_VALUE)
                real = self._offered(claim, predicted)
            except (DocumentError, InvalidInput) as error:
                self._log_once(f"{NodeClaim.RESOURCE.kind}/{claim.metadata.name}", str(error))
                continue
            machine = claim.metadata.labels.get("node.kubernetes.io/instance-type", "")
            if real:
                initialized = is_true(claim.status.conditions, INITIALIZED)
                key = machine, tuple(sorted(predicted.items()))
                found.append(JoinedNode(key, claim.metadata.uid, real, initialized))
        return self._lessons.learn(found)

    def _offered(self, claim: NodeClaim, predicted: Requests) -> Requests:
        """Return what the node of a claim offers, empty for no node. GPUs count as predicted at first."""
        if is_true(claim.status.conditions, INITIALIZED):
            return amounts(claim.status.allocatable)
        provider_id = claim.status.provider_id
        for node in self.nodes.by_index(BY_PROVIDER, provider_id) if provider_id else ():
            real = amounts(node.status.allocatable)
            return predicted | {name: amount for name, amount in real.items() if name in OF_MACHINES and amount}
        return {}

    def facts(self) -> ScalingFacts:
        """Return the cluster of this moment."""
        volume_limits = {one.metadata.name: one.limits for one in self.node_drivers.items() if one.limits}
        for limits in volume_limits.values():
            for driver, count in limits.items():
                self._most_volumes[driver] = max(count, self._most_volumes.get(driver, 0))
        return ScalingFacts(
            pods=[pod for pod in self.pods.items() if isinstance(pod, PodView) and pod.info is not None],
            nodes=self.nodes.items(),
            claims=self.claims.items(),
            gpunodes={one.metadata.name: one for one in self.gpunodes.items()},
            pools=self.pools(),
            classes=self.classes(),
            daemons=[daemon for daemon in self.daemons.items() if isinstance(daemon, DaemonView)],
            sharing=self.sharing(),
            overlays=self.applied_overlays(),
            respect_preferences=self._respect_preferences,
            volumes=VolumeFacts(self.volume_claims.get, self.volumes.get, self.storage_classes.get),
            volume_limits=volume_limits,
            most_volumes=dict(self._most_volumes),
        )

    def _log_once(self, about: str, why: str) -> None:
        if self._refused.get(about) != why:
            self._refused[about] = why
            log.warning("not read object=%s: %s", about, why)


def why_refused(pool: Provisioner | NodePool) -> str:
    """Return why nothing is bought for a pool, whatever its definition admitted; empty for a sound pool."""
    if isinstance(pool, NodePool) and pool.spec.replicas is not None:
        return "spec.replicas: gpuplane buys for pods that wait, and keeps no fixed number of nodes; remove the field"
    declared = declared_pool(pool)
    if len(declared.name) > _LONGEST_NAME:
        return f"metadata.name: nodes carry it as a label, which has at most {_LONGEST_NAME} characters; shorten it"
    life = declared.disruption.expire_after
    if life is not None and life < _SHORTEST_LIFE_SECONDS:
        field = "spec.ttlSecondsUntilExpired" if isinstance(pool, Provisioner) else "spec.template.spec.expireAfter"
        return f"{field}: a node would end before it has joined, and another one be bought; set a minute at least"
    try:
        pool_conditions(declared.requirements, declared.labels)
        amounts(declared.limits)
    except InvalidInput as error:
        return f"spec.limits: {error}"
    except (ValueError, IndexError) as error:
        return f"spec.requirements: {error}; gpuplane check names the place"
    return ""


def _node_of(pod: Pod) -> Iterable[str]:
    return (pod.info.node_name,) if isinstance(pod, PodView) and pod.info is not None and pod.info.node_name else ()

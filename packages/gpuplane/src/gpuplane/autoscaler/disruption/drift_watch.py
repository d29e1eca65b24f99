"""The watch over drift: asks pools and cloud what nodes would be bought now, and compares every claim with it.

Pools are compared every 10 s, which costs no request: the provider remembers what a class resolves to for a minute.
Instances are listed every minute. A pool whose class cannot be resolved at this moment drifts nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from gpuplane.api import nodeclaim
from gpuplane.api.karpenter import AWS_GROUP, DeclaredPool
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.disruption.drift import DriftFacts, drift_reason, recorded_hash
from gpuplane.autoscaler.disruption.marks_controller import MarksController
from gpuplane.autoscaler.disruption.observe import pool_of
from gpuplane.autoscaler.disruption.supply import NodeSupply
from gpuplane.autoscaler.providers.provider import CloudInstance, CloudProvider, ResolvedClass
from gpuplane.autoscaler.termination.claim_links import node_of_claim
from kubekit.api.core import Node
from kubekit.errors import KubekitError
from kubekit.kube import Clock, Controller, SharedInformers

log = logging.getLogger("gpuplane.autoscaler")
KEY: Final = "drift"
LOOK_SECONDS: Final = 10.0
INSTANCES_SECONDS: Final = 60.0
CLASS_HASH_ANNOTATION: Final = f"{AWS_GROUP}/ec2nodeclass-hash"
CLASS_HASH_VERSION_ANNOTATION: Final = f"{AWS_GROUP}/ec2nodeclass-hash-version"


class DriftWatch:
    """Keeps `marks.drift` current."""

    def __init__(
        self,
        informers: SharedInformers,
        supply: NodeSupply,
        provider: CloudProvider,
        marks: MarksController,
        clock: Clock,
    ) -> None:
        self._claims = informers.of(NodeClaim)
        self._nodes = informers.of(Node)
        self._supply = supply
        self._provider = provider
        self._marks = marks
        self._clock = clock
        self._instances: Mapping[str, CloudInstance] = {}
        self._listed: float | None = None
        self._troubles: dict[str, str] = {}
        self.controller = Controller("drift", [], self.reconcile, clock=clock)
        self.controller.enqueue(KEY)

    async def reconcile(self, key: str) -> float:
        """Compare every claim with its pool; returns the seconds until the next look."""
        if not (self._supply.is_synced() and self._claims.has_synced and self._nodes.has_synced):
            return 1.0
        pools = self._supply.pools()
        if self._listed is None or self._clock.now() - self._listed >= INSTANCES_SECONDS:
            self._instances = {one.provider_id: one for one in await self._provider.instances()}
            self._listed = self._clock.now()
        types = frozenset(machine.name for machine in await self._provider.types())
        resolved: dict[str, tuple[str, ResolvedClass | None]] = {}
        for name, pool in pools.items():
            resolved[name] = await self._resolve(pool)
        now = unix_time(self._clock.wall()) or 0.0
        found: dict[str, str] = {}
        for claim in self._claims.items():
            known = pools.get(pool_of(claim))
            if known is None or not claim.status.provider_id or claim.metadata.deletion_timestamp:
                continue
            class_hash, means = resolved[known.name]
            instance = self._instances.get(claim.status.provider_id)
            reason = drift_reason(self._facts(claim, now), known, class_hash, means, instance, types)
            if reason:
                found[claim.metadata.name] = reason
        before, self._marks.drift = self._marks.drift, found
        for claim_name in before.keys() | found.keys():
            if before.get(claim_name) != found.get(claim_name):
                self._marks.controller.enqueue(claim_name)
        return LOOK_SECONDS

    async def _resolve(self, pool: DeclaredPool) -> tuple[str, ResolvedClass | None]:
        machines = self._supply.machines_of(pool)
        if machines is None:
            return "", None
        try:
            means = await self._provider.resolve(machines)
            self._troubles.pop(pool.name, None)
        except KubekitError as error:
            if self._troubles.get(pool.name) != str(error):
                self._troubles[pool.name] = str(error)
                log.warning("drift unknown pool=%s: %s", pool.name, error)
            return machines.hash, None
        return machines.hash, means

    def _facts(self, claim: NodeClaim, now: float) -> DriftFacts:
        node = node_of_claim(self._nodes.by_index, claim)
        annotations = claim.metadata.annotations
        return DriftFacts(
            labels={**claim.metadata.labels, **(node.metadata.labels if node is not None else {})},
            age=now - (unix_time(claim.metadata.creation_timestamp) or now),
            pool_hash=recorded_hash(annotations, nodeclaim.HASH_ANNOTATION, nodeclaim.HASH_VERSION_ANNOTATION),
            class_hash=recorded_hash(annotations, CLASS_HASH_ANNOTATION, CLASS_HASH_VERSION_ANNOTATION),
            image=claim.status.image_id,
            has_gpu=any("gpu" in name for name in claim.status.capacity),
        )

"""The autoscaler at work: its controllers and the informers that they share. Nothing is stored: each start reads claims
and instances again.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.class_release import ClassReleaseController
from gpuplane.autoscaler.class_status import ClassStatusController
from gpuplane.autoscaler.cloud import ClosedOfferings, CloudView
from gpuplane.autoscaler.cloud_calls import MeteredProvider
from gpuplane.autoscaler.creation import ClaimWriter, Nominations
from gpuplane.autoscaler.disruption.controller import NodeDisruptionController
from gpuplane.autoscaler.disruption.interruption import InterruptionHandler
from gpuplane.autoscaler.garbage import InstanceCollector
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.lifecycle.controller import LifecycleController
from gpuplane.autoscaler.lifecycle.writer import LifecycleWriter
from gpuplane.autoscaler.metrics import AutoscalerState
from gpuplane.autoscaler.overlay_status import OverlayStatusController
from gpuplane.autoscaler.pool_status import PoolStatusController
from gpuplane.autoscaler.providers.provider import CloudProvider
from gpuplane.autoscaler.provisioning import KEY, ProvisioningController
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.autoscaler.repair.controller import RepairController
from gpuplane.autoscaler.settings import AutoscalerSettings
from gpuplane.autoscaler.snapshot import used_of_pool
from gpuplane.autoscaler.supply import PoolSupply
from gpuplane.autoscaler.termination.controller import TerminationController
from gpuplane.autoscaler.watch import BY_NODE, ClusterWatch
from kubekit.kube import Client, Clock, Controller, EventRecorder, SharedInformers, SystemClock


class Controlling(Protocol):
    """A part of the autoscaler that runs by itself."""

    controller: Controller

    async def run(self) -> None: ...


class AutoscalerProcess:
    """The autoscaler's controllers, with the informers that they share."""

    def __init__(
        self,
        client: Client,
        provider: CloudProvider,
        settings: AutoscalerSettings,
        *,
        identity: str = "",
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        provider = self._provider = MeteredProvider(provider, clock)
        self.figures = LifeFigures()
        self._unsynced: float | None = clock.now()
        self.informers = SharedInformers(client, clock)
        self._events = EventRecorder(client, names.AUTOSCALER_NAME, instance=identity, clock=clock)
        self.watch = ClusterWatch(
            client,
            self.informers,
            clock,
            overlays=settings.node_overlay,
            respect_preferences=settings.respect_preferences,
            relax_min_values=settings.relax_min_values,
        )
        self.closed = ClosedOfferings(clock, lambda: self.provisioning.controller.enqueue(KEY))
        self.cloud = CloudView(provider, self.closed, settings.region, settings.memory_overhead)
        self.writer = ClaimWriter(client, self.watch, Nominations(clock, settings.nominated_seconds), clock)
        self.supply = PoolSupply(self.watch, self.writer, self.cloud, self.closed)
        self.lives = LifecycleWriter(client)
        self.provisioning = ProvisioningController(
            self.watch,
            self.cloud,
            self.writer,
            self._events,
            clock,
            idle=settings.batch_idle,
            longest=settings.batch_longest,
            figures=self.figures,
        )
        self.lifecycle = LifecycleController(
            self.watch, self.cloud, provider, self.closed, self.lives, self._events, clock, self.figures
        )
        self.garbage = InstanceCollector(client, self.watch, provider, self.lives, clock)
        self.pools = PoolStatusController(client, self.watch, self.cloud, self.lifecycle.registrations, clock)
        self.classes = ClassStatusController(client, self.watch, self.cloud, clock)
        self.releases = ClassReleaseController(client, self.watch, self.writer, provider, self._events, clock)
        parts = (client, self.informers)
        self.disruption = NodeDisruptionController(
            *parts,
            self.supply,
            provider,
            self._events,
            clock,
            spot_to_spot=settings.spot_to_spot,
            figures=self.figures,
        )
        self.termination = TerminationController(*parts, provider, self._events, clock, self.figures)
        self.interruptions = InterruptionHandler(*parts, self.supply, provider, self._events, clock)
        self.controllers: list[Controlling] = [
            *(self.lifecycle, self.provisioning, self.pools, self.classes, self.releases),
            *(self.disruption, self.termination),
        ]
        if settings.node_repair:
            self.controllers.append(RepairController(*parts, provider, self._events, clock, self.figures))
        if self.watch.overlays is not None:
            self.controllers.append(OverlayStatusController(client, self.watch, self.watch.overlays, self.cloud, clock))
        self._clock = clock

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.cloud.run(self._clock), name="prices")
                group.create_task(self.garbage.run(), name="garbage")
                group.create_task(self.interruptions.run(), name="interruptions")
                for each in self.controllers:
                    group.create_task(each.run(), name=each.controller.name)
        finally:
            await self._events.aclose()

    def state(self) -> AutoscalerState:
        """Return the facts for the metrics."""
        claims = self.watch.claims.items()
        used = {pool.name: used_of_pool(pool.name, claims, None) for pool in self.watch.pools()}
        now, synced = self._clock.now(), self.supply.is_synced()
        self._unsynced = None if synced else now if self._unsynced is None else self._unsynced
        began = self.provisioning.began
        return AutoscalerState(
            synced=synced,
            unsynced=0.0 if self._unsynced is None else now - self._unsynced,
            created=self.writer.created,
            disrupted=self._disrupted(),
            terminated=self.termination.ended,
            evictions=self.termination.writer.counts,
            notices=self.interruptions.received,
            cost=self._cost(),
            collected=self.garbage.collected,
            pools=[
                msgspec.structs.replace(pool, used=dict(as_quantities(used[pool.name]))) for pool in self.watch.pools()
            ],
            claims=claims,
            nodes=self.watch.nodes.items(),
            last=self.provisioning.last,
            decided_seconds=self.provisioning.decided_seconds,
            disruption=self.disruption.figures,
            pods=lambda node: self.watch.pods.by_index(BY_NODE, node),
            now=unix_time(self._clock.wall()) or 0.0,
            waiting=len(self.watch.waiting()),
            ignored=self.provisioning.ignored,
            deciding=0.0 if began is None else now - began,
            types=self.cloud.known,
            closed=self.closed.now(),
            more=[*self.figures.metrics(), *self.provisioning.times.metrics(), *self._provider.metrics()],
        )

    def _disrupted(self) -> dict[tuple[str, str], int]:
        """Return how many claims were deleted, by reason and pool: given up on their way, or disrupted."""
        found = dict(self.lives.deleted)
        for (reason, pool, _, _), count in self.disruption.writer.disrupted.items():
            found[reason, pool] = found.get((reason, pool), 0) + count
        return found

    def _cost(self) -> dict[str, float]:
        """Return pool -> dollars an hour of its launched nodes whose price is known."""
        cost: dict[str, float] = {}
        for claim in self.watch.claims.items():
            labels = claim.metadata.labels
            kind = (labels.get(karpenter.TYPE_LABEL, ""), labels.get(karpenter.CAPACITY_TYPE_LABEL, ""))
            if kind in self.cloud.prices:
                pool = labels.get(karpenter.POOL_LABEL, "")
                cost[pool] = cost.get(pool, 0.0) + self.cloud.prices[kind]
        return cost

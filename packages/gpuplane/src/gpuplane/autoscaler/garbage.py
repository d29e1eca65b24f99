"""Garbage collection both ways: instances without a claim end, and so do claims without an instance.

Invariants:

- An instance ends only if the API server itself, asked after the cloud, has no claim for it, and if it is old enough
  that its claim would be there.
- A Node whose instance has no claim is deleted first, so its pods leave in order: `termination` ends the instance.
- A claim ends only if its node has registered, is not Ready, and the cloud says that its instance is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from gpuplane.api.nodeclaim import FINALIZER, REGISTERED, NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.lifecycle.writer import LifecycleWriter
from gpuplane.autoscaler.nodes import is_true
from gpuplane.autoscaler.providers.provider import CloudInstance, CloudProvider
from gpuplane.autoscaler.termination.writer import EndWriter
from gpuplane.autoscaler.watch import BY_PROVIDER, ClusterWatch
from kubekit.api.core import Node
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock

log = logging.getLogger("gpuplane.autoscaler")
YOUNGEST_SECONDS: Final = 30.0  # an instance that is younger may still get its claim
FIRST_SECONDS: Final = 10.0  # between passes at first: a crash leaves its garbage to the next process
FIRST_PASSES: Final = 12
LATER_SECONDS: Final = 120.0
_ENDING: Final = ("stopping", "gone")


def orphans(instances: Iterable[CloudInstance], claims: Iterable[NodeClaim], now: float) -> list[CloudInstance]:
    """Return the instances that no claim is for.

    A claim that knows no instance yet keeps each that has its name: its launch will find one of them.

    Args:
        claims: listed after the instances.
        now: seconds since 1970.
    """
    by_name: Mapping[str, NodeClaim] = {claim.metadata.name: claim for claim in claims}
    known = {claim.status.provider_id for claim in by_name.values() if claim.status.provider_id}
    found = []
    for instance in instances:
        claim = by_name.get(instance.claim)
        launched = unix_time(instance.launched)
        # A launch in the future is that of a clock that has jumped back: such an instance would stay for hours.
        young = launched is not None and abs(now - launched) < YOUNGEST_SECONDS
        if instance.state in _ENDING or instance.provider_id in known or young:
            continue
        if claim is None or claim.status.provider_id:
            found.append(instance)
    return found


class InstanceCollector:
    """Ends instances without a claim, and claims without an instance. `collected` counts instances."""

    def __init__(
        self, client: Client, watch: ClusterWatch, provider: CloudProvider, writer: LifecycleWriter, clock: Clock
    ) -> None:
        self.collected = 0
        self._client = client
        self._watch = watch
        self._provider = provider
        self._writer = writer
        self._clock = clock

    async def run(self) -> None:
        """Work until cancelled; what fails is tried again at the next pass."""
        for one in (self._watch.claims, self._watch.nodes):
            one.start()
            await one.synced()
        passes = 0
        while True:
            try:
                await self.collect_instances()
                await self.collect_claims()
            except KubekitError as error:
                log.warning("garbage not collected, retrying: %s", error)
            passes += 1
            await self._clock.sleep(FIRST_SECONDS if passes < FIRST_PASSES else LATER_SECONDS)

    async def collect_instances(self) -> None:
        """End the instances that no claim is for."""
        instances = await self._provider.instances()
        if not instances:
            return
        claims = await self._client.list(NodeClaim)
        for instance in orphans(instances, claims, unix_time(self._clock.wall()) or 0.0):
            nodes = self._watch.nodes.by_index(BY_PROVIDER, instance.provider_id)
            if held := [node for node in nodes if FINALIZER in node.metadata.finalizers]:
                for node in held:
                    await self._delete_node(node)
                continue
            await self._provider.terminate(instance.provider_id)
            self.collected += 1
            log.info("terminated instance=%s, which has no claim claim=%s", instance.provider_id, instance.claim)

    async def _delete_node(self, node: Node) -> None:
        if not node.metadata.deletion_timestamp:
            await EndWriter(self._client, self._clock).delete_node(node)
            log.info("deleted node=%s, whose claim is gone", node.metadata.name)

    async def collect_claims(self) -> None:
        """Delete the claims whose instance is gone."""
        for claim in self._watch.claims.items():
            if claim.metadata.deletion_timestamp or not is_true(claim.status.conditions, REGISTERED):
                continue
            node = self._watch.nodes.get(claim.status.node_name)
            if node is not None and is_true(node.status.conditions, "Ready"):
                continue
            instance = await self._provider.instance(claim.status.provider_id)
            if instance is None or instance.state == "gone":
                await self._writer.delete(claim, "InstanceGone")

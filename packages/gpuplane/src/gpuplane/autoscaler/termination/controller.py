"""The controller of nodes that end: one key for each claim. `decide` decides, `writer` writes.

A claim ends when it is deleted, by a user or by a decision of the autoscaler. The deletion of a Node ends its claim. A
Node without a claim is ended by `orphans`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from gpuplane.api import nodeclaim
from gpuplane.api.karpenter import CAPACITY_TYPE_LABEL, POOL_LABEL, ZONE_LABEL
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.counting import LabelledCounts
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.providers.provider import CloudInstance, CloudProvider
from gpuplane.autoscaler.termination.claim_conditions import condition_of_claim, holds, set_conditions
from gpuplane.autoscaler.termination.claim_links import BY_NODE, claims_of_node, index_objects, node_of_claim
from gpuplane.autoscaler.termination.decide import POLL_SECONDS
from gpuplane.autoscaler.termination.facts import DrainPod, EndStep, InstanceState
from gpuplane.autoscaler.termination.observe import instance_state
from gpuplane.autoscaler.termination.orphans import OrphanedNodes
from gpuplane.autoscaler.termination.stepping import next_step, wait_after
from gpuplane.autoscaler.termination.writer import EndWriter
from kubekit.api.core import Node, ObjectReference, Pod
from kubekit.kube import Client, Clock, Controller, EventRecorder, SharedInformers, Source
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.autoscaler")
WORKERS: Final = 16
REPEAT_SECONDS: Final = 900.0  # between two equal events


class TerminationController:
    """Ends nodes. `ended` counts them by pool, for metrics."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        provider: CloudProvider,
        recorder: EventRecorder,
        clock: Clock,
        figures: LifeFigures | None = None,
    ) -> None:
        self.ended = LabelledCounts()
        self._figures = figures or LifeFigures()
        self._ordered: dict[str, float] = {}  # instance -> when the cloud was asked first to end it
        self.writer = EndWriter(client, clock)
        self._asked: dict[str, float] = {}  # instance -> when the cloud was asked last to end it
        self._said: dict[tuple[str, str], tuple[str, float]] = {}  # (claim's uid, reason) -> (message, since when)
        self._client = client
        self._provider = provider
        self._recorder = recorder
        self._clock = clock
        self._claims = informers.of(NodeClaim)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        index_objects(informers)
        self.controller = Controller(
            "termination",
            [
                self._claims,
                Source(self._nodes, self._claims_of_node),
                Source(self._pods, self._claims_of_pod),
            ],
            self.reconcile,
            workers=WORKERS,
            clock=clock,
        )
        self.orphans = OrphanedNodes(client, informers, provider, recorder, clock, self.writer)

    async def run(self) -> None:
        """Work until cancelled."""
        await first_of(self.controller.run(), self.orphans.controller.run())

    async def reconcile(self, name: str) -> float | None:
        """Do the next step for one claim; returns the seconds after which to look again."""
        claim = self._claims.get(name)
        if claim is None:
            return None
        node = node_of_claim(self._nodes.by_index, claim)
        if not claim.metadata.deletion_timestamp:
            if node is not None and node.metadata.deletion_timestamp:
                await self.writer.delete_claim(claim)
            return None
        if nodeclaim.FINALIZER not in claim.metadata.finalizers:
            return None
        step = await self._decide(claim, node)
        await self._make(step, claim, node)
        return wait_after(step, self.writer, self._clock)

    async def _decide(self, claim: NodeClaim, node: Node | None) -> EndStep:
        pods = self._pods.by_index(BY_NODE, node.metadata.name) if node is not None else []
        return await next_step(claim, node, pods, self.writer, self._clock, partial(self._instance, claim))

    async def _instance(self, claim: NodeClaim) -> CloudInstance | InstanceState:
        if claim.status.provider_id:
            found = await self._provider.instance(claim.status.provider_id)
        else:
            # The answer to the launch may have been lost: the instance carries the claim's name.
            every = await self._provider.instances()
            found = next((one for one in every if one.claim == claim.metadata.name), None)
        return found if found is not None else instance_state(None)

    async def _make(self, step: EndStep, claim: NodeClaim, node: Node | None) -> None:
        if node is not None and step.mark:
            await self.writer.mark(node)
        if node is not None and step.delete_node:
            await self.writer.delete_node(node)
        if step.delete:
            names = ", ".join(one.pod.name for one in step.delete[:3])
            self._report(claim, node, "TerminationGracePeriodExpiring", f"deleted before the deadline: {names}")
        await asyncio.gather(
            *(self._evict(pod, claim) for pod in step.evict), *map(self.writer.delete_pod, step.delete)
        )
        if step.trouble:
            self._report(claim, node, "FailedDraining", step.waits)
        if step.terminate:
            await self._terminate(claim)
        if step.finish:
            await self.writer.finish(claim, node)
            self._asked.pop(claim.status.provider_id, None)
            self._count_end(claim, node)
            self._said = {key: said for key, said in self._said.items() if key[0] != claim.metadata.uid}
            self.writer.forget({pod.metadata.uid for pod in self._pods.items()} if self.writer.evictions else set())
        elif step.conditions:
            drained = step.conditions.get(nodeclaim.DRAINED)
            if drained is not None and drained[0] and not holds(claim, nodeclaim.DRAINED):
                self._figures.nodes_drained.add(nodepool=claim.metadata.labels.get(POOL_LABEL, ""))
            await set_conditions(self._client, claim, step.conditions, self._clock.wall())

    def _count_end(self, claim: NodeClaim, node: Node | None) -> None:
        labels, now = claim.metadata.labels, self._wall()
        pool, zone = labels.get(POOL_LABEL, ""), labels.get(ZONE_LABEL, "")
        self.ended.add(nodepool=pool, capacity_type=labels.get(CAPACITY_TYPE_LABEL, ""), zone=zone)
        deleted = unix_time(claim.metadata.deletion_timestamp or "") or now
        self._figures.claim_ends.observe(now - deleted, nodepool=pool)
        ordered = self._ordered.pop(claim.status.provider_id, None)
        if ordered is not None:
            self._figures.instance_ends.observe(self._clock.now() - ordered, nodepool=pool)
        if node is None:
            return
        self._figures.nodes_ended.add(nodepool=pool, zone=zone)
        self._figures.lifetimes.observe(now - (unix_time(node.metadata.creation_timestamp) or now), nodepool=pool)
        if node.metadata.deletion_timestamp:
            self._figures.node_ends.observe(now - (unix_time(node.metadata.deletion_timestamp) or now), nodepool=pool)

    async def _evict(self, pod: DrainPod, claim: NodeClaim) -> None:
        if await self.writer.evict(pod):
            namespace, _, name = pod.name.partition("/")
            about = ObjectReference(kind="Pod", api_version="v1", namespace=namespace, name=name, uid=pod.uid)
            reason = condition_of_claim(claim, nodeclaim.DISRUPTION_REASON)
            self._figures.pods_drained.add(reason=reason.reason.lower() if reason is not None else "")
            why = f": {reason.reason}" if reason is not None and reason.reason else ""
            self._recorder.event(about, "Normal", "Evicted", f"its node {claim.status.node_name} is removed{why}")

    def _report(self, claim: NodeClaim, node: Node | None, reason: str, message: str) -> None:
        """Write an event about claim and node, unless the same one was written lately."""
        now, key = self._clock.now(), (claim.metadata.uid, reason)
        said, at = self._said.get(key, ("", 0.0))
        if said == message and now - at < REPEAT_SECONDS:
            return
        self._said[key] = (message, now)
        for about in (claim, node):
            if about is not None:
                self._recorder.event(about, "Warning", reason, message)

    async def _terminate(self, claim: NodeClaim) -> None:
        provider_id = claim.status.provider_id
        if not provider_id:
            found = await self._instance(claim)
            if isinstance(found, InstanceState):
                return
            provider_id = found.provider_id
        last = self._asked.get(provider_id)
        if last is not None and self._clock.now() - last < POLL_SECONDS:
            return  # the watch has not shown the condition yet that says so
        await self._provider.terminate(provider_id)
        self._asked[provider_id] = self._clock.now()
        self._ordered.setdefault(provider_id, self._clock.now())
        log.info("terminating instance=%s nodeclaim=%s", provider_id, claim.metadata.name)

    def _claims_of_node(self, node: Node) -> Iterable[str]:
        return [claim.metadata.name for claim in claims_of_node(self._claims.by_index, node)]

    def _claims_of_pod(self, pod: Pod) -> Iterable[str]:
        node = self._nodes.get(pod.spec.node_name) if pod.spec.node_name else None
        if node is None:
            return ()
        claims = claims_of_node(self._claims.by_index, node)
        return [claim.metadata.name for claim in claims if claim.metadata.deletion_timestamp]

    def _wall(self) -> float:
        return unix_time(self._clock.wall()) or 0.0

"""Nodes that end without a claim: a user took the finalizer off the claim, so no record but the Node is left.

A Node that is being deleted, has the finalizer and belongs to no claim is drained as others are. Then its instance
ends, if the cloud lists it as this cluster's, and the finalizer is removed. Nothing is stored: after a restart the
instance is ended again, which changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from gpuplane.api import nodeclaim
from gpuplane.api.nodeclaim import NodeClaim, NodeClaimStatus
from gpuplane.autoscaler.providers.provider import CloudInstance, CloudProvider
from gpuplane.autoscaler.termination.claim_links import BY_NODE, claims_of_node, node_of_claim
from gpuplane.autoscaler.termination.facts import EndStep, InstanceState
from gpuplane.autoscaler.termination.observe import instance_state
from gpuplane.autoscaler.termination.stepping import LOOK_SECONDS, next_step, wait_after
from gpuplane.autoscaler.termination.writer import EndWriter
from kubekit.api.core import Node, Pod
from kubekit.api.meta import Condition, ObjectMeta
from kubekit.kube import Client, Clock, Controller, EventRecorder, SharedInformers, Source

log = logging.getLogger("gpuplane.autoscaler")
WORKERS: Final = 4


class OrphanedNodes:
    """Ends nodes without a claim."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        provider: CloudProvider,
        recorder: EventRecorder,
        clock: Clock,
        writer: EndWriter,
    ) -> None:
        self._client = client
        self._provider = provider
        self._recorder = recorder
        self._clock = clock
        self._writer = writer
        self._claims = informers.of(NodeClaim)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._asked: set[str] = set()  # uids of nodes whose instance was ended
        self.controller = Controller(
            "orphaned-nodes",
            [self._nodes, Source(self._claims, self._node_of_claim), Source(self._pods, self._node_of_pod)],
            self.reconcile,
            workers=WORKERS,
            clock=clock,
        )

    async def reconcile(self, name: str) -> float | None:
        """Do the next step for one node; returns the seconds after which to look again."""
        node = self._nodes.get(name)
        if node is None or not self._is_orphan(node):
            return None
        # The watch of claims may be behind that of nodes, so the API server is asked.
        if any(_belongs(node, claim) for claim in await self._client.list(NodeClaim)):
            return LOOK_SECONDS
        step = await self._decide(node)
        await self._make(step, node)
        return wait_after(step, self._writer, self._clock)

    def _is_orphan(self, node: Node) -> bool:
        ending = bool(node.metadata.deletion_timestamp) and nodeclaim.FINALIZER in node.metadata.finalizers
        return ending and not claims_of_node(self._claims.by_index, node)

    async def _decide(self, node: Node) -> EndStep:
        pods = self._pods.by_index(BY_NODE, node.metadata.name)
        claim = _missing_claim(node, asked=node.metadata.uid in self._asked)
        return await next_step(claim, node, pods, self._writer, self._clock, partial(self._instance, node))

    async def _instance(self, node: Node) -> CloudInstance | InstanceState:
        # Only an instance with this cluster's tag: the provider id of a Node is the word of a kubelet.
        every = await self._provider.instances()
        found = next((one for one in every if one.provider_id == node.spec.provider_id), None)
        return found if found is not None else instance_state(None)

    async def _make(self, step: EndStep, node: Node) -> None:
        if step.mark:
            await self._writer.mark(node)
        await asyncio.gather(*map(self._writer.evict, step.evict), *map(self._writer.delete_pod, step.delete))
        if step.trouble:
            self._recorder.event(node, "Warning", "FailedDraining", step.waits)
        if step.terminate:
            if not isinstance(await self._instance(node), InstanceState):
                await self._provider.terminate(node.spec.provider_id)
                log.info("terminating instance=%s, no claim node=%s", node.spec.provider_id, node.metadata.name)
            self._asked.add(node.metadata.uid)
        if step.finish:
            await self._writer.finish(_missing_claim(node), node)
            self._asked.discard(node.metadata.uid)

    def _node_of_claim(self, claim: NodeClaim) -> Iterable[str]:
        node = node_of_claim(self._nodes.by_index, claim)
        return (node.metadata.name,) if node is not None and node.metadata.deletion_timestamp else ()

    def _node_of_pod(self, pod: Pod) -> Iterable[str]:
        node = self._nodes.get(pod.spec.node_name) if pod.spec.node_name else None
        return (node.metadata.name,) if node is not None and self._is_orphan(node) else ()


def _missing_claim(node: Node, *, asked: bool = False) -> NodeClaim:
    """Return the claim as the Node's facts show it, being deleted since the Node is."""
    meta = node.metadata
    name = next((one.name for one in meta.owner_references if one.kind == NodeClaim.RESOURCE.kind), meta.name)
    conditions = (Condition(type=nodeclaim.INSTANCE_TERMINATING, status="True"),) if asked else ()
    return NodeClaim(
        metadata=ObjectMeta(name=name, deletion_timestamp=meta.deletion_timestamp, annotations=meta.annotations),
        status=NodeClaimStatus(provider_id=node.spec.provider_id, conditions=conditions, node_name=meta.name),
    )


def _belongs(node: Node, claim: NodeClaim) -> bool:
    if claim.metadata.uid in {owner.uid for owner in node.metadata.owner_references}:
        return True
    return bool(node.spec.provider_id) and claim.status.provider_id == node.spec.provider_id

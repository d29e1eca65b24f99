"""The controller of repairs: one key for each claim. `decide` decides.

It restarts machines, so it runs only where the feature gate NodeRepair asks for it, as in Karpenter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuplane import names
from gpuplane.api import nodeclaim
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.karpenter import CAPACITY_TYPE_LABEL
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.disruption.observe import is_workload, pool_of
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.providers.provider import CloudProvider
from gpuplane.autoscaler.repair.decide import LOOK_SECONDS, PoolHealth, RepairStep, SickNode, decide_repair
from gpuplane.autoscaler.repair.observe import (
    BOOT_ANNOTATION,
    REBOOTING,
    REBOOTING_TAINT,
    sick_node,
    symptom_of,
)
from gpuplane.autoscaler.termination.claim_conditions import MANAGER, holds, set_conditions
from gpuplane.autoscaler.termination.claim_links import BY_NODE, claims_of_node, index_objects, node_of_claim
from gpuplane.autoscaler.termination.observe import drain_pod
from gpuplane.autoscaler.termination.writer import EndWriter
from kubekit.api.core import Node, Pod
from kubekit.api.meta import to_dict
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock, Controller, EventRecorder, NotFound, SharedInformers, Source

log = logging.getLogger("gpuplane.autoscaler")
WORKERS: Final = 4


class RepairController:
    """Repairs nodes. `rebooted` and `replaced` count them by pool, for metrics."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        provider: CloudProvider,
        recorder: EventRecorder,
        clock: Clock,
        figures: LifeFigures | None = None,
    ) -> None:
        self._figures = figures or LifeFigures()
        self.rebooted: dict[str, int] = {}
        self.replaced: dict[str, int] = {}
        self._ended: set[str] = set()  # uids of claims that were deleted
        self._client = client
        self._provider = provider
        self._recorder = recorder
        self._clock = clock
        self._writer = EndWriter(client, clock)
        self._claims = informers.of(NodeClaim)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._gpunodes = informers.of(GPUNode)
        index_objects(informers)
        self.controller = Controller(
            "repair",
            [
                self._claims,
                Source(self._nodes, self._claims_of_node),
                Source(self._gpunodes, lambda found: self._claims_of_name(found.metadata.name)),
                Source(self._pods, self._rebooting_claims_of_pod),
            ],
            self.reconcile,
            workers=WORKERS,
            clock=clock,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Do the next step for one claim; returns the seconds after which to look again."""
        claim = self._claims.get(name)
        node = node_of_claim(self._nodes.by_index, claim) if claim is not None else None
        if claim is None or node is None:
            return None
        pods = self._pods.by_index(BY_NODE, node.metadata.name)
        seen = sick_node(claim, node, self._gpunodes.get(node.metadata.name), pods)
        step = decide_repair(seen, self._pool_health(pool_of(claim)), self._wall())
        await self._make(step, seen, claim, node, pods)
        return min(step.again, LOOK_SECONDS) if step.again is not None else None

    async def _make(self, step: RepairStep, seen: SickNode, claim: NodeClaim, node: Node, pods: Iterable[Pod]) -> None:
        if step.blocked:
            self._recorder.event(node, "Warning", "NodeRepairBlocked", "more than a fifth of the pool is unhealthy")
        if step.begin:
            log.warning("repairing node=%s nodeclaim=%s: %s", node.metadata.name, seen.claim, seen.symptom)
            self._recorder.event(node, "Warning", "NodeRepair", f"the node is restarted: {seen.symptom}")
            await self._taint(node, wanted=True)
            await set_conditions(self._client, claim, {REBOOTING: (True, "RebootRequested")}, self._clock.wall())
        if step.drain:
            now = self._wall()
            held = self._writer.held(now)
            leaving = [drain_pod(pod, held.get(pod.metadata.uid)) for pod in pods if is_workload(pod)]
            due = [pod for pod in leaving if pod.deleted is None and max(pod.evict_after, pod.held_until) <= now]
            await asyncio.gather(*(self._writer.evict(pod) for pod in due if not pod.tolerates))
        if step.reboot:
            await self._reboot(claim, node)
        if step.recover:
            await self._taint(node, wanted=False)
            await set_conditions(self._client, claim, {REBOOTING: None}, self._clock.wall())
            await self._annotate(claim, {BOOT_ANNOTATION: None, names.REBOOT_ISSUED_ANNOTATION: None})
            log.info("repaired node=%s", node.metadata.name)
        elif step.replace:
            await self._replace(claim, seen)

    async def _reboot(self, claim: NodeClaim, node: Node) -> None:
        """Ask the cloud for a restart. Recorded before: a lost record would restart the node again and again."""
        record = {BOOT_ANNOTATION: node.status.node_info.boot_id, names.REBOOT_ISSUED_ANNOTATION: self._clock.wall()}
        await self._annotate(claim, record)
        try:
            await self._provider.reboot(claim.status.provider_id)
        except KubekitError:
            await self._annotate(claim, {names.REBOOT_ISSUED_ANNOTATION: None})
            raise
        pool = pool_of(claim)
        self.rebooted[pool] = self.rebooted.get(pool, 0) + 1
        log.info("restarting instance=%s node=%s", claim.status.provider_id, node.metadata.name)

    async def _replace(self, claim: NodeClaim, seen: SickNode) -> None:
        """End the node at once: its pods are not waited for, since its kubelet or its GPUs do not work."""
        if claim.metadata.uid in self._ended:
            return  # the watch has not shown the deletion yet
        name, pool = claim.metadata.name, pool_of(claim)
        await self._annotate(claim, {nodeclaim.TERMINATION_ANNOTATION: f"{self._clock.wall()[:19]}Z"})
        self._recorder.event(claim, "Warning", "Disrupted", f"Unhealthy: {seen.symptom or 'the restart did not help'}")
        await self._writer.delete_claim(claim)
        self._ended.add(claim.metadata.uid)
        self.replaced[pool] = self.replaced.get(pool, 0) + 1
        self._figures.unhealthy.add(
            condition=seen.symptom.partition(" ")[0] or REBOOTING,
            nodepool=pool,
            capacity_type=claim.metadata.labels.get(CAPACITY_TYPE_LABEL, ""),
            image_id=claim.status.image_id,
        )
        log.warning("replacing nodeclaim=%s: %s", name, seen.symptom)

    async def _annotate(self, claim: NodeClaim, annotations: Mapping[str, str | None]) -> None:
        patch: dict[str, Any] = {"metadata": {"annotations": annotations}}
        await self._client.patch(NodeClaim, claim.metadata.name, patch, manager=MANAGER)

    async def _taint(self, node: Node, *, wanted: bool) -> None:
        others = [to_dict(one) for one in node.spec.taints if one.key != REBOOTING_TAINT]
        ours = [{"key": REBOOTING_TAINT, "effect": "NoSchedule"}] if wanted else []
        if len(others) + len(ours) == len(node.spec.taints):
            return
        patch = {
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": [*others, *ours]},
        }
        try:
            await self._client.patch(Node, node.metadata.name, patch, manager=MANAGER)
        except NotFound:
            log.debug("already gone node=%s", node.metadata.name)

    def _pool_health(self, pool: str) -> PoolHealth:
        nodes = sick = 0
        for claim in self._claims.items():
            if pool_of(claim) != pool or not holds(claim, nodeclaim.INITIALIZED):
                continue
            node = node_of_claim(self._nodes.by_index, claim)
            if node is not None:
                nodes += 1
                broken = bool(symptom_of(node, self._gpunodes.get(node.metadata.name))[0])
                sick += broken or holds(claim, REBOOTING)
        return PoolHealth(nodes, sick)

    def _claims_of_node(self, node: Node) -> Iterable[str]:
        return [claim.metadata.name for claim in claims_of_node(self._claims.by_index, node)]

    def _claims_of_name(self, name: str) -> Iterable[str]:
        node = self._nodes.get(name)
        return self._claims_of_node(node) if node is not None else ()

    def _rebooting_claims_of_pod(self, pod: Pod) -> Iterable[str]:
        """Return the claim of a pod's node if that is in repair: a restart waits for the end of the pods."""
        node = self._nodes.get(pod.spec.node_name) if pod.spec.node_name else None
        claims = claims_of_node(self._claims.by_index, node) if node is not None else ()
        return [claim.metadata.name for claim in claims if holds(claim, REBOOTING)]

    def _wall(self) -> float:
        return unix_time(self._clock.wall()) or 0.0

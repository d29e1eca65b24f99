"""Binds the volumes of a pod before the pod itself: claims that wait for their first pod get a volume near its node.

1. `reserve` chooses the volumes together with the node, and counts them as taken.
2. `bind` writes the choice: the claim into a volume that is there, or the node into a claim whose volume is to be made.
   Kubernetes's volume controller and the drivers do the rest; `bind` waits for it.
3. `release` frees volumes that were counted and not written. Written ones stay: the pod is decided again, and the
   volume that is reserved for its claim is chosen again.

A plan that was written stays valid for a scheduler that starts in between: it reads it from the volumes and claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpuplane.scheduler.claims.volume_watch import StoredClaim, StoredVolume
from gpuplane.scheduler.pods.model import PodModel
from kubekit.errors import Retryable, Terminal
from kubekit.kube import Client, Clock
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.queue import ClusterEvent
from kubekit.scheduling.volumes.binding import Progress, assume, progress, restore
from kubekit.scheduling.volumes.facts import BOUND_BY_CONTROLLER, SELECTED_NODE, ClaimInfo, VolumeInfo
from kubekit.scheduling.volumes.store import VolumePlan

BIND_SECONDS: Final = 600.0
"""How long a pod waits for its volumes, as in kube-scheduler's default configuration."""
WRITE_SECONDS: Final = 5.0


class VolumeBinder:
    """
    Args:
        on_change: where to add what is called when a claim or a volume changed.
    """

    plugin = "VolumeBinding"

    def __init__(self, client: Client, model: PodModel, clock: Clock, on_change: list[Callable[[], None]]) -> None:
        self._client = client
        self._model = model
        self._clock = clock
        self._plans: dict[str, VolumePlan] = {}  # by the uid of the pod
        self._waiting: set[asyncio.Event] = set()
        on_change.append(self._wake)

    def reserve(self, pod: PodInfo, node: str) -> None:
        """Choose the volumes of a pod for the node, and count them as taken. Raises Retryable where there are none."""
        if not pod.volumes:
            return
        cache = self._model.cache
        check, state = FilterCheck(pod, cache).volumes, cache.nodes.get(node)
        if check is None or state is None or state.facts is None:
            raise Retryable(f'node "{node}" not found')
        planned = check.refused.reasons if check.refused is not None else check.plan(state.facts)
        if not isinstance(planned, VolumePlan):
            raise Retryable(f'running Reserve plugin "VolumeBinding": {", ".join(planned)}')
        if planned:
            assume(planned, cache.volumes)
            self._plans[pod.uid] = planned

    def waits(self, uid: str) -> bool:
        """Return whether volumes have to be bound before the pod."""
        return uid in self._plans

    def release(self, uid: str) -> None:
        """Count what the pod reserved and did not write as free; its `bind`, if it still waits, fails."""
        plan = self._plans.pop(uid, None)
        if plan is not None:
            self._wake()
            if restore(plan, self._model.cache.volumes):
                self._model.storage_changed(ClusterEvent.VOLUME_CHANGED)

    async def bind(self, uid: str) -> None:
        """Write what was reserved for a pod, and wait until it is bound. Raises KubekitError where it is not."""
        plan = self._plans[uid]
        for at, (volume, claim) in enumerate(plan.static):
            version = await self._bind_volume(volume, claim)
            written = msgspec.structs.replace(volume, resource_version=version), claim
            plan = msgspec.structs.replace(plan, static=(*plan.static[:at], written, *plan.static[at + 1 :]))
            self._keep(uid, plan)
        for at, claim in enumerate(plan.provisions):
            version = await self._select_node(claim)
            selected = msgspec.structs.replace(claim, resource_version=version)
            later = (*plan.provisions[:at], selected, *plan.provisions[at + 1 :])
            plan = msgspec.structs.replace(plan, provisions=later)
            self._keep(uid, plan)
        await self._until_bound(uid, plan)

    def _keep(self, uid: str, plan: VolumePlan) -> None:
        """Store what of the plan was written: `release` does not take it back."""
        if uid not in self._plans:
            raise Terminal("pod does not exist any more")
        self._plans[uid] = plan

    async def _bind_volume(self, volume: VolumeInfo, claim: ClaimInfo) -> str:
        """Write the claim into the volume; return the version that this made."""
        stored = self._model.cache.volumes.stored_volume(volume.name)
        if stored is not None and stored.claim == volume.claim:
            return stored.resource_version
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
            "resourceVersion": claim.resource_version,
        }
        metadata: dict[str, Any] = {"resourceVersion": volume.resource_version}
        if stored is None or stored.claim is None or not stored.claim.names(claim):
            metadata["annotations"] = {BOUND_BY_CONTROLLER: "yes"}  # no administrator reserved it by hand
        patch = {"metadata": metadata, "spec": {"claimRef": reference}}
        async with asyncio.timeout(WRITE_SECONDS):
            written = await self._client.patch(StoredVolume, volume.name, patch, None, "merge")
        return written.metadata.resource_version

    async def _select_node(self, claim: ClaimInfo) -> str:
        """Write the node into the claim; return the version that this made."""
        stored = self._model.cache.volumes.stored_claim(claim.key)
        if stored is not None and stored.selected_node == claim.selected_node:
            return stored.resource_version
        annotations = {SELECTED_NODE: claim.selected_node}
        patch = {"metadata": {"resourceVersion": claim.resource_version, "annotations": annotations}}
        async with asyncio.timeout(WRITE_SECONDS):
            written = await self._client.patch(StoredClaim, claim.name, patch, claim.namespace, "merge")
        return written.metadata.resource_version

    async def _until_bound(self, uid: str, plan: VolumePlan) -> None:
        changed, over = asyncio.Event(), asyncio.Event()
        self._waiting.add(changed)

        def end() -> None:
            over.set()
            changed.set()

        timer = self._clock.call_later(BIND_SECONDS, end)
        try:
            while True:
                changed.clear()
                if uid not in self._plans:
                    raise Terminal("binding volumes: pod does not exist any more")
                state = self._model.cache.nodes.get(plan.node)
                node = state.facts if state is not None else None
                result = progress(plan, node, self._model.cache.volumes)
                if result is Progress.COMPLETE:
                    return
                if isinstance(result, str):
                    raise Terminal(f"binding volumes: {result}")
                if over.is_set():
                    raise Retryable("binding volumes: context deadline exceeded")
                await changed.wait()
        finally:
            self._waiting.discard(changed)
            timer.cancel()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

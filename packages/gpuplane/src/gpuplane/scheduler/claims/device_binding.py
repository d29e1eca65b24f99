"""Writes the devices of a pod's resource claims before the pod is bound.

1. `reserve` finds devices on the node for the claims that have none, and counts them as taken.
2. `bind` writes them as the allocation of each claim, together with the pod as its user. A claim that has devices gets
   the pod as a further user.
3. `release` counts devices that were not written as free, and takes the pod out of the users of its claims, unless it
   was bound.

A claim whose devices no node of its pod can reach loses them again (`free_elsewhere`), if no other pod uses it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec

from gpuplane.scheduler.claims.device_watch import StoredDeviceClaim
from gpuplane.scheduler.pods.model import PodModel
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Client, NotFound
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.devices.facts import FINALIZER, DeviceClaim, compile_device_claim
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.queue import ClusterEvent

log = logging.getLogger("gpuplane.scheduler")
WRITE_SECONDS: Final = 5.0


class DevicePlan(msgspec.Struct):
    """The claims of a pod, with their devices. `written`: those of them that name the pod as a user."""

    pod: PodInfo
    claims: list[DeviceClaim]
    written: list[DeviceClaim] = []


class DeviceBinder:
    """
    Args:
        start: runs a task until the scheduler ends.
    """

    plugin = "DynamicResources"

    def __init__(
        self, client: Client, model: PodModel, start: Callable[[Coroutine[Any, Any, None], str], None]
    ) -> None:
        self._client = client
        self._model = model
        self._start = start
        self._plans: dict[str, DevicePlan] = {}  # by the uid of the pod

    def reserve(self, pod: PodInfo, node: str) -> None:
        """Find devices for a pod on the node, and count them as taken. Raises KubekitError where there are none."""
        if not pod.claims:
            return
        cache = self._model.cache
        check, state = FilterCheck(pod, cache).devices, cache.nodes.get(node)
        if check is None or check.refused is not None or state is None or state.facts is None:
            raise Retryable("its claims have changed", where=pod.key)
        claims = [one for one in check.claims if one.allocation is not None and pod.uid not in one.users]
        for claim in check.allocated_on(state.facts, _new_share):
            cache.devices.assume(claim)
            claims.append(claim)
        if claims:
            self._plans[pod.uid] = DevicePlan(pod, claims)

    def waits(self, uid: str) -> bool:
        """Return whether claims have to be written before the pod is bound."""
        return uid in self._plans

    async def bind(self, uid: str) -> None:
        """Write what was reserved for a pod. Raises KubekitError where a claim was not written."""
        plan = self._plans[uid]
        for claim in plan.claims:
            async with asyncio.timeout(WRITE_SECONDS):
                written = await self._write(plan.pod, claim)
            plan.written.append(written)
            if uid not in self._plans:  # the pod has gone
                self._leave(plan)
                raise Retryable("pod does not exist any more", where=plan.pod.key)

    async def _write(self, pod: PodInfo, claim: DeviceClaim) -> DeviceClaim:
        """Write the devices of a claim and the pod as its user; return the claim as it is then."""
        user = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        status: dict[str, Any] = {"reservedFor": [user]}
        meta: dict[str, Any] = {"uid": claim.uid}
        if self._model.cache.devices.is_pending(claim.key):
            meta["resourceVersion"] = claim.resource_version
            if not claim.protected:
                patch = {"metadata": {**meta, "finalizers": [FINALIZER]}}
                protected = await self._client.patch(StoredDeviceClaim, claim.name, patch, claim.namespace, "strategic")
                meta["resourceVersion"] = protected.metadata.resource_version
            status["allocation"] = claim.allocation
        patch = {"metadata": meta, "status": status}
        answer = await self._client.patch(StoredDeviceClaim, claim.name, patch, claim.namespace, "strategic", "status")
        written = compile_device_claim(msgspec.to_builtins(answer))
        self._model.cache.devices.written(written)
        # NB: the watch may have delivered this before, when other pods still had to wait for the claim.
        self._model.storage_changed(ClusterEvent.DEVICES_CHANGED)
        return written

    def release(self, uid: str, *, settled: bool = False) -> None:
        """End what was reserved for a pod: devices that were not written are free again.

        Args:
            settled: the pod is bound or deleted. Kubernetes takes a pod that is deleted out of the users of its claims.
        """
        plan = self._plans.pop(uid, None)
        if plan is None:
            return
        restored = [self._model.cache.devices.restore(claim) for claim in plan.claims]
        if any(restored):
            self._model.storage_changed(ClusterEvent.DEVICES_CHANGED)
        if not settled:
            self._leave(plan)

    def _leave(self, plan: DevicePlan) -> None:
        for claim in plan.written:
            gone = {"$patch": "delete", "uid": plan.pod.uid}
            patch = {"metadata": {"uid": claim.uid}, "status": {"reservedFor": [gone]}}
            self._start(self._change(claim, patch), f"leave claim {claim.key}")
        plan.written = []

    def free_elsewhere(self, pod: PodInfo, claims: Iterable[DeviceClaim]) -> None:
        """Take the devices of a claim that no node of the pod can reach, if no other pod uses it."""
        for claim in claims:
            if set(claim.users) <= {pod.uid}:
                patch = {
                    "metadata": {"uid": claim.uid, "resourceVersion": claim.resource_version},
                    "status": {"allocation": None, "reservedFor": None, "devices": None},
                }
                self._start(self._change(claim, patch), f"free claim {claim.key}")
                return

    async def _change(self, claim: DeviceClaim, patch: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._client.patch(StoredDeviceClaim, claim.name, patch, claim.namespace, "strategic", "status")
        except NotFound:
            pass
        except (KubekitError, TimeoutError) as error:
            log.warning("claim not written claim=%s: %s", claim.key, error)


def _new_share() -> str:
    return str(uuid.uuid4())

"""Binds the volumes of a pod before the pod itself: claims that wait for their first pod get a volume of its node.

1. `reserve` chooses the volumes on the node, and counts them as taken.
2. `write` stores the choice: the claim in a volume that is there, or the node in a claim whose volume a driver makes.
3. `wait` returns once the volume controller has bound the claims.
4. `release` frees volumes that were counted and not written. Written ones stay, and are chosen again for the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubekit.errors import KubekitError, Retryable
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.volumes.binding import Progress, assume, progress, restore
from kubekit.scheduling.volumes.check import BINDING
from kubekit.scheduling.volumes.facts import BOUND_BY_CONTROLLER, SELECTED_NODE, ClaimInfo, VolumeInfo
from kubekit.scheduling.volumes.store import VolumePlan
from tinykube.controllers.following import follow

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

BIND_SECONDS: Final = 600.0
"""How long a pod waits for its volumes, as in kube-scheduler's default configuration."""


class ReservedVolumes(msgspec.Struct):
    """The plan for the volumes of a pod, with the versions that the writes made."""

    pod: PodInfo
    plan: VolumePlan

    def __bool__(self) -> bool:
        return bool(self.plan)


class PodVolumeBinder:
    """Make it after the tracker of volumes has subscribed: a wait looks at what that stored."""

    def __init__(self, registry: Registry, cache: SchedulerCache) -> None:
        self._registry = registry
        self._cache = cache
        self._waiting: set[asyncio.Event] = set()

    def start(self) -> None:
        """Follow what a wait can end with."""
        for plural in ("persistentvolumeclaims", "persistentvolumes", "nodes", "pods"):
            follow(self._registry, self._registry.resource(plural), self._wake, existing=False)

    def _wake(self, event: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> None:
        for changed in self._waiting:
            changed.set()

    def reserve(self, pod: PodInfo, node: str) -> ReservedVolumes:
        """Choose the volumes of a pod for the node, and count them as taken. Raises Retryable where there are none."""
        if not pod.volumes:
            return ReservedVolumes(pod, VolumePlan(node))
        check, state = FilterCheck(pod, self._cache).volumes, self._cache.nodes.get(node)
        if check is None or state is None or state.facts is None:
            raise Retryable(f'node "{node}" not found')
        planned = check.refused.reasons if check.refused is not None else check.plan(state.facts)
        if not isinstance(planned, VolumePlan):
            raise Retryable(f'running Reserve plugin "{BINDING}": {", ".join(planned)}')
        assume(planned, self._cache.volumes)
        return ReservedVolumes(pod, planned)

    def release(self, reserved: ReservedVolumes) -> bool:
        """Count what was not written as free; return whether there was any."""
        return restore(reserved.plan, self._cache.volumes)

    async def write(self, reserved: ReservedVolumes) -> None:
        """Write what was reserved. Raises Retryable in kube-scheduler's words where that failed."""
        try:
            for at, (volume, claim) in enumerate(reserved.plan.static):
                version = await self._write_claim(volume, claim)
                written = msgspec.structs.replace(volume, resource_version=version), claim
                static = (*reserved.plan.static[:at], written, *reserved.plan.static[at + 1 :])
                reserved.plan = msgspec.structs.replace(reserved.plan, static=static)
            for at, claim in enumerate(reserved.plan.provisions):
                version = await self._write_node(claim)
                selected = msgspec.structs.replace(claim, resource_version=version)
                provisions = (*reserved.plan.provisions[:at], selected, *reserved.plan.provisions[at + 1 :])
                reserved.plan = msgspec.structs.replace(reserved.plan, provisions=provisions)
        except KubekitError as error:
            raise Retryable(f'running PreBind plugin "{BINDING}": {error}') from error

    async def _write_claim(self, volume: VolumeInfo, claim: ClaimInfo) -> str:
        """Write the claim into the volume; return the version that this made."""
        stored = self._cache.volumes.stored_volume(volume.name)
        if stored is not None and stored.claim == volume.claim:
            return stored.resource_version
        metadata: dict[str, Any] = {"resourceVersion": volume.resource_version}
        if stored is None or stored.claim is None or not stored.claim.names(claim):
            metadata["annotations"] = {BOUND_BY_CONTROLLER: "yes"}  # no administrator reserved it by hand
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
            "resourceVersion": claim.resource_version,
        }
        patch = {"metadata": metadata, "spec": {"claimRef": reference}}
        written = await self._registry.patch("persistentvolumes", "", volume.name, patch, "merge")
        return str(written["metadata"]["resourceVersion"])

    async def _write_node(self, claim: ClaimInfo) -> str:
        """Write the node into the claim; return the version that this made."""
        stored = self._cache.volumes.stored_claim(claim.key)
        if stored is not None and stored.selected_node == claim.selected_node:
            return stored.resource_version
        notes = {SELECTED_NODE: claim.selected_node}
        patch = {"metadata": {"resourceVersion": claim.resource_version, "annotations": notes}}
        written = await self._registry.patch("persistentvolumeclaims", claim.namespace, claim.name, patch, "merge")
        return str(written["metadata"]["resourceVersion"])

    async def wait(self, reserved: ReservedVolumes) -> None:
        """Return once the volumes are bound. Raises Retryable in kube-scheduler's words where they are not."""
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            async with asyncio.timeout(BIND_SECONDS):
                while not self._is_bound(reserved):
                    await changed.wait()
                    changed.clear()
        except TimeoutError as error:
            raise _unbound("context deadline exceeded") from error
        finally:
            self._waiting.discard(changed)

    def _is_bound(self, reserved: ReservedVolumes) -> bool:
        pod = self._registry.get("pods", reserved.pod.namespace, reserved.pod.name)
        if pod is None or pod["metadata"]["uid"] != reserved.pod.uid or "deletionTimestamp" in pod["metadata"]:
            raise _unbound("pod does not exist any more")
        state = self._cache.nodes.get(reserved.plan.node)
        result = progress(reserved.plan, state.facts if state is not None else None, self._cache.volumes)
        if isinstance(result, str):
            raise _unbound(result)
        return result is Progress.COMPLETE


def _unbound(why: str) -> Retryable:
    return Retryable(f'running PreBind plugin "{BINDING}": binding volumes: {why}')

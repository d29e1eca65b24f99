"""Writes the devices of a pod's resource claims before the pod is bound.

1. `reserve` finds devices on the node for the claims that have none, and counts them as taken.
2. `write` stores them as the allocation of each claim, with the pod as its user. A claim that has devices gets the pod
   as a further user.
3. `release` takes back what a failed binding reserved.

Each write names the version of the claim that it was decided on. A scheduler that dies in between leaves claims with
devices and a waiting pod as their user: the next one finds both, and the pod follows its devices.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubekit.errors import KubekitError, Retryable
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.devices.check import PLUGIN
from kubekit.scheduling.devices.facts import DeviceClaim, compile_device_claim
from kubekit.scheduling.devices.writes import FREED, PROTECTED, allocated_for, is_used_by_others, no_user, user_of
from kubekit.scheduling.podinfo import PodInfo
from tinykube.apiserver.failure import ApiFailure

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_CLAIMS: Final = ("resource.k8s.io", "resourceclaims")
_log = logging.getLogger("tinykube.scheduler")


class ReservedClaims(msgspec.Struct):
    """The claims of a pod that are to be written, and those of them that name the pod by now."""

    pod: PodInfo
    claims: list[DeviceClaim] = []
    written: list[DeviceClaim] = []


class ClaimBinder:
    """
    Args:
        changed: brings back the pods that wait for devices.
    """

    def __init__(self, registry: Registry, cache: SchedulerCache, changed: Callable[[], None]) -> None:
        self._registry = registry
        self._cache = cache
        self._changed = changed

    def reserve(self, pod: PodInfo, node: str) -> ReservedClaims:
        """Find devices for a pod on the node, and count them as taken. Raises KubekitError where there are none."""
        plan = ReservedClaims(pod)
        if not pod.claims:
            return plan
        check, state = FilterCheck(pod, self._cache).devices, self._cache.nodes.get(node)
        if check is None or check.refused is not None or state is None or state.facts is None:
            raise Retryable("its claims have changed", where=pod.key)
        plan.claims += [one for one in check.claims if one.allocation is not None and pod.uid not in one.users]
        for claim in check.allocated_on(state.facts, _new_share):
            self._cache.devices.assume(claim)
            plan.claims.append(claim)
        return plan

    async def write(self, plan: ReservedClaims) -> None:
        """Write what was reserved for a pod. Raises Retryable in kube-scheduler's words where that failed."""
        try:
            for claim in plan.claims:
                plan.written.append(await self._write(plan.pod, claim))
        except KubekitError as error:
            raise Retryable(f'running PreBind plugin "{PLUGIN}": {error}') from error

    async def _write(self, pod: PodInfo, claim: DeviceClaim) -> DeviceClaim:
        meta: dict[str, Any] = {"uid": claim.uid, "resourceVersion": claim.resource_version}
        if not self._cache.devices.is_pending(claim.key):
            return await self._patch(claim, {"metadata": meta, "status": {"reservedFor": [user_of(pod)]}})
        if not claim.protected:
            protected = await self._registry.patch(
                _CLAIMS, claim.namespace, claim.name, {"metadata": {**meta, **PROTECTED}}, "strategic"
            )
            meta["resourceVersion"] = protected["metadata"]["resourceVersion"]
        return await self._patch(claim, {"metadata": meta, "status": allocated_for(pod, claim)})

    async def _patch(self, claim: DeviceClaim, patch: dict[str, Any]) -> DeviceClaim:
        answer = await self._registry.patch(
            _CLAIMS, claim.namespace, claim.name, patch, "strategic", subresource="status"
        )
        written = compile_device_claim(answer)
        self._cache.devices.written(written)
        # NB: the claim was followed before this, when other pods still had to wait for it.
        self._changed()
        return written

    async def release(self, plan: ReservedClaims) -> None:
        """Count devices that were not written as free, and take the pod out of the users of the others."""
        restored = [self._cache.devices.restore(claim) for claim in plan.claims]
        if any(restored):
            self._changed()
        for claim in plan.written:
            patch = {"metadata": {"uid": claim.uid}, "status": {"reservedFor": [no_user(plan.pod.uid)]}}
            await self._unless_changed(claim, patch)

    async def free_elsewhere(self, pod: PodInfo, claims: Iterable[DeviceClaim]) -> None:
        """Take the devices of one claim that no node of the pod can reach, if no other pod uses it."""
        claim = next((one for one in claims if not is_used_by_others(one, pod.uid)), None)
        if claim is not None:
            meta = {"uid": claim.uid, "resourceVersion": claim.resource_version}
            await self._unless_changed(claim, {"metadata": meta, "status": FREED})

    async def _unless_changed(self, claim: DeviceClaim, patch: dict[str, Any]) -> None:
        try:
            await self._patch(claim, patch)
        except ApiFailure as error:
            if error.status not in (404, 409):  # the pod is tried again all the same
                _log.warning("claim %s is not written: %s", claim.key, error)


def _new_share() -> str:
    return str(uuid.uuid4())

"""Writes the devices of a pod's resource claims before the pod is bound.

1. `reserve` finds devices on the node for the claims that have none, and counts them as taken.
2. `bind` writes them as the allocation of each claim, together with the pod as its user. A claim that has devices gets
   the pod as a further user.
3. `release` counts devices that were not written as free, and takes the pod out of the users of its claims, unless it
   was bound.

A claim whose devices no node of its pod can reach loses them again (`free_elsewhere`), if no other pod uses it.

Each write names the version of the claim that it was decided on. So no write undoes one that came in between, and none
of an earlier leader arrives late, see `take_over`. Devices stay counted as taken while a write of them has no answer.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from gpuplane.scheduler.claims.device_watch import StoredDeviceClaim
from gpuplane.scheduler.claims.take_over import WRITE_SECONDS, fence
from gpuplane.scheduler.pods.model import PodModel
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Client, Clock, Conflict, NotFound, ServerError, Unreachable
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.devices.facts import DeviceClaim, compile_device_claim
from kubekit.scheduling.devices.writes import FREED, PROTECTED, allocated_for, is_used_by_others, no_user, user_of
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.queue import ClusterEvent

log = logging.getLogger("gpuplane.scheduler")
AGAIN_SECONDS: Final = 1.0
_DOUBT: Final = (TimeoutError, Unreachable, ServerError)  # the write may be carried out, now or later
TRIES: Final = 5  # to change the users of a claim that others change meanwhile


class DevicePlan(msgspec.Struct):
    """The claims of a pod, with their devices. `written`: those of them that name the pod as a user.

    `open` are the keys of claims whose devices are being written, or may still be written by a write without an answer.
    """

    pod: PodInfo
    claims: list[DeviceClaim]
    written: list[DeviceClaim] = []
    open: set[str] = set()


class DeviceBinder:
    """
    Args:
        start: runs a task until the scheduler ends.
    """

    plugin = "DynamicResources"

    def __init__(
        self, client: Client, model: PodModel, clock: Clock, start: Callable[[Coroutine[Any, Any, None], str], None]
    ) -> None:
        self._client = client
        self._model = model
        self._clock = clock
        self._start = start
        self._plans: dict[str, DevicePlan] = {}  # by the uid of the pod
        self._leaving: set[tuple[str, str]] = set()  # claims and uids of pods that are taken out of their users
        self._doubted: set[tuple[str, str]] = set()  # claims and uids of pods whose write has no answer
        self._freed: set[str] = set()  # claims that lose their devices
        self._writers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by claim

    def reserve(self, pod: PodInfo, node: str) -> None:
        """Find devices for a pod on the node, and count them as taken. Raises KubekitError where there are none."""
        if not pod.claims:
            return
        cache = self._model.cache
        check, state = FilterCheck(pod, cache).devices, cache.nodes.get(node)
        if check is None or check.refused is not None or state is None or state.facts is None:
            raise Retryable("its claims have changed", where=pod.key)
        for one in check.claims:
            if (one.key, pod.uid) in self._doubted or one.key in self._freed:
                raise Retryable(f"a write of claim {one.name} has no answer yet", where=pod.key)
        claims = [one for one in check.claims if one.allocation is not None and not self._uses(pod.uid, one)]
        for claim in check.allocated_on(state.facts, _new_share):
            cache.devices.assume(claim)
            claims.append(claim)
        if claims:
            self._plans[pod.uid] = DevicePlan(pod, claims)

    def _uses(self, uid: str, claim: DeviceClaim) -> bool:
        return uid in claim.users and (claim.key, uid) not in self._leaving

    def waits(self, uid: str) -> bool:
        """Return whether claims have to be written before the pod is bound."""
        return uid in self._plans

    async def bind(self, uid: str) -> None:
        """Write what was reserved for a pod. Raises KubekitError where a claim was not written."""
        plan = self._plans[uid]
        for claim in plan.claims:
            plan.open.add(claim.key)
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    plan.written.append(await self._write(plan.pod, claim))
            except _DOUBT:
                self._doubted.add((claim.key, uid))
                self._start(self._settle(plan, claim), f"settle claim {claim.key}")
                raise
            except KubekitError:
                plan.open.discard(claim.key)
                if uid not in self._plans:
                    self._restore([claim])
                raise
            plan.open.discard(claim.key)
            if uid not in self._plans:  # the pod has gone
                self._leave(plan)
                raise Retryable("pod does not exist any more", where=plan.pod.key)

    async def _settle(self, plan: DevicePlan, claim: DeviceClaim) -> None:
        """Find out what became of a write without an answer. Until then the devices stay counted as taken."""
        now = await self._certain(claim)
        plan.open.discard(claim.key)
        self._doubted.discard((claim.key, plan.pod.uid))
        if now is None or now.allocation is None:
            self._restore([claim])
        elif plan.pod.uid in now.users:
            plan.written.append(now)
            self._leave(plan)

    async def _certain(self, claim: DeviceClaim) -> DeviceClaim | None:
        """Return the claim as it is, once no earlier write can change it any more; None for one that is gone."""
        while True:
            try:
                now = await fence(self._client, claim)
                break
            except (KubekitError, TimeoutError) as error:
                log.warning("claim in doubt claim=%s: %s", claim.key, error or "no answer")
                await self._clock.sleep(AGAIN_SECONDS)
        if now is not None and (now.allocation is not None or not self._model.cache.devices.is_pending(claim.key)):
            self._model.cache.devices.written(now)
            self._model.storage_changed(ClusterEvent.DEVICES_CHANGED)
        return now

    def _restore(self, claims: Iterable[DeviceClaim]) -> None:
        """Count devices as free that were not written."""
        restored = [self._model.cache.devices.restore(claim) for claim in claims]
        if any(restored):
            self._model.storage_changed(ClusterEvent.DEVICES_CHANGED)

    async def _write(self, pod: PodInfo, claim: DeviceClaim) -> DeviceClaim:
        """Write the devices of a claim and the pod as its user; return the claim as it is then."""
        if self._model.cache.devices.is_pending(claim.key):
            return await self._allocate(pod, claim)
        async with self._lock(claim):
            written = await self._change_users(claim, pod.uid, user_of(pod))
        if written is None:
            raise Retryable("its claim has lost its devices", where=claim.key)
        return written

    async def _allocate(self, pod: PodInfo, claim: DeviceClaim) -> DeviceClaim:
        meta: dict[str, Any] = {"uid": claim.uid, "resourceVersion": claim.resource_version}
        if not claim.protected:
            patch = {"metadata": {**meta, **PROTECTED}}
            protected = await self._client.patch(StoredDeviceClaim, claim.name, patch, claim.namespace, "strategic")
            meta["resourceVersion"] = protected.metadata.resource_version
        return await self._patched(claim, {"metadata": meta, "status": allocated_for(pod, claim)})

    async def _patched(self, claim: DeviceClaim, patch: dict[str, Any]) -> DeviceClaim:
        """Patch the status; return the claim as it is then."""
        answer = await self._client.patch(StoredDeviceClaim, claim.name, patch, claim.namespace, "strategic", "status")
        written = compile_device_claim(msgspec.to_builtins(answer))
        self._model.cache.devices.written(written)
        # NB: the watch may have delivered this before, when other pods still had to wait for the claim.
        self._model.storage_changed(ClusterEvent.DEVICES_CHANGED)
        return written

    def _lock(self, claim: DeviceClaim) -> asyncio.Lock:
        """Return the lock under which the users of a claim change."""
        return self._writers.setdefault(claim.key, asyncio.Lock())

    async def _change_users(self, claim: DeviceClaim, uid: str, user: dict[str, str]) -> DeviceClaim | None:
        """Add a pod to the users of a claim, or take it out; return None for a claim with other devices or none.

        Args:
            user: as in `reservedFor`, or how to delete the entry.
        """
        adds, known = "$patch" not in user, self._model.cache.devices.claim(claim.key)
        for _ in range(TRIES):
            if known is None or known.uid != claim.uid or known.allocation != claim.allocation:
                return None
            if (uid in known.users) == adds:
                return known
            meta = {"uid": claim.uid, "resourceVersion": known.resource_version}
            try:
                return await self._patched(claim, {"metadata": meta, "status": {"reservedFor": [user]}})
            except Conflict:
                known = await self._read(claim)
        raise Conflict("others change the claim all the time", where=claim.key)

    async def _read(self, claim: DeviceClaim) -> DeviceClaim | None:
        """Read a claim; None for one that is gone."""
        fields = f"metadata.name={claim.name}"
        found = await self._client.list(StoredDeviceClaim, claim.namespace, fields=fields)
        return compile_device_claim(msgspec.to_builtins(found[0])) if found else None

    def release(self, uid: str, *, settled: bool = False) -> None:
        """End what was reserved for a pod: devices that were not written are free again.

        Args:
            settled: the pod is bound or deleted. Kubernetes takes a pod that is deleted out of the users of its claims.
        """
        plan = self._plans.pop(uid, None)
        if plan is None:
            return
        # NB: an open write may be carried out after another claim got the devices; its answer decides about them.
        self._restore([claim for claim in plan.claims if claim.key not in plan.open])
        if not settled:
            self._leave(plan)

    def _leave(self, plan: DevicePlan) -> None:
        for claim in plan.written:
            self._leaving.add((claim.key, plan.pod.uid))
            self._start(self._leave_claim(claim, plan.pod.uid), f"leave claim {claim.key}")
        plan.written = []

    async def _leave_claim(self, claim: DeviceClaim, uid: str) -> None:
        try:
            async with self._lock(claim):
                await self._until_answered(claim, lambda: self._change_users(claim, uid, no_user(uid)))
        finally:
            self._leaving.discard((claim.key, uid))

    def free_elsewhere(self, pod: PodInfo, claims: Iterable[DeviceClaim]) -> None:
        """Take the devices of a claim that no node of the pod can reach, if no other pod uses it."""
        for claim in claims:
            if not is_used_by_others(claim, pod.uid) and claim.key not in self._freed:
                self._freed.add(claim.key)
                self._start(self._free(claim), f"free claim {claim.key}")
                return

    async def _free(self, claim: DeviceClaim) -> None:
        patch = {
            "metadata": {"uid": claim.uid, "resourceVersion": claim.resource_version},
            "status": FREED,
        }
        try:
            async with self._lock(claim):
                await self._until_answered(claim, lambda: self._patched(claim, patch))
        finally:
            self._freed.discard(claim.key)

    async def _until_answered(self, claim: DeviceClaim, write: Callable[[], Awaitable[object]]) -> None:
        """Write until there is an answer, which may be a refusal: what has no answer may still be carried out later."""
        while True:
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await write()
            except NotFound:
                return
            except _DOUBT:
                await self._certain(claim)
            except KubekitError as error:
                log.warning("claim not written claim=%s: %s", claim.key, error)
                return
            else:
                return


def _new_share() -> str:
    return str(uuid.uuid4())

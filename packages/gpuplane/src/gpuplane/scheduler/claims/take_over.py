"""Makes writes of an earlier leader to resource claims fail, before this leader decides about devices.

A leader sends writes only while it holds the lease, but a write may arrive late: after the next leader has the lease,
and has given the same device to another claim. The API server compares no claims with each other, so it would store
both. Therefore:

1. Each write of this scheduler to a claim names the version of the claim that it was decided on.
2. A new leader reads all claims and writes a mark to those that an earlier leader may have been writing, which changes
   their versions: claims that are protected and have no devices, since a claim is protected before it gets devices, and
   claims that a waiting pod uses, since they may lose this user or their devices. Later writes are refused.
3. It decides when its watch has delivered those claims, with what arrived before.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.scheduler.claims.device_watch import StoredDeviceClaim
from gpuplane.scheduler.claims.volume_watch import keeping
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock, Conflict, NotFound
from kubekit.scheduling.devices.facts import DeviceClaim, compile_device_claim

log = logging.getLogger("gpuplane.scheduler")
AT_ONCE: Final = 48
WRITE_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0


_keep: Final = keeping(StoredDeviceClaim, compile_device_claim)


async def take_over(
    client: Client, clock: Clock, waiting: Callable[[], Collection[str]], reached: Callable[[str], Awaitable[None]]
) -> None:
    """Return when no write of an earlier leader can change a claim, and the watch has delivered what there is.

    Args:
        client: one that writes only while this replica leads.
        waiting: returns the uids of the pods that wait for this scheduler.
        reached: returns when the watch of claims has delivered a version.
    """
    while True:
        try:
            version = await _mark_all(client, waiting())
            break
        except (KubekitError, TimeoutError) as error:
            log.warning("resource claims not taken over yet: %s", error or "no answer")
            await clock.sleep(AGAIN_SECONDS)
    if version:
        await reached(version)


def may_be_written(claim: DeviceClaim, waiting: Collection[str]) -> bool:
    """Return whether an earlier leader may have been writing the claim."""
    return (claim.protected and claim.allocation is None) or not set(claim.users).isdisjoint(waiting)


async def fence(client: Client, claim: DeviceClaim, mark: str = "") -> DeviceClaim | None:
    """Make earlier writes to a claim that have not arrived yet fail; return the claim as it is, None if it is gone.

    Raises KubekitError and TimeoutError where that is not certain.
    """
    mark = mark or uuid.uuid4().hex[:8]
    patch = {"metadata": {"uid": claim.uid, "annotations": {names.LEADER_ANNOTATION: mark}}}
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            marked = await client.patch(StoredDeviceClaim, claim.name, patch, claim.namespace)
    except (NotFound, Conflict):
        return None  # it is gone, or another claim has its name
    return compile_device_claim(msgspec.to_builtins(marked))


async def _mark_all(client: Client, waiting: Collection[str]) -> str:
    """Mark the claims, and return the newest version of all; empty without claims."""
    try:
        stored = await client.list(StoredDeviceClaim)
    except NotFound:
        return ""  # this API server serves no claims
    # NB: a claim that cannot be read is absent for every leader.
    kept = [one for claim in stored if (one := _keep(claim)) is not None]
    claims: list[DeviceClaim] = [one.info for one in kept]
    slots, mark = asyncio.Semaphore(AT_ONCE), uuid.uuid4().hex[:8]

    async def version(claim: DeviceClaim) -> str:
        if not may_be_written(claim, waiting):
            return claim.resource_version
        async with slots:
            return (await fence(client, claim, mark) or claim).resource_version

    return max(await asyncio.gather(*map(version, claims)), key=int, default="")

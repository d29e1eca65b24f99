"""A replica that waits for the lease follows the cluster, so that it has nothing to read when it takes the lease.

Invariants:

- A standby decides and writes nothing: see `leader`. Its client would not write either, since it holds no lease.
- The last Bindings of the previous leader may still be on their way to our watch when we take the lease, and their GPUs
  look free until then. So the new leader first writes to a pod, its own, and decides when its watch has delivered that
  write: a watch delivers the changes of all pods in order.
- A replica that cannot write to its own pod, such as one that runs outside of the cluster, reads the cluster when it
  takes the lease, and does not follow it before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gpuplane import names
from gpuplane.scheduler.leader import Leader
from kubekit.api.core import Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.scheduler")

Mark = Callable[[], Awaitable[str]]
"""Writes to a pod and returns the resource version that the pod has then. Raises KubekitError."""


class Standby:
    """
    Args:
        make: makes the objects of a replica, which know nothing yet.
        mark: None for a replica that is no pod.
    """

    def __init__(self, make: Callable[[], Leader], mark: Mark | None) -> None:
        self._make = make
        self._mark = mark
        self._leader: Leader | None = None
        self._following: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Follow the cluster from now on: another replica leads."""
        if self._mark is not None:
            self._leader = self._make()
            self._following = asyncio.create_task(self._leader.follow(), name="standby")
            log.info("standby, following the cluster")

    async def lead(self, ready: Callable[[Leader], None]) -> None:
        """Lead until cancelled, once the lease is ours; `ready` is called when pods may be decided."""
        version = await self._caught_up_at()
        leader, following = self._leader, self._following
        if not version or leader is None or following is None:
            await self.aclose()
            leader = self._make()
            await leader.run(lambda: ready(leader))
        else:
            await first_of(leader.lead(lambda: ready(leader), version), following)

    async def _caught_up_at(self) -> str:
        """Return the resource version of pods that we have to know; empty if the cluster has to be read again."""
        if self._mark is None or self._following is None or self._following.done():
            return ""
        try:
            return await self._mark()
        except KubekitError as error:
            log.warning("reading the cluster again, since the pod of this replica cannot be written: %s", error)
            return ""

    async def aclose(self) -> None:
        """Stop following."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        self._leader = self._following = None


def own_pod(client: Client, name: str, namespace: str, identity: str) -> Mark:
    """Return what writes to a pod that its replica, `identity`, leads."""

    async def mark() -> str:
        patch = {"metadata": {"annotations": {names.LEADER_ANNOTATION: identity}}}
        return (await client.patch(Pod, name, patch, namespace)).metadata.resource_version

    return mark

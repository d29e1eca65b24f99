"""Reads node pools and claims from the cluster, where their kinds are served and the user may read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gpuplane.api.karpenter import NodePool, Provisioner, declared_pool
from gpuplane.api.nodeclaim import READY, NodeClaim
from gpuplane.cli.pools import pool_views
from gpuplane.cli.status_views import PoolView
from kubekit.kube import Client, Forbidden, Informer, NotFound

_KINDS: Final[tuple[type[Any], ...]] = (Provisioner, NodePool, NodeClaim)


async def read_pools(client: Client) -> tuple[PoolView, ...]:
    """Return the pools as they are now; none where the kinds are unknown or the user may not read them."""
    return _views(await asyncio.gather(*(_listed(client, kind) for kind in _KINDS)))


async def _listed(client: Client, kind: type[Any]) -> list[Any]:
    try:
        return await client.list(kind)
    except (Forbidden, NotFound):
        return []


def _views(found: list[list[Any]]) -> tuple[PoolView, ...]:
    provisioners, pools, claims = found
    objects: list[Provisioner | NodePool] = [*provisioners, *pools]
    troubles: dict[str, tuple[str, str]] = {}
    if any(one.metadata.deletion_timestamp or _is_false(one) for one in objects):
        from gpuplane.explain.pool_trouble import pool_trouble  # late: most pools are sound

        for one in objects:
            if found_trouble := pool_trouble(one, None):
                troubles[one.metadata.name] = (found_trouble.rule, found_trouble.cure)
    return pool_views([declared_pool(pool) for pool in objects], claims, troubles)


def _is_false(pool: Provisioner | NodePool) -> bool:
    return any(one.type == READY and one.status == "False" for one in pool.status.conditions)


class PoolFollower:
    """The pools kept current by informers of the kinds that were served at the start."""

    def __init__(self, client: Client, changed: Callable[[], None]) -> None:
        self._client = client
        self._changed = changed
        self._informers: dict[type[Any], Informer[Any]] = {}

    async def start(self) -> None:
        """Return when the first lists are complete."""
        for kind in _KINDS:
            try:
                await self._client.request("GET", kind.RESOURCE.path(), {"limit": "1"})
            except (Forbidden, NotFound):
                continue
            informer: Informer[Any] = Informer(self._client, kind)
            informer.add_handler(lambda old, new: self._changed())
            informer.start()
            self._informers[kind] = informer
        for informer in self._informers.values():
            await informer.synced()

    async def aclose(self) -> None:
        for informer in self._informers.values():
            await informer.stop()

    def seen(self) -> tuple[PoolView, ...]:
        return _views([self._informers[kind].items() if kind in self._informers else [] for kind in _KINDS])

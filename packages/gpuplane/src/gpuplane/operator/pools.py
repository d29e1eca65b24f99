"""Watches the node pools of Karpenter, where their kinds are served.

The kinds are not gpuplane's, and most clusters serve at most one of them. A kind that is not served, or that the
operator may not read, is asked for again once a minute: Karpenter may be installed after gpuplane.

Invariant: after `known`, every kind was asked for, and the pools of the served kinds were listed. The operator writes
no DaemonSet before that: else each start of the operator would take the tolerations away and add them again, and so
replace the operands' pods twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from gpuplane.api.karpenter import POOL_KINDS, DeclaredPool, declared_pool
from kubekit.errors import Retryable
from kubekit.kube import Client, Clock, Forbidden, Informer, NotFound

log = logging.getLogger("gpuplane.operator")
CHECK_SECONDS: Final = 60.0
_AWAY_SECONDS: Final = 1.0  # until an API server that did not answer is asked again


class PoolWatch:
    """The declared node pools, kept current by one informer for each served kind."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._informers: dict[str, Informer[Any]] = {}
        self._handlers: list[Callable[[], None]] = []
        self._known = asyncio.Event()
        self._refused: set[str] = set()  # the kinds whose refusal is in the log

    async def known(self) -> None:
        """Return when the pools of the cluster are known for the first time."""
        await self._known.wait()

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call `handler()` after every change of a pool."""
        self._handlers.append(handler)

    def pools(self) -> list[DeclaredPool]:
        """Return the pools by kind and name."""
        found = [informer.items() for _, informer in sorted(self._informers.items())]
        return [declared_pool(pool) for pools in found for pool in sorted(pools, key=lambda pool: pool.metadata.name)]

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                pause = await self._look(group)
                await self._clock.sleep(pause)

    async def _look(self, group: asyncio.TaskGroup) -> float:
        """Start the informers of the kinds that are served by now; return the seconds until the next look."""
        for kind in POOL_KINDS:
            path = kind.RESOURCE.path()
            if path in self._informers:
                continue
            try:
                await self._client.request("GET", path, {"limit": "1"})
            except NotFound:
                self._refused.discard(path)
                continue
            except Forbidden as error:
                if path not in self._refused:
                    self._refused.add(path)
                    log.warning("node pools not read kind=%s: %s", kind.RESOURCE.kind, error)
                continue
            except Retryable as error:
                log.warning("node pools not read, retrying kind=%s: %s", kind.RESOURCE.kind, error)
                return _AWAY_SECONDS
            informer: Informer[Any] = Informer(self._client, kind, clock=self._clock)
            group.create_task(informer.run(), name=f"informer {path}")
            await informer.synced()
            informer.add_handler(lambda old, new: self._changed())
            self._informers[path] = informer
            log.info("watching node pools kind=%s version=%s", kind.RESOURCE.kind, kind.RESOURCE.version)
            self._changed()
        self._known.set()
        return CHECK_SECONDS

    def _changed(self) -> None:
        for handler in self._handlers:
            handler()

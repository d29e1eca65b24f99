"""Watches the node pools of Karpenter, where their kinds are served.

The kinds are not gpuplane's, and most clusters serve at most one of them. A kind that is not served, or that the
operator may not read, is asked for again once a minute: Karpenter may be installed after gpuplane. Of a kind that is
served in two versions the newer one is watched.

Each change of the operands' tolerations replaces their pods, so that:

- After `known`, every kind was asked for, and the pools of the served kinds were listed. The operator writes no
  DaemonSet before that: else each start would take the tolerations away and add them again.
- A kind whose list fails in the API server for `PATIENCE_SECONDS`, as where the conversion webhook of a removed
  Karpenter is missing, counts as one without pools. It must not keep the operator from its work.
- Pools that are applied one after the other count together: a change counts once the taints have stayed the same for
  `SETTLE_SECONDS`, or after `LONGEST_SECONDS`. A new pool has no nodes for longer than that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from gpuplane.api.karpenter import NEWER, POOL_KINDS, DeclaredPool, declared_pool
from kubekit.api.core import Taint
from kubekit.errors import Retryable
from kubekit.kube import Client, Clock, Forbidden, Informer, NotFound, ServerError

log = logging.getLogger("gpuplane.operator")
CHECK_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 30.0
_PAGE: Final = {"limit": "500"}  # as the informers ask for it: one object may be what cannot be listed
_AWAY_SECONDS: Final = 1.0  # until an API server that did not answer is asked again


class PoolWatch:
    """The declared node pools, kept current by one informer for each served kind."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._informers: dict[str, Informer[Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._handlers: list[Callable[[], None]] = []
        self._known = asyncio.Event()
        self._dirty = asyncio.Event()  # the taints differ from those that count
        self._settled: tuple[DeclaredPool, ...] = ()
        self._refused: set[str] = set()  # the kinds whose refusal is in the log
        self._failing: dict[str, float] = {}  # path -> since when the API server fails to list the kind

    async def known(self) -> None:
        """Return when the pools of the cluster are known for the first time."""
        await self._known.wait()

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call `handler()` after every change of the taints that pools declare."""
        self._handlers.append(handler)

    def pools(self) -> tuple[DeclaredPool, ...]:
        """Return the pools that count, by kind and name."""
        return self._settled

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._settle(), name="pools settle")
            while True:
                pause = await self._look(group)
                await self._clock.sleep(pause)

    async def _look(self, group: asyncio.TaskGroup) -> float:
        """Start the informers of the kinds that are served by now; return the seconds until the next look."""
        for kind in POOL_KINDS:
            path = kind.RESOURCE.path()
            newer = NEWER.get(kind)
            if path in self._informers or (newer is not None and newer.RESOURCE.path() in self._informers):
                continue
            try:
                await self._client.request("GET", path, _PAGE)
            except NotFound:
                self._recovered(path)
                continue
            except Forbidden as error:
                if path not in self._refused:
                    self._refused.add(path)
                    log.warning("node pools not read kind=%s: %s", kind.RESOURCE.kind, error)
                continue
            except Retryable as error:
                if self._fails_for_long(path, error):
                    if path not in self._refused:
                        self._refused.add(path)
                        log.warning("node pools not read, going on without kind=%s: %s", kind.RESOURCE.kind, error)
                    continue
                log.warning("node pools not read, retrying kind=%s: %s", kind.RESOURCE.kind, error)
                return _AWAY_SECONDS
            self._recovered(path)
            informer: Informer[Any] = Informer(self._client, kind, clock=self._clock)
            self._tasks[path] = group.create_task(informer.run(), name=f"informer {path}")
            await informer.synced()
            informer.add_handler(lambda old, new: self._changed())
            self._informers[path] = informer
            for older in (older for older, newer in NEWER.items() if newer is kind):
                self._drop(older.RESOURCE.path())
            log.info("watching node pools kind=%s version=%s", kind.RESOURCE.kind, kind.RESOURCE.version)
            self._changed()
        if not self._known.is_set():
            self._settled = self._found()
            self._known.set()
        return CHECK_SECONDS

    def _fails_for_long(self, path: str, error: Retryable) -> bool:
        """Return whether the API server answers, and has failed to list the kind for `PATIENCE_SECONDS`."""
        if not isinstance(error, ServerError) or error.status != 500:
            return False
        return self._clock.now() - self._failing.setdefault(path, self._clock.now()) >= PATIENCE_SECONDS

    def _recovered(self, path: str) -> None:
        self._refused.discard(path)
        self._failing.pop(path, None)

    def _drop(self, path: str) -> None:
        """Stop watching a version whose objects a newer one has: Karpenter was upgraded, and may stop serving it."""
        if self._informers.pop(path, None) is not None:
            self._tasks.pop(path).cancel()

    def _found(self) -> tuple[DeclaredPool, ...]:
        found = [informer.items() for _, informer in sorted(self._informers.items())]
        by_name = (sorted(pools, key=lambda pool: pool.metadata.name) for pools in found)
        return tuple(declared_pool(pool) for pools in by_name for pool in pools)

    def _changed(self) -> None:
        if _taints(self._found()) != _taints(self._settled):
            self._dirty.set()

    async def _settle(self) -> None:
        while True:
            await self._dirty.wait()
            latest = self._clock.now() + LONGEST_SECONDS
            while self._dirty.is_set() and self._clock.now() < latest:
                self._dirty.clear()
                await self._clock.sleep(SETTLE_SECONDS)
            self._dirty.clear()
            before, self._settled = self._settled, self._found()
            if _taints(before) != _taints(self._settled):
                for handler in self._handlers:
                    handler()


def _taints(pools: Iterable[DeclaredPool]) -> list[tuple[Taint, ...]]:
    return [(*pool.taints, *pool.startup_taints) for pool in pools]

"""Leader election on a `coordination.k8s.io/v1` Lease, with the semantics of client-go's, so that both can compete.

Invariants:

- Clocks of other machines are never compared with ours: a lease is free when its record has not *changed* for its
  duration by our own monotonic clock.
- Every write carries the resource version that was read, so of two takers one gets a Conflict.
- Work is cancelled when the lease could not be renewed for `renew` seconds, which is before another candidate may take
  it.
- Leaving gives the lease up, so that the next one starts at once.
- A process that was stopped and goes on learns first that its time is over: `Fenced` asks before every write, so that
  one that was deposed in its sleep writes nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from kubekit.api.core import LeaseObject, LeaseSpec
from kubekit.api.meta import ObjectMeta
from kubekit.errors import Retryable
from kubekit.kube.client import Client
from kubekit.kube.clock import Clock, SystemClock
from kubekit.kube.errors import AlreadyExists, ApiError, NotFound
from kubekit.kube.tasks import first_of

log = logging.getLogger("kubekit.kube")


class LeaseLost(Retryable):
    """The lease could not be renewed, or another candidate holds it."""


class ObservedLease(msgspec.Struct, frozen=True):
    """A lease's record and when (our clock) it was first seen to be so."""

    spec: LeaseSpec
    since: float


class LeaseVerdict(Enum):
    MINE = "mine"  # renew it
    FREE = "free"  # take it
    TAKEN = "taken"  # wait


def judge(observed: ObservedLease, identity: str, now: float) -> LeaseVerdict:
    """Decide what a candidate may do with a lease that it has seen unchanged since `observed.since`."""
    spec = observed.spec
    if spec.holder_identity == identity:
        return LeaseVerdict.MINE
    if not spec.holder_identity or now >= observed.since + spec.lease_duration_seconds:
        return LeaseVerdict.FREE
    return LeaseVerdict.TAKEN


class Fenced(Client):
    """A client whose writes go out only while a lease is held; reading it may always."""

    fence: Lease | None = None

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        *,
        replay: bool | None = None,
    ) -> bytes:
        """As Client's. Raises LeaseLost for a write without the lease."""
        if method not in ("GET", "HEAD") and self.fence is not None and not self.fence.holds:
            raise LeaseLost("not written, for another one may lead by now", where=f"{method} {path}")
        return await super().request(method, path, params, body, content_type, replay=replay)


class Lease:
    """
    Args:
        identity: names this candidate; must differ between processes (pod name and a random part).
        duration, renew, retry: seconds that others wait for a silent holder, that the holder tries to renew before it
            gives up, and between two tries. duration > renew > retry.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        *,
        duration: int = 15,
        renew: float = 10.0,
        retry: float = 2.0,
        clock: Clock | None = None,
    ) -> None:
        if not duration > renew > retry > 0:
            raise ValueError(f"a lease needs duration > renew > retry > 0, got {duration}, {renew}, {retry}")
        self.identity = identity
        self.holder = ""
        self._client = client
        self._name = name
        self._namespace = namespace
        self._duration = duration
        self._renew = renew
        self._retry = retry
        self._clock = clock or SystemClock()
        self._observed: ObservedLease | None = None
        self._version = ""
        self._good = float("-inf")  # when the last write of ours that was let through began

    @property
    def holds(self) -> bool:
        """Return whether this process certainly holds the lease: no other candidate may take it yet."""
        return self.holder == self.identity and self._clock.now() < self._good + self._renew

    async def lead(self, work: Callable[[], Awaitable[None]], waiting: Callable[[], None] = lambda: None) -> None:
        """Waits for the lease, then runs `work` while holding it.

        `waiting` is called once if another candidate holds the lease, and this one waits. Returns when `work` does.
        Raises LeaseLost after cancelling `work`, and whatever `work` raises.
        """
        await self._acquire(waiting)
        log.info("leading lease=%s identity=%s", self._name, self.identity)
        try:
            await first_of(self._keep(), work())
        finally:
            with contextlib.suppress(ApiError):  # NB: giving up is a courtesy; the lease expires anyway
                await self._release()

    async def _acquire(self, waiting: Callable[[], None]) -> None:
        said = ""
        waits = False
        while True:
            try:
                if await self._try():
                    return
                if not waits:
                    waits = True
                    waiting()
                if self.holder != said:
                    said = self.holder
                    log.info("waiting for lease=%s holder=%s", self._name, said)
            except (ApiError, Retryable) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("lease not readable, retrying lease=%s: %s", self._name, error)
            await self._clock.sleep(self._retry)

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(self._retry)
            left = self._good + self._renew - self._clock.now()
            if left <= 0:
                raise LeaseLost(f"could not be renewed for {self._renew:g} s", where=f"lease {self._name}")
            try:
                # NB: an API server that hangs must not hold the work beyond the deadline.
                async with asyncio.timeout(left):
                    mine = await self._try()
            except (ApiError, TimeoutError) as error:
                log.warning("lease not renewed lease=%s: %s", self._name, error or "no answer in time")
                continue
            if not mine:
                raise LeaseLost(f"taken by {self.holder}", where=f"lease {self._name}")

    async def _try(self) -> bool:
        """One look, and one write if the lease is ours or free; whether we hold it now."""
        began = self._clock.now()
        if not await self._look_and_write():
            return False
        # NB: from the beginning of the try: others count from when they see the write, which is later.
        self._good = began
        return True

    async def _look_and_write(self) -> bool:
        try:
            lease = await self._client.get(LeaseObject, self._name, self._namespace)
        except NotFound:
            return await self._write(None, 0)
        self._observe(lease)
        assert self._observed is not None
        verdict = judge(self._observed, self.identity, self._clock.now())
        if verdict is LeaseVerdict.TAKEN:
            return False
        moved = 0 if verdict is LeaseVerdict.MINE else 1
        return await self._write(lease, lease.spec.lease_transitions + moved)

    def _observe(self, lease: LeaseObject) -> None:
        self.holder = lease.spec.holder_identity
        self._version = lease.metadata.resource_version
        if self._observed is None or self._observed.spec != lease.spec:
            self._observed = ObservedLease(lease.spec, self._clock.now())

    async def _write(self, old: LeaseObject | None, transitions: int) -> bool:
        now = self._clock.wall()
        kept = old is not None and old.spec.holder_identity == self.identity
        spec = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self._duration,
            acquire_time=old.spec.acquire_time if old is not None and kept else now,
            renew_time=now,
            lease_transitions=transitions,
        )
        try:
            if old is None:
                meta = ObjectMeta(name=self._name, namespace=self._namespace)
                lease = await self._client.create(LeaseObject(metadata=meta, spec=spec))
            else:
                lease = await self._client.replace(LeaseObject(metadata=old.metadata, spec=spec))
        except AlreadyExists:
            return False
        self._observe(lease)
        return True

    async def _release(self) -> None:
        if self.holder != self.identity or self._observed is None:
            return
        spec = msgspec.structs.replace(self._observed.spec, holder_identity="", lease_duration_seconds=1)
        meta = ObjectMeta(name=self._name, namespace=self._namespace, resource_version=self._version)
        self.holder = ""
        await self._client.replace(LeaseObject(metadata=meta, spec=spec))
        log.info("lease released lease=%s", self._name)

"""A client on the embedded API server's registry in the same process, without HTTP: any history, in virtual time.

Writes can be lost before or after they are done, and a process can be stopped at any of them. Watches deliver late, in
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from enum import Enum
from typing import Any, Final

import msgspec

from kubekit.api.kinds import RESOURCES
from kubekit.api.meta import Resource, to_dict
from kubekit.kube.codec import ListPage
from kubekit.kube.errors import Unreachable, from_response
from kubekit.kube.lease import LeaseLost
from kubekit.kube.watch import EventType, WatchEvent
from tests.support.virtual_time import VirtualClock
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.registry import Registry

LATE_SECONDS: Final = 3.0  # less than a lease lasts, so the successor does not work yet


class WriteFault(Enum):
    NONE = "answered"
    BEFORE = "lost on its way there"
    AFTER = "done, and the answer lost"
    STOP_BEFORE = "the process ends before the write"
    STOP_AFTER = "the process ends after the write"
    STOP_LATE = "the process ends, and the write arrives seconds later"
    LEASE = "the lease is lost: no write of this process is sent any more, and it works on until it is ended"


class RegistryClient:
    """The client's face, as far as the autoscaler uses it.

    Args:
        fault: what happens to the next write.
        delay: seconds until a watch delivers the next change.
    """

    def __init__(
        self,
        registry: Registry,
        clock: VirtualClock,
        *,
        fault: Callable[[], WriteFault] = lambda: WriteFault.NONE,
        delay: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.registry = registry
        self.writes = 0
        self.stopped = asyncio.Event()
        self.fenced = False  # the lease is lost
        self._late: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._fault = fault
        self._delay = delay

    def holds(self, chance: random.Random) -> bool:
        """Return whether the process works on; one that has lost its lease does for a moment."""
        return not self.stopped.is_set() and (not self.fenced or chance.random() < 0.5)

    # -- reading ---------------------------------------------------------------------------------------------------

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        await self._alive()
        found = self.registry.get(_named(kind.RESOURCE), namespace, name)
        if found is None:
            raise from_response(404, b'{"reason": "NotFound", "message": "gone"}')
        return _convert(found, kind)

    async def list(self, kind: Any, namespace: str | None = None, labels: str = "", fields: str = "") -> list[Any]:
        await self._alive()
        found = self.registry.list(_named(kind.RESOURCE), namespace, labels or None, fields or None)
        return [_convert(obj, kind) for obj in found]

    async def pages(
        self, kind: Any, namespace: Any = None, labels: str = "", fields: str = "", *, bad: Any = None
    ) -> AsyncIterator[ListPage]:
        await self._alive()
        version = str(self.registry.store.version)
        yield ListPage(await self.list(kind, namespace, labels, fields), version, "")

    def watch(
        self,
        kind: Any,
        namespace: Any = None,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        *,
        bad: Any = None,
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        queue: asyncio.Queue[tuple[float, str, dict[str, Any]]] = asyncio.Queue()
        seen = int(resource_version)

        def note(change: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
            if namespace and obj["metadata"].get("namespace") != namespace:
                return
            queue.put_nowait((self._clock.now() + self._delay(), change, obj))

        # Subscribed at once: nothing that happens after the list is missed.
        end = self.registry.subscribe(_named(kind.RESOURCE), note)

        async def follow() -> AsyncGenerator[WatchEvent[Any], None]:
            try:
                while True:
                    # NB: all changes wait here, one after the other: a timer for each of them would let a change
                    # that is due at once overtake an earlier one that is due at the same moment.
                    due, change, obj = await queue.get()
                    if due > self._clock.now():
                        await self._clock.sleep(due - self._clock.now())
                    if int(obj["metadata"]["resourceVersion"]) > seen:
                        found = _convert(obj, kind)
                        yield WatchEvent(EventType(change), found, found.metadata.resource_version)
            finally:
                end()

        return follow()

    # -- writing ---------------------------------------------------------------------------------------------------

    async def create(self, obj: Any, *, namespace: str | None = None, resource: Any = None, manager: str = "",
                     subresource: str | None = None) -> Any:  # fmt: skip
        where: Resource = resource or (
            RESOURCES[obj["apiVersion"], obj["kind"]] if isinstance(obj, dict) else type(obj).RESOURCE
        )
        body = dict(obj) if isinstance(obj, dict) else to_dict(obj)
        body = {"apiVersion": where.api_version, "kind": where.kind, **body}
        space = namespace or body["metadata"].get("namespace")
        made = await self._write(
            lambda: self.registry.create(_named(where), space, body, manager=manager), is_event=where.kind == "Event"
        )
        return made if isinstance(obj, dict) else _convert(made, type(obj))

    async def patch(self, kind: Any, name: str, patch: Any, namespace: str | None = None, type: str = "merge",
                    subresource: str | None = None, *, manager: str = "") -> Any:  # fmt: skip
        made = await self._write(
            lambda: self.registry.patch(
                _named(kind.RESOURCE), namespace, name, patch, type, subresource=subresource, manager=manager
            ),
            is_event=kind.RESOURCE.kind == "Event",
        )
        return _convert(made, kind)

    async def delete(self, kind: Any, name: str, namespace: str | None = None, uid: str | None = None,
                     propagation: Any = None, *, grace_seconds: int | None = None) -> None:  # fmt: skip
        where = kind if isinstance(kind, Resource) else kind.RESOURCE
        preconditions = {"uid": uid} if uid else None
        await self._write(
            lambda: self.registry.delete(
                _named(where), namespace, name, preconditions=preconditions, grace=grace_seconds
            )
        )

    async def request(self, method: str, path: str, params: Any = None, body: Any = None, **_: Any) -> bytes:
        """An eviction, the only raw request of the autoscaler; no budget refuses it here."""
        assert method == "POST" and path.endswith("/eviction"), path
        parts = path.split("/")
        await self._write(lambda: self.registry.delete("pods", parts[4], parts[6]))
        return b"{}"

    async def _write(self, do: Callable[[], Any], *, is_event: bool = False) -> Any:
        await self._alive(is_event=is_event)
        self.writes += 1
        fault = self._fault()
        self.fenced = self.fenced or fault is WriteFault.LEASE
        if self.fenced:
            raise LeaseLost("not written, for another one may lead by now")
        if fault is WriteFault.STOP_LATE:
            self._clock.call_later(LATE_SECONDS, lambda: self._arrive(do))
        if fault in (WriteFault.STOP_BEFORE, WriteFault.STOP_LATE):
            self.stopped.set()
        await self._alive(is_event=is_event)
        if fault is WriteFault.BEFORE:
            raise Unreachable("cut")
        try:
            answer = await do()
        except ApiFailure as failure:
            raise from_response(failure.status, msgspec.json.encode(failure.to_status())) from None
        if fault is WriteFault.STOP_AFTER:
            self.stopped.set()
        await self._alive(is_event=is_event)
        if fault is WriteFault.AFTER:
            raise Unreachable("cut")
        return answer

    def _arrive(self, do: Callable[[], Any]) -> None:
        """Do a write whose sender has ended; the answer reaches no process."""

        async def arrive() -> None:
            with contextlib.suppress(ApiFailure):
                await do()

        task = asyncio.ensure_future(arrive())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _alive(self, *, is_event: bool = False) -> None:
        """Wait for ever once the process has been stopped, until its task is cancelled.

        The write of an event fails instead: the recorder lives on for up to five seconds of real time to write what
        waits, after the process's task has been cancelled.
        """
        if self.stopped.is_set():
            if is_event:
                raise Unreachable("cut")
            await asyncio.Event().wait()


def _named(resource: Resource) -> tuple[str, str]:
    return resource.group, resource.plural


def _convert(obj: dict[str, Any], kind: Any) -> Any:
    return msgspec.convert(obj, kind, strict=False)

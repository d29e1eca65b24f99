"""Kubernetes Events for what users should know, without ever disturbing who reports it.

Invariants:

- `event` neither blocks nor raises; what cannot be written is counted and dropped.
- The same thing said again raises the count of one Event; many different messages of one reason about one object become
  one combined Event; and one object can cause at most `_BURST` writes, refilled slowly.
- A message is at most 1 kB (the API server takes no longer one).

The numbers are client-go's (EventCorrelator), so a cluster sees what it is used to.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from typing import Any, Final, Literal

import msgspec

from kubekit.api.core import Event, EventSource, ObjectReference, reference
from kubekit.api.meta import KubeObject, ObjectMeta
from kubekit.errors import KubekitError
from kubekit.kube.client import Client
from kubekit.kube.clock import Clock, SystemClock, TokenBucket
from kubekit.kube.errors import ApiError, NotFound

log = logging.getLogger("kubekit.kube")

EventLevel = Literal["Normal", "Warning"]

_COMBINE_AFTER: Final = 10  # different messages of one reason about one object
_WINDOW_SECONDS: Final = 600.0
_BURST: Final = 25
_REFILL: Final = 1.0 / 300.0  # tokens a second
_REMEMBERED: Final = 4096  # objects and messages kept in mind
_WAITING: Final = 1000  # events not yet written
_MESSAGE_BYTES: Final = 1024
_FLUSH_SECONDS: Final = 5.0


class Said(msgspec.Struct):
    """One Event as it stands on the server."""

    name: str
    count: int
    first: str
    at: float


class EventWrite(msgspec.Struct, frozen=True):
    """The write for one report: create the Event `name`, or raise its count when that is above 1."""

    name: str
    about: ObjectReference
    level: str
    reason: str
    message: str
    count: int
    first: str
    last: str


class Correlator:
    """Decides what becomes of a report. Pure but for the clock and the source of names given to it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: OrderedDict[tuple[str, ...], Said] = OrderedDict()
        self._messages: OrderedDict[tuple[str, ...], tuple[float, set[str]]] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, ...], TokenBucket] = OrderedDict()

    def observe(self, about: ObjectReference, level: EventLevel, reason: str, message: str) -> EventWrite | None:
        """The write that belongs to this report, or None when the object has said too much."""
        now, wall = self._clock.now(), self._clock.wall()
        who = (about.kind, about.namespace, about.name, about.uid)
        bucket = _remember(self._buckets, who, lambda: TokenBucket(_REFILL, _BURST, self._clock.now))
        if not bucket.take():
            return None
        message = _shorten(message)
        topic = (*who, level, reason)
        since, messages = _remember(self._messages, topic, lambda: (now, set()))
        if now - since > _WINDOW_SECONDS:
            since, messages = self._messages[topic] = (now, set())
        messages.add(message)
        if len(messages) > _COMBINE_AFTER:
            same: tuple[str, ...] = (*topic, "")  # all of this topic count as one from now on
            message = _shorten(f"(combined from similar events): {message}")
        else:
            same = (*topic, message)
        said = self._said.get(same)
        if said is None or now - said.at > _WINDOW_SECONDS:
            name = f"{about.name[:200]}.{random.getrandbits(64):016x}"
            said = _remember(self._said, same, lambda: Said(name, 0, wall, now), fresh=True)
        said.count += 1
        said.at = now
        return EventWrite(said.name, about, level, reason, message, said.count, said.first, wall)


class EventRecorder:
    """Reports about objects. One for a process; `aclose` writes what still waits.

    Args:
        component: who reports, as `kubectl describe` shows in the column From.
        instance: which of several (the node's or pod's name).
    """

    def __init__(self, client: Client, component: str, *, instance: str = "", clock: Clock | None = None) -> None:
        self.written = 0
        self.dropped = 0
        self._client = client
        self._component = component
        self._instance = instance
        self._clock = clock or SystemClock()
        self._correlator = Correlator(self._clock)
        self._waiting: asyncio.Queue[EventWrite] = asyncio.Queue(_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._complained = ""

    def event(self, about: KubeObject | ObjectReference, level: EventLevel, reason: str, message: str) -> None:
        """Reports `reason` (CamelCase) with one line for people about an object."""
        target = about if isinstance(about, ObjectReference) else reference(about)
        write = self._correlator.observe(target, level, reason, message)
        if write is None or self._waiting.full():
            self.dropped += 1
            return
        self._waiting.put_nowait(write)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"events of {self._component}")

    async def flush(self) -> None:
        """Returns when everything reported so far has been written or given up."""
        if self._task is not None:
            await self._waiting.join()

    async def aclose(self) -> None:
        if self._task is None:
            return
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._waiting.join()
        except TimeoutError:
            self.dropped += self._waiting.qsize()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def _run(self) -> None:
        while True:
            write = await self._waiting.get()
            try:
                await self._write(write)
                self.written += 1
                self._complained = ""
            except KubekitError as error:  # also when the lease is lost under which this process writes
                self.dropped += 1
                why = error.reason if isinstance(error, ApiError) else type(error).__name__
                if self._complained != why:
                    self._complained = why
                    log.warning("event not written reason=%s message=%r: %s", write.reason, write.message, error)
            except Exception:
                self.dropped += 1
                log.exception("event not written")
            finally:
                self._waiting.task_done()

    async def _write(self, write: EventWrite) -> None:
        # Events of cluster-scoped objects live in "default", where kubectl describe looks for them.
        namespace = write.about.namespace or "default"
        if write.count > 1:
            patch: dict[str, Any] = {
                "count": write.count,
                "lastTimestamp": _seconds(write.last),
                "message": write.message,
            }
            try:
                await self._client.patch(Event, write.name, patch, namespace)
                return
            except NotFound:
                pass  # expired on the server meanwhile: make it again, with its count
        await self._client.create(
            Event(
                metadata=ObjectMeta(name=write.name, namespace=namespace),
                involved_object=write.about,
                reason=write.reason,
                message=write.message,
                type=write.level,
                count=write.count,
                first_timestamp=_seconds(write.first),
                last_timestamp=_seconds(write.last),
                source=EventSource(component=self._component, host=self._instance),
                reporting_component=self._component,
                reporting_instance=self._instance,
            ),
            namespace=namespace,
        )


def _remember(
    memory: OrderedDict[tuple[str, ...], Any], name: tuple[str, ...], make: Any, *, fresh: bool = False
) -> Any:
    """The entry of `name`, made when missing (or `fresh`); the longest unused one is forgotten."""
    if fresh or name not in memory:
        memory[name] = make()
        if len(memory) > _REMEMBERED:
            memory.popitem(last=False)
    memory.move_to_end(name)
    return memory[name]


def _seconds(wall: str) -> str:
    """`metav1.Time` has whole seconds."""
    return f"{wall[:19]}Z"


def _shorten(message: str) -> str:
    data = message.encode()
    if len(data) <= _MESSAGE_BYTES:
        return message
    return data[: _MESSAGE_BYTES - 4].decode(errors="ignore") + "…"

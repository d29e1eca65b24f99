"""A live copy of one kind's objects: listed in pages, then kept by a watch.

Invariants:

- After `synced`, the cache equals what the server had at the resource version last seen, and catches up with it.
- A watch that ends is resumed where it stood; only an expired version (410, as an HTTP status or inside the stream)
  costs a new list, and then handlers hear the differences only, deletes included.
- The cache is updated before handlers are called; a handler that raises is reported and does not stop the others.
- An object that does not fit its Struct is absent for us, and said so in the log.
- A request that fails is tried again for ever, with growing pauses: the server may be away for hours.
- A kind that the server does not serve is an empty list for an `optional` informer, which looks for it from time to
  time: its CustomResourceDefinition may be installed, and deleted, at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from kubekit.api.meta import KubeObject, key
from kubekit.kube.cache import Change, IndexBy, InformerCache
from kubekit.kube.client import Client
from kubekit.kube.clock import Clock, SystemClock
from kubekit.kube.errors import ApiError, ConfigError, Gone, NotFound, ServerError
from kubekit.kube.tasks import first_of
from kubekit.kube.watch import EventType, WatchEvent

log = logging.getLogger("kubekit.kube")

K = TypeVar("K", bound=KubeObject)
Handler = Callable[[K | None, K | None], None]
"""handler(old, new): an add has no old, a delete no new. Called in order, must not block."""

_PAUSE_BASE: Final = 0.1
_PAUSE_CAP: Final = 30.0
UNSERVED_SECONDS: Final = 10.0
"""How long an optional informer waits before it asks again for a kind that is not served."""
_LIVELY_SECONDS: Final = 1.0  # a watch that ends sooner, without an event, counts as a failure


class _Names(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Names = _Names()


class Informer(Generic[K]):
    """Objects of `kind`, kept current. Add indexes and handlers before or after `start`.

    Args:
        namespace: None for all of them.
        labels, fields: selectors as kubectl takes them.
        keep: transforms an object before it is cached: to a smaller one, or None for nothing. For clusters where whole
        objects would be too much. Its metadata has to keep names, uid and resourceVersion.
        optional: whether the server may lack the kind, now or later.
    """

    def __init__(
        self,
        client: Client,
        kind: type[K],
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        *,
        keep: Callable[[K], K | None] | None = None,
        clock: Clock | None = None,
        optional: bool = False,
    ) -> None:
        self.kind = kind
        self.name = f"{kind.RESOURCE.plural}{f' in {namespace}' if namespace else ''}"
        self.lists = 0
        self.watches = 0
        self.events = 0
        self.error = ""  # what hinders it now, "" when nothing does
        self.served = not optional  # whether the last list or watch found the kind
        self.on_served: list[Callable[[], None]] = []  # called when `served` has changed
        self._optional = optional
        self._client = client
        self._where = (namespace, labels, fields)
        self._keep = keep
        self._clock = clock or SystemClock()
        self._cache: InformerCache[K] = InformerCache()
        self._handlers: list[Handler[K]] = []
        self._version = ""
        self._progressed = asyncio.Event()  # the version changed
        self._synced = asyncio.Event()
        self._failures = 0  # in a row
        self._expired = 0  # watches that expired without having lived
        self._task: asyncio.Task[None] | None = None

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, name: str) -> K | None:
        """By key: `namespace/name`, or `name` for what is cluster-scoped. No copy: Structs are frozen."""
        return self._cache.get(name)

    def items(self) -> list[K]:
        return list(self._cache)

    def by_index(self, name: str, value: str) -> list[K]:
        return self._cache.by_index(name, value)

    def __len__(self) -> int:
        return len(self._cache)

    async def synced(self) -> None:
        """Returns when the first list is complete. Raises what ended the informer, if something did."""
        if self._task is None:
            await self._synced.wait()
        elif not self._synced.is_set():
            await first_of(self._synced.wait(), self._task)

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set()

    async def reached(self, version: str) -> None:
        """Return when the cache has every change up to this version, that of a write of an object that it watches.

        Resource versions of a kind are whole numbers that grow, see KEP-5504.
        """
        while not self._version or int(self._version) < int(version):
            self._progressed.clear()
            await self._progressed.wait()

    # -- wiring ----------------------------------------------------------------------------------------------------

    def add_index(self, name: str, by: IndexBy[K]) -> None:
        """`by(obj)` gives the values under which `by_index(name, value)` finds it."""
        self._cache.add_index(name, by)

    def add_handler(self, handler: Handler[K]) -> None:
        """Calls `handler(old, new)` on every change; what is known already comes as adds at once."""
        for obj in list(self._cache):
            self._call(handler, (None, obj))
        self._handlers.append(handler)

    # -- running ---------------------------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Runs in a task of its own until `stop`; starting twice is the same as once."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name=f"informer {self.name}")
        return self._task

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def run(self) -> None:
        """Lists and watches until cancelled. Raises ConfigError when the credentials can never work."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ConfigError:
                raise
            except Gone:
                self._version = ""
                self._expired += 1
                if self._expired > 1:
                    # Two in a row without life between are a server in trouble: wait before the next list.
                    self._failures = max(self._failures, self._expired)
                    await self._pause("every watch expires at once")
            except ApiError as error:
                if self._optional and isinstance(error, NotFound):
                    self._not_served()
                    await self._clock.sleep(UNSERVED_SECONDS)
                    continue
                if isinstance(error, ServerError) and error.status == 504:
                    # "Too large resource version": the server was restored to an older state.
                    self._version = ""
                self._failures += 1
                await self._pause(str(error))

    async def _list(self) -> None:
        first = not self._synced.is_set()
        version = ""
        with contextlib.ExitStack() as stack:
            self._cache.begin()
            async for page in self._client.pages(self.kind, *self._where, bad=self._bad):
                if page is None:
                    self._cache.begin()
                    continue
                if first and page.more:
                    # Only for large lists: freezing also keeps what garbage there is at that time.
                    first = False
                    stack.enter_context(_no_gc())
                for obj in page.items:
                    self._tell(self._store(obj))
                version = page.resource_version
            self._tell(self._cache.finish())
        self._version = version
        self._progressed.set()
        self.lists += 1
        self._set_served(served=True)
        self._well()
        self._synced.set()

    def _not_served(self) -> None:
        """Forget all objects: the server has none of the kind."""
        self._version = ""
        self._cache.begin()
        self._tell(self._cache.finish())
        self._set_served(served=False)
        self._well()
        self._synced.set()

    def _set_served(self, *, served: bool) -> None:
        if served != self.served:
            log.info("kind %s informer=%s", "served" if served else "not served any more", self.name)
            self.served = served
            for call in self.on_served:
                call()

    async def _watch(self) -> None:
        started = self._clock.now()
        heard = False
        self.watches += 1
        stream = self._client.watch(self.kind, *self._where, self._version, bad=self._bad)
        try:
            async with contextlib.aclosing(stream):
                async for event in stream:
                    heard = True
                    self._well()
                    self._take(event)
        finally:
            lived = heard or self._clock.now() - started >= _LIVELY_SECONDS
            if lived:
                self._expired = 0
        if not lived:
            self._failures += 1
            await self._pause("the server ends watches at once")

    def _take(self, event: WatchEvent[K]) -> None:
        self.events += 1
        self._version = event.resource_version or self._version
        self._progressed.set()
        if event.object is None:
            return
        if event.type is EventType.DELETED:
            self._tell(self._cache.remove(key(event.object)))
        else:
            self._tell(self._store(event.object))

    def _store(self, obj: K) -> list[Change[K]]:
        if self._keep is None:
            return self._cache.upsert(obj)
        try:
            kept = self._keep(obj)
        except Exception as error:
            self._bad_object(key(obj), f"{type(error).__name__}: {error}")
            kept = None
        return self._cache.remove(key(obj)) if kept is None else self._cache.upsert(kept)

    def _bad(self, raw: bytes, why: str) -> None:
        meta = msgspec.json.decode(raw, type=_Named).metadata
        name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        self._bad_object(name, why)
        self._tell(self._cache.remove(name))

    def _bad_object(self, name: str, why: str) -> None:
        log.warning("object malformed, treated as absent kind=%s name=%s: %s", self.kind.RESOURCE.kind, name, why)

    def _tell(self, changes: Iterable[Change[K]]) -> None:
        for change in changes:
            for handler in self._handlers:
                self._call(handler, change)

    def _call(self, handler: Handler[K], change: Change[K]) -> None:
        try:
            handler(*change)
        except Exception:
            obj: Any = change[1] or change[0]
            log.exception("handler failed informer=%s object=%s", self.name, key(obj))

    def _well(self) -> None:
        self._failures = 0
        if self.error:
            log.info("watching again informer=%s", self.name)
            self.error = ""

    async def _pause(self, why: str) -> None:
        if why != self.error:
            log.warning("watch failed, retrying informer=%s: %s", self.name, why)
            self.error = why
        seconds = min(_PAUSE_CAP, _PAUSE_BASE * 2.0 ** min(self._failures, 20))
        await self._clock.sleep(seconds * random.uniform(0.5, 1.0))


_gc_pauses = 0


@contextlib.contextmanager
def _no_gc() -> Iterator[None]:
    """No collections while thousands of objects that will stay are made; they are then frozen, out of later ones.

    Half or more of a large list's time is the collector's otherwise. Informers may list at the same time, so it counts.
    """
    global _gc_pauses
    enabled = gc.isenabled() or _gc_pauses > 0
    _gc_pauses += 1
    gc.disable()
    try:
        yield
    finally:
        _gc_pauses -= 1
        if enabled and _gc_pauses == 0:
            gc.freeze()
            gc.enable()

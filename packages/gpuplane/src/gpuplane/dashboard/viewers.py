"""Asks the API server for the user of a token and for the user's rights, and remembers the answers briefly.

Invariants:

- A decision is used for `FRESH_SECONDS`. Then it is asked for again, so a token that ended or was revoked is not good
  for longer, and neither is a right that was taken away. A refusal is used for `REFUSED_SECONDS`: most users may see
  few of many namespaces.
- A decision that is in use is asked for again before that, in the background, so viewers do not wait for it. Those of
  one moment are asked for at different times.
- While the API server does not answer, a decision stays for `STALE_SECONDS` more, and no new one is made.
- A token is remembered by its digest alone. No log line and no error has it.
- The cache is bounded, and so is the number of requests in flight: wrong tokens cost the API server little.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

from gpuplane.api.explanation import PodExplanation
from gpuplane.dashboard.viewer_rights import LIST_PODS, OF_CLUSTER, OF_CLUSTER_AT_ONCE, ViewerRights
from kubekit.errors import Retryable
from kubekit.kube import Client
from kubekit.kube.reviews import ResourceAccess, ReviewedUser, review_access, review_token

FRESH_SECONDS: Final = 10.0
REFUSED_SECONDS: Final = 60.0
STALE_SECONDS: Final = 60.0
REMEMBERED_USERS: Final = 1000
REMEMBERED_RIGHTS: Final = 50_000
AT_ONCE: Final = 16  # questions to the API server
AHEAD: Final = (
    0.5,
    0.75,
)  # parts of the time for which an answer is used, after which it is asked for in the background
NAMESPACES: Final = 500  # that are asked about for a user; pods of others are hidden
LONGEST_TOKEN: Final = 16 << 10  # bytes

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Answers that are asked for again after a while; the answer that was asked for first is forgotten first.

    Args:
        most: how many there are at most.
        fresh: the seconds for which an answer is used.
    """

    def __init__(
        self, most: int, monotonic: Callable[[], float], fresh: Callable[[V], float] = lambda answer: FRESH_SECONDS
    ) -> None:
        self._most = most
        self._fresh = fresh
        self._monotonic = monotonic
        self._answers: dict[K, tuple[float, V]] = {}
        self._asking: dict[K, asyncio.Task[V]] = {}

    def ready(self, key: K, ask: Callable[[], Awaitable[V]]) -> tuple[V] | None:
        """Return an answer that is there, and ask again in the background where its time ends soon; else None."""
        found = self._answers.get(key)
        if found is None:
            return None
        age, fresh = self._monotonic() - found[0], self._fresh(found[1])
        if age >= fresh:
            return None
        if age >= fresh * _ahead(key) and key not in self._asking:
            self._begin(key, ask)
        return (found[1],)

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the answer; several callers ask once. Raises what `ask` raises, unless an old answer still serves."""
        if (ready := self.ready(key, ask)) is not None:
            return ready[0]
        found = self._answers.get(key)
        try:
            return await asyncio.shield(self._asking.get(key) or self._begin(key, ask))
        except Retryable:
            if found is not None and self._monotonic() - found[0] < FRESH_SECONDS + STALE_SECONDS:
                return found[1]
            raise

    def _begin(self, key: K, ask: Callable[[], Awaitable[V]]) -> asyncio.Task[V]:
        task = self._asking[key] = asyncio.create_task(self._ask(key, ask))
        task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: K, done: asyncio.Task[V]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # callers that wait for it get it; the next caller asks again

    async def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        began = self._monotonic()
        answer = await ask()
        self._answers.pop(key, None)
        self._answers[key] = began, answer
        while len(self._answers) > self._most:
            del self._answers[next(iter(self._answers))]
        return answer


def _ahead(key: Hashable) -> float:
    first, last = AHEAD
    return first + (last - first) * (hash(key) % 1024) / 1024


class Viewers:
    """The users of the dashboard. `client` is that of the dashboard's account, which may make the reviews."""

    def __init__(self, client: Client, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._users: Remembered[bytes, ReviewedUser | None] = Remembered(REMEMBERED_USERS, monotonic)
        self._allowed: Remembered[tuple[ReviewedUser, ResourceAccess], bool] = Remembered(
            REMEMBERED_RIGHTS, monotonic, lambda allowed: FRESH_SECONDS if allowed else REFUSED_SECONDS
        )

    async def user(self, token: str) -> ReviewedUser | None:
        """Return the user of a token; None for a token that the API server does not accept. Raises ApiError."""
        if not token or len(token) > LONGEST_TOKEN:
            return None

        async def ask() -> ReviewedUser | None:
            async with self._at_once:
                return await review_token(self._client, token)

        return await self._users.get(hashlib.sha256(token.encode()).digest(), ask)

    async def allowed(self, user: ReviewedUser, access: ResourceAccess) -> bool:
        """Return whether the user has the access. Raises ApiError."""
        return await self._allowed.get((user, access), lambda: self._ask(user, access))

    async def rights(self, user: ReviewedUser, namespaces: Iterable[str]) -> ViewerRights:
        """Return the rights of a user; `namespaces` are those with pods that the dashboard could show.

        Raises ApiError.
        """
        found = await self._all(user, OF_CLUSTER_AT_ONCE)
        of_cluster = {name: all(found[one] for one in every) for name, every in OF_CLUSTER.items()}
        rights = msgspec.convert(of_cluster, ViewerRights)
        if rights.pods:
            return rights
        spaces = {list_pods(space): space for space in sorted(namespaces)[:NAMESPACES]}
        seen = await self._all(user, spaces)
        return msgspec.structs.replace(rights, namespaces=frozenset(spaces[one] for one in spaces if seen[one]))

    async def sees(self, user: ReviewedUser, namespace: str) -> bool:
        """Return whether the user may list the pods of a namespace. Raises ApiError."""
        return await self.allowed(user, list_pods(namespace))

    async def asks_why(self, user: ReviewedUser, namespace: str) -> bool:
        """Return whether the user may ask why pods of a namespace wait, as `gpuplane explain` does. Raises ApiError."""
        kind = PodExplanation.RESOURCE
        return await self.allowed(user, ResourceAccess("create", kind.plural, kind.group, namespace))

    async def _all(self, user: ReviewedUser, accesses: Collection[ResourceAccess]) -> dict[ResourceAccess, bool]:
        """Return whether the user has each access. Those that are remembered cost no task: streams ask all the time."""
        found, missing = dict[ResourceAccess, bool](), list[ResourceAccess]()
        for access in accesses:
            ready = self._allowed.ready((user, access), functools.partial(self._ask, user, access))
            if ready is None:
                missing.append(access)
            else:
                found[access] = ready[0]
        answers = await asyncio.gather(*(self.allowed(user, access) for access in missing)) if missing else ()
        return found | dict(zip(missing, answers, strict=True))

    async def _ask(self, user: ReviewedUser, access: ResourceAccess) -> bool:
        async with self._at_once:
            return await review_access(self._client, user, access)


@functools.lru_cache(maxsize=2 * NAMESPACES)
def list_pods(namespace: str) -> ResourceAccess:
    """Return the access that lists the pods of a namespace."""
    return ResourceAccess(LIST_PODS.verb, LIST_PODS.resource, namespace=namespace)

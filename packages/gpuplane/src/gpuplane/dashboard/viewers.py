"""Asks the API server for the user of a token and for the user's rights, and remembers the answers briefly.

Invariants:

- A decision is used for `FRESH_SECONDS`. Then it is asked for again, so a token that ended or was revoked is not good
  for longer, and neither is a right that was taken away. A refusal is used for `REFUSED_SECONDS`: most users may see
  few of many namespaces.
- While the API server does not answer, a decision stays for `STALE_SECONDS` more, and no new one is made.
- A token is remembered by its digest alone. No log line and no error has it.
- What is remembered is bounded, and so is the number of questions under way: wrong tokens cost the API server little.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

from gpuplane.api.explanation import PodExplanation
from gpuplane.dashboard.viewer_rights import LIST_PODS, OF_CLUSTER, ViewerRights
from kubekit.errors import Retryable
from kubekit.kube import Client
from kubekit.kube.reviews import ResourceAccess, ReviewedUser, review_access, review_token

FRESH_SECONDS: Final = 10.0
REFUSED_SECONDS: Final = 60.0
STALE_SECONDS: Final = 60.0
REMEMBERED_USERS: Final = 1000
REMEMBERED_RIGHTS: Final = 50_000
AT_ONCE: Final = 16  # questions to the API server
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

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the answer; several callers ask once. Raises what `ask` raises, unless an old answer still serves."""
        found = self._answers.get(key)
        if found is not None and self._monotonic() - found[0] < self._fresh(found[1]):
            return found[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._ask(key, ask))
            task.add_done_callback(lambda done: self._asking.pop(key, None))
        try:
            return await asyncio.shield(task)
        except Retryable:
            if found is not None and self._monotonic() - found[0] < FRESH_SECONDS + STALE_SECONDS:
                return found[1]
            raise

    async def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        began = self._monotonic()
        answer = await ask()
        self._answers.pop(key, None)
        self._answers[key] = began, answer
        while len(self._answers) > self._most:
            del self._answers[next(iter(self._answers))]
        return answer


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

        async def ask() -> bool:
            async with self._at_once:
                return await review_access(self._client, user, access)

        return await self._allowed.get((user, access), ask)

    async def rights(self, user: ReviewedUser, namespaces: Iterable[str]) -> ViewerRights:
        """Return the rights of a user; `namespaces` are those with pods that the dashboard could show.

        Raises ApiError.
        """
        names = list(OF_CLUSTER)
        found = await asyncio.gather(*(self._all_allowed(user, OF_CLUSTER[name]) for name in names))
        rights = msgspec.convert(dict(zip(names, found, strict=True)), ViewerRights)
        if rights.pods:
            return rights
        spaces = sorted(namespaces)[:NAMESPACES]
        seen = await asyncio.gather(*(self.sees(user, space) for space in spaces))
        own = frozenset(space for space, allowed in zip(spaces, seen, strict=True) if allowed)
        return msgspec.structs.replace(rights, namespaces=own)

    async def sees(self, user: ReviewedUser, namespace: str) -> bool:
        """Return whether the user may list the pods of a namespace. Raises ApiError."""
        return await self.allowed(user, ResourceAccess(LIST_PODS.verb, LIST_PODS.resource, namespace=namespace))

    async def asks_why(self, user: ReviewedUser, namespace: str) -> bool:
        """Return whether the user may ask why pods of a namespace wait, as `gpuplane explain` does. Raises ApiError."""
        kind = PodExplanation.RESOURCE
        return await self.allowed(user, ResourceAccess("create", kind.plural, kind.group, namespace))

    async def _all_allowed(self, user: ReviewedUser, every: Iterable[ResourceAccess]) -> bool:
        return all(await asyncio.gather(*(self.allowed(user, access) for access in every)))

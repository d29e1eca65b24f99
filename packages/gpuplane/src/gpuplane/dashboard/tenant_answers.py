"""Answers of the cluster's dashboard about pods of one namespace, for viewers who may not see the whole cluster.

A process of its own makes the explanations, as for the operator's PodExplanations: without the names of other tenants'
pods, and without the memory of the whole cluster in this process.

Invariant: one explanation is made at a time, and at most `MOST_WAITING` wait for their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.explanation import MOST_PODS
from gpuplane.cli.status_views import Overview
from gpuplane.dashboard.hiding import space_of
from gpuplane.dashboard.mine import WAITING
from gpuplane.explain.answer import Explanation
from gpuplane.operator.explanations import ExplanationFailed
from kubekit.errors import InvalidInput, NoAnswer

MOST_WAITING: Final = 16
REMEMBERED_SECONDS: Final = 15.0  # for which the waiting pods of a namespace are not explained again

Explain = Callable[[str, Sequence[str]], Awaitable[list[dict[str, Any]]]]
"""explain(namespace, pods) returns an answer for each pod. Raises ExplanationFailed."""


class TenantExplanations:
    """Explains pods of a namespace to its users."""

    def __init__(self, explain: Explain, monotonic: Callable[[], float]) -> None:
        self._explain = explain
        self._monotonic = monotonic
        self._turn = asyncio.Lock()
        self._waiters = 0
        self._of_space: dict[str, tuple[float, list[Explanation]]] = {}

    async def pod(self, namespace: str, name: str) -> Explanation:
        """Explain one pod. Raises InvalidInput where there is no such pod, and NoAnswer."""
        for found in await self._ask(namespace, [name]):
            return found
        where = f"namespace {namespace}"
        raise InvalidInput(f"there is no pod {name}", where=where, cure="kubectl get pods lists them")

    async def waiting(self, space: str, seen: Overview) -> list[Explanation]:
        """Explain the pods of a namespace that wait longest, the longest first. Raises NoAnswer."""
        names = [one.pod.partition("/")[2] for one in seen.waiting_pods if space_of(one.pod) == space]
        if not names:
            return []
        now = self._monotonic()
        self._of_space = {key: one for key, one in self._of_space.items() if now - one[0] < REMEMBERED_SECONDS}
        if space not in self._of_space:
            found = await self._ask(space, names[: min(WAITING, MOST_PODS)])
            self._of_space[space] = self._monotonic(), found
        return self._of_space[space][1]

    async def _ask(self, namespace: str, pods: Sequence[str]) -> list[Explanation]:
        if self._waiters >= MOST_WAITING:
            raise NoAnswer("many viewers ask for explanations now", cure="reload the page in a minute")
        self._waiters += 1
        try:
            async with self._turn:
                answers = await self._explain(namespace, pods)
        except ExplanationFailed as error:
            raise NoAnswer(f"the pods were not explained: {error}") from error
        finally:
            self._waiters -= 1
        return [msgspec.convert(one["explanation"], Explanation) for one in answers if one.get("explanation")]

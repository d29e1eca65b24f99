"""The dashboard's page of costs: the answer of `gpuplane cost`, with the rights of the client's user.

Invariants:

- Viewers of the same namespaces are one tenant, which asks one question at a time. A slow question therefore delays no
  other tenant.
- At most `AT_ONCE` questions are asked at the same time, and a question that is being asked is not asked again.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from gpuplane.cli.cost_prices import GPUPrices, read_prices, without_pool
from gpuplane.cli.cost_source import StoredSums, Sums, SumsKind, as_json, grouping, no_store, read_sums
from gpuplane.cli.cost_store import SumsAnswer
from gpuplane.cli.terminal import harmless
from gpuplane.metering.cost import CostRow, MeteredUse, cost_rows, total_row
from kubekit.errors import InvalidInput
from kubekit.kube import Client

TIMES: Final = {"1d": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
ROWS: Final = 200  # that are listed, the dearest; all are in the total
MOST_LABELS: Final = 8
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,300}")
REMEMBERED_SECONDS: Final = 60.0  # for which an answer is not asked for again
# Prometheus evaluates 20 queries at a time by default, those of its rules and alerts too; a question is six queries.
AT_ONCE: Final = 3
REMEMBERED_ANSWERS: Final = 8  # the one that was asked for first goes first; of a month of many pods each has megabytes


Question = tuple[tuple[str, ...], str]
"""Labels, and a key of TIMES."""


class CostFacts:
    """Costs of one cluster."""

    def __init__(self, client: Client, monotonic: Callable[[], float], stored: StoredSums = no_store) -> None:
        self._client = client
        self._stored = stored
        self._monotonic = monotonic
        self._at_once = asyncio.Semaphore(AT_ONCE)
        # Locks of tenants and of questions, as long as a request holds them or waits for them.
        self._turns: WeakValueDictionary[frozenset[str] | None, asyncio.Lock] = WeakValueDictionary()
        self._asking: WeakValueDictionary[Question, asyncio.Lock] = WeakValueDictionary()
        self._sums: dict[Question, tuple[float, Sums, GPUPrices]] = {}

    async def cost(self, by: str, since: str, spaces: Collection[str] | None = None) -> dict[str, Any]:
        """Return the costs of the last `since`, a key of TIMES, by what `gpuplane cost --by` takes.

        `spaces`: of the pods in these namespaces alone. Raises InvalidInput for others, and NoAnswer where nothing has
        the sums.
        """
        if since not in TIMES:
            raise InvalidInput(f"{since!r} is no time", where="since", cure=f"choose from {', '.join(TIMES)}")
        labels = grouping(by)
        if spaces is not None:
            labels = ("namespace", *labels)
        question = (labels, since)
        answer = self._remembered(question)
        if answer is None:
            turn = self._turns.setdefault(None if spaces is None else frozenset(spaces), asyncio.Lock())
            async with turn:
                answer = await self._answer(question)
        sums, price = answer
        uses = sums.uses if spaces is None else of_spaces(sums.uses, spaces, labels[-1])
        rows, total = cost_rows(uses, price), total_row(uses, price)
        if spaces is not None:
            rows, total = tuple(_without_pools(row) for row in rows), _without_pools(total)
        return {
            **(as_json(sums) if spaces is None else _unnamed(sums)),
            "by": by,
            "since": since,
            "rows": [_row(row) for row in rows[:ROWS]],
            "more": max(0, len(rows) - ROWS),
            "total": _row(total),
        }

    def _remembered(self, question: Question) -> tuple[Sums, GPUPrices] | None:
        now = self._monotonic()
        self._sums = {key: one for key, one in self._sums.items() if now - one[0] < REMEMBERED_SECONDS}
        known = self._sums.get(question)
        return None if known is None else known[1:]

    async def _answer(self, question: Question) -> tuple[Sums, GPUPrices]:
        """Return the remembered answer, or ask. Of those who ask the same, the first asks, and the next if it fails."""
        labels, since = question
        asking = self._asking.setdefault(question, asyncio.Lock())
        async with asking:
            if known := self._remembered(question):
                return known
            async with self._at_once:
                sums = await read_sums(self._client, labels, "", TIMES[since], self._stored)
                price = await read_prices(self._client)
            self._sums[question] = self._monotonic(), sums, price
            if len(self._sums) > REMEMBERED_ANSWERS:
                del self._sums[next(iter(self._sums))]
            return sums, price


def of_spaces(uses: Iterable[MeteredUse], spaces: Collection[str], label: str) -> list[MeteredUse]:
    """Return the use of pods in some namespaces; the first name of each is the namespace, and is taken off. Pure."""
    found = []
    for use in uses:
        space, *names = use.names or ("",)
        if space in spaces:
            found.append(msgspec.structs.replace(use, names=tuple(names) if any(names) else (f"without {label}",)))
    return found


_PLACES: Final = {
    SumsKind.PROMETHEUS: "Prometheus",
    SumsKind.STORE: "the dashboard's store",
    SumsKind.EXPORTERS: "the exporters",
}


def _unnamed(sums: Sums) -> dict[str, Any]:
    """Return what a document says of its source, without the names of pods and Services of other namespaces."""
    return {**as_json(sums), "source": _PLACES[sums.kind], "silent": ["an exporter"] * len(sums.silent), "note": ""}


async def store_answer(
    stored: StoredSums, labels: Sequence[str], namespace: str, seconds: float, spaces: Collection[str] | None
) -> dict[str, Any]:
    """Return the sums of a store as the fields of SumsAnswer, of all pods or those of some namespaces.

    Raises InvalidInput for invalid labels and times, and where there is no store.
    """
    known = 0 < len(labels) <= MOST_LABELS and all(_LABEL.fullmatch(one) for one in labels)
    if not known or not 0 < seconds < math.inf:
        raise InvalidInput("wrong labels or seconds", cure="ask as gpuplane cost does")
    wanted = labels if spaces is None else ("namespace", *labels)
    sums = await stored(wanted, namespace, seconds)
    if sums is None:
        raise InvalidInput("there is no store of sums", cure="give the dashboard a --history-dir")
    uses = sums.uses if spaces is None else of_spaces(sums.uses, spaces, labels[-1])
    answer = SumsAnswer(tuple(uses), sums.place, sums.complete, sums.since)
    document: dict[str, Any] = msgspec.to_builtins(answer)
    return document


def _without_pools(row: CostRow) -> CostRow:
    """Return a row without the names of node pools, which a viewer of some namespaces may not list."""
    return msgspec.structs.replace(row, prices_from=tuple(sorted({without_pool(one) for one in row.prices_from})))


def _row(row: CostRow) -> dict[str, Any]:
    """Return a row as plain data, without what is unknown; names come from users of the cluster."""
    found = {name: value for name, value in msgspec.to_builtins(row).items() if value is not None}
    sources = [harmless(one, coloured=False) for one in row.prices_from]
    return found | {"name": harmless(row.name, coloured=False), "pricesFrom": sources}

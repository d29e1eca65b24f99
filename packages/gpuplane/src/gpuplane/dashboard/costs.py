"""The dashboard's page of costs: the answer of `gpuplane cost`, with the rights of the client's user."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from gpuplane.cli.cost_prices import GPUPrices, read_prices
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
REMEMBERED_ANSWERS: Final = 8  # the one that was asked for first goes first; of a month of many pods each has megabytes


class CostFacts:
    """Costs of one cluster. To add up a month costs Prometheus some work: one question is asked at a time."""

    def __init__(self, client: Client, monotonic: Callable[[], float], stored: StoredSums = no_store) -> None:
        self._client = client
        self._stored = stored
        self._monotonic = monotonic
        self._asking = asyncio.Lock()
        self._sums: dict[tuple[tuple[str, ...], str], tuple[float, Sums, GPUPrices]] = {}

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
        async with self._asking:
            now = self._monotonic()
            self._sums = {key: one for key, one in self._sums.items() if now - one[0] < REMEMBERED_SECONDS}
            if (labels, since) not in self._sums:
                sums = await read_sums(self._client, labels, "", TIMES[since], self._stored)
                self._sums[labels, since] = self._monotonic(), sums, await read_prices(self._client)
                if len(self._sums) > REMEMBERED_ANSWERS:
                    del self._sums[next(iter(self._sums))]
            _, sums, price = self._sums[labels, since]
        uses = sums.uses if spaces is None else of_spaces(sums.uses, spaces, labels[-1])
        rows = cost_rows(uses, price)
        return {
            **(as_json(sums) if spaces is None else _unnamed(sums)),
            "by": by,
            "since": since,
            "rows": [_row(row) for row in rows[:ROWS]],
            "more": max(0, len(rows) - ROWS),
            "total": _row(total_row(uses, price)),
        }


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

    Raises InvalidInput for labels and times that are none, and where there is no store.
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


def _row(row: CostRow) -> dict[str, Any]:
    """Return a row as plain data, without what is unknown; names come from users of the cluster."""
    found = {name: value for name, value in msgspec.to_builtins(row).items() if value is not None}
    sources = [harmless(one, coloured=False) for one in row.prices_from]
    return found | {"name": harmless(row.name, coloured=False), "pricesFrom": sources}

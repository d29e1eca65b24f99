"""The dashboard's page of costs: the answer of `gpuplane cost`, with the rights of the client's user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpuplane.cli.cost_prices import read_prices
from gpuplane.cli.cost_source import as_json, grouping, read_sums
from gpuplane.cli.terminal import harmless
from gpuplane.metering.cost import CostRow, cost_rows, total_row
from kubekit.errors import InvalidInput
from kubekit.kube import Client

TIMES: Final = {"1d": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
ROWS: Final = 200  # that are listed, the dearest; all are in the total
REMEMBERED_SECONDS: Final = 60.0  # for which an answer is not asked for again


class CostFacts:
    """Costs of one cluster. To add up a month costs Prometheus some work: one question is asked at a time."""

    def __init__(self, client: Client, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._asking = asyncio.Lock()
        self._answers: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    async def cost(self, by: str, since: str) -> dict[str, Any]:
        """Return the costs of the last `since`, a key of TIMES, by what `gpuplane cost --by` takes.

        Raises InvalidInput for others, and NoAnswer where nothing has the sums.
        """
        if since not in TIMES:
            raise InvalidInput(f"{since!r} is no time", where="since", cure=f"choose from {', '.join(TIMES)}")
        labels = grouping(by)
        async with self._asking:
            now = self._monotonic()
            self._answers = {key: one for key, one in self._answers.items() if now - one[0] < REMEMBERED_SECONDS}
            if (by, since) not in self._answers:
                sums = await read_sums(self._client, labels, "", TIMES[since])
                price = await read_prices(self._client)
                rows = cost_rows(sums.uses, price)
                document = {
                    **as_json(sums),
                    "by": by,
                    "since": since,
                    "rows": [_row(row) for row in rows[:ROWS]],
                    "more": max(0, len(rows) - ROWS),
                    "total": _row(total_row(sums.uses, price)),
                }
                self._answers[by, since] = self._monotonic(), document
            return self._answers[by, since][1]


def _row(row: CostRow) -> dict[str, Any]:
    """Return a row as plain data, without what is unknown; names come from users of the cluster."""
    found = {name: value for name, value in msgspec.to_builtins(row).items() if value is not None}
    sources = [harmless(one, coloured=False) for one in row.prices_from]
    return found | {"name": harmless(row.name, coloured=False), "pricesFrom": sources}

"""GPU hours and dollars that pods held since midnight, from the sums that `gpuplane cost` reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from gpuplane.cli.cost_prices import node_prices
from gpuplane.cli.cost_source import StoredSums, find_prometheus, from_prometheus, no_store
from gpuplane.metering.cost import total_row
from kubekit.api.core import Node
from kubekit.errors import KubekitError
from kubekit.kube import Client

PAUSE_SECONDS: Final = 300.0
_SHORTEST: Final = 60.0  # seconds; just after midnight there is nothing to add up


class HeldToday(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Sums since midnight of this machine's time zone. `why` is the reason where they are unknown, and `dollars` is
    below 0 where no GPU has a price.
    """

    gpu_hours: float = 0.0
    dollars: float = -1.0
    unpriced_hours: float = 0.0
    why: str = ""


class TodayReader:
    """Reads them every few minutes; `current` has the last answer."""

    def __init__(
        self,
        client: Client,
        stored: StoredSums = no_store,
        *,
        wall: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self._client = client
        self._stored = stored
        self._wall = wall
        self.current = HeldToday(why="not read yet")

    async def run(self, changed: Callable[[], None]) -> None:
        """Read for ever, and call `changed` after each answer."""
        while True:
            await self.read()
            changed()
            await asyncio.sleep(PAUSE_SECONDS)

    async def read(self) -> None:
        """Read once; the reason is in `current` where there is no answer."""
        now = self._wall()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        seconds = max(_SHORTEST, (now - midnight).total_seconds())
        try:
            found = await find_prometheus(self._client)
            labels = ("namespace",)
            sums = (
                await self._stored(labels, "", seconds)
                if found is None
                else await from_prometheus(*found, labels, "", seconds)
            )
            if sums is None:
                self.current = HeldToday(why="there is no Prometheus and no store that remembers it")
                return
            nodes = await self._client.list(Node)
        except KubekitError as error:
            self.current = HeldToday(why=error.what)
            return
        total = total_row([use for use in sums.uses if use.names], node_prices(nodes))
        dollars = -1.0 if total.dollars is None else round(total.dollars, 2)
        self.current = HeldToday(round(total.held_hours, 1), dollars, round(total.unpriced_hours, 1))

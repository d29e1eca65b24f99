"""The recorder of the dashboard in the cluster: reads the meters of all exporters once a minute into a store of sums.

A reading that fails is made up for by the next one, since the counters go on. Where the store does not work, the
recorder says why and tries again; the dashboard goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gpuplane.cli.cost_source import GatheredUses, Sums, SumsKind, read_exporters
from gpuplane.metering.growth import READ_METRICS, Amounts, CounterReading, Labels, read_counters
from gpuplane.metering.store import HistoryStore
from kubekit.errors import KubekitError
from kubekit.kube import Client
from kubekit.kube.exposition import metric_lines

log = logging.getLogger("gpuplane.dashboard")

READ_SECONDS: Final = 60.0
BUSY_PART: Final = 0.2  # of the time, at most, in which the exporters are read
PLACE: Final = "the dashboard's store"


class HistoryRecorder:
    """Reads and writes; `why` is the reason where the last reading was not written.

    Args:
        waiting: returns how many pods wait for GPUs now.
        wall: Unix time.
    """

    def __init__(
        self,
        client: Client,
        store: HistoryStore,
        waiting: Callable[[], int],
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._store = store
        self._waiting = waiting
        self._wall = wall
        self._monotonic = monotonic
        self._last: float | None = None
        self.why = ""

    async def run(self) -> None:
        """Read for ever."""
        while True:
            began = self._monotonic()
            before = self.why
            await self.read()
            if self.why and self.why != before:
                log.warning("sums not written, retrying: %s", self.why)
            await asyncio.sleep(max(READ_SECONDS, (self._monotonic() - began) / BUSY_PART))

    async def read(self) -> None:
        """Read all exporters once, and write what they have in one transaction."""
        readings: list[CounterReading] = []
        why = ""
        try:
            await read_exporters(
                self._client, lambda text: readings.extend(read_counters(metric_lines(text, READ_METRICS)))
            )
        except KubekitError as error:
            why = str(error)
        now = self._monotonic()
        # After a pause of the process it is unknown how many pods waited meanwhile.
        seconds = 0.0 if self._last is None else min(now - self._last, 2 * READ_SECONDS)
        waited = (seconds, seconds * self._waiting())
        try:
            await asyncio.to_thread(self._store.add, readings, self._wall(), waiting=waited)
        except KubekitError as error:
            why = str(error)
        else:
            self._last = now
        self.why = why


def opened_store(folder: str) -> HistoryStore | None:
    """Return the store in a folder; None for no folder, and for a store that cannot be opened: the log says why."""
    if not folder:
        return None
    try:
        return HistoryStore(Path(folder) / "history.sqlite", time.time())
    except KubekitError as error:
        log.error("no sums are recorded: %s", error)
        return None


class StoreSums:
    """The sums of a store, as `gpuplane cost` asks for them."""

    def __init__(self, store: HistoryStore, wall: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall

    async def __call__(self, labels: Sequence[str], namespace: str, seconds: float) -> Sums:
        """Return the sums of whole hours, from that in which the last `seconds` began. Raises Retryable or Terminal."""
        now = self._wall()
        found = await asyncio.to_thread(self._store.sums, max(0.0, now - seconds), now)
        return stored_sums(found, labels, namespace, seconds, now, self._store.began)


def stored_sums(
    found: Sequence[tuple[Labels, Amounts]],
    labels: Sequence[str],
    namespace: str,
    seconds: float,
    now: float,
    began: float,
) -> Sums:
    """Return the sums of series by labels. Pure."""
    gathered = GatheredUses(labels, namespace)
    for key, amounts in found:
        line = dict(key)
        pods = "pod" in line
        if not pods and namespace:
            continue
        for amount, value in zip(Amounts._fields, amounts, strict=True):
            if value is not None:
                gathered.add(amount, line, value, pods=pods)
    begin = max(0.0, now - seconds)
    complete = began <= begin
    return Sums(gathered.uses(), PLACE, complete, since=begin if complete else began, kind=SumsKind.STORE)

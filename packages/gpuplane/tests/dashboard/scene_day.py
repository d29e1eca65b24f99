"""A cluster whose dashboard has recorded a day: GPUs that fill up and work, with pods that wait at noon."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from gpuplane.metering.growth import HOUR, Amounts, CounterReading, Labels
from gpuplane.metering.store import HistoryStore
from kubekit.api.core import Namespace
from packages.gpuplane.tests.dashboard.in_cluster import in_cluster
from packages.gpuplane.tests.dashboard.scene_pools import pooled
from packages.gpuplane.tests.dashboard.test_forwarding import installed_service

HELD = (12, 12, 11, 10, 10, 10, 12, 18, 26, 33, 38, 40, 40, 38, 39, 40, 38, 34, 28, 24, 20, 18, 16, 14, 13)
BUSY = (
    *(0.8, 0.8, 0.9, 0.9, 0.9, 0.9, 0.8, 0.6, 0.55, 0.6, 0.65, 0.7),
    *(0.6, 0.5, 0.6, 0.65, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8),
)
WAITING = (0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 6, 14, 18, 12, 9, 11, 6, 2, 0, 0, 0, 0, 0, 0, 0)
TOTAL = 40
_POD: Labels = (("Hostname", "gpu-01"), ("UUID", "GPU-1"), ("namespace", "ml"), ("pod", "train-0"))
_REST: Labels = (("Hostname", "gpu-01"), ("UUID", "GPU-1"))


def fill_day(path: Path, now: float) -> None:
    """The 24 hours before `now`, by the hours of the clock."""
    begin = (now // HOUR - 24) * HOUR
    store = HistoryStore(path, begin)
    held = busy = free = 0.0
    store.add([CounterReading("gpu-01", "a", 0, {})], begin)
    for at, (gpus, part, waiting) in enumerate(zip(HELD, BUSY, WAITING, strict=True)):
        end = min(now, begin + (at + 1) * HOUR - 1)
        seconds = end - begin - at * HOUR
        held, busy, free = held + gpus * seconds, busy + gpus * part * seconds, free + (TOTAL - gpus) * seconds
        counters = {_POD: Amounts(held, busy, None), _REST: Amounts(free, None, None)}
        reading = CounterReading("gpu-01", "a", end - begin, counters)
        store.add([reading], end, waiting=(seconds, seconds * waiting))
    store.close()


@contextlib.asynccontextmanager
async def recorded(folder: Path) -> AsyncIterator[None]:
    """The pools' cluster, with the cluster's dashboard behind its Service."""
    fill_day(folder / "history" / "history.sqlite", time.time())
    async with pooled(folder) as world:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
        await world.client.apply(body, "test", resource=Namespace.RESOURCE)
        async with in_cluster(world, folder, "--history-dir", str(folder / "history")) as found:
            await installed_service(world, found.port)
            yield

"""Reads what GPUs and pods use, for `gpuplane top` and the dashboard: from Prometheus, else from the exporters.

The cluster has one answer to each reading; how often it is read follows how long that takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from gpuplane.cli.cost_source import Get, find_prometheus, plain_labels, query_vector, read_exporters
from gpuplane.cli.terminal import count
from gpuplane.metering.use import (
    GAUGES,
    METRICS,
    POD_COUNTERS,
    REST_COUNTERS,
    GPUUse,
    MeteredGPU,
    UseWindow,
    read_lines,
)
from kubekit.errors import KubekitError
from kubekit.kube import Client
from kubekit.kube.exposition import metric_lines

READ_SECONDS: Final = 15.0  # the meter reads its GPUs every 10
FIRST_SECONDS: Final = 11.0  # until the second reading, which gives the first rates
LOOK_SECONDS: Final = 600.0  # until a cluster without Prometheus is looked at for one again
EARLIER_SECONDS: Final = 600  # how far back the first reading from Prometheus goes
BUSY_PART: Final = 0.2  # of the time, at most, in which the cluster is read
_POD_KEYS: Final = "Hostname, gpu, UUID, namespace, pod, exported_namespace, exported_pod"
_GPU_KEYS: Final = "Hostname, gpu, UUID, GPU_I_ID"
Line = tuple[str, Mapping[str, str], float]


class MeasuredUse(msgspec.Struct, frozen=True):
    """The last reading. `why` is the reason where nothing is measured, or the last reading failed; `source` names where
    the numbers are from, `silent` the exporters that did not answer.
    """

    gpus: Mapping[str, GPUUse] = {}
    why: str = "not read yet"
    source: str = ""
    silent: tuple[str, ...] = ()


class UseReader:
    """The use of a cluster's GPUs; `current` is the last reading."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._window = UseWindow()
        self._prometheus: tuple[Get, str] | None = None
        self._looked = float("-inf")
        self.current = MeasuredUse()

    async def read(self) -> None:
        """Take one reading; where none can be had, the reason is in `current` and the numbers before it are gone."""
        now = asyncio.get_running_loop().time()
        try:
            if self._prometheus is None and now - self._looked >= LOOK_SECONDS:
                self._looked = now
                self._prometheus = await find_prometheus(self._client)
                if self._prometheus is not None and not await self._begin(*self._prometheus):
                    self._prometheus = None
            if self._prometheus is not None:
                get, place = self._prometheus
                self._take(await _from_prometheus(get, place), place, ())
            else:
                found: dict[str, MeteredGPU] = {}
                answered, silent = await read_exporters(
                    self._client, lambda text: read_lines(metric_lines(text, METRICS), found)
                )
                self._take(found, count(answered, "exporter"), silent)
        except KubekitError as error:
            self._prometheus = None
            self.current = MeasuredUse(why=error.what)

    async def run(self, changed: Callable[[], None]) -> None:
        """Read for ever, and call `changed` after each reading."""
        loop = asyncio.get_running_loop()
        pause = FIRST_SECONDS
        while True:
            began = loop.time()
            await self.read()
            changed()
            await asyncio.sleep(max(pause, (loop.time() - began) / BUSY_PART))
            pause = READ_SECONDS

    async def _begin(self, get: Get, place: str) -> bool:
        """Take the reading of some minutes ago, for rates at once; False for a Prometheus without our metrics."""
        earlier = await _from_prometheus(get, place, f" offset {EARLIER_SECONDS}s")
        self._window.take(earlier)
        return bool(earlier) or bool(await _from_prometheus(get, place))

    def _take(self, found: Mapping[str, MeteredGPU], place: str, silent: tuple[str, ...]) -> None:
        gpus = self._window.take(found)
        why = "" if gpus else f"{place} has no metrics of GPUs"
        self.current = MeasuredUse(gpus, why, place, silent)


async def _from_prometheus(get: Get, place: str, moment: str = "") -> dict[str, MeteredGPU]:
    queries = {
        **{name: f"sum by ({_POD_KEYS}) ({name}{moment})" for name in POD_COUNTERS},
        **{name: f"sum by ({_GPU_KEYS}) ({name}{moment})" for name in REST_COUNTERS},
        **{name: f"max by ({_GPU_KEYS}) ({name}{moment})" for name in GAUGES},
    }
    answers = await asyncio.gather(*(get("/api/v1/query", {"query": text}) for text in queries.values()))
    return read_lines(_lines(queries, answers, place))


def _lines(names: Mapping[str, str], answers: list[bytes], place: str) -> Iterator[Line]:
    for name, answer in zip(names, answers, strict=True):
        for found in query_vector(answer, place):
            yield name, plain_labels(found.metric), found.number

"""The last 24 hours of the first page: GPUs held, busy and free on average of each hour, and pods that waited.

From the cluster's Prometheus, else from the store of sums. No name of a pod is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.cli.cost_source import Get, find_prometheus, moment
from gpuplane.cli.cost_store import ask_dashboard
from gpuplane.dashboard.history import PLACE
from gpuplane.metering.growth import HOUR
from gpuplane.metering.store import HistoryStore, HourSums
from kubekit.errors import KubekitError, Terminal
from kubekit.kube import Client

HOURS: Final = 24
REMEMBERED_SECONDS: Final = 120.0  # for which the answer is not asked for again
NOTHING: Final = "there is no Prometheus and no store that remembers them"
_QUERIES: Final = {
    "held": "sum(rate(gpuplane_pod_gpu_held_seconds_total[1h]))",
    "busy": "sum(rate(gpuplane_pod_gpu_used_seconds_total[1h]))",
    "free": "sum(rate(gpuplane_gpu_unbooked_seconds_total[1h]))",
    # The replica that leads reports them: the average is of the sum, or a change of the leader counted pods twice.
    "waiting": "avg_over_time((sum({__name__=~"
    '"gpuplane_scheduler_waiting_pods|gpuplane_pod_scheduler_pending_pods",queue!="trying"}))[1h:1m])',
}


class DayHour(msgspec.Struct, frozen=True, omit_defaults=True):
    """One hour that begins `at`: averages of GPUs and of pods; None where nothing measured them."""

    at: str
    held: float = 0.0
    free: float = 0.0
    busy: float | None = None
    waiting: float | None = None


class DayUse(msgspec.Struct, frozen=True):
    """The hours, the oldest first, and where they are from; `why` says why there are none."""

    hours: tuple[DayHour, ...] = ()
    source: str = ""
    why: str = ""


StoredDay = Callable[[], Awaitable[DayUse | None]]


async def no_day() -> DayUse | None:
    """Return None: there is no store."""
    return None


class DayFacts:
    """Reads the hours, once for all viewers."""

    def __init__(
        self, client: Client, wall: Callable[[], float], monotonic: Callable[[], float], stored: StoredDay = no_day
    ) -> None:
        self._client = client
        self._wall = wall
        self._monotonic = monotonic
        self._stored = stored
        self._reading = asyncio.Lock()
        self._read: tuple[float, DayUse] | None = None

    async def day(self) -> dict[str, Any]:
        """Return the hours as plain data."""
        async with self._reading:
            if self._read is None or self._monotonic() - self._read[0] > REMEMBERED_SECONDS:
                found = await self._ask()
                self._read = self._monotonic(), found
            document: dict[str, Any] = msgspec.to_builtins(self._read[1])
            return document

    async def _ask(self) -> DayUse:
        try:
            prometheus = await find_prometheus(self._client)
            if prometheus is not None:
                return await day_of_prometheus(*prometheus, self._wall())
            return await self._stored() or DayUse(why=NOTHING)
        except KubekitError as error:
            return DayUse(why=error.what)


async def day_of_prometheus(get: Get, place: str, now: float) -> DayUse:
    """Ask Prometheus for the hours that end now. Raises Terminal for an answer that is not Prometheus's."""
    end = now // 60 * 60
    given = {"start": f"{end - (HOURS - 1) * HOUR:.0f}", "end": f"{end:.0f}", "step": str(HOUR)}
    asked = (get("/api/v1/query_range", {"query": text, **given}) for text in _QUERIES.values())
    answers = await asyncio.gather(*asked)
    found = {name: _points(answer, place) for name, answer in zip(_QUERIES, answers, strict=True)}
    hours = hours_of_points(found)
    return DayUse(hours, place) if hours else DayUse(why=f"{place} has no metrics of GPUs")


class _Series(msgspec.Struct):
    values: list[tuple[float, str]] = []


class _Matrix(msgspec.Struct):
    result: list[_Series] = []


class _RangeAnswer(msgspec.Struct):
    status: str
    data: _Matrix = msgspec.field(default_factory=_Matrix)
    error: str = ""


def _points(answer: bytes, place: str) -> dict[float, float]:
    """Return moment -> value of a range query with one series."""
    try:
        parsed = msgspec.json.decode(answer, type=_RangeAnswer)
        if parsed.status != "success":
            raise Terminal(f"Prometheus answers: {parsed.error}", where=place)
        return {at: float(text) for series in parsed.data.result for at, text in series.values}
    except (msgspec.MsgspecError, ValueError) as error:
        raise Terminal("the answer is not Prometheus's", where=place) from error


def hours_of_points(found: Mapping[str, Mapping[float, float]]) -> tuple[DayHour, ...]:
    """Return the hours of points that are averages of the hour before them. Pure."""
    moments = sorted({*found["held"], *found["free"]})
    return tuple(
        DayHour(
            at=moment(at - HOUR),
            held=_rounded(found["held"].get(at, 0.0)) or 0.0,
            free=_rounded(found["free"].get(at, 0.0)) or 0.0,
            busy=_rounded(found["busy"].get(at)),
            waiting=_rounded(found["waiting"].get(at)),
        )
        for at in moments
    )


def without_names(found: dict[str, Any]) -> dict[str, Any]:
    """Return the page's data for a viewer who may not learn the names of Services of other namespaces. Pure."""
    source = "Prometheus" if found["source"].startswith("Prometheus ") else found["source"]
    return {**found, "source": source, "why": "nothing remembers them" if found["why"] else ""}


def day_of(store: HistoryStore | None, wall: Callable[[], float]) -> StoredDay:
    """Return what reads the hours of a store; of None there are none."""

    async def read() -> DayUse | None:
        return None if store is None else await day_of_store(store, wall())

    return read


def day_in_cluster(client: Client) -> StoredDay:
    """Return what asks the cluster's dashboard for the hours; it raises what the API server answers."""

    async def ask() -> DayUse | None:
        answer = await ask_dashboard(client, "/api/day", {})
        try:
            return None if answer is None else msgspec.json.decode(answer, type=DayUse)
        except msgspec.MsgspecError as error:
            raise Terminal("the answer of the cluster's dashboard is not one of gpuplane's") from error

    return ask


async def day_of_store(store: HistoryStore, now: float) -> DayUse:
    """Read the hours up to the one that is now. Raises Retryable or Terminal."""
    found = await asyncio.to_thread(store.hours, now - (HOURS - 1) * HOUR, now)
    hours = hours_of_sums(found, now, store.began)
    return DayUse(hours, PLACE) if hours else DayUse(why=f"{PLACE} has no hour yet")


def hours_of_sums(found: Sequence[HourSums], now: float, began: float) -> tuple[DayHour, ...]:
    """Return the averages of hours; the hour in which the store began, and that which is now, count as far as they
    were recorded. Pure.
    """
    hours = []
    for one in found:
        begin, end = max(began, one.hour * HOUR), min(now, (one.hour + 1) * HOUR)
        seconds = end - begin if end > begin else HOUR
        hours.append(
            DayHour(
                at=moment(one.hour * HOUR),
                held=_rounded(one.held / seconds) or 0.0,
                free=_rounded(one.free / seconds) or 0.0,
                busy=_rounded(None if one.used is None else one.used / seconds),
                waiting=_rounded(one.waiting),
            )
        )
    return tuple(hours)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)

"""Reads the meter's sums: from Prometheus, from a store of sums, or from the exporters since they started."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from gpuplane.cli.terminal import count
from gpuplane.metering.cost import MeteredUse
from gpuplane.metering.exposition import METER_SECONDS
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput, KubekitError, NoAnswer, Terminal
from kubekit.kube import Client, Forbidden, NotFound
from kubekit.kube.exposition import metric_lines
from kubekit.kube.http import HttpPool

SECONDS: Final = 120.0
PORT: Final = 9400
EXPORTERS: Final = "app=nvidia-dcgm-exporter"
# Labels of the Services that the Prometheus operator, its chart and the community's chart make.
SELECTORS: Final = (
    "operated-prometheus=true",
    "app=kube-prometheus-stack-prometheus",
    "app.kubernetes.io/name=prometheus",
)
POD_METRICS: Final = {
    "held": "gpuplane_pod_gpu_held_seconds_total",
    "used": "gpuplane_pod_gpu_used_seconds_total",
    "energy": "gpuplane_pod_gpu_energy_joules_total",
}
REST_METRICS: Final = {
    "held": "gpuplane_gpu_unbooked_seconds_total",
    "used": "gpuplane_gpu_unbooked_used_seconds_total",
    "energy": "gpuplane_gpu_unbooked_energy_joules_total",
}
# Prometheus renames labels that its own target has too, unless it honours them.
RENAMED: Final = ("namespace", "pod", "container")
_GPU: Final = ("Hostname", "modelName")
Get = Callable[[str, Mapping[str, str]], Awaitable[bytes]]


class SumsKind(StrEnum):
    PROMETHEUS = "prometheus"
    STORE = "store"
    EXPORTERS = "exporters"


class Sums(NamedTuple):
    """`place` names the source for people; `since` is the Unix time from which it has sums, and `complete` says whether
    these are of all the time that was asked for.

    `silent`: exporters that did not answer. `note`: why a better source was not taken, where people should know.
    """

    uses: tuple[MeteredUse, ...]
    place: str
    complete: bool
    silent: tuple[str, ...] = ()
    since: float | None = None
    kind: SumsKind = SumsKind.PROMETHEUS
    note: str = ""


class StoreUnavailable(NoAnswer):
    """There is a store of sums, and it does not answer."""


StoredSums = Callable[[Sequence[str], str, float], Awaitable[Sums | None]]
"""Reads the sums of a store by labels, namespace and seconds; None where there is no store."""


def grouping(by: str) -> tuple[str, ...]:
    """Return the labels of the metrics that a `--by` stands for. Raises InvalidInput."""
    known = {
        "namespace": ("namespace",),
        "owner": ("namespace", "owner_kind", "owner"),
        "pod": ("namespace", "pod"),
        "gpu": ("Hostname", "gpu", "UUID"),
    }
    if by in known:
        return known[by]
    kind, _, label = by.partition("=")
    if kind == "label" and label:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", label)
        return (f"_{name}" if name[:1].isdigit() else name,)
    cure = "choose from namespace, owner, pod, gpu, or a label as label=team"
    raise InvalidInput(f"{by!r} is no grouping", where="--by", cure=cure)


async def from_prometheus(get: Get, place: str, labels: Sequence[str], namespace: str, seconds: float) -> Sums:
    """Ask Prometheus for the growth of the counters in the last `seconds`."""
    wanted = dict.fromkeys((*labels, *_GPU, "namespace"))
    keys = [*wanted, *(f"exported_{name}" for name in wanted if name in RENAMED)]
    gpu_only = set(labels) <= {"Hostname", "gpu", "UUID"}
    rest_keys = [*dict.fromkeys((*labels, *_GPU))] if gpu_only else [*_GPU]
    questions = [(True, amount, _query(metric, keys, seconds)) for amount, metric in POD_METRICS.items()]
    if not namespace:
        questions += [(False, amount, _query(metric, rest_keys, seconds)) for amount, metric in REST_METRICS.items()]
    answers = await asyncio.gather(*(get("/api/v1/query", {"query": text}) for _, _, text in questions))
    found = GatheredUses(labels, namespace)
    for (pods, amount, _), answer in zip(questions, answers, strict=True):
        for line in query_vector(answer, place):
            found.add(amount, plain_labels(line.metric), line.number, pods=pods)
    return Sums(found.uses(), place, True, since=time.time() - seconds)


def _query(metric: str, keys: Sequence[str], seconds: float) -> str:
    return f"sum by ({', '.join(keys)}) (increase({metric}[{max(1, round(seconds))}s]))"


def plain_labels(metric: Mapping[str, str]) -> dict[str, str]:
    """Return the labels under the names that the exporter wrote."""
    labels = {name: value for name, value in metric.items() if not name.startswith("exported_")}
    for name in RENAMED:
        if f"exported_{name}" in metric:
            labels[name] = metric[f"exported_{name}"]
    return labels


class PrometheusLine(msgspec.Struct):
    """One series of an instant query's answer."""

    metric: dict[str, str]
    value: tuple[float, str]

    @property
    def number(self) -> float:
        return float(self.value[1])


class _Result(msgspec.Struct):
    resultType: str = ""
    result: list[PrometheusLine] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Result = msgspec.field(default_factory=_Result)
    error: str = ""


def query_vector(answer: bytes, place: str) -> list[PrometheusLine]:
    """Return the lines of an answer of Prometheus. Raises Terminal for what is no such answer, or an error."""
    try:
        parsed = msgspec.json.decode(answer, type=_Answer)
    except msgspec.MsgspecError as error:
        cure = "give the address of Prometheus, such as http://prometheus.example:9090"
        raise Terminal("the answer is not Prometheus's", where=place, cure=cure) from error
    if parsed.status != "success":
        raise Terminal(f"Prometheus answers: {parsed.error}", where=place, cure="a shorter --since asks for less")
    return parsed.data.result


class GatheredUses:
    """Sums of several metrics by group."""

    def __init__(self, labels: Sequence[str], namespace: str) -> None:
        self._labels, self._namespace = labels, namespace
        self._found: dict[tuple[tuple[str, ...], str, str], dict[str, float]] = {}

    def add(self, amount: str, labels: Mapping[str, str], value: float, *, pods: bool) -> None:
        if self._namespace and labels.get("namespace") != self._namespace:
            return
        names = tuple(labels.get(name, "") for name in self._labels)
        if pods and not any(names):
            names = (f"without {self._labels[0]}",)
        if not pods and "UUID" not in self._labels:
            names = ()
        key = (names, labels.get("Hostname", ""), labels.get("modelName", ""))
        sums = self._found.setdefault(key, {})
        sums[amount] = sums.get(amount, 0.0) + value

    def uses(self) -> tuple[MeteredUse, ...]:
        return tuple(
            MeteredUse(
                names=names,
                node=node,
                model=model,
                held_seconds=sums.get("held", 0.0),
                used_seconds=sums.get("used"),
                energy_joules=sums.get("energy"),
            )
            for (names, node, model), sums in self._found.items()
        )


def url_reader(url: str) -> Get:
    """Return a reader of the Prometheus at a URL. Raises InvalidInput for no http or https URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise InvalidInput(str(error), where="--prometheus", cure="write http://HOST:9090") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise InvalidInput(f"{url!r} is no address of Prometheus", where="--prometheus", cure="write http://HOST:9090")
    host, base, authority = parts.hostname, parts.path.rstrip("/"), parts.netloc
    tls = ssl.create_default_context() if parts.scheme == "https" else None

    async def get(path: str, parameters: Mapping[str, str]) -> bytes:
        pool = HttpPool(host, port, tls=tls)
        target = f"{base}{path}?{urlencode(parameters)}"
        head = f"GET {target} HTTP/1.1\r\nHost: {authority}\r\nAccept: application/json\r\n\r\n"
        try:
            response = await pool.request(head.encode(), timeout=SECONDS, replay=False)
        finally:
            await pool.aclose()
        if response.status in (401, 403):
            cure = "give an address that needs no password, such as a port-forward to Prometheus itself"
            raise NoAnswer(f"Prometheus refuses the question with {response.status}", where=url, cure=cure)
        # Prometheus reports wrong and too large questions with 400 and 422, and its JSON has the reason.
        if response.status >= 300 and not response.body.startswith(b"{"):
            raise NoAnswer(f"the answer is HTTP {response.status}", where=url, cure="check the address of Prometheus")
        return response.body

    return get


class _ServicePort(msgspec.Struct):
    name: str = ""
    port: int = 0


class _ServiceSpec(msgspec.Struct):
    ports: list[_ServicePort] = []


class _ServiceMeta(msgspec.Struct):
    name: str
    namespace: str


class _Service(msgspec.Struct):
    metadata: _ServiceMeta
    spec: _ServiceSpec = msgspec.field(default_factory=_ServiceSpec)


class _Services(msgspec.Struct):
    items: list[_Service] = []


async def find_prometheus(client: Client) -> tuple[Get, str] | None:
    """Return a reader of the cluster's Prometheus through the API server, and its name; None where there is none.

    A user who may not list Services is as one whose cluster has none.
    """
    for selector in SELECTORS:
        try:
            answer = await client.request("GET", "/api/v1/services", {"labelSelector": selector})
        except (Forbidden, NotFound):
            return None
        for service in sorted(
            msgspec.json.decode(answer, type=_Services).items,
            key=lambda one: (one.metadata.namespace, one.metadata.name),
        ):
            ports = service.spec.ports
            port = next((one.port for one in ports if one.name in ("http-web", "web", "http")), 0) or 9090
            if any(one.port == port for one in ports):
                meta = service.metadata
                path = f"/api/v1/namespaces/{meta.namespace}/services/{meta.name}:{port}/proxy"
                return _proxied(client, path), f"Prometheus {meta.namespace}/{meta.name}"
    return None


def _proxied(client: Client, base: str) -> Get:
    async def get(path: str, parameters: Mapping[str, str]) -> bytes:
        return await client.request("GET", base + path, parameters)

    return get


async def no_store(labels: Sequence[str], namespace: str, seconds: float) -> Sums | None:
    """Return None: there is no store."""
    return None


async def read_sums(
    client: Client, labels: Sequence[str], namespace: str, seconds: float, stored: StoredSums = no_store
) -> Sums:
    """Return the sums of the last `seconds` from the cluster's Prometheus, else a store's, else the exporters'."""
    found = await find_prometheus(client)
    if found is not None:
        return await from_prometheus(*found, labels, namespace, seconds)
    note = ""
    try:
        if (sums := await stored(labels, namespace, seconds)) is not None:
            return sums
    except StoreUnavailable as error:
        note = error.what
    return (await from_exporters(client, labels, namespace))._replace(note=note)


async def from_exporters(client: Client, labels: Sequence[str], namespace: str) -> Sums:
    """Read the counters of all exporters, through the API server. Raises NoAnswer when none answers."""
    found = GatheredUses(labels, namespace)
    names = {metric: (amount, True) for amount, metric in POD_METRICS.items()}
    names |= {metric: (amount, False) for amount, metric in REST_METRICS.items()}
    wanted, oldest = {*names, METER_SECONDS.name}, 0.0

    def take(text: str) -> None:
        nonlocal oldest
        for name, line, value in metric_lines(text, wanted):
            if name == METER_SECONDS.name:
                oldest = max(oldest, value)
                continue
            amount, pods = names[name]
            if pods or not namespace:
                found.add(amount, line, value, pods=pods)

    answered, silent = await read_exporters(client, take)
    since = time.time() - oldest if oldest else None
    return Sums(found.uses(), count(answered, "exporter"), False, silent, since, SumsKind.EXPORTERS)


async def read_exporters(client: Client, take: Callable[[str], object]) -> tuple[int, tuple[str, ...]]:
    """Give the metrics of each exporter to `take`, as they come: those of a large cluster are 40 MB together.

    Returns the number of exporters that answered, and the names of the others. Raises NoAnswer when none answers.
    """
    pods = await client.list(Pod, labels=EXPORTERS)
    turns, silent, last = asyncio.Semaphore(32), list[str](), list[KubekitError]()

    async def read(pod: Pod) -> None:
        meta = pod.metadata
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{PORT}/proxy/metrics"
        async with turns:
            try:
                text = (await client.request("GET", path)).decode(errors="replace")
            except KubekitError as error:
                silent.append(f"{meta.namespace}/{meta.name}")
                last.append(error)
                return
            take(text)

    await asyncio.gather(*(read(pod) for pod in pods))
    if len(silent) == len(pods):
        cause = last[0] if last else None
        raise NoAnswer(
            "no exporter of gpuplane answers through the API server" if pods else "there is no exporter of gpuplane",
            where="pods with the label " + EXPORTERS,
            cure="give --prometheus URL, or look at gpuplane status",
        ) from cause
    return len(pods) - len(silent), tuple(sorted(silent))


def as_json(sums: Sums) -> dict[str, Any]:
    """Return what a document says of its source."""
    return {
        "source": sums.place,
        "sourceKind": str(sums.kind),
        "complete": sums.complete,
        "begins": "" if sums.since is None else moment(sums.since),
        "silent": list(sums.silent),
        "note": sums.note,
    }


def moment(seconds: float) -> str:
    """Return a Unix time as RFC 3339, in whole seconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"

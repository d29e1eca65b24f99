"""Sources of the use of GPUs: Prometheus with its history, else the exporters; and the message without a source."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane.cli.use_reading import EARLIER_SECONDS, UseReader
from kubekit.api.core import Pod
from kubekit.errors import NoAnswer

SERVICE = {"metadata": {"name": "prometheus", "namespace": "m"}, "spec": {"ports": [{"port": 9090}]}}
LABELS = 'gpu="0",UUID="GPU-0",Hostname="n1"'
POD = f'{LABELS},namespace="ml",pod="tune"'


class Cluster:
    """An API server with a Prometheus or with one exporter. `amounts` are the counters' values now."""

    def __init__(self, *, prometheus: bool = False, exporter: bool = False) -> None:
        self.prometheus, self.exporter = prometheus, exporter
        self.amounts = {"gpuplane_pod_gpu_held_seconds_total": 1000.0, "gpuplane_pod_gpu_used_seconds_total": 300.0}
        self.before = dict.fromkeys(self.amounts, 0.0)

    async def request(self, method: str, path: str, query: dict[str, str] | None = None) -> bytes:
        if path == "/api/v1/services":
            return msgspec.json.encode({"items": [SERVICE] if self.prometheus else []})
        if "/services/" in path:
            if not self.prometheus:
                raise NoAnswer("Prometheus is away")
            return msgspec.json.encode({"status": "success", "data": {"result": self.result((query or {})["query"])}})
        if not self.exporter:
            raise NoAnswer("refused")
        return "".join(f"{name}{{{POD}}} {value}\n" for name, value in self.amounts.items()).encode()

    def result(self, query: str) -> list[dict[str, Any]]:
        name = query.rpartition("(")[2].partition(" ")[0].rstrip(")")
        values = self.before if f"offset {EARLIER_SECONDS}s" in query else self.amounts
        # Prometheus renames what its own target has too.
        metric = {"gpu": "0", "UUID": "GPU-0", "Hostname": "n1", "exported_namespace": "ml", "exported_pod": "tune"}
        return (
            [{"metric": {**metric, "namespace": "m", "pod": "e"}, "value": [0, str(values[name])]}]
            if name in values
            else []
        )

    async def list(self, kind: type[Pod], labels: str = "") -> list[Pod]:
        meta = {"name": "one", "namespace": "gpu-operator"}
        return [msgspec.convert({"metadata": meta, "spec": {"containers": []}}, Pod)]


async def test_prometheus_gives_rates_at_once() -> None:
    reader = UseReader(Cluster(prometheus=True))  # type: ignore[arg-type]
    await reader.read()
    [use] = reader.current.gpus.values()
    assert (use.busy_percent, use.pods["ml/tune"].core) == (pytest.approx(30), pytest.approx(30))
    assert (reader.current.source, reader.current.why) == ("Prometheus m/prometheus", "")


async def test_a_prometheus_that_scrapes_no_exporter_is_passed_over() -> None:
    cluster = Cluster(prometheus=True, exporter=True)
    held, cluster.amounts = cluster.amounts, {}
    cluster.before = {}
    reader = UseReader(cluster)  # type: ignore[arg-type]
    cluster.result = lambda query: []  # type: ignore[method-assign]
    cluster.amounts = held
    await reader.read()
    assert reader.current.source == "1 exporter"


async def test_the_exporters_give_rates_from_the_second_reading_on() -> None:
    cluster = Cluster(exporter=True)
    reader = UseReader(cluster)  # type: ignore[arg-type]
    await reader.read()
    [first] = reader.current.gpus.values()
    cluster.amounts = {name: 2 * value for name, value in cluster.amounts.items()}
    await reader.read()
    [second] = reader.current.gpus.values()
    assert (first.busy_percent, second.busy_percent) == (None, pytest.approx(30))


async def test_when_prometheus_goes_nothing_old_is_shown_and_it_is_looked_for_again() -> None:
    cluster = Cluster(prometheus=True)
    reader = UseReader(cluster)  # type: ignore[arg-type]
    await reader.read()
    cluster.prometheus = False
    await reader.read()
    assert (dict(reader.current.gpus), reader.current.why) == ({}, "Prometheus is away")
    cluster.exporter = True
    await reader.read()
    assert reader.current.source == "1 exporter"


async def test_without_any_source_the_reason_is_said() -> None:
    reader = UseReader(Cluster())  # type: ignore[arg-type]
    assert reader.current.why == "not read yet"
    await reader.read()
    assert reader.current.why == "no exporter of gpuplane answers through the API server"

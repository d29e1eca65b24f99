"""`gpuplane cost` as a user runs it, against a real Prometheus, a server that answers like one, and exporters."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.cost_prices import GPUPrices, first_of, node_prices, price_file
from gpuplane.cli.cost_source import find_prometheus, from_exporters, from_prometheus, grouping
from gpuplane.cli.main import main
from gpuplane.metering import GPUReading, Hold, Meter, MeterNames, NodeReading, PodContainer, families
from gpuplane.metering.cost import HourPrice, total_row
from kubekit.api.core import Node, Pod
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, KubekitError, NoAnswer
from kubekit.kube import Forbidden
from kubekit.kube.exposition import exposition

HOUR = 3600
EVIL = 'a"b\x1b[31m<b>\nc'
PATIENCE_SECONDS = 60.0
prometheus_installed = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="no prometheus and promtool here (Debian: apt-get install prometheus)",
)


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text("models: {Tesla T4: 0.5}\nnodes: {sim-2: 2}\n")
    return path


def history(now: float) -> str:
    """Ten hours of a node as OpenMetrics: ml/train holds a GPU and works half of the time, web/a and web/b ended."""
    pods = {
        'namespace="ml",pod="train-0",owner_kind="Job",owner="train",team="vision"': (0, 10, 1.0, 0.5),
        'namespace="web",pod="a",owner_kind="Deployment",owner="web",team="shop"': (2, 6, 0.3, 0.3),
        'namespace="web",pod="b",owner_kind="Deployment",owner="web",team="shop"': (2, 6, 0.5, 0.0),
    }
    lines: list[str] = []
    begin, step = now - 10 * HOUR, 60
    amounts = (
        ("held_seconds", lambda p, u: p),
        ("used_seconds", lambda p, u: u),
        ("energy_joules", lambda p, u: 100 * p),
    )
    for name, rate in amounts:
        lines.append(f"# TYPE gpuplane_pod_gpu_{name} counter")
        for labels, (first, last, part, used) in pods.items():
            for second in range(first * HOUR, last * HOUR + 1, step):
                value = rate(part, used) * (second - first * HOUR)
                where = f'{labels},Hostname="sim-1",modelName="Tesla T4",UUID="GPU-0",gpu="0"'
                lines.append(f"gpuplane_pod_gpu_{name}_total{{{where}}} {value} {begin + second:.0f}")
    return "\n".join([*lines, "# EOF", ""])


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def prometheus(tmp_path: Path, text: str) -> Iterator[str]:
    """Run Prometheus with these series in its past; yield its address."""
    (tmp_path / "history").write_text(text)
    (tmp_path / "prometheus.yml").write_text("{}")
    data = str(tmp_path / "data")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "history"), data]
    subprocess.run(command, check=True, capture_output=True)
    port = free_port()
    arguments = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={data}"]
    arguments += [f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=1y"]
    server = subprocess.Popen(["prometheus", *arguments], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                    break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait()


@prometheus_installed
@pytest.mark.deadline(120)
def test_hours_and_dollars_from_a_real_prometheus(
    tmp_path: Path, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with prometheus(tmp_path, history(time.time() - 600)) as url:
        ask = ["cost", "--prometheus", url, "--prices", str(prices), "--since", "1d"]
        assert main([*ask, "-o", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main([*ask, "--by", "owner", "-n", "web", "-o", "csv"]) == 0
        owners = capsys.readouterr().out.splitlines()
        assert main([*ask, "--by", "label=team"]) == 0
        table = capsys.readouterr().out.splitlines()
    rows = {row["name"]: row for row in found["rows"]}
    close = pytest.approx
    assert (found["complete"], found["by"]) == (True, "namespace")
    assert rows["ml"]["heldHours"] == close(10, rel=0.01)
    assert rows["ml"]["usedHours"] == rows["ml"]["idleHours"] == close(5, rel=0.01)
    assert rows["ml"]["energyKwh"] == close(1, rel=0.01)
    assert rows["ml"]["dollars"] == close(5, rel=0.01)
    assert rows["web"]["heldHours"] == close(3.2, rel=0.01)
    assert found["total"]["heldHours"] == close(13.2, rel=0.01)
    assert owners[0] == "name,heldHours,usedHours,idleHours,energyKwh,dollars,unpricedHours,pricesFrom"
    assert [line.split(",")[0] for line in owners[1:]] == ["web/Deployment/web"]
    assert owners[1].endswith(",prices.yaml") and found["total"]["pricesFrom"] == ["prices.yaml"]
    assert " prices  prices.yaml" in table
    assert [line.split()[0] for line in table[2:6]] == ["LABEL=TEAM", "vision", "shop", "total"]
    assert all(len(line) <= 80 for line in table)


class FakeCluster:
    """An API server that lists Services and Pods, and passes questions on to what is behind them."""

    def __init__(self, answers: Mapping[str, bytes | KubekitError], pods: list[Pod] | None = None) -> None:
        self._answers, self._pods = answers, pods or []

    async def list(self, kind: type, labels: str = "") -> list[Pod]:
        return self._pods

    async def request(self, method: str, path: str, params: Mapping[str, str] | None = None) -> bytes:
        key = f"{path}?{params['labelSelector']}" if params and "labelSelector" in params else path
        answer = self._answers.get(key, b'{"items":[]}')
        if isinstance(answer, KubekitError):
            raise answer
        return answer


def client(answers: Mapping[str, bytes | KubekitError], *pods: str) -> Any:
    return FakeCluster(answers, [Pod(metadata=ObjectMeta(name=name, namespace="gpu-operator")) for name in pods])


def vector(**labels: str) -> bytes:
    result = [{"metric": labels, "value": [0, "3600"]}]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


async def test_the_prometheus_of_the_cluster_is_found_and_asked_through_the_api_server() -> None:
    service = {"metadata": {"name": "prometheus-operated", "namespace": "monitoring"}}
    service |= {"spec": {"ports": [{"name": "http-web", "port": 9090}]}}
    base = "/api/v1/namespaces/monitoring/services/prometheus-operated:9090/proxy"
    answers = {
        "/api/v1/services?operated-prometheus=true": json.dumps({"items": [service]}).encode(),
        f"{base}/api/v1/query": vector(namespace="gpu-operator", exported_namespace="ml", Hostname="sim-1"),
    }
    found = await find_prometheus(client(answers))
    assert found is not None
    sums = await from_prometheus(*found, ("namespace",), "ml", HOUR)
    [use] = sums.uses
    assert (use.names, use.held_seconds, use.node) == (("ml",), 3600, "sim-1")
    assert sums.place == "Prometheus monitoring/prometheus-operated"


async def test_a_user_who_may_not_list_services_gets_the_exporters() -> None:
    answers = {"/api/v1/services?operated-prometheus=true": Forbidden("no", where="services")}
    assert await find_prometheus(client(answers)) is None


def metered(pod: str) -> bytes:
    """The metrics of an exporter after an hour of a pod on a whole GPU."""
    meter = Meter()
    for second in (0, 100, 200):
        gpu = GPUReading(uuid="GPU-0", active=0.25, energy_millijoules=second * 50_000)
        hold = Hold(who=PodContainer("ml", pod, "main"), uuid="GPU-0", part=1.0)
        meter.read(NodeReading(at_ns=second * 10**9, gpus=(gpu,), holds=(hold,)))
    names = {"gpu": "0", "UUID": "GPU-0", "modelName": "Tesla T4", "Hostname": "sim-1"}
    return exposition(families(meter.totals, MeterNames({"GPU-0": names}, lambda who: {}, "sim-1")))


async def test_without_prometheus_the_exporters_are_read_and_silent_ones_named() -> None:
    base = "/api/v1/namespaces/gpu-operator/pods/{}:9400/proxy/metrics"
    answers = {base.format("one"): metered(EVIL), base.format("two"): NoAnswer("refused")}
    sums = await from_exporters(client(answers, "one", "two"), grouping("pod"), "")
    assert (sums.complete, sums.silent) == (False, ("gpu-operator/two",))
    [use] = [use for use in sums.uses if use.names]
    assert (use.names, use.held_seconds, use.used_seconds, use.energy_joules) == (("ml", EVIL), 200, 50, 10_000)
    assert total_row(sums.uses, GPUPrices(models={"Tesla T4": HourPrice(18, "list")})).dollars == pytest.approx(1)


@pytest.mark.parametrize("pods", [(), ("one",)])
async def test_no_exporter_that_answers_is_an_error_with_a_cure(pods: tuple[str, ...]) -> None:
    path = "/api/v1/namespaces/gpu-operator/pods/one:9400/proxy/metrics"
    with pytest.raises(NoAnswer, match="gpuplane status"):
        await from_exporters(client({path: NoAnswer("refused")}, *pods), grouping("pod"), "")


@contextlib.contextmanager
def answering(status: str, body: bytes) -> Iterator[str]:
    """A server that gives every question one answer."""
    loop = asyncio.new_event_loop()
    answered: list[asyncio.StreamWriter] = []

    async def close() -> None:
        server.close()
        await asyncio.gather(*(writer.wait_closed() for writer in answered), return_exceptions=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        answered.append(writer)

    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_names_with_commands_for_terminals_and_spreadsheets_are_harmless(
    prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering("200 OK", vector(namespace=EVIL, Hostname="sim-1")) as url:
        assert main(["cost", "--prometheus", url, "--prices", str(prices)]) == 0
        assert "\x1b" not in capsys.readouterr().out
    with answering("200 OK", vector(namespace="=1+1", Hostname="sim-1")) as url:
        assert main(["cost", "--prometheus", url, "--prices", str(prices), "-o", "csv"]) == 0
        assert "\n'=1+1," in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "body", "code", "says"),
    [
        ("401 Unauthorized", b"token expired", 3, "refuses the question with 401"),
        ("502 Bad Gateway", b"<html>", 3, "HTTP 502"),
        ("200 OK", b"<html>", 1, "the answer is not Prometheus's"),
        ("422 Unprocessable", b'{"status":"error","error":"too many samples"}', 1, "too many samples"),
    ],
)
def test_what_prometheus_refuses_is_one_error_with_a_cure(
    prices: Path, capsys: pytest.CaptureFixture[str], status: str, body: bytes, code: int, says: str
) -> None:
    with answering(status, body) as url:
        assert main(["cost", "--prometheus", url, "--prices", str(prices)]) == code
    error = capsys.readouterr().err
    assert says in " ".join(error.split())
    assert error.count("cure") == 1


def test_a_prometheus_that_is_gone_is_an_error(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--prometheus", f"http://127.0.0.1:{free_port()}", "--prices", str(prices)]) == 3
    assert "127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["nodes", "label=", ""])
def test_an_unknown_grouping_is_refused(by: str) -> None:
    with pytest.raises(InvalidInput, match="label=team"):
        grouping(by)


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x", "http://", "http://x:y", "http://u:p@x"])
def test_an_address_that_is_none_is_refused(url: str, prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--prometheus", url, "--prices", str(prices)]) == 1
    assert "http://HOST:9090" in capsys.readouterr().err


def test_every_wrong_price_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("models: {T4: dear, H100: -1}\nnodes: []\nmodel: {}\n")
    with pytest.raises(InvalidInput) as error:
        price_file(path)
    assert [finding.partition(":")[0] for finding in error.value.findings] == [
        "models.T4",
        "models.H100",
        "nodes",
        "model",
    ]
    path.write_text("")
    with pytest.raises(InvalidInput, match="no prices"):
        price_file(path)


def node(name: str, kind: str = "", price: str = "", **labels: str) -> Node:
    spelled = {
        "node.kubernetes.io/instance-type": kind,
        "karpenter.sh/nodepool": labels.get("pool", ""),
        "karpenter.sh/capacity-type": labels.get("capacity", ""),
        "karpenter.k8s.aws/instance-gpu-count": labels.get("gpus", ""),
    }
    annotations = {"gpuplane.dev/price": price} if price else {}
    meta = ObjectMeta(name=name, labels={key: text for key, text in spelled.items() if text}, annotations=annotations)
    return Node(metadata=meta)


def dollars(found: HourPrice | None) -> float:
    assert found is not None
    return found.dollars


def test_nodes_of_a_listed_type_have_the_price_of_a_gpu() -> None:
    price = node_prices([node("a", "g4dn.12xlarge"), node("b", "mine"), node("c", "g4dn.xlarge", capacity="spot")])
    assert dollars(price("a", "Tesla T4")) == pytest.approx(3.912 / 4)
    assert dollars(price("ended", "Tesla T4")) == 0.526
    assert price("b", "other") is None
    assert node_prices([node("b", "mine")])("b", "Tesla T4") is None
    sources = [found.source for name in ("a", "c") if (found := price(name, "Tesla T4"))]
    assert sources[0].startswith("AWS list on demand") and sources[1].endswith(", of a spot node")


def test_a_node_that_a_pool_bought_has_the_price_of_its_launch() -> None:
    bought = [
        node("spot", "g4dn.12xlarge", "1.2", pool="gpu", capacity="spot"),
        node("free", "mine", "0", pool="own", capacity="reserved", gpus="8"),
    ]
    price = node_prices(bought)
    assert price("spot", "Tesla T4") == HourPrice(0.3, "node pool gpu, spot at launch")
    assert price("free", "other") == HourPrice(0.0, "node pool own, reserved at launch")


@pytest.mark.parametrize("text", ["dear", "-1", "nan", "inf", "1e999", "\x1b[31m"])
def test_a_price_on_a_node_that_is_none_is_no_price(text: str) -> None:
    price = node_prices([node("n", "g4dn.xlarge", text, pool="gpu"), node("own", "mine", text, pool="gpu", gpus="4")])
    assert dollars(price("n", "Tesla T4")) == 0.526 and price("own", "other") is None
    assert node_prices([node("alone", "mine", "2", gpus="4")])("alone", "other") is None


def test_a_file_goes_before_the_prices_of_the_cluster(prices: Path) -> None:
    price = first_of(price_file(prices), node_prices([node("a", "g5.xlarge"), node("sim-2", "g5.xlarge")]))
    assert price("a", "Tesla T4") == HourPrice(0.5, "prices.yaml")
    assert dollars(price("a", "NVIDIA A10G")) == pytest.approx(1.006)
    assert price("sim-2", "NVIDIA A10G") == HourPrice(2.0, "prices.yaml")

"""Prometheus itself reads what the exporter writes: promtool's checks, a scrape, and the dashboard's queries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpulab.light.gpus import SimulatedGPUs
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.exporter import run
from gpuplane.exporter.fields import DEFAULT_FIELDS, FieldType
from gpuplane.exporter.render import Extra, GPUHolder, entities, render
from gpuplane.hardware import GPUFacts, MigDevice, MigMode, MigSample, Sample
from gpuplane.limits import share_metrics
from gpuplane.limits.exposition import METRICS as SHARE_METRICS
from gpuplane.limits.view import GpuView, ShareView
from gpuplane.operand import OperandContext
from gpuplane.operator.exporter_objects import wants_monitor
from gpuplane.operator.operands import manifests
from kubekit.http_server import HttpAnswer, metrics_answer, serving
from simgpu import PROFILES
from tests.support.until import until

PATIENCE_SECONDS = 120.0
DASHBOARD = Path(__file__).parents[2] / "src/gpuplane/operator/boards/gpus.json"
pytestmark = pytest.mark.deadline(300)
prometheus_installed = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="no prometheus and promtool here (Debian: apt-get install prometheus)",
)
HELD = {
    "a": [GPUHolder("ml", "train", "main", "0"), GPUHolder("ml", "train", "main", "1")],
    "b": [GPUHolder("x", "y", "z")],
}


# Names that promtool objects to. The names are DCGM's, and existing dashboards use them.
STYLE = re.compile(
    r"\S+ (label names should be written in 'snake_case' not 'camelCase'"
    r"|metric name should not include type 'counter'"
    r"|counter metrics should have \"_total\" suffix"
    r"|non-counter metrics should not have \"_total\" suffix)"
)


def promtool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False)


def full(profile: str) -> str:
    """All metrics of a machine whose GPUs are shared, with every value there is."""
    gpus = SimulatedGPUs(PROFILES[profile], "seed")
    inventory = gpus.inventory()
    samples = [
        msgspec.structs.replace(
            sample, engine_active=0.5, tensor_active=0.25, dram_active=0.1, nvlink_bytes=1 << 20, last_xid=31
        )
        for sample in gpus.samples()
    ]
    holders = {inventory[0].uuid: HELD["a"], inventory[-1].uuid: HELD["b"]}
    extra = Extra(driver_version="570.1", hostname='a"b', holders=holders, jobs={"0": ("1", "2")})
    return render(DEFAULT_FIELDS, entities(inventory, samples), extra).decode()


def mig() -> str:
    device = MigDevice(
        index=0, uuid="MIG-0", profile="1g.10gb", gpu_instance=3, compute_instance=0, memory_bytes=1, slices=1
    )
    gpu = GPUFacts(
        index=0,
        minor=0,
        uuid="GPU-0",
        model="H100",
        memory_bytes=1,
        pci="0000:1b:00.0",
        compute=(9, 0),
        mig=MigMode.ENABLED,
        mig_devices=(device,),
    )
    instance = MigSample(gpu_instance=3, memory_used_bytes=0, memory_free_bytes=1 << 33, memory_total_bytes=1 << 33)
    sample = Sample(uuid="GPU-0", power_watts=70.5, sm_clock_mhz=345, instances=(instance,))
    extra = Extra(hostname="n", holders={"MIG-0": HELD["a"]})
    return render(DEFAULT_FIELDS, entities([gpu], [sample]), extra).decode()


@prometheus_installed
@pytest.mark.parametrize("text", [full("8x-h100"), full("1x-k80"), mig()], ids=["h100", "k80", "mig"])
def test_promtool_accepts_the_metrics(text: str) -> None:
    done = promtool("check", "metrics", text=text)
    assert done.returncode in (0, 3), done.stderr  # 3: it reads them, and has something to say of the style
    assert [line for line in done.stderr.splitlines() if not STYLE.fullmatch(line)] == []


@prometheus_installed
def test_promtool_refuses_what_is_wrong() -> None:
    assert promtool("check", "metrics", text='A{b="c} 1\n').returncode == 1


def queries() -> Iterator[tuple[str, str]]:
    """(panel, query) of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def test_every_metric_of_the_dashboard_is_exported() -> None:
    exported = {field.name for field in DEFAULT_FIELDS if field.type is not FieldType.LABEL}
    used = set(re.findall(r"\b(?:DCGM|gpuplane)_\w+", DASHBOARD.read_text()))
    assert used <= exported | {metric.name for metric in SHARE_METRICS}
    assert len(used) > 20, "it shows most of what there is"


def test_every_label_of_the_dashboard_is_on_the_lines() -> None:
    lines = full("8x-h100") + mig()
    for panel, query in queries():
        names = re.findall(r"([A-Za-z_]+)\s*(?:=~|!=)", query)
        names += [name.strip() for group in re.findall(r"by \(([^)]*)\)", query) for name in group.split(",")]
        for name in names:
            assert f'{name}="' in lines, f"{panel}: no label {name}"


def test_panels_lie_beside_each_other_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    ids = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        ids.add(panel["id"])
    assert len(ids) == len(json.loads(DASHBOARD.read_text())["panels"])


@prometheus_installed
def test_every_query_of_the_dashboard_parses(tmp_path: Path) -> None:
    def filled(query: str) -> str:
        return query.replace("$__rate_interval", "1m").replace("$node", ".*").replace("$gpu", ".*")

    rules = [{"record": f"panel:{number}", "expr": filled(query)} for number, (_, query) in enumerate(queries())]
    assert rules
    # JSON is YAML.
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert done.returncode == 0, done.stderr


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def job(port: int, name: str = "gpus", **more: Any) -> dict[str, Any]:
    """A scrape configuration for a port of this machine; `labels` are those of the target."""
    labels = more.pop("labels", {})
    return {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}], **more}


def monitored_jobs(ports: Mapping[str, int]) -> list[dict[str, Any]]:
    """Scrape configurations as the Prometheus operator makes them of the installed ServiceMonitors.

    Args:
        ports: name of the ServiceMonitor -> port of its target here.
    """
    monitor = {"enabled": True, "honorLabels": True}
    spec = msgspec.convert({"dcgmExporter": {"serviceMonitor": monitor}}, ClusterPolicySpec)
    made = manifests(spec, {}, image="i", owner={}, monitored=wants_monitor(spec), shared=True)
    found = {m["metadata"]["name"]: m for m in made if m["kind"] == "ServiceMonitor"}
    assert found.keys() == ports.keys()
    jobs = []
    for name, port in ports.items():
        [endpoint] = found[name]["spec"]["endpoints"]
        # Labels of the target, which Prometheus prefers to those of the lines without honor_labels.
        pod = {"nvidia-device-plugin-shares": "nvidia-device-plugin-daemonset"}.get(name, name) + "-abcde"
        own = {"namespace": "gpu-operator", "pod": pod, "container": "c", "service": name}
        jobs.append(job(port, name, metrics_path=endpoint["path"], honor_labels=endpoint["honorLabels"], labels=own))
    return jobs


@contextlib.asynccontextmanager
async def prometheus(directory: Path, *jobs: dict[str, Any]) -> AsyncIterator[int]:
    """A Prometheus that scrapes every five seconds, and waits as long for an answer; its own port."""
    port = free_port()
    config = {"global": {"scrape_interval": "5s", "scrape_timeout": "5s"}, "scrape_configs": jobs}
    (directory / "prometheus.yml").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield port
    finally:
        process.kill()
        await process.wait()


def ask(port: int, query: str, moment: float | None = None) -> list[dict[str, Any]]:
    """Return what a query finds, at a moment of the past or now; nothing while Prometheus is not up yet.

    A later question has the moment of the first answer: a scrape that a busy machine answers too late ends all series.
    """
    parameters = {"query": query} if moment is None else {"query": query, "time": str(moment)}
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
            return list(json.load(response)["data"]["result"])
    except OSError:
        return []


@prometheus_installed
async def test_prometheus_scrapes_it(tmp_path: Path) -> None:
    gpus = SimulatedGPUs(PROFILES["8x-h100"], "seed")
    gpus.fail(3, 31)
    context = OperandContext(
        node_name="sim-1",
        namespace="gpu-operator",
        client=None,  # type: ignore[arg-type]  # the exporter asks the cluster nothing
        now=lambda: "",
        kubelet_dir=tmp_path,
        address="127.0.0.1",
        port=free_port(),
        open_gpus=lambda: gpus,
        sleep=asyncio.sleep,
    )
    assert context.port is not None
    exporter = asyncio.create_task(run(context))
    try:
        async with prometheus(tmp_path, job(context.port)) as port:
            found = await until(
                lambda: asyncio.to_thread(ask, port, "DCGM_FI_DEV_SM_CLOCK"),
                poll=0.1,
                task=exporter,
                seconds=PATIENCE_SECONDS,
            )
            moment = found[0]["value"][0]
            assert sorted(series["metric"]["gpu"] for series in found) == [str(i) for i in range(8)]
            assert {series["metric"]["Hostname"] for series in found} == {"sim-1"}
            assert await asyncio.to_thread(ask, port, "up == 1", moment)
            [lost] = await asyncio.to_thread(ask, port, "DCGM_FI_DEV_XID_ERRORS > 0", moment)
            assert (lost["metric"]["gpu"], lost["metric"]["err_code"], lost["value"][1]) == ("3", "31", "31")
            counted = next(queries())[1].replace("$node", ".*").replace("$gpu", ".*")
            [gpus_now] = await asyncio.to_thread(ask, port, counted, moment)
            assert gpus_now["value"][1] == "8"
    finally:
        exporter.cancel()
        await asyncio.gather(exporter, return_exceptions=True)


@prometheus_installed
async def test_the_table_of_pods_has_the_memory_of_whole_gpus_and_of_shares(tmp_path: Path) -> None:
    """The installed ServiceMonitors make Prometheus scrape these: a pod on a whole GPU, two shares of the next, a share
    outside pods, and a GPU that no pod holds.
    """
    gpus = SimulatedGPUs(PROFILES["8x-h100"], "seed")
    whole, parted, idle = gpus.inventory()[:3]
    samples = {sample.uuid: sample for sample in gpus.samples()}
    holders = {whole.uuid: [GPUHolder("ml", "train", "main")]}
    lines = entities([whole, parted, idle], [samples[gpu.uuid] for gpu in (whole, parted, idle)])
    exported = render(DEFAULT_FIELDS, lines, Extra(hostname="sim-1", holders=holders))

    def share(pod: str, namespace: str, gib: int) -> ShareView:
        return ShareView(
            id=pod,
            name=pod,
            uuid=parted.uuid,
            namespace=namespace,
            pod=pod,
            container="main",
            core_limit=30,
            memory_limit_bytes=8 << 30,
            memory_bytes=gib << 30,
        )

    by_hand = msgspec.structs.replace(share("", "", 1), id="by-hand", name="by-hand")
    view = GpuView(
        index=parted.index,
        uuid=parted.uuid,
        model=parted.model,
        memory_total_bytes=parted.memory_bytes,
        held_percent=60,
        shares=(share("tune", "ml", 3), share("serve", "web", 5), by_hand),
    )

    async def of_gpus() -> HttpAnswer:
        return HttpAnswer(exported)

    async def of_shares() -> HttpAnswer:
        return metrics_answer(share_metrics([view]))

    def filled(title: str) -> str:
        query = next(query for panel, query in queries() if panel == title)
        return query.replace("$node", "sim-.*").replace("$gpu", ".*")

    async with (
        serving({"/metrics": of_gpus}, "127.0.0.1", 0) as exporter,
        serving({"/metrics": of_shares}, "127.0.0.1", 0) as plugin,
        prometheus(
            tmp_path, *monitored_jobs({"nvidia-dcgm-exporter": exporter, "nvidia-device-plugin-shares": plugin})
        ) as port,
    ):
        [both] = await until(
            lambda: asyncio.to_thread(ask, port, "count(up == 1) == 2 and count(gpuplane_share_memory_bytes) == 3"),
            poll=0.1,
            seconds=PATIENCE_SECONDS,
        )
        moment = both["value"][0]
        table = await asyncio.to_thread(ask, port, filled("Pods and their GPUs"), moment)
        held = await asyncio.to_thread(ask, port, filled("GPUs held by namespace"), moment)
        [count] = await asyncio.to_thread(ask, port, filled("Held by pods"), moment)
    used = float(samples[whole.uuid].memory_used_bytes or 0) / (1 << 20)
    rows = {row["metric"]["pod"]: (row["metric"], float(row["value"][1])) for row in table}
    assert len(rows) == len(table) == 3
    assert {pod: round(mib) for pod, (_, mib) in rows.items()} == {"train": round(used), "tune": 3072, "serve": 5120}
    for pod, namespace, gpu in (("train", "ml", "0"), ("tune", "ml", "1"), ("serve", "web", "1")):
        labels, _ = rows[pod]
        assert (labels["namespace"], labels["container"], labels["gpu"]) == (namespace, "main", gpu)
        assert (labels["Hostname"], labels["modelName"]) == ("sim-1", whole.model)
    assert {row["metric"]["namespace"]: row["value"][1] for row in held} == {"ml": "2", "web": "1"}
    assert count["value"][1] == "2"

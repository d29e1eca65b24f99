"""The dashboard's view of use: busy, held and idle, unknown; on the first page, of a node, and of a pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpuplane.api.gpunode import Link
from gpuplane.cli.cost_source import Sums
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.documents import node_document, pod_use
from gpuplane.dashboard.snapshot import IDLERS, snapshot
from gpuplane.dashboard.today import HeldToday, TodayReader
from gpuplane.metering.cost import MeteredUse
from gpuplane.metering.use import GPUUse, PodUse
from kubekit.kube import Forbidden
from packages.gpuplane.tests.cli.status_objects import gpunode, overview, share, with_own_uuids
from packages.gpuplane.tests.cli.test_cost import client

SEEN = overview([gpunode("n1")], [share("tune", "n1", 30, 1, 0), share("train", "n1", 100, 20, 1)], {"n1": 2})
FIRST, SECOND = (gpu.uuid for gpu in SEEN.nodes[0].gpus)


def measured(**more: Any) -> MeasuredUse:
    busy = GPUUse("n1", 0, busy_percent=29.6, memory_mib=4198, pods={"ml/tune": PodUse(29.6, 4198)})
    return MeasuredUse({FIRST: busy, SECOND: GPUUse("n1", 1, busy_percent=0.0, idle_seconds=1900, **more)}, "", "x")


def test_links_are_the_matrix_of_nvidia_smi() -> None:
    [node] = overview([gpunode("n1", gpus=3)], [], {"n1": 3}).nodes
    assert node_document(node, MeasuredUse())["links"] == []
    ways = {0: (Link(1, "NVL", 12), Link(2, "SYS")), 1: (Link(2, "PIX\x1b[31m"), Link(0, "NVL", 12)), 2: ()}
    gpus = tuple(msgspec.structs.replace(gpu, links=ways[gpu.index]) for gpu in node.gpus)
    found = node_document(msgspec.structs.replace(node, gpus=gpus), MeasuredUse())["links"]
    assert found == [["X", "NV12", "SYS"], ["NV12", "X", "PIX^[[31m"], ["", "", "X"]]


def test_busy_and_idle_are_added_up() -> None:
    found = snapshot(SEEN, "prod", measured())
    assert found["nodes"]["n1"]["busy"] == [30, 0] and found["nodes"]["n1"]["idle"] == [1]
    totals = {name: found["totals"][name] for name in ("measured", "busy", "idle", "idleGpus")}
    assert totals == {"measured": 2, "busy": 0.3, "idle": 1.0, "idleGpus": 1}
    assert found["idlers"] == [{"pod": "ml/train", "gpus": 1.0, "minutes": 30}]


def test_what_is_not_measured_is_said_with_the_reason() -> None:
    found = snapshot(SEEN, "prod", MeasuredUse(why="there is no exporter \x1b[31m"))
    assert "busy" not in found["nodes"]["n1"] and found["idlers"] == []
    assert (found["totals"]["measured"], found["totals"]["why"]) == (0, "there is no exporter ^[[31m")


def test_a_gpu_in_mig_mode_beside_one_that_is_measured_is_unknown() -> None:
    use = MeasuredUse({FIRST: GPUUse("n1", 0), SECOND: GPUUse("n1", 1, busy_percent=12.0)}, "", "x")
    found = snapshot(SEEN, "prod", use)
    assert found["nodes"]["n1"]["busy"] == [-1, 12] and found["totals"]["measured"] == 1


def test_of_many_pods_that_use_nothing_those_that_hold_most_are_listed() -> None:
    nodes = [gpunode(f"n{number:02}") for number in range(IDLERS + 5)]
    pods = [share(f"p{number}", f"n{number:02}", 100 if number == 24 else 20, 1, 0) for number in range(IDLERS + 5)]
    seen = with_own_uuids(overview(nodes, pods, {node.metadata.name: 2 for node in nodes}))
    uses = {node.gpus[0].uuid: GPUUse(node.name, 0, busy_percent=0.0, idle_seconds=400) for node in seen.nodes}
    found = snapshot(seen, "prod", MeasuredUse(uses, "", "x"))
    assert len(uses) == IDLERS + 5 == found["totals"]["idleGpus"]
    assert len(found["idlers"]) == IDLERS and found["idlers"][0]["pod"] == "ml/p24"


def test_a_pods_use_stands_against_its_limits() -> None:
    assert pod_use("ml/tune", SEEN.nodes, measured()) == [
        {"gpu": "n1/0", "core": 29.6, "memoryMib": 4198, "coreLimit": 30, "memoryLimitMib": 1024}
    ]
    assert pod_use("ml/train", SEEN.nodes, measured()) == []


def test_a_nodes_gpus_have_their_use_as_far_as_it_is_measured() -> None:
    first, second = (gpu["use"] for gpu in node_document(SEEN.nodes[0], measured())["gpus"])
    assert (first["busyPercent"], first["memoryMib"], "powerWatts" in first, first["idle"]) == (
        29.6,
        4198,
        False,
        False,
    )
    assert second["idle"] and second["idleSeconds"] == 1900
    assert node_document(SEEN.nodes[0], MeasuredUse())["gpus"][0]["use"] == {}


# -- today -------------------------------------------------------------------------------------------------------------


async def test_without_prometheus_today_comes_from_the_store() -> None:
    asked: list[float] = []

    async def stored(labels: object, namespace: str, seconds: float) -> Sums:
        asked.append(seconds)
        held = MeteredUse(names=("ml",), node="n1", model="Tesla T4", held_seconds=7200)
        return Sums((held, MeteredUse(names=(), held_seconds=99)), "store", True)

    class Cluster:
        async def request(self, method: str, path: str, query: dict[str, str] | None = None) -> bytes:
            return b'{"items":[]}'

        async def list(self, kind: type[object]) -> list[object]:
            return []

    wall = datetime(2026, 11, 26, 9, tzinfo=UTC)
    reader = TodayReader(Cluster(), stored, wall=lambda: wall)  # type: ignore[arg-type]
    await reader.read()
    assert asked == [9 * 3600] and reader.current == HeldToday(gpu_hours=2.0, unpriced_hours=2.0)


async def test_without_prometheus_today_is_unknown() -> None:
    reader = TodayReader(client({"/api/v1/services?operated-prometheus=true": Forbidden("no", where="services")}))
    await reader.read()
    assert reader.current == HeldToday(why="there is no Prometheus and no store that remembers it")


@pytest.mark.parametrize(("hour", "seconds"), [(0, 60), (9, 9 * 3600)])
async def test_today_is_what_was_held_since_midnight(hour: int, seconds: int) -> None:
    queries: list[str] = []
    service = {"metadata": {"name": "prometheus", "namespace": "m"}, "spec": {"ports": [{"port": 9090}]}}
    lines = [
        {"metric": {"namespace": "ml", "Hostname": "n1", "modelName": "Tesla T4"}, "value": [0, "7200"]},
    ]

    class Cluster:
        async def request(self, method: str, path: str, query: dict[str, str] | None = None) -> bytes:
            if path == "/api/v1/services":
                return msgspec.json.encode({"items": [service]})
            assert query is not None
            queries.append(query["query"])
            held = "pod_gpu_held" in query["query"]
            return msgspec.json.encode({"status": "success", "data": {"result": lines if held else []}})

        async def list(self, kind: type[object]) -> list[object]:
            return []

    reader = TodayReader(Cluster(), wall=lambda: datetime(2026, 11, 26, hour, tzinfo=UTC))  # type: ignore[arg-type]
    await reader.read()
    assert reader.current == HeldToday(gpu_hours=2.0, unpriced_hours=2.0)
    assert all(f"[{seconds}s]" in query for query in queries)

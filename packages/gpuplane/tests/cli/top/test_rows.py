"""The rows of `gpuplane top`: the reasons for which a GPU, a node or a pod comes first."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.api.gpunode import StageName
from gpuplane.cli.status_views import Overview, WaitingPod
from gpuplane.cli.top.rows import Matter, gpu_rows, node_rows, pod_rows
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.metering.use import GPUUse, PodUse
from packages.gpuplane.tests.cli.status_objects import gpunode, overview, share

PODS = [share("tune", "n1", 30, 1, 0), share("serve", "n1", 20, 1, 0), share("train", "n1", 100, 20, 1)]
SEEN = overview([gpunode("n1")], PODS, {"n1": 2})


def used(seen: Overview = SEEN, **gpus: GPUUse) -> MeasuredUse:
    uuids = {f"g{gpu.index}": gpu.uuid for gpu in seen.nodes[0].gpus}
    return MeasuredUse({uuids[name]: use for name, use in gpus.items()}, "", "x")


def test_a_gpu_has_its_holders_with_what_each_uses() -> None:
    use = used(g0=GPUUse("n1", 0, 49.0, 10240, 54.0, 62.0, pods={"ml/tune": PodUse(29.6, 4198)}))
    first, second = gpu_rows(SEEN, use)
    assert (first.name, first.held, first.busy, first.memory_mib, first.power_watts) == ("n1/0", 50, 49.0, 10240, 54.0)
    assert [(one.pod, one.core, one.used, one.memory_mib) for one in first.holders] == [
        ("ml/serve", 20, None, None),
        ("ml/tune", 30, 29.6, 4198),
    ]
    assert (second.held, second.busy, second.matter) == (100, None, Matter.NONE)


@pytest.mark.parametrize(
    ("use", "matter", "about"),
    [
        (GPUUse("n1", 0, 0.0, idle_seconds=7300), Matter.IDLE, "idle 2h"),
        (GPUUse("n1", 0, 60.0, pods={"ml/tune": PodUse(41.0)}), Matter.OVER, "ml/tune uses 41 of 30%"),
        (GPUUse("n1", 0, 60.0, pods={"ml/tune": PodUse(33.0)}), Matter.NONE, ""),
        (GPUUse("n1", 0, 60.0, pods={"ml/tune": PodUse(3.0, 2048.0)}), Matter.OVER, "ml/tune holds 2.0 of 1.0 GiB"),
        (GPUUse("n1", 0, 60.0, temperature_celsius=91.0), Matter.HOT, "91 °C"),
        (GPUUse("n1", 0, 60.0, temperature_celsius=70.0), Matter.NONE, ""),
    ],
)
def test_what_is_measured_makes_a_gpu_matter(use: GPUUse, matter: Matter, about: str) -> None:
    row = gpu_rows(SEEN, used(g0=use))[0]
    assert (row.matter, row.about) == (matter, about)


def test_a_lost_gpu_and_one_of_a_node_that_is_not_ready_come_before_what_is_measured() -> None:
    sick = overview([gpunode("n1", sick=True)], PODS, {"n1": 2})
    lost = gpu_rows(sick, used(sick, g1=GPUUse("n1", 1, 0.0, idle_seconds=9000)))[1]
    assert (lost.matter, lost.about) == (Matter.LOST, "Xid 79: fallen off the bus")
    failed = overview([gpunode("n1", failed=StageName.CUDA)], PODS, {"n1": 2})
    assert {row.matter for row in gpu_rows(failed, MeasuredUse())} == {Matter.NOT_READY}


def test_a_free_gpu_is_not_idle() -> None:
    seen = overview([gpunode("n1")], [], {"n1": 2})
    assert gpu_rows(seen, used(seen, g0=GPUUse("n1", 0, 0.0, idle_seconds=9000)))[0].matter is Matter.NONE


def test_a_node_is_the_sum_of_its_gpus_and_matters_for_the_worst() -> None:
    use = used(g0=GPUUse("n1", 0, 50.0, 1024, 50.0, 60.0), g1=GPUUse("n1", 1, 0.0, 2048, 90.0, 40.0, idle_seconds=600))
    [row] = node_rows(gpu_rows(SEEN, use), SEEN)
    assert (row.name, row.gpus, row.held, row.busy, row.memory_mib) == ("n1", 2, 75, 25.0, 3072)
    assert (row.power_watts, row.temperature_celsius) == (140.0, 60.0)
    assert (row.matter, row.about) == (Matter.IDLE, "1: idle 10m")


def test_pods_that_wait_are_rows_and_another_pods_excess_is_not_a_pods_own() -> None:
    waiting = (WaitingPod("ml/late", "2026-11-20T10:00:00Z"),)
    seen = msgspec.structs.replace(SEEN, waiting_pods=waiting, waiting=1)
    use = used(g0=GPUUse("n1", 0, 60.0, pods={"ml/tune": PodUse(41.0, 500), "ml/serve": PodUse(19.0, 300)}))
    rows = {row.name: row for row in pod_rows(gpu_rows(seen, use), seen)}
    assert set(rows) == {"ml/late", "ml/tune", "ml/serve", "ml/train"}
    assert (rows["ml/late"].matter, rows["ml/late"].since) == (Matter.WAITS, "2026-11-20T10:00:00Z")
    assert rows["ml/tune"].matter is Matter.OVER and rows["ml/serve"].matter is Matter.NONE
    assert (rows["ml/serve"].gpus, rows["ml/serve"].busy, rows["ml/serve"].memory_mib) == (0.2, 19.0, 300)

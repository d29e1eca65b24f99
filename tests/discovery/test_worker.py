"""The workers: one write for a change, none for none."""

from __future__ import annotations

from typing import Any

from gpuplane.discovery import run, run_gpu, uninstall
from gpuplane.discovery.gpu import is_gpu_label
from gpuplane.errors import Retryable
from gpuplane.hardware import GPU

T4 = GPU(
    index=0,
    minor=0,
    uuid="GPU-0",
    name="Tesla T4",
    memory_bytes=15360 << 20,
    pci="0000:00:1e.0",
    compute=(7, 5),
)
DISK = "feature.node.kubernetes.io/storage-nonrotationaldisk"


def nothing() -> None:
    pass


async def test_a_settled_node_is_not_written_again_nor_by_a_restarted_worker(world: Any) -> None:
    await world.passes(run, nothing, nothing)
    assert len(world.client.writes) == 1
    assert world.client.labels[DISK] == "true"
    await world.passes(run, nothing)
    assert len(world.client.writes) == 1
    assert set(world.pauses) == {60.0}


async def test_what_no_longer_holds_goes_also_after_a_restart(world: Any) -> None:
    rotational = "sys/block/nvme0n1/queue/rotational"
    await world.passes(run, lambda: world.write(rotational, "1\n"))
    assert DISK not in world.client.labels
    assert len(world.client.writes) == 2
    world.write(rotational, "0\n")
    await world.passes(run)
    assert world.client.labels[DISK] == "true"
    assert world.client.labels["kubernetes.io/hostname"] == "n"


async def test_a_label_that_somebody_took_away_comes_back(world: Any) -> None:
    await world.passes(run, lambda: world.client.labels.pop(DISK))
    assert world.client.labels[DISK] == "true"
    assert len(world.client.writes) == 2


async def test_a_label_of_somebody_else_costs_one_write_not_one_a_minute(world: Any) -> None:
    world.client.labels["feature.node.kubernetes.io/pci-8086.present"] = "true"
    await world.passes(run, nothing, nothing, nothing)
    assert len(world.client.writes) <= 2
    assert world.client.labels["feature.node.kubernetes.io/pci-8086.present"] == "true"
    world.client.labels["feature.node.kubernetes.io/my.own"] = "x"  # of no source of ours
    await world.passes(run)
    assert len(world.client.writes) <= 3


async def test_gpu_labels_come_once_nvml_answers_and_nvml_is_closed_after_each_pass(world: Any) -> None:
    gpus = type(world.gpus)((T4,))
    world.gpus = Retryable("no libnvidia-ml.so.1 found", where="/host")

    def driver_is_there() -> None:
        world.gpus = gpus

    await world.passes(run_gpu, nothing, nothing, driver_is_there, nothing)
    assert world.pauses == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert gpus.closed == 2
    labels = world.client.labels
    assert len(world.client.writes) == 1
    assert labels["nvidia.com/gpu.product"] == "Tesla-T4"
    assert labels["nvidia.com/gpu.mode"] == "compute"
    assert labels["nvidia.com/gpu.machine"] == "g4dn.xlarge"
    assert labels["nvidia.com/gfd.timestamp"] == "1795176000"
    assert all(is_gpu_label(name) for name in world.client.writes[0][1])


async def test_gpu_labels_follow_the_driver_and_go_with_the_gpus(world: Any) -> None:
    make = type(world.gpus)
    world.gpus = make((T4,))
    world.client.labels["nvidia.com/gpu.present"] = "true"

    def upgraded() -> None:
        world.gpus = make((T4,), driver="550.54.15", cuda=(12, 4))

    def gone() -> None:
        world.gpus = make(())

    await world.passes(run_gpu, upgraded, gone, nothing)
    assert len(world.client.writes) == 3
    assert world.client.writes[1][1]["nvidia.com/cuda.driver.major"] == "550"
    assert [name for name in world.client.labels if "nvidia.com" in name] == ["nvidia.com/gpu.present"]


async def test_uninstall_leaves_the_labels_of_others_only(world: Any) -> None:
    world.gpus = type(world.gpus)((T4,))
    await world.passes(run)
    await world.passes(run_gpu)
    await uninstall(world.context(None))
    assert world.client.labels == {"kubernetes.io/hostname": "n"}
    assert [len(labels) for _, labels in world.client.writes[2:]] == [0, 0]
    world.client.writes.clear()
    await uninstall(world.context(None))
    assert world.client.writes == []

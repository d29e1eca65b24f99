"""The workers: one write for a change, none for none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from gpuplane.api.nodefeature import NodeFeatureRule
from gpuplane.discovery import run, run_gpu, uninstall
from gpuplane.discovery.gpu import is_gpu_label
from gpuplane.hardware import GPUFacts
from gpuplane.names import PLUGIN_CONFIG_LABEL
from kubekit.errors import Retryable
from tests.support.until import until

T4 = GPUFacts(
    index=0,
    minor=0,
    uuid="GPU-0",
    model="Tesla T4",
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


async def test_gpu_labels_follow_the_configuration_and_stay_while_it_is_broken(world: Any) -> None:
    world.gpus = type(world.gpus)((T4,))
    world.config = world.root / "config.yaml"
    flags = "flags: {gfd: {sleepInterval: 90s, noTimestamp: true}}\n"
    share = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    world.write("config.yaml", flags)
    await world.passes(
        run_gpu,
        lambda: world.write("config.yaml", flags + share),
        lambda: world.write("config.yaml", flags + "sharing: [\n"),
    )
    assert world.client.labels["nvidia.com/gpu.product"] == "Tesla-T4-SHARED"
    assert "nvidia.com/gfd.timestamp" not in world.client.labels
    assert len(world.client.writes) == 2
    assert world.pauses == [90.0, 90.0, 1.0]


@pytest.fixture
async def labelling(world: Any) -> AsyncIterator[Callable[[str, str], Awaitable[None]]]:
    """GPU labels of a node with configurations a and b (and a default), without a clock: only changes end a pause."""
    world.gpus = type(world.gpus)((T4,))
    world.config = world.root / "configs"
    share = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}\n"
    for name, text in (("default", "version: v1\n"), ("a", share % 4), ("b", "flags: {migStrategy: mixed}\n")):
        world.write(f"configs/..1/{name}", text)
        (world.config / name).symlink_to(f"..data/{name}")
    (world.config / "..data").symlink_to("..1")

    async def never(seconds: float) -> None:
        await asyncio.Event().wait()

    async def labelled(label: str, value: str) -> None:
        await until(lambda: world.client.labels.get(label) == value, changed=world.client.wrote)

    task = asyncio.create_task(run_gpu(world.context(never)))
    yield labelled
    assert not task.done(), task.exception()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_nodes_label_chooses_the_configuration_at_once(world: Any, labelling: Any) -> None:
    await labelling("nvidia.com/gpu.product", "Tesla-T4")
    assert world.client.labels["nvidia.com/gpu.sharing-strategy"] == "none"
    world.client.label(PLUGIN_CONFIG_LABEL, "a")
    await labelling("nvidia.com/gpu.product", "Tesla-T4-SHARED")
    assert world.client.labels["nvidia.com/gpu.replicas"] == "4"
    assert world.client.labels["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
    world.client.label(PLUGIN_CONFIG_LABEL, "b")
    await labelling("nvidia.com/mig.strategy", "mixed")
    assert world.client.labels["nvidia.com/gpu.product"] == "Tesla-T4"
    # A missing configuration changes nothing, and a valid configuration is followed as soon as it is named.
    world.client.label(PLUGIN_CONFIG_LABEL, "none")
    world.client.label(PLUGIN_CONFIG_LABEL, "a")
    await labelling("nvidia.com/gpu.product", "Tesla-T4-SHARED")
    assert len(world.client.writes) == 4


async def test_a_configmap_that_changes_is_followed_at_once(world: Any, labelling: Any) -> None:
    await labelling("nvidia.com/gpu.product", "Tesla-T4")
    renamed = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}\n"
    world.write("configs/..2/default", renamed)
    (world.config / "..data_tmp").symlink_to("..2")
    (world.config / "..data_tmp").rename(world.config / "..data")
    await labelling("nvidia.com/gpu.replicas", "2")
    assert world.client.labels["nvidia.com/gpu.product"] == "Tesla-T4"
    assert world.client.labels["nvidia.com/gpu.sharing-strategy"] == "time-slicing"


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


FEATURES_D = "etc/kubernetes/node-feature-discovery/features.d"


async def test_labels_of_feature_files_come_and_go_also_over_a_restart(world: Any) -> None:
    world.write(f"{FEATURES_D}/f", "vendor.io/x=1\n")
    await world.passes(run, nothing)
    assert world.client.labels["vendor.io/x"] == "1"
    assert world.client.annotations == {"gpuplane.dev/user-labels": "vendor.io/x"}
    assert len(world.client.writes) == 1
    (world.root / FEATURES_D / "f").unlink()
    await world.passes(run, nothing)
    assert "vendor.io/x" not in world.client.labels
    assert world.client.annotations == {}
    assert len(world.client.writes) == 2


async def test_a_broken_feature_file_is_told_once_and_changes_nothing(world: Any, caplog: Any) -> None:
    world.write(f"{FEATURES_D}/f", "vendor.io/x=1\n")
    await world.passes(run, lambda: world.write(f"{FEATURES_D}/f", "kubernetes.io/x=1\n"), nothing, nothing)
    assert world.client.labels["vendor.io/x"] == "1"
    assert len(world.client.writes) == 1
    assert len([record for record in caplog.records if "belongs to Kubernetes" in record.message]) == 1


def a_rule(**fields: Any) -> NodeFeatureRule:
    spec = {"rules": [{"name": "r", **fields}]}
    return msgspec.convert({"metadata": {"name": "r"}, "spec": spec}, NodeFeatureRule)


BY_RELEASE = a_rule(
    labels={"x": "1"}, matchFeatures=[{"feature": "system.osrelease", "matchExpressions": {"ID": {"op": "Exists"}}}]
)


async def test_features_are_published_while_there_are_rules(world: Any) -> None:
    world.client.rules = [BY_RELEASE]
    await world.passes(run, nothing, nothing)
    published = world.client.features["n"]
    assert published.spec.features.attributes["system.osrelease"].elements == {"ID": "ubuntu"}
    assert published.metadata.owner_references[0].uid == "uid-1"
    assert world.client.feature_writes == 1
    world.client.rules = []
    await world.passes(run, nothing)
    assert world.client.features == {}
    assert world.client.feature_writes == 2


async def test_a_published_object_that_somebody_deleted_comes_back(world: Any) -> None:
    world.client.rules = [BY_RELEASE]
    await world.passes(run, nothing, world.client.features.clear)
    assert "n" in world.client.features


async def test_a_rules_label_has_the_last_word_without_a_fight(world: Any) -> None:
    await world.passes(run)
    world.client.labels[DISK] = "by-rule"
    world.client.annotations["gpuplane.nfd.node.kubernetes.io/feature-labels"] = "storage-nonrotationaldisk"
    await world.passes(run, nothing, nothing)
    assert world.client.labels[DISK] == "by-rule"
    assert len(world.client.writes) == 1
    del world.client.labels[DISK], world.client.annotations["gpuplane.nfd.node.kubernetes.io/feature-labels"]
    await world.passes(run)
    assert world.client.labels[DISK] == "true"


async def test_another_node_feature_discovery_takes_over_without_a_gap(world: Any) -> None:
    await world.passes(run)
    before = dict(world.client.labels)
    theirs = [name for name in before if "pci-" in name or "os_release" in name]
    short = ",".join(name.removeprefix("feature.node.kubernetes.io/") for name in theirs)
    world.client.annotations["nfd.node.kubernetes.io/feature-labels"] = short
    world.client.rules = [BY_RELEASE]
    await world.passes(run, nothing, nothing)
    kept = {name: value for name, value in world.client.labels.items() if "feature.node" in name}
    assert kept == {name: before[name] for name in theirs}  # its own labels stay, labels without a rule are removed
    assert world.client.features == {}
    assert len(world.client.writes) == 2
    await world.passes(run, lambda: world.client.labels.pop(theirs[0]))
    assert theirs[0] not in world.client.labels  # theirs to give, theirs to take

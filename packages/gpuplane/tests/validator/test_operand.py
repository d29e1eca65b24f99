"""The validator on one node, as GPUNode, status files and pods show it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gpuplane import cures
from gpuplane.api.gpunode import NOT_LISTED, StageName, StageState
from gpuplane.api.requests import GpuOffer
from gpuplane.host import Host
from gpuplane.validator.operand import NOT_WANTED, Validator, boot_of, run
from kubekit.api.core import Node, NodeInfo, NodeStatus
from kubekit.errors import Retryable, Terminal
from tests.support.virtual_time import VirtualClock

CUDA, PLUGIN = StageName.CUDA, StageName.PLUGIN
WRONG = Terminal("element 7 of 50000 is 1 and should be 2", where="GPU-1 (T4)", cure="replace it")


@asynccontextmanager
async def running(world: Any, **more: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(run(world.context(**more), world.prove_plugin))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def validator(world: Any, clock: VirtualClock) -> Validator:
    return Validator(world.context(), lambda name: world.node, world.allocatable, clock.now)


async def test_cuda_when_the_toolkit_holds_and_plugin_when_gpus_are_allocatable(world: Any) -> None:
    async with running(world):
        await world.until(lambda: world.stage(CUDA) is not None)
        assert world.stage(CUDA).state is StageState.DONE
        assert sorted(world.ran) == ["GPU-0", "GPU-1"]
        assert world.file("cuda-ready")
        assert world.stage(PLUGIN) is None
        world.hold(StageName.DEVICE_PLUGIN)
        await world.until(lambda: world.stage(PLUGIN) is not None)
        assert world.stage(PLUGIN).state is StageState.DONE
        assert world.file("plugin-ready")
    assert [manager for manager, _ in world.client.writes] == ["gpuplane-cuda", "gpuplane-plugin"]
    assert world.proved == [GpuOffer("nvidia.com/gpu", 2)]


async def test_nothing_happens_before_the_toolkit_holds(world: Any, validator: Validator) -> None:
    stages = dict(world.node.status.stages)
    del stages["toolkit"]
    world.change(stages=stages)
    assert await validator.reconcile("sim-1") is None
    assert (world.ran, world.client.writes) == ([], [])


async def test_a_restarted_validator_takes_nothing_back_and_repeats_nothing(world: Any, validator: Validator) -> None:
    await validator.reconcile("sim-1")
    writes = len(world.client.writes)
    again = Validator(world.context(), lambda name: world.node, world.allocatable)
    assert await again.reconcile("sim-1") is None
    assert (len(world.ran), len(world.client.writes)) == (2, writes)


async def test_what_the_watch_does_not_show_yet_is_not_proved_twice(world: Any, clock: VirtualClock) -> None:
    stale = world.node
    validator = Validator(world.context(), lambda name: stale, world.allocatable, clock.now)
    assert await validator.reconcile("sim-1") is None
    assert await validator.reconcile("sim-1") == 10
    assert len(world.ran) == 2
    clock.seconds += 11
    await validator.reconcile("sim-1")
    assert len(world.ran) == 4, "somebody took the stage back, and the watch never showed that it held"


async def test_a_status_file_of_another_boot_is_none(world: Any, clock: VirtualClock) -> None:
    boots = ["b1"]
    validator = Validator(
        world.context(), lambda name: world.node, world.allocatable, clock.now, boot=lambda: boots[-1]
    )
    await validator.reconcile("sim-1")
    assert (world.root / "run/nvidia/validations/cuda-ready").read_text() == f"{world.stage(CUDA).digest} b1\n"
    writes = len(world.client.writes)
    await validator.reconcile("sim-1")
    assert len(world.ran) == 2
    boots.append("b2")  # on this host /run outlives a boot
    await validator.reconcile("sim-1")
    assert (len(world.ran), len(world.client.writes)) == (4, writes)
    await validator.reconcile("sim-1")
    assert len(world.ran) == 4


async def test_the_boot_is_the_kernels_word_or_the_kubelets(world: Any) -> None:
    node = Node(status=NodeStatus(node_info=NodeInfo(boot_id="kubelet")))
    real = world.context(vector_add=None)
    assert boot_of(real, node) == "kubelet"
    assert boot_of(real, None) == ""
    world.write("proc/sys/kernel/random/boot_id", "kernel\n")
    assert boot_of(real, node) == "kernel"


async def test_it_is_proved_again_as_soon_as_the_status_file_goes(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def vector_add(uuid: str) -> str:
        return await world.vector_add(uuid)

    monkeypatch.setattr("gpuplane.validator.operand._process", lambda facts: vector_add)
    async with running(world, vector_add=None):
        await world.until(lambda: world.stage(CUDA) is not None)
        assert len(world.ran) == 2
        path = world.root / "run/nvidia/validations/cuda-ready"
        path.unlink()
        async with asyncio.timeout(60):
            async for _ in Host(world.root).watch("run/nvidia/validations/cuda-ready"):
                if path.exists():
                    break
        assert len(world.ran) == 4


@pytest.mark.parametrize(
    ("code", "cure"), [(errno.EROFS, "remount the file system read-write"), (errno.ENOSPC, "free space")]
)
async def test_a_read_only_or_full_run_is_said_and_heals(
    world: Any, validator: Validator, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, code: int, cure: str
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr("gpuplane.host.files.replace", refuses)
        broken.setattr("gpuplane.host.files.os.unlink", refuses)
        wait = await validator.reconcile("sim-1")
    stage = world.stage(CUDA)
    assert (stage.state, stage.reason) == (StageState.FAILED, "NodeFilesUnusable")
    assert stage.message == os.strerror(code).lower()
    assert cure in stage.cure
    assert "/run/nvidia/validations/" in stage.where
    clock.seconds += wait
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).state is StageState.DONE


async def test_something_else_in_the_place_of_the_files(world: Any, validator: Validator, clock: VirtualClock) -> None:
    folder = world.root / "run/nvidia/validations"
    shutil.rmtree(folder)
    folder.write_text("not a folder")
    await validator.reconcile("sim-1")
    clock.seconds += 30
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).reason in ("DriverFileMissing", "NodeFilesUnusable")
    folder.unlink()
    (folder / "driver-ready").mkdir(parents=True)
    world.client.objects["gpunodes", "sim-1"]["metadata"]["annotations"] = {"gpuplane.dev/retry": "1"}
    await validator.reconcile("sim-1")
    assert (world.stage(CUDA).reason, world.stage(CUDA).message) == ("NodeFilesUnusable", "it is not a regular file")


async def test_a_broken_status_file_is_written_anew(world: Any, validator: Validator) -> None:
    world.write("run/nvidia/validations/driver-ready", "\x00\xff nonsense = = \n")
    await validator.reconcile("sim-1")
    path = world.root / "run/nvidia/validations/cuda-ready"
    good = path.read_text()
    path.write_bytes(b"\xff\xfe\x00")
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).state is StageState.DONE
    path.unlink()
    await validator.reconcile("sim-1")
    assert path.read_text() == good


async def test_the_policy_may_want_less(world: Any, clock: VirtualClock) -> None:
    off = {"CUDA_WITH_WORKLOAD": "false", "PLUGIN_WITH_WORKLOAD": "false"}
    context = world.context(vector_add=None)
    validator = Validator(context, lambda name: world.node, world.allocatable, clock.now, environment=off)
    await validator.reconcile("sim-1")
    world.hold(StageName.DEVICE_PLUGIN)
    await validator.reconcile("sim-1")
    for name in (CUDA, PLUGIN):
        assert (world.stage(name).state, world.stage(name).message) == (StageState.DONE, NOT_WANTED)
    assert world.ran == []
    assert not [key for key in world.client.objects if key[0] == "pods"]


async def test_a_feature_that_the_driver_was_told_and_does_not_have(world: Any, clock: VirtualClock) -> None:
    off = {"CUDA_WITH_WORKLOAD": "false"}
    world.write("run/nvidia/validations/.driver-ctr-ready", "GDS_ENABLED: true\nGDRCOPY_ENABLED: false\n")
    context = world.context(vector_add=None)
    validator = Validator(context, lambda name: world.node, world.allocatable, clock.now, environment=off)
    wait = await validator.reconcile("sim-1")
    stage = world.stage(CUDA)
    assert (stage.reason, "nvidia_fs" in stage.message) == ("DriverFeatureMissing", True)
    assert stage.cure.startswith("modprobe nvidia_fs")
    world.write("sys/module/nvidia_fs/refcnt", "0")
    clock.seconds += wait
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).state is StageState.DONE
    assert world.file("nvidia-fs-ready")
    assert not world.file("gdrcopy-ready")


async def test_an_xid_brings_its_cure(world: Any, validator: Validator) -> None:
    world.failing |= {"GPU-0": WRONG, "GPU-1": WRONG}
    world.change(health={"GPU-0": "lost: NVML does not reach it", "GPU-1": "Xid 79: fallen off the bus"})
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).cure == cures.of_xid(79)


async def test_after_a_boot_it_is_proved_again_without_a_write(world: Any, validator: Validator) -> None:
    await validator.reconcile("sim-1")
    writes = len(world.client.writes)
    (world.root / "run/nvidia/validations/cuda-ready").unlink()
    await validator.reconcile("sim-1")
    assert (len(world.ran), len(world.client.writes)) == (4, writes)
    assert world.file("cuda-ready")


async def test_another_driver_is_proved_again(world: Any, validator: Validator) -> None:
    await validator.reconcile("sim-1")
    before = world.stage(CUDA).digest
    world.change(machine=msgspec.structs.replace(world.node.status.machine, driver="580.2"))
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).digest != before
    assert len(world.ran) == 4


async def test_a_gpu_that_computes_wrongly_fails_the_stage_and_is_named(world: Any, validator: Validator) -> None:
    world.failing["GPU-1"] = WRONG
    wait = await validator.reconcile("sim-1")
    stage = world.stage(CUDA)
    assert (stage.state, stage.reason, stage.where, stage.cure) == (
        StageState.FAILED,
        "VectorAddFailed",
        "GPU 1, GPU-1",
        "replace it",
    )
    assert stage.message == "GPU 1 fails the vectorAdd: element 7 of 50000 is 1 and should be 2"
    assert not world.file("cuda-ready")
    assert wait is not None and wait >= 60


async def test_it_is_tried_again_on_a_change_or_after_growing_pauses(
    world: Any, validator: Validator, clock: VirtualClock
) -> None:
    world.failing["GPU-1"] = WRONG
    waits = []
    for _ in range(6):
        waits.append(await validator.reconcile("sim-1"))
        assert await validator.reconcile("sim-1") == waits[-1], "our own write is no reason to try again"
        clock.seconds += waits[-1]
    assert waits == [60, 120, 240, 480, 600, 600]
    assert (len(world.ran), len(world.client.writes)) == (12, 1), "the same failure is written once"
    await validator.reconcile("sim-1")
    tried = len(world.ran)
    world.client.objects["gpunodes", "sim-1"]["metadata"]["annotations"] = {"gpuplane.dev/retry": "1"}
    assert await validator.reconcile("sim-1") == 60
    assert len(world.ran) == tried + 2
    world.failing.clear()
    world.client.objects["gpunodes", "sim-1"]["metadata"]["annotations"] = {"gpuplane.dev/retry": "2"}
    assert await validator.reconcile("sim-1") is None
    assert world.stage(CUDA).state is StageState.DONE


async def test_a_gpu_known_to_be_unusable_does_not_keep_the_others_out(world: Any, validator: Validator) -> None:
    world.failing["GPU-1"] = WRONG
    world.change(health={"GPU-1": "Xid 79"})
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).state is StageState.DONE
    assert world.ran == ["GPU-0"]


async def test_gpus_that_a_boot_has_mended_are_proved_where_no_other_is_left(world: Any, validator: Validator) -> None:
    """The device plugin, which would report them as usable, runs after the proof only."""
    world.failing["GPU-1"] = WRONG
    world.change(health={"GPU-0": "Xid 79: fallen off the bus", "GPU-1": "Xid 79: fallen off the bus"})
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).state is StageState.DONE
    assert sorted(world.ran) == ["GPU-0", "GPU-1"]


async def test_a_gpu_that_nvml_does_not_list_is_not_proved(world: Any, validator: Validator) -> None:
    world.change(health={"GPU-0": NOT_LISTED, "GPU-1": NOT_LISTED})
    await validator.reconcile("sim-1")
    assert (world.stage(CUDA).reason, world.ran) == ("NoUsableGPU", [])


async def test_no_usable_gpu_fails(world: Any, validator: Validator) -> None:
    world.failing |= {"GPU-0": WRONG, "GPU-1": WRONG}
    world.change(health={"GPU-0": "x", "GPU-1": "y"})
    await validator.reconcile("sim-1")
    assert (world.stage(CUDA).reason, world.stage(CUDA).message) == (
        "NoUsableGPU",
        "none of 2 GPUs is usable: GPU 0 x, GPU 1 y",
    )


@pytest.mark.parametrize(
    "faults",
    [
        ("the driver asks for a reset of the GPU", "Xid 79: fallen off the bus"),
        ("Xid 79: fallen off the bus", "the driver asks for a reset of the GPU"),
        ("row remapping failed", "lost"),
    ],
)
async def test_without_a_usable_gpu_the_cure_is_that_of_the_first_fault(
    world: Any, validator: Validator, faults: tuple[str, str]
) -> None:
    """The same words have the same cure in `gpuplane status`."""
    world.failing |= {"GPU-0": WRONG, "GPU-1": WRONG}
    world.change(health=dict(zip(("GPU-0", "GPU-1"), faults, strict=True)))
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).cure == cures.of_fault(faults[0])


async def test_several_failing_gpus_are_all_named_and_no_driver_is_no_broken_gpu(
    world: Any, validator: Validator
) -> None:
    world.failing = {uuid: Retryable("libcuda.so.1 cannot be loaded") for uuid in ("GPU-0", "GPU-1")}
    await validator.reconcile("sim-1")
    assert world.stage(CUDA).reason == "VectorAddNotRun"
    assert world.stage(CUDA).message.startswith("GPUs 0, 1 fail the vectorAdd; GPU 0: libcuda")


async def test_files_that_stay_away_are_said(world: Any, validator: Validator, clock: VirtualClock) -> None:
    (world.root / "var/run/cdi/nvidia.json").unlink()
    assert await validator.reconcile("sim-1") == 30
    assert world.stage(CUDA) is None, "after a boot it is about to come"
    clock.seconds += 30
    await validator.reconcile("sim-1")
    assert (world.stage(CUDA).reason, world.stage(CUDA).where) == ("CDIDeviceMissing", "/var/run/cdi")
    assert world.ran == []


async def test_after_a_failure_a_file_that_comes_is_reason_enough(
    world: Any, validator: Validator, clock: VirtualClock
) -> None:
    ready = world.root / "run/nvidia/validations/toolkit-ready"
    ready.unlink()
    await validator.reconcile("sim-1")
    clock.seconds += 30
    assert await validator.reconcile("sim-1") == 60
    assert world.stage(CUDA).reason == "ToolkitFileMissing"
    assert await validator.reconcile("sim-1") == 60, "nothing changed"
    ready.touch()
    assert await validator.reconcile("sim-1") is None
    assert world.stage(CUDA).state is StageState.DONE


async def test_after_a_boot_it_goes_on_the_moment_that_driver_and_toolkit_are_there(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A boot as the validator sees it: /run and /dev are empty, the stages are those of before."""

    async def vector_add(uuid: str) -> str:
        return await world.vector_add(uuid)

    monkeypatch.setattr("gpuplane.validator.operand._process", lambda facts: vector_add)
    async with running(world, vector_add=None):
        await world.until(lambda: world.stage(CUDA) is not None)
    before, path = len(world.client.writes), world.root / "run/nvidia/validations/cuda-ready"
    shutil.rmtree(world.root / "run")
    (world.root / "dev/nvidiactl").unlink()
    async with running(world, vector_add=None), asyncio.timeout(60):
        seen = Host(world.root).watch("run/nvidia/validations/cuda-ready")
        await anext(seen)
        for file, text in (
            ("dev/nvidiactl", ""),
            ("run/nvidia/validations/driver-ready", "IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/\n"),
            ("run/nvidia/validations/toolkit-ready", ""),
        ):
            assert not path.exists()
            world.write(file, text)
            await asyncio.sleep(0)
        while not path.exists():
            await anext(seen)
    assert len(world.ran) == 4
    assert len(world.client.writes) == before, "nothing was taken back, so nothing is new"


async def test_nothing_allocatable_for_long_is_a_failure_of_the_plugin_stage(
    world: Any, validator: Validator, clock: VirtualClock
) -> None:
    await validator.reconcile("sim-1")
    world.hold(StageName.DEVICE_PLUGIN, allocatable=0)
    assert await validator.reconcile("sim-1") == 15  # a plugin that restarts is away for a moment
    assert world.stage(PLUGIN) is None
    clock.seconds += 15
    assert await validator.reconcile("sim-1") == 60
    assert world.stage(PLUGIN).reason == "NothingAllocatable"
    world.end_pods("Succeeded")
    world.hold(StageName.DEVICE_PLUGIN, allocatable=2)
    assert await validator.reconcile("sim-1") is None
    assert world.stage(PLUGIN).state is StageState.DONE

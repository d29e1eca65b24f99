"""Idle GPUs of a ready node are proved again, without a restart and without disturbing who computes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuplane.api.gpunode import StageName
from gpuplane.hardware import Process
from gpuplane.operand.wrong_gpus import read_wrong_gpus
from gpuplane.validator.operand import run
from gpuplane.validator.recheck import CHECK_SECONDS, check_idle
from kubekit.errors import Terminal
from tests.support.until import until

WRONG = Terminal("element 7 of 50000 is 1 and should be 2", where="GPU-1 (T4)", cure="replace it")
FOUND = {"GPU-1": "fails the vectorAdd: element 7 of 50000 is 1 and should be 2"}


class Gpus:
    """NVML, as far as it lists processes; `begins` are seen from the second look on."""

    def __init__(self) -> None:
        self.used: dict[str, tuple[Process, ...]] = {}
        self.begins: dict[str, tuple[Process, ...]] = {}
        self.lost: set[str] = set()
        self.looks = 0

    def processes(self, uuid: str) -> tuple[Process, ...]:
        if uuid in self.lost:
            raise Terminal("GPU is lost", where=uuid)
        return self.used.get(uuid, ()) + (self.begins.get(uuid, ()) if self.looks > 1 else ())

    def close(self) -> None:
        pass


@pytest.fixture
def gpus() -> Gpus:
    return Gpus()


@pytest.fixture
def context(world: Any, gpus: Gpus) -> Any:
    world.hold(StageName.CUDA)

    def opened() -> Gpus:
        gpus.looks += 1
        return gpus

    return world.context(open_gpus=opened)


async def test_a_healthy_node_that_starts_to_compute_wrongly_is_found(world: Any, context: Any) -> None:
    await check_idle(context, world.node.status)
    assert (world.ran, read_wrong_gpus(context.host)) == (["GPU-0", "GPU-1"], {})
    world.failing["GPU-1"] = WRONG
    await check_idle(context, world.node.status)
    assert read_wrong_gpus(context.host) == FOUND
    assert world.client.writes == [], "the device plugin takes it out and reports it"
    world.change(health=FOUND)
    world.failing.clear()
    await check_idle(context, world.node.status)
    assert read_wrong_gpus(context.host) == {}
    assert not world.file("wrong-gpus")


async def test_a_gpu_in_use_is_left_alone(world: Any, context: Any, gpus: Gpus) -> None:
    world.failing["GPU-1"] = WRONG
    gpus.used["GPU-1"] = (Process(pid=7, memory_bytes=1),)
    await check_idle(context, world.node.status)
    assert (world.ran, read_wrong_gpus(context.host)) == (["GPU-0"], {})
    world.change(held={"GPU-0": {"uid-1": 30}})
    await check_idle(context, world.node.status)
    assert world.ran == ["GPU-0"]


async def test_a_wrong_gpu_that_is_lost_keeps_no_other_gpu_from_being_checked(
    world: Any, context: Any, gpus: Gpus
) -> None:
    world.failing["GPU-1"] = WRONG
    await check_idle(context, world.node.status)
    world.change(health=FOUND)
    gpus.lost.add("GPU-1")
    world.ran.clear()
    world.failing["GPU-0"] = WRONG
    await check_idle(context, world.node.status)
    assert set(world.ran) == {"GPU-0"}
    assert read_wrong_gpus(context.host).keys() == {"GPU-0", "GPU-1"}, "that it is lost is no word about computing"


async def test_a_job_that_begins_during_the_check_makes_no_gpu_wrong(world: Any, context: Any, gpus: Gpus) -> None:
    world.failing["GPU-1"] = Terminal("out of memory")
    gpus.begins["GPU-1"] = (Process(pid=7, memory_bytes=1),)
    await check_idle(context, world.node.status)
    assert read_wrong_gpus(context.host) == {}


async def test_nothing_is_checked_before_cuda_holds_or_where_nvml_says_that_a_gpu_is_lost(
    world: Any, context: Any
) -> None:
    world.change(health={"GPU-0": "Xid 79: fallen off the bus"})
    await check_idle(context, world.node.status)
    assert world.ran == ["GPU-1"]
    stages = {name: stage for name, stage in world.node.status.stages.items() if name != "cuda"}
    world.change(stages=stages)
    await check_idle(context, world.node.status)
    assert world.ran == ["GPU-1"]


async def test_the_validator_checks_every_ten_minutes(world: Any, context: Any) -> None:
    slept: list[float] = []
    go = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await go.wait()
        if len(slept) > 1:
            await asyncio.Event().wait()

    task = asyncio.create_task(run(world.context(sleep=sleep, open_gpus=context.open_gpus), world.prove_plugin))
    try:
        await until(lambda: len(slept) == 1 and world.stage(StageName.CUDA) is not None and world.file("cuda-ready"))
        world.failing["GPU-1"] = WRONG
        go.set()
        await until(lambda: read_wrong_gpus(context.host) == FOUND)
        await until(lambda: len(slept) > 1)
        assert 0 < slept[0] <= CHECK_SECONDS == slept[1]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_policy_without_workload_runs_no_vector_add_on_idle_gpus_either(
    world: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_WITH_WORKLOAD", "false")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    context = world.context(sleep=sleep, open_gpus=context.open_gpus)
    task = asyncio.create_task(run(context, world.prove_plugin))
    try:
        await until(lambda: world.stage(StageName.CUDA) is not None and world.file("cuda-ready"))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (slept, world.ran) == ([], [])


async def test_a_gpu_that_is_usable_again_is_proved_at_once(world: Any, context: Any) -> None:
    async def sleep(seconds: float) -> None:
        await asyncio.Event().wait()

    world.change(health={"GPU-1": "Xid 79: fallen off the bus"})
    task = asyncio.create_task(run(world.context(sleep=sleep, open_gpus=context.open_gpus), world.prove_plugin))
    try:
        await until(lambda: world.file("cuda-ready") and world.ran == ["GPU-0"])
        world.failing["GPU-1"] = WRONG
        world.change(health={})
        await until(lambda: read_wrong_gpus(context.host) == FOUND)
        world.change(health=FOUND)
        checks = len(world.ran)
        world.change(health={})  # it passed by now
        world.change(health={"GPU-0": "Xid 48: double bit ECC error"})
        world.failing.clear()
        world.change(health={})
        await until(lambda: read_wrong_gpus(context.host) == {})
        assert len(world.ran) == checks + 2
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

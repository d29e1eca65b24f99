"""Nodes that offer less than predicted are not bought again and again for pods that do not fit them."""

from __future__ import annotations

import pytest

from gpuplane.autoscaler.lessons import LESSON_SECONDS, JoinedNode, Lessons
from gpuplane.autoscaler.options import LessonKey
from tests.support.autoscaler_world import PROVISIONERS, AutoscalerWorld
from tests.support.virtual_time import VirtualClock

PREDICTED = {"cpu": 3920, "memory": 1000, "nvidia.com/gpu": 4}
KEY: LessonKey = ("g4dn.12xlarge", tuple(sorted(PREDICTED.items())))
ONE_TYPE = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.12xlarge"]}]


def node(uid: str, *, initialized: bool = True, **real: int) -> JoinedNode:
    return JoinedNode(
        KEY, uid, PREDICTED | {name.replace("gpu", "nvidia.com/gpu"): n for name, n in real.items()}, initialized
    )


def test_the_last_of_the_nodes_that_are_there_counts() -> None:
    lessons = Lessons(VirtualClock())
    assert lessons.learn([node("a", gpu=3), node("b", memory=900)]) == {KEY: PREDICTED | {"memory": 900}}


def test_a_machine_is_remembered_for_an_hour() -> None:
    clock = VirtualClock()
    lessons = Lessons(clock)
    lessons.learn([node("a", memory=900, initialized=False)])
    clock.jump(LESSON_SECONDS - 1)
    assert lessons.learn([]) == {KEY: PREDICTED | {"memory": 900}}
    clock.jump(2)
    assert lessons.learn([]) == {}


def test_missing_gpus_need_two_nodes_and_end_with_one_that_has_them() -> None:
    lessons = Lessons(VirtualClock())
    lessons.learn([node("a", gpu=2)])
    lessons.learn([node("a", gpu=2)])
    assert lessons.learn([])[KEY]["nvidia.com/gpu"] == 4, "the GPUs of one node may be broken"
    lessons.learn([node("b", gpu=3)])
    assert lessons.learn([])[KEY]["nvidia.com/gpu"] == 3, "the most that any of them had"
    lessons.learn([node("c", initialized=False)])
    assert lessons.learn([])[KEY]["nvidia.com/gpu"] == 3, "its GPUs are not known yet"
    lessons.learn([node("c")])
    assert lessons.learn([])[KEY]["nvidia.com/gpu"] == 4


async def test_a_type_that_lacks_a_gpu_is_bought_twice_and_no_more() -> None:
    world = AutoscalerWorld()
    await world.furnish()
    await world.add_provisioner("gpu", requirements=ONE_TYPE, ttlSecondsAfterEmpty=30)
    world.offered = lambda instance: {"nvidia.com/gpu": "3"}
    async with world.autoscaling():
        await world.add_pods(1, gpus=4)
        await world.pass_time(1500)
        assert len(world.cloud.launched) == 2
        assert "Insufficient nvidia.com/gpu" in world.events("FailedScheduling")[-1]
        assert world.claims() == []
        await world.add_pods(1, gpus=3)
        await world.until(world.bound)
    assert len(world.cloud.launched) == 3


@pytest.mark.parametrize("seconds", [0, 59])
async def test_nothing_is_bought_for_a_pool_whose_nodes_end_before_they_have_joined(seconds: int) -> None:
    world = AutoscalerWorld()
    await world.furnish()
    await world.add_provisioner("gpu", ttlSecondsUntilExpired=seconds)
    async with world.autoscaling():
        await world.add_pods(1)
        await world.pass_time(60)
    assert world.cloud.launched == []
    assert "a node would end before it has joined" in ready(world, PROVISIONERS, "gpu")


async def test_a_pool_whose_name_is_no_label_says_so() -> None:
    world = AutoscalerWorld()
    await world.furnish()
    await world.add_provisioner("x" * 64)
    async with world.autoscaling():
        await world.add_pods(1)
        await world.pass_time(30)
    assert "which has at most 63 characters" in ready(world, PROVISIONERS, "x" * 64)


async def test_a_claim_that_the_api_server_refuses_is_told_to_its_pods() -> None:
    world = AutoscalerWorld()
    await world.furnish()
    await world.add_provisioner("gpu", annotations={"a b": "no key"})
    async with world.autoscaling():
        await world.add_pods(1)
        [text] = await world.until(lambda: world.events("FailedScheduling"))
        assert "metadata.annotations" in text and "a b" in text
        await world.registry.patch(PROVISIONERS, None, "gpu", {"spec": {"annotations": None}}, "merge")
        await world.until(world.bound)


def ready(world: AutoscalerWorld, kind: tuple[str, str], name: str) -> str:
    found = world.registry.get(kind, None, name) or {}
    [one] = [one for one in found["status"]["conditions"] if one["type"] == "Ready"]
    assert one["status"] == "False"
    return str(one["message"])

"""Victims go only for a pod that still waits, and room is made once at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuplane.scheduler.pods.evict import AGAIN_SECONDS, Evictor
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.kube import NotFound
from kubekit.scheduling.podinfo import PodInfo
from tests.support.virtual_time import VirtualClock


def info(name: str, node: str = "") -> PodInfo:
    return PodInfo("default", name, f"uid-{name}", {}, {}, 0, 0, node_name=node)


class Cluster:
    """The model, its queues, the client and the reporter of an Evictor: pods that wait, and what was deleted."""

    def __init__(self) -> None:
        self.waiting = {"urgent"}
        self.needed: set[str] = set()
        self.deleted: list[str] = []
        self.withdrawn: list[str] = []
        self.urgent = ScheduledPod(info=info("urgent"))

    @property
    def fair(self) -> Cluster:
        return self

    def reclaims(self, pod: PodInfo, victim: PodInfo) -> str:
        return ""

    def waits(self, pod: PodInfo) -> bool:
        return pod.name in self.waiting

    def may_evict(self, pod: PodInfo, victim: PodInfo) -> bool:
        return victim.name not in self.needed

    def withdraw(self, key: str) -> None:
        self.withdrawn.append(key)

    def try_all_again(self) -> None: ...

    def leaves(self, victim: PodInfo) -> None: ...

    def preempted(self, *about: Any) -> None: ...

    async def patch(self, kind: Any, name: str, *rest: Any) -> None:
        if name == "urgent" and not self.waiting:
            raise NotFound("no such pod")

    async def delete(self, kind: Any, name: str, *rest: Any) -> None:
        self.deleted.append(name)
        if name == "v0":
            self.waiting.clear()

    async def preempt(self, *victims: str) -> None:
        fake: Any = self
        clock = VirtualClock()
        evictor = Evictor(fake, clock, fake, fake)
        work = evictor.carry_out([(self.urgent, "n1")], [info(name, "n1") for name in victims], [])
        task = asyncio.create_task(work)
        await clock.advance(AGAIN_SECONDS)
        assert task.done() and not task.exception()


@pytest.mark.parametrize(
    ("gone", "victims", "evicted"),
    [(False, ("a", "b"), ["a", "b"]), (True, ("a", "b"), []), (False, ("v0", "b"), ["v0"])],
)
async def test_no_victim_goes_for_a_pod_that_is_gone(gone: bool, victims: tuple[str, ...], evicted: list[str]) -> None:
    cluster = Cluster()
    if gone:
        cluster.waiting.clear()
    await cluster.preempt(*victims)
    assert cluster.deleted == evicted


async def test_no_victim_goes_that_its_queue_needs_meanwhile() -> None:
    cluster = Cluster()
    cluster.needed = {"b"}
    await cluster.preempt("a", "b", "c")
    assert (cluster.deleted, cluster.withdrawn) == (["a"], ["default/urgent"])

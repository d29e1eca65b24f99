"""Random histories of the scheduler and the extender at once, with faults at every call and crashes at every step.

Every second pod is the scheduler's and may preempt others of lower priority. The others are kube-scheduler's, which
asks the extender. Nothing is allocated twice, nothing leaks, and in the end no pod waits that fits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.policies import Chosen
from kubekit.kube import EventRecorder
from packages.gpuplane.tests.extender.test_histories import (
    DAY,
    GPUS,
    MEMORY,
    NODES,
    PODS,
    History,
    live,
    random_step,
    step,
)
from tests.support.fake_api import FakeClient, Fault
from tests.support.virtual_time import settle

ALLOCATABLE = {"pods": "110", names.VCUDA_CORE: str(GPUS * 100), names.VCUDA_MEMORY: str(GPUS * MEMORY // 256)}


class SchedulerHistory(History):
    """A cluster whose pods are scheduled by both."""

    def __init__(self) -> None:
        super().__init__("filter")
        for name in NODES:
            node = self.api.objects["nodes"][name]
            self.api.put("nodes", {**node, "status": {**node["status"], "allocatable": ALLOCATABLE}})
        for name in ("free", "team"):
            self.api.put("namespaces", {"metadata": {"name": name}})
        self.api.deliver()

    async def start(self) -> None:
        client = self.client()
        self.recorder = EventRecorder(client, "test", clock=self.clock)
        self.leader = Leader(client, self.recorder, Chosen(), self.clock, lambda: self.wall, "gpuplane")
        self.ready = asyncio.Event()
        self.task = asyncio.create_task(self.leader.run(self.ready.set))
        async with asyncio.timeout(60):
            await self.ready.wait()

    def client(self) -> Any:
        return FakeClient(self.api)

    def may_run(self, pod: dict[str, Any]) -> bool:
        """Return whether nothing but room decides about the pod."""
        return True

    def created(self, pod: dict[str, Any]) -> dict[str, Any]:
        if self.count % 2:
            pod["spec"] |= {"schedulerName": "gpuplane", "priority": self.count % 3 * 10}
        return pod

    def pending(self) -> list[dict[str, Any]]:
        """The pods of kube-scheduler that wait."""
        return [pod for pod in super().pending() if not pod["spec"].get("schedulerName")]

    def waiting(self) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.api.objects["pods"].values()
            if pod["spec"].get("schedulerName") and not pod["spec"].get("nodeName")
        ]

    def check(self) -> None:
        super().check()
        for pod in self.api.objects["pods"].values():
            conditions = (pod.get("status") or {}).get("conditions") or []
            if pod["spec"].get("nodeName"):
                assert not [one for one in conditions if one["status"] == "False"], "bound, and reported to wait"

    async def end_well(self) -> None:
        await super().end_well()
        pods = self.leader.pods
        assert pods is not None
        self.check()
        for pod in self.waiting():
            found = self.leader.filtering.sort(self.leader.cluster.by_uid[pod["metadata"]["uid"]], NODES)
            assert not found.kept or not self.may_run(pod), "it fits, and was not placed"
        waiting = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in self.waiting()}
        assert len(pods.model.queue) == len(waiting), "the queue has the pods that wait, and no others"
        bound = {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod["spec"]["nodeName"]
            for pod in self.api.objects["pods"].values()
            if pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        }
        assert {info.key: info.node_name for info in pods.model.cache.pods.values()} == bound
        nominated = {uid for pods in self.leader.filtering.nominations.by_node().values() for uid in pods}
        assert nominated <= {pod["metadata"]["uid"] for pod in self.waiting()}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=60))
def test_short_histories(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(live(SchedulerHistory(), steps))


@pytest.mark.parametrize("fault", list(Fault))
def test_a_crash_at_every_step(fault: Fault) -> None:
    async def crashing() -> None:
        for at in range(3, len(DAY) + 1):
            for blind in (False, True):
                bad: Iterable[tuple[Any, ...]] = [("fault", fault), ("blind", blind)]
                await live(SchedulerHistory(), [*DAY[:3], *bad, *DAY[3:at], ("crash",), *DAY[at:]])

    asyncio.run(crashing())


@pytest.mark.parametrize("seed", range(2))
def test_long_histories(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")
    dice = random.Random(seed)
    history = SchedulerHistory()
    asyncio.run(live(history, (random_step(dice) for _ in iter(lambda: history.count < PODS, False))))
    assert not [record for record in caplog.records if record.name.startswith("gpuplane")]


async def test_pods_of_both_schedulers_share_the_gpus() -> None:
    history = SchedulerHistory()
    day: list[tuple[Any, ...]] = [("create", 60, 16, False)] * 8 + [("deliver", 8)] + [("schedule", 0)] * 4
    await live(history, day)
    await settle()
    holders = {obj["spec"].get("schedulerName", "") for obj, _ in history.holding()}
    assert holders == {"", "gpuplane"}
    assert len(history.holding()) == len(NODES) * GPUS

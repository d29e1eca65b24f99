"""Binds that end in the middle: what stays reserved, and who may bind the pod next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuplane.scheduler import wire
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.reservation import LIMIT_SECONDS, ReservationState
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import EventRecorder
from tests.support.extender_world import gpu_pod
from tests.support.fake_api import FakeApi, FakeClient, Fault
from tests.support.virtual_time import VirtualClock, settle


class SlowReads(FakeClient):
    """A client whose reads wait while `slow` is set."""

    slow = False

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        if self.slow:
            await asyncio.Event().wait()
        return await super().get(kind, name, namespace)


class Binds:
    """An extender that leads two nodes with one GPU each, and one pod that requests 60% of a GPU."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = VirtualClock()
        client: Any = SlowReads(self.api)
        self.client = client
        for name in ("n1", "n2"):
            self.api.put("nodes", {"metadata": {"name": name}, "status": {"conditions": [READY]}})
            gpus = [{"index": 0, "uuid": f"GPU-{name}", "model": "T4", "memoryMib": 16384}]
            self.api.put("gpunodes", {"metadata": {"name": name}, "status": {"gpus": gpus}})
        self.pod = self.api.put("pods", gpu_pod("a", (60, 20)))["metadata"]
        self.leader = Leader(client, EventRecorder(client, "test"), Chosen(), self.clock, lambda: 0)

    async def bind(self, node: str) -> None:
        args = wire.BindArgs("a", "default", self.pod["uid"], node)
        await self.leader.binder.bind(args, self.leader.filtering)

    @property
    def state(self) -> ReservationState | None:
        found = self.leader.reservations.get(self.pod["uid"])
        return found.state if found is not None else None

    def core(self, node: str) -> int:
        found = self.leader.cluster.ledger.node(node)
        assert found is not None
        return found.core[0]


READY = {"type": "Ready", "status": "True"}


@pytest.fixture
async def binds() -> AsyncIterator[Binds]:
    made, ready = Binds(), asyncio.Event()
    task = asyncio.create_task(made.leader.run(ready.set))
    await asyncio.wait_for(ready.wait(), 20)
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_bind_whose_caller_left_during_the_read_is_settled(binds: Binds) -> None:
    binds.api.faults.append(Fault.BEFORE)
    binds.client.slow = True
    task = asyncio.create_task(binds.bind("n1"))
    await settle()
    assert binds.state is ReservationState.POSTING
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert binds.state is ReservationState.DOUBT
    binds.client.slow = False
    await binds.clock.advance(LIMIT_SECONDS[ReservationState.DOUBT])
    assert binds.state is None and binds.core("n1") == 100


async def test_a_binding_that_may_be_late_blocks_another_node(binds: Binds) -> None:
    binds.api.faults.append(Fault.LATE)
    with pytest.raises(KubekitError):
        await binds.bind("n1")
    with pytest.raises(Retryable, match="its binding to n1 is not settled yet"):
        await binds.bind("n2")
    assert (binds.state, binds.core("n1"), binds.core("n2")) == (ReservationState.DOUBT, 40, 100)
    binds.api.land()
    with pytest.raises(Retryable, match="its binding to n1 is not settled yet"):
        await binds.bind("n2")
    assert binds.state is ReservationState.BOUND, "the read of that bind told the result"
    binds.api.deliver()
    await settle()
    assert binds.state is None and binds.core("n1") == 40


async def test_the_same_node_gets_the_same_binding_again(binds: Binds) -> None:
    binds.api.faults.append(Fault.LATE)
    with pytest.raises(KubekitError):
        await binds.bind("n1")
    await binds.bind("n1")
    assert binds.state is ReservationState.BOUND
    binds.api.land()
    binds.api.deliver()
    await settle()
    assert binds.state is None and binds.core("n1") == 40

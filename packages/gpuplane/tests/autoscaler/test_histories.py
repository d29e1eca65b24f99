"""Random histories: writes lost, watches late, the cloud failing, and the process ended at any write.

In all histories: no instance is bought twice, none is left over, and no limit is exceeded.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

import pytest

from tests.support.autoscaler_world import AutoscalerWorld, ProcessLife
from tests.support.fake_cloud import CloudFault
from tests.support.registry_client import LATE_SECONDS, RegistryClient, WriteFault

FIRST: Final = int(os.environ.get("GPUPLANE_TEST_FIRST_SEED", "0"))
SEEDS: Final = range(FIRST, FIRST + int(os.environ.get("GPUPLANE_TEST_SEEDS", "3")))
ONE_TYPE: Final = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}]
LIMIT_CPU: Final = 40


class History:
    """One random history. `calm` ends all faults."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = AutoscalerWorld()
        self.calm = False
        self.deaths = 0
        self.world.cloud._fault = self.cloud_fault
        self.client: RegistryClient | None = None
        self.life: ProcessLife | None = None

    def write_fault(self) -> WriteFault:
        if self.calm or self.random.random() > 0.15:
            return WriteFault.NONE
        return self.random.choice(list(WriteFault))

    def cloud_fault(self) -> CloudFault:
        if self.calm or self.random.random() > 0.2:
            return CloudFault.NONE
        return self.random.choice(list(CloudFault))

    def set_clock(self) -> None:
        """Let the time of day of the autoscaler's machine jump, forward (less than a launch may take) or back."""
        if self.calm:
            self.world.machine.skew = 0.0
        elif self.random.random() < 0.02:
            self.world.machine.skew = self.random.choice((0.0, 0.0, -7200.0, -20.0, 20.0, 200.0))

    def delay(self) -> float:
        return 0.0 if self.calm else self.random.choice((0.0, 0.0, 0.1, 1.0, 3.0))

    async def live(self) -> None:
        """Start the process, or start it again if it has ended."""
        if self.life is not None and self.client is not None and self.client.holds(self.random):
            return
        if self.life is not None:
            self.deaths += 1
            await self.life.end()
            await self.world.clock.advance(LATE_SECONDS)  # until the lease of the ended process is over
        self.client = RegistryClient(self.world.registry, self.world.clock, fault=self.write_fault, delay=self.delay)
        self.life = self.world.start(self.client)

    async def pass_time(self, seconds: float) -> None:
        end = self.world.clock.now() + seconds
        while self.world.clock.now() < end:
            await self.live()
            self.set_clock()
            await self.world.clock.advance(self.random.choice((0.2, 0.5, 1.0)))
            await self.world.schedule()
            self.check()

    async def until(self, holds: Any, seconds: float) -> None:
        end = self.world.clock.now() + seconds
        while not holds():
            assert self.world.clock.now() < end, self.world.seen()
            await self.pass_time(1.0)

    def check(self) -> None:
        """Hold the invariants that are true at every moment."""
        running = self.world.cloud.running()
        by_claim = [instance.claim for instance in running]
        assert len(set(by_claim)) == len(by_claim), "two instances of one claim"
        assert 4 * len(running) <= LIMIT_CPU, "the limit of the pool is exceeded"

    async def end(self) -> None:
        if self.life is not None:
            await self.life.end()


async def begun(seed: int) -> History:
    history = History(seed)
    await history.world.furnish()
    limits = {"resources": {"cpu": str(LIMIT_CPU)}}
    await history.world.add_provisioner("gpu", requirements=ONE_TYPE, limits=limits, ttlSecondsAfterEmpty=30)
    return history


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_pod_is_bought_for_once(seed: int) -> None:
    history = await begun(seed)
    world = history.world
    world.cloud.late = history.random.choice((0.0, 5.0))
    pods = 0
    for _ in range(history.random.randrange(1, 4)):
        count = history.random.randrange(1, 4)
        pods += count
        await world.add_pods(count)
        await history.pass_time(history.random.choice((1.0, 5.0, 20.0)))
    history.calm = True
    await history.until(lambda: len(world.bound()) == pods, 600)
    assert len(world.cloud.launched) == pods
    await history.end()


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_left_over_when_the_pods_are_gone(seed: int) -> None:
    history = await begun(seed)
    world = history.world
    world.joins = lambda instance: history.calm or history.random.random() < 0.7
    everything = {("on-demand", "g4dn.xlarge", zone) for zone in ("zone-1", "zone-2")}
    for _ in range(history.random.randrange(2, 5)):
        await world.add_pods(history.random.randrange(1, 5))
        await history.pass_time(history.random.choice((1.0, 10.0, 60.0)))
        for pod in world.registry.list("pods", "default"):
            if history.random.random() < 0.4:
                await world.registry.delete("pods", "default", pod["metadata"]["name"], grace=0)
        world.cloud.closed = everything if history.random.random() < 0.2 else set()
    world.cloud.closed = set()
    history.calm = True
    await history.pass_time(30.0)
    for pod in world.registry.list("pods", "default"):
        await world.registry.delete("pods", "default", pod["metadata"]["name"], grace=0)
    await history.until(lambda: not world.cloud.running() and not world.claims() and not world.nodes(), 2000)
    await history.end()

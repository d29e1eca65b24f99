"""Random histories of disruption: images and pods change, writes are lost, watches are late, the process ends anywhere.

In all histories: a budget of one node is never exceeded, no pod goes against its PodDisruptionBudget, and in the end
there is one instance for each claim, on the newest image, with every pod on a node.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

import pytest

from gpuplane.api import nodeclaim
from packages.gpuplane.tests.autoscaler.disruption.replicated import Replicated, add_node_pool, is_ready
from tests.support.fake_cloud import CloudFault
from tests.support.registry_client import LATE_SECONDS, RegistryClient, WriteFault
from tinykube.apiserver.subresources import evict
from tinykube.apiserver.writes import WriteOptions

FIRST: Final = int(os.environ.get("GPUPLANE_TEST_FIRST_SEED", "0"))
SEEDS: Final = range(FIRST, FIRST + int(os.environ.get("GPUPLANE_TEST_SEEDS", "3")))
BUDGETS: Final = ("policy", "poddisruptionbudgets")


class BudgetedClient(RegistryClient):
    """A client whose evictions the API server refuses by PodDisruptionBudgets."""

    async def request(self, method: str, path: str, params: Any = None, body: Any = None, **_: Any) -> bytes:
        _, _, _, _, namespace, _, name, _ = path.split("/")
        await self._write(lambda: evict(self.registry, namespace, name, body, WriteOptions()))
        return b"{}"


class DisruptedHistory:
    """One history. `calm` ends all faults."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = Replicated()
        self.world.cloud._fault = self.cloud_fault
        self.calm = False
        self.deaths = 0
        self.covered = 0  # pods that must run at any time
        self.client: BudgetedClient | None = None
        self._life: Any = None

    def cloud_fault(self) -> CloudFault:
        return CloudFault.NONE if self.calm or self.random.random() > 0.1 else self.random.choice(list(CloudFault))

    def write_fault(self) -> WriteFault:
        return WriteFault.NONE if self.calm or self.random.random() > 0.05 else self.random.choice(list(WriteFault))

    def set_clock(self) -> None:
        """Let the time of day of the autoscaler's machine jump, forward or back."""
        if self.calm:
            self.world.machine.skew = 0.0
        elif self.random.random() < 0.02:
            self.world.machine.skew = self.random.choice((0.0, 0.0, -7200.0, -20.0, 20.0, 400.0, 7200.0))

    def delay(self) -> float:
        return 0.0 if self.calm else self.random.choice((0.0, 0.0, 0.2, 1.0))

    async def live(self) -> None:
        """Start the process, or start it again if it has ended."""
        if self.client is not None and self.client.holds(self.random):
            return
        await self.end()
        if self.client is not None:
            self.deaths += 1
            await self.world.clock.advance(LATE_SECONDS)  # until the lease of the ended process is over
        self.client = BudgetedClient(self.world.registry, self.world.clock, fault=self.write_fault, delay=self.delay)
        self._life = self.world.autoscaling(self.client)
        await self._life.__aenter__()

    async def end(self) -> None:
        if self._life is not None:
            life, self._life = self._life, None
            await life.__aexit__(None, None, None)

    async def pass_time(self, seconds: float) -> None:
        end = self.world.clock.now() + seconds
        while self.world.clock.now() < end:
            await self.live()
            self.set_clock()
            await self.world.clock.advance(self.random.choice((0.5, 1.0, 2.0)))
            await self.world.schedule()
            await self.world.play_readiness()
            self.check()

    async def until(self, holds: Any, seconds: float) -> None:
        end = self.world.clock.now() + seconds
        while not holds():
            assert self.world.clock.now() < end, self.world.seen()
            await self.pass_time(1.0)

    def check(self) -> None:
        """Hold the invariants that are true at every moment."""
        going = self.world.disrupted()
        assert len(going) <= 1, f"a budget of one node, and {going} go"
        assert self.world.healthy() >= self.covered, "a pod went against its budget"
        by_claim = [instance.claim for instance in self.world.cloud.running()]
        assert len(set(by_claim)) == len(by_claim), "two instances of one claim"


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_budget_is_exceeded_and_nothing_is_left_over(seed: int) -> None:
    history = DisruptedHistory(seed)
    world = history.world
    await world.furnish()
    await add_node_pool(
        world,
        "g4dn.xlarge",
        "g4dn.12xlarge",
        disruption={"budgets": [{"nodes": "1"}], "consolidateAfter": history.random.choice(("0s", "30s"))},
    )
    world.wanted = [(3, 1, "3"), (history.random.randrange(3), 0, "2")]
    history.calm = True
    await history.until(world.is_settled, 300)
    await history.pass_time(20)
    history.covered = 2
    selector = {"matchLabels": {"cpu": "3"}}
    await world.registry.create(
        BUDGETS, "default", {"metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": selector}}
    )
    history.calm = False
    for number in range(history.random.randrange(2, 4)):
        if history.random.random() < 0.6:
            world.set_image(f"image-{seed}-{number}")
        world.wanted[1] = (history.random.randrange(4), 0, "2")
        await world.scale_down("2", world.wanted[1][0])
        await history.pass_time(history.random.choice((20.0, 60.0, 150.0)))
    history.calm = True
    await history.until(lambda: world.is_settled() and world.is_current() and not world.disrupted(), 4000)
    await history.pass_time(90)
    await history.until(lambda: world.is_settled() and not world.disrupted(), 1000)
    assert len(world.cloud.running()) == len(world.claims()) == len(world.nodes())
    assert all(is_ready(claim) for claim in world.claims())
    await history.end()
    assert nodeclaim.DISRUPTED_TAINT not in str(world.nodes())

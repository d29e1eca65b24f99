"""The meter in the exporter: it reads at its own pace, and a scrape has its counters."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpuplane.exporter.operand import METER_SECONDS
from kubekit.errors import Retryable
from packages.gpuplane.tests.exporter.exporting import PodsOfTheNode, context, exporting, one_gpu, pod_resources


class MeterTime:
    """The meter's pauses, each as long as the test says."""

    def __init__(self) -> None:
        self.paused = asyncio.Event()
        self._go = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds != METER_SECONDS:
            return
        self.paused.set()
        await self._go.wait()
        self._go.clear()

    async def pass_by(self) -> None:
        """Let a pause end, and return when the meter has read and rests again."""
        await self.paused.wait()
        self.paused.clear()
        self._go.set()
        await self.paused.wait()


async def test_the_meter_counts_what_a_pod_held_and_used_from_reading_to_reading(tmp_path: Path) -> None:
    client, time = PodsOfTheNode(), MeterTime()
    given = context(one_gpu, kubelet_dir=tmp_path, client=client, sleep=time.sleep)
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        before = (await ask("/metrics"))[1]
        await time.pass_by()
        first = (await ask("/metrics"))[1]
        await time.pass_by()
        later = (await ask("/metrics"))[1]
    assert "gpuplane_pod_gpu" not in before
    who = 'owner_kind="Pod",owner="train",gpu="0",UUID="GPU-0",modelName="T4",Hostname="sim-1",container="main",'
    who += 'namespace="ml",pod="train",kind="whole"'
    held = f"gpuplane_pod_gpu_held_seconds_total{{{who}}} "
    assert held + "0.000000\n" in first
    assert float(later.split(held)[1].split()[0]) > 0
    assert 'container_gpu_allocation{container="main",namespace="ml",node="sim-1",pod="train"} 1.000000\n' in later
    rest = 'gpuplane_gpu_unbooked_seconds_total{gpu="0",UUID="GPU-0",modelName="T4",Hostname="sim-1"} '
    assert rest + "0.000000\n" in later


async def test_the_meter_reads_as_often_however_often_it_is_scraped(tmp_path: Path) -> None:
    gpus, client, time = one_gpu(), PodsOfTheNode(), MeterTime()
    given = context(lambda: gpus, kubelet_dir=tmp_path, client=client, sleep=time.sleep)
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        for _ in range(3):
            await time.pass_by()
        assert gpus.readings == 3
        for _ in range(4):
            await ask("/metrics")
        await time.pass_by()
    assert gpus.readings == 8


async def test_a_driver_that_is_away_is_a_gap_of_the_meter(tmp_path: Path) -> None:
    gpus, client, time = one_gpu(), PodsOfTheNode(), MeterTime()
    given = context(lambda: gpus, kubelet_dir=tmp_path, client=client, sleep=time.sleep)
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        await time.pass_by()
        gpus.error = Retryable("the driver is going away")
        await time.pass_by()
        gpus.error = None
        await time.pass_by()
        assert "gpuplane_pod_gpu_held_seconds_total" in (await ask("/metrics"))[1]

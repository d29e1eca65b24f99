"""An API server and the process that schedules its pods; in the end no GPU may be allocated twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.extender_world import Running, World, extender, world

SCHEDULER = "gpuplane"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """An API server without nodes."""
    async with world(tmp_path) as made:
        yield made


@pytest.fixture
async def running(cluster: World) -> AsyncIterator[Running]:
    """The scheduler of pods with `schedulerName: gpuplane`, and the extender, in one process."""
    async with extender(cluster.client, scheduler_name=SCHEDULER) as made:
        yield made
        made.well()

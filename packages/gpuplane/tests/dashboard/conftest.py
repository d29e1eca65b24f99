"""The cluster of two tenants with its dashboard; a file whose tests need another cluster has fixtures of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from packages.gpuplane.tests.dashboard.in_cluster import InCluster, in_cluster, two_tenants
from tests.support.extender_world import World


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with two_tenants(tmp_path) as world:
        yield world


@pytest.fixture
async def page(cluster: World, tmp_path: Path) -> AsyncIterator[InCluster]:
    async with in_cluster(cluster, tmp_path) as started:
        yield started

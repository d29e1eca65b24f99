"""Fixtures of the extender's tests; their parts are in extender_world.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubekit.kube import Client
from tests.support.extender_world import Running, World, account_client, extender, world


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """An API server without nodes."""
    async with world(tmp_path) as made:
        yield made


@pytest.fixture
async def running(cluster: World) -> AsyncIterator[Running]:
    """Yield an extender that follows the cluster; in the end no GPU may be allocated twice."""
    async with extender(cluster.client) as made:
        yield made
        made.well()


@pytest.fixture
async def account(cluster: World) -> AsyncIterator[Client]:
    """A client with the extender's own account, by the token "scheduler", on a cluster with the installation."""
    async with account_client(cluster) as client:
        yield client

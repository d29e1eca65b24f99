"""The stories of pods with resource claims, on a node with the embedded control plane. See `kubernetes/test_dra.py`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubekit.kube import Client
from tests.support.claim_stories import STORIES, ClaimWorld, playing
from tinykube.controllers import Controllers
from tinykube.scheduler import Scheduler


@pytest.fixture
async def world(api: Any, make_node: Any) -> AsyncIterator[ClaimWorld]:
    parts = [Controllers(api.registry, ca="PEM").run(), Scheduler(api.registry).run()]
    tasks = [asyncio.create_task(part) for part in parts]
    node = await make_node()

    async def log(pod: str) -> str:
        found: str = node.log(pod, namespace="story")
        return found

    async def restart() -> None:
        await node.stop(leave_containers=True)
        await node.start()

    async with Client.connect(api.kubeconfig) as client:
        made = ClaimWorld(client, node.root, "sim-1", "story", image="busybox", log=log, restart=restart)
        async with playing(made):
            yield made
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_on_the_embedded_cluster(world: ClaimWorld, story: Any) -> None:
    await story(world)

"""Requests of `status` and `explain` to an API server of 200 nodes: pages of one list for each kind, and no more."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from tests.support.extender_world import World, gpu_pod, world
from tinykube.apiserver.identity import AUTHENTICATED, User

NODES, PODS = 200, 600
PAGES = 2  # of that many pods, 500 in each
USER = "someone"
READERS = User(USER, ("system:masters", AUTHENTICATED))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Nodes with a GPU each, as many pods on some of them, and one that waits."""
    async with world(tmp_path) as made:
        made.server.extensions.identity.add(USER, READERS)
        limit = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with limit:
                if number < NODES:
                    await made.node(f"n{number}", 1, labels={names.GPU_PRESENT_LABEL: "true"})
                await made.pod(gpu_pod(f"p{number}", (10, 1), nodeName=f"n{number % (NODES // 2)}"))

        await asyncio.gather(*map(one, range(PODS - 1)))
        await made.pod(gpu_pod("late", whole=2))
        (tmp_path / "config").write_text(made.kubeconfig(token=USER))
        yield made


async def asked(cluster: World, directory: Path, *words: str) -> Counter[tuple[str, str]]:
    """Count how often the command sent each verb for each resource."""
    before = await requests(cluster)
    command = [sys.executable, "-m", "gpuplane", *words, "--kubeconfig", str(directory / "config")]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert b"200" in output, "it is about the whole cluster"
    return await requests(cluster) - before


async def requests(cluster: World) -> Counter[tuple[str, str]]:
    text = (await cluster.client.request("GET", "/metrics")).decode()
    line = re.compile(r'^apiserver_request_total\{verb="(\w+)",resource="([\w/]*)",[^}]*user="someone"\} (\d+)$', re.M)
    return Counter({(verb, resource): int(number) for verb, resource, number in line.findall(text)})


async def test_status_and_explain_read_one_list_of_each_kind(cluster: World, tmp_path: Path) -> None:
    lists: dict[tuple[str, str], Any] = {("list", "pods"): PAGES, ("list", "nodes"): 1, ("list", "gpunodes"): 1}
    lists |= {("list", "gpuqueues"): 1}
    groups = {("get", ""): 1}  # whether there are kinds of pools
    more = {("list", "clusterpolicies"): 1, ("list", "events"): 1, ("get", "deployments"): 1}
    status = {**lists, **groups, **more}
    assert await asked(cluster, tmp_path, "status") == status
    assert await asked(cluster, tmp_path, "status", "gpus") == status
    explain = {**lists, ("list", "namespaces"): 1, ("get", "configmaps"): 2, ("get", "pods"): 1}
    explain |= {("list", "poddisruptionbudgets"): 1, ("list", "podgroups"): 2}  # PodGroups of two kinds
    explain |= {("get", ""): 2}  # whether there are kinds of pools, and of Kueue
    assert await asked(cluster, tmp_path, "explain", "late") == explain

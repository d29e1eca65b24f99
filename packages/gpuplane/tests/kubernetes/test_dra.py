"""The stories of pods with resource claims, on Kubernetes' own control plane, kubelet and containerd.

The driver runs in the test, and opens its sockets in the machine's file system.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpulab.kubernetes.images import BUSYBOX
from gpulab.kubernetes.node import KubernetesNode
from kubekit.kube import ApiError, Client
from tests.support.claim_stories import STORIES, ClaimWorld, playing
from tests.support.realkube import watching

_NUMBERS: Final = itertools.count(1)


@pytest.fixture
async def world(machine: KubernetesNode) -> AsyncIterator[ClaimWorld]:
    async with Client.connect(machine.plane.kubeconfig) as client:
        namespace = f"story-{next(_NUMBERS)}"

        async def log(pod: str) -> str:
            try:
                return await watching.log(client, pod, namespace)
            except ApiError:  # its container has not started yet
                return ""

        async def restart() -> None:
            await asyncio.to_thread(machine.kill, "kubelet")

        root = Path(f"/proc/{machine.running().pid}/root")
        made = ClaimWorld(
            client,
            root,
            machine.name,
            namespace,
            image=BUSYBOX,
            shell=("/bin/busybox", "sh"),
            log=log,
            restart=restart,
            patience=watching.PATIENCE_S,
        )
        async with playing(made):
            yield made


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_on_a_real_cluster(world: ClaimWorld, story: Any) -> None:
    await story(world)

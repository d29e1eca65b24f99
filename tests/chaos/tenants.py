"""Tenants that come and go: pods with shares, whole GPUs, and more than their quota, by both schedulers."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from gpuplane import names
from kubekit.api.core import Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client, NotFound
from tests.chaos.world import QUOTAS, TENANTS

MOST = 10  # pods at a time
SCHEDULERS = ("default-scheduler", names.SCHEDULER_NAME)


class Tenants:
    """The pods of one run. `counts` are what was done, `ends` the reasons of pods that failed."""

    def __init__(self, client: Client, choice: random.Random) -> None:
        self._client = client
        self._random = choice
        self._number = 0
        self.counts: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    async def step(self) -> None:
        """Let one pod come or go; nothing where the API server is away."""
        try:
            pods = [pod for namespace in TENANTS for pod in await self._client.list(Pod, namespace)]
            for pod in pods:
                if pod.status.phase == "Failed" and not pod.metadata.deletion_timestamp:
                    self.ends[f"{pod.status.reason}: {pod.status.message}"[:160]] += 1
                    await self._delete(pod)
            staying = [pod for pod in pods if not pod.metadata.deletion_timestamp]
            if staying and (len(staying) >= MOST or self._random.random() < 0.3):
                await self._delete(self._random.choice(staying))
            else:
                await self._client.create(self._pod())
                self.counts["created"] += 1
        except KubekitError:
            self.counts["not answered"] += 1

    async def leave(self) -> None:
        """Delete all pods. Raises KubekitError."""
        for namespace in TENANTS:
            for pod in await self._client.list(Pod, namespace):
                await self._delete(pod)

    async def _delete(self, pod: Pod) -> None:
        try:
            await self._client.delete(Pod, pod.metadata.name, pod.metadata.namespace)
            self.counts["deleted"] += 1
        except NotFound:
            return

    def _pod(self) -> dict[str, Any]:
        self._number += 1
        namespace = self._random.choice(TENANTS)
        if self._random.random() < 0.25 and namespace not in QUOTAS:
            limits = {names.GPU_RESOURCE: str(self._random.choice((1, 1, 2)))}
        else:
            core, memory = self._random.randrange(5, 71, 5), self._random.randrange(4, 60, 4)
            limits = {names.VCUDA_CORE: str(core), names.VCUDA_MEMORY: str(memory)}
        container = {
            "name": "main",
            "image": "busybox",
            "command": ["sleep", "3600"],
            "resources": {"limits": limits, "requests": limits},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"tenant-{self._number}", "namespace": namespace},
            "spec": {
                "schedulerName": self._random.choice(SCHEDULERS),
                # Not 0: the API server would delete the pod before its containers have ended.
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        }

"""The real registry in memory with the controllers on it, in virtual time.

The event loop's clock jumps to the next timer whenever nothing is ready, so an hour of backoff takes no time and order
is what it would be; the registry's clock is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from tinykube.apiserver.registry import Registry
from tinykube.controllers import Controllers

EPOCH = 1_800_000_000.0


@pytest.fixture
async def virtual_time(monkeypatch):
    """From here on the running loop does not wait for timers: its clock moves on instead."""
    loop = asyncio.get_running_loop()
    selector = loop._selector
    really_select = selector.select
    now = 0.0

    def select(timeout: float | None = None) -> Any:
        nonlocal now
        ready = really_select(0 if timeout is not None else None)
        if not ready and timeout:
            now += timeout
        return ready

    monkeypatch.setattr(selector, "select", select)
    monkeypatch.setattr(loop, "time", lambda: now)


class Cluster:
    """The registry and short ways to use it."""

    def __init__(self) -> None:
        self.registry = Registry(clock=lambda: EPOCH + asyncio.get_running_loop().time())

    async def create(self, plural: Any, obj: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
        info = self.registry.resource(plural)
        return await self.registry.create(plural, namespace if info.namespaced else "", obj)

    async def node(self, name: str, ready: str = "True", **fields: Any) -> dict[str, Any]:
        labels = fields.pop("labels", {})
        conditions = [{"type": "Ready", "status": ready, "lastHeartbeatTime": self.registry.now()}]
        status = {"conditions": conditions, "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
        body = {"metadata": {"name": name, "labels": labels}, "spec": fields, "status": status}
        return await self.create("nodes", body)

    def pods(self, namespace: str = "default", **labels: str) -> list[dict[str, Any]]:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        return self.registry.list("pods", namespace, labels=selector or None)

    async def set_status(self, plural: Any, obj: dict[str, Any], **fields: Any) -> None:
        meta = obj["metadata"]
        await self.registry.patch(
            plural, meta.get("namespace"), meta["name"], {"status": fields}, "merge", subresource="status"
        )

    async def run_pods(self, *pods: dict[str, Any], phase: str = "Running", ready: bool = True) -> None:
        """Write the status of pods as a kubelet would."""
        since = self.registry.now()
        condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
        for pod in pods:
            await self.set_status("pods", pod, phase=phase, conditions=[condition], podIP="10.0.0.1")

    async def settle(self, seconds: float = 1.0) -> None:
        await asyncio.sleep(seconds)

    def events(self, reason: str) -> list[dict[str, Any]]:
        return [event for event in self.registry.list("events") if event["reason"] == reason]


@pytest.fixture
async def cluster(virtual_time):
    made = Cluster()
    controllers = asyncio.create_task(Controllers(made.registry, ca="PEM").run())
    await asyncio.sleep(0.1)
    yield made
    controllers.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await controllers

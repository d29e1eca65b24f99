"""A registry with everything installed on it, and short ways to write to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tinykube.apiserver import Registry
from tinykube.apiserver.extensions import Extensions, furnish, install

START = 1_800_000_000.0


class Cluster:
    def __init__(self) -> None:
        self.time = START
        self.registry = Registry(clock=lambda: self.time)
        self.extensions: Extensions = install(self.registry, clock=lambda: self.time)

    async def create(self, plural: Any, obj: dict[str, Any], namespace: str = "default", **more: Any) -> dict[str, Any]:
        info = self.registry.resource(plural)
        return await self.registry.create(plural, namespace if info.namespaced else None, obj, **more)

    async def pod(self, name: str = "p", namespace: str = "default", **spec: Any) -> dict[str, Any]:
        body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}
        return await self.create("pods", body, namespace)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await furnish(made.registry)
    yield made
    made.extensions.close()

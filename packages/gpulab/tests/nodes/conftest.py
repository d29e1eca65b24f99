"""An API server in the test's own event loop, for light nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.until import until
from tinykube.apiserver.hooks import User
from tinykube.apiserver.server import ApiServer


class Api:
    def __init__(self, server: ApiServer, kubeconfig: Path) -> None:
        self.registry = server.registry
        self.kubeconfig = kubeconfig
        self._changed = asyncio.Event()
        for resource in ("pods", "nodes"):
            self.registry.subscribe(resource, lambda *_: self._changed.set())

    async def until(self, predicate: Callable[[], Any]) -> Any:
        """The first true value of `predicate`, looked at again after every write."""
        return await until(predicate, changed=self._changed)

    async def create_pod(self, name: str, node: str, **spec: Any) -> None:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": node, **spec}}
        await self.registry.create("pods", "default", body)

    def status(self, name: str) -> dict[str, Any]:
        return (self.registry.get("pods", "default", name) or {}).get("status") or {}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("test", User("admin", ("system:masters", "system:authenticated")))
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": str(server.authority)}}],
        "users": [{"name": "u", "user": {"token": "test"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    await server.registry.create("serviceaccounts", "default", {"metadata": {"name": "default"}})
    yield Api(server, kubeconfig)
    await server.stop()

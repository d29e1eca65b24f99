"""Informers that commands wait on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from kubekit.api.core import Node
from kubekit.api.meta import KubeObject
from kubekit.kube import Client, Informer

K = TypeVar("K", bound=KubeObject)


def node_is_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


class Watching(Informer[K]):
    """An informer that can be waited on."""

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when `holds()` is true; looks after each change."""
        changed = asyncio.Event()
        self.add_handler(lambda old, new: changed.set())
        while not holds():
            await changed.wait()
            changed.clear()


@asynccontextmanager
async def watching(
    client: Client, kind: type[K], namespace: str | None = None, fields: str = ""
) -> AsyncIterator[Watching[K]]:
    """A synced informer for the block."""
    informer = Watching(client, kind, namespace, fields=fields)
    informer.start()
    try:
        await informer.synced()
        yield informer
    finally:
        await informer.stop()

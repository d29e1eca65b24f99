"""Reads the queues for a command that looks at the cluster once."""

from __future__ import annotations

import asyncio

import msgspec

from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.scheduler.queues.kueue_watch import GROUP, KINDS, KueueKind, kueue_kind, newest_version
from kubekit.kube import Client, Forbidden, NotFound


class ReadKueue(msgspec.Struct, frozen=True):
    """The objects of Kueue by kind; none where it is not installed. `unread`: kinds that the user may not list."""

    objects: dict[str, list[KueueKind]] = {}
    unread: tuple[str, ...] = ()


async def read_queues(client: Client) -> list[GPUQueue]:
    """Return all queues; none where they cannot be read."""
    try:
        return await client.list(GPUQueue)
    except (NotFound, Forbidden):
        return []


async def read_kueue(client: Client) -> ReadKueue:
    """Return all objects of Kueue that queues are made of."""
    try:
        version = newest_version(await client.request("GET", f"/apis/{GROUP}"))
    except NotFound:
        return ReadKueue()
    if not version:
        return ReadKueue()
    found: dict[str, list[KueueKind]] = {}
    unread: list[str] = []

    async def read(kind: str) -> None:
        try:
            found[kind] = await client.list(kueue_kind(version, kind))
        except NotFound:
            return
        except Forbidden:
            unread.append(f"{KINDS[kind]}.{GROUP}")

    await asyncio.gather(*map(read, KINDS))
    return ReadKueue(found, tuple(sorted(unread)))

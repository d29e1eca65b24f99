"""Reads where the volumes of pods are, or can be made: their claims, the volumes of these, and storage classes.

A pod without claims costs no request, and a few objects are read by their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeVar

import msgspec

from gpuplane.autoscaler.volumes import (
    PlacedVolume,
    PodVolumeClaim,
    VolumeClass,
    VolumeFacts,
    WantedVolume,
    claims_of,
    view_claim,
    view_class,
    view_volume,
)
from gpuplane.explain.world import Object
from kubekit.kube import Client, Forbidden, NotFound

_FEW: Final = 20  # objects of one kind that are read by their names; more are listed
V = TypeVar("V", WantedVolume, PlacedVolume, VolumeClass)


class ReadVolumes(msgspec.Struct, frozen=True):
    """Volumes, and the kinds, in plural, that the user may not read: what they say is unknown."""

    facts: VolumeFacts = VolumeFacts()
    unread: tuple[str, ...] = ()


def claims_of_pod(pod: Object) -> tuple[PodVolumeClaim, ...]:
    """Return the volume claims that a pod names."""
    return claims_of(pod["metadata"]["name"], pod["spec"])


async def read_volumes(client: Client, pods: Iterable[Object]) -> ReadVolumes:
    """Return the volumes that pods claim, as far as the user may read them."""
    named = {(pod["metadata"]["namespace"], one) for pod in pods for one in claims_of_pod(pod)}
    if not named:
        return ReadVolumes()
    unread: list[str] = []
    claims = await _objects(client, WantedVolume, {(space, one.name) for space, one in named}, view_claim, unread)
    bound = {one.spec.volume_name for one in claims.values() if one.spec.volume_name}
    classes = {one.spec.storage_class_name for one in claims.values() if not one.spec.volume_name}
    classes |= {one.storage_class for _, one in named if one.ephemeral}
    volumes, storage = await asyncio.gather(
        _objects(client, PlacedVolume, {("", name) for name in bound}, view_volume, unread),
        _objects(client, VolumeClass, {("", name) for name in classes if name}, view_class, unread),
    )
    return ReadVolumes(
        VolumeFacts(
            {f"{space}/{name}": one for (space, name), one in claims.items()}.get,
            {name: one for (_, name), one in volumes.items()}.get,
            {name: one for (_, name), one in storage.items()}.get,
            complete=not unread,
        ),
        tuple(sorted(unread)),
    )


async def _objects(
    client: Client, kind: type[V], keys: Collection[tuple[str, str]], keep: Callable[[V], V], unread: list[str]
) -> dict[tuple[str, str], V]:
    """Return objects by namespace and name, without those that do not exist; a kind that is refused is `unread`."""

    async def get(space: str, name: str) -> Any:
        try:
            return await client.get(kind, name, space or None)
        except NotFound:
            return None

    try:
        if len(keys) > _FEW:
            spaces = {space for space, _ in keys}
            found = await client.list(kind, spaces.pop() or None if len(spaces) == 1 else None)
        else:
            found = [one for one in await asyncio.gather(*(get(*key) for key in keys)) if one is not None]
    except Forbidden:
        unread.append(kind.RESOURCE.plural)
        return {}
    return {key: keep(one) for one in found if (key := (one.metadata.namespace, one.metadata.name)) in keys}

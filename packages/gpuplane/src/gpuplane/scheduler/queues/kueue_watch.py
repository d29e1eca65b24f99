"""Follows Kueue's objects where the API server has them, in the newest version that this module reads.

Invariants:

- Until the group kueue.x-k8s.io was looked up once, nothing is known; without it there are no objects.
- The group is looked up every LOOK_SECONDS until it is there. Kinds that the version lacks are empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from gpuplane.scheduler.queues.kueue import KueueObject, KueueQueues, KueueReader
from kubekit.api.core import Namespace, ObjectReference
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock, Informer, NotFound

log = logging.getLogger("gpuplane.scheduler")
GROUP: Final = "kueue.x-k8s.io"
VERSIONS: Final = ("v1beta2", "v1beta1")
LOOK_SECONDS: Final = 30.0
KINDS: Final = {
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "ResourceFlavor": "resourceflavors",
}


class KueueKind(Struct):
    """Any object of Kueue, as far as it is read."""

    RESOURCE: ClassVar[Resource]

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


def kueue_kind(version: str, kind: str) -> type[KueueKind]:
    """Return the type of a kind of Kueue in a version of its API."""
    resource = Resource(GROUP, version, KINDS[kind], kind, kind == "LocalQueue")
    return type(kind, (KueueKind,), {"RESOURCE": resource, "__annotations__": {}})


class _Group(msgspec.Struct):
    versions: tuple[dict[str, str], ...] = ()


def newest_version(body: bytes) -> str:
    """Return the newest version that this module reads; empty for none.

    Args:
        body: the API server's answer about the group.
    """
    served = {one.get("version", "") for one in msgspec.json.decode(body, type=_Group).versions}
    return next((version for version in VERSIONS if version in served), "")


def kueue_queues(listed: Mapping[str, Iterable[KueueKind]], namespaces: Mapping[str, Mapping[str, str]]) -> KueueQueues:
    """Return the queues that the objects declare.

    Args:
        listed: the objects by kind; `namespaces`: the labels of namespaces by name.
    """
    objects = {kind: [_object(one) for one in found] for kind, found in listed.items()}
    reader = KueueReader(objects.get("ResourceFlavor", ()), namespaces)
    return reader.read(objects.get("Cohort", ()), objects.get("ClusterQueue", ()), objects.get("LocalQueue", ()))


class KueueWatch:
    """
    Args:
        changed: called when the queues may be others.
    """

    def __init__(
        self, client: Client, clock: Clock, namespaces: Informer[Namespace], changed: Callable[[], None]
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespaces = namespaces
        self._changed = changed
        self._known = asyncio.Event()
        self._version = ""
        self._informers: dict[str, Informer[KueueKind]] = {}
        namespaces.add_handler(self._namespace_changed)

    async def synced(self) -> None:
        """Return when all objects are known."""
        await self._known.wait()

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        while not (version := await self._served()):
            await self._clock.sleep(LOOK_SECONDS)
        log.info("queues of Kueue are followed version=%s", version)
        self._version = version
        async with asyncio.TaskGroup() as group:
            for kind in KINDS:
                informer = Informer(self._client, kueue_kind(version, kind), clock=self._clock, optional=True)
                informer.add_handler(self._object_changed)
                self._informers[kind] = informer
                group.create_task(informer.run())
            await asyncio.gather(*(informer.synced() for informer in self._informers.values()))
            self._known.set()
            self._changed()

    async def _served(self) -> str:
        """Return the version to read; empty while the server has none of Kueue's."""
        try:
            body = await self._client.request("GET", f"/apis/{GROUP}")
        except NotFound:
            self._known.set()
            return ""
        except KubekitError as error:
            log.warning("group not looked up group=%s: %s", GROUP, error)
            return ""
        found = newest_version(body)
        if not found:
            self._known.set()
        return found

    def _object_changed(self, old: Any, new: Any) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._changed()

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if self._informers and (old is None or new is None or old.metadata.labels != new.metadata.labels):
            self._changed()

    def read(self) -> KueueQueues:
        """Return the queues that the objects declare now."""
        namespaces = {one.metadata.name: one.metadata.labels for one in self._namespaces.items()}
        return kueue_queues({kind: informer.items() for kind, informer in self._informers.items()}, namespaces)

    def about(self, kind: str, name: str) -> ObjectReference | None:
        """Return a reference to an object for an event; None for one that is gone."""
        informer = self._informers.get(kind)
        found = informer.get(name) if informer is not None else None
        if found is None:
            return None
        meta = found.metadata
        version = f"{GROUP}/{self._version}"
        return ObjectReference(kind=kind, api_version=version, namespace=meta.namespace, name=meta.name, uid=meta.uid)


def _object(found: KueueKind) -> KueueObject:
    meta = found.metadata
    return KueueObject(f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name, found.spec)

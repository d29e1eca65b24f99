"""Follows claims, volumes and what drivers say of nodes, for the scheduler's model.

Each change is in the model's store of volumes before the pods that wait for such a change are woken. Only the parts of
objects that decisions read are cached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from gpuplane.scheduler.pods.model import PodModel
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct, to_dict
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Clock, Informer
from kubekit.scheduling.queue import ClusterEvent
from kubekit.scheduling.volumes import facts

log = logging.getLogger("gpuplane.scheduler")


class StorageObject(Struct):
    """An object about volumes. `info` is what `kubekit.scheduling` reads of it; the rest is empty once that is read."""

    RESOURCE: ClassVar[Resource]

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    info: Any = None


class StoredClaim(StorageObject):
    """A PersistentVolumeClaim."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "PersistentVolumeClaim")

    status: dict[str, Any] = {}


class StoredVolume(StorageObject):
    """A PersistentVolume."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "PersistentVolume")

    status: dict[str, Any] = {}


class StoredClass(StorageObject):
    """A StorageClass."""

    RESOURCE: ClassVar[Resource] = built_in("storage.k8s.io/v1", "StorageClass")

    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: list[dict[str, Any]] = []


class StoredNodeDrivers(StorageObject):
    """A CSINode."""

    RESOURCE: ClassVar[Resource] = built_in("storage.k8s.io/v1", "CSINode")


class StoredDriver(StorageObject):
    """A CSIDriver."""

    RESOURCE: ClassVar[Resource] = built_in("storage.k8s.io/v1", "CSIDriver")


class StoredCapacity(StorageObject):
    """A CSIStorageCapacity."""

    RESOURCE: ClassVar[Resource] = built_in("storage.k8s.io/v1", "CSIStorageCapacity")

    storage_class_name: str = ""
    node_topology: dict[str, Any] | None = None
    capacity: str | None = None
    maximum_volume_size: str | None = None


class StoredAttachment(StorageObject):
    """A VolumeAttachment."""

    RESOURCE: ClassVar[Resource] = built_in("storage.k8s.io/v1", "VolumeAttachment")


S = TypeVar("S", bound=StorageObject)


def keeping(kind: type[S], read: Callable[[Mapping[str, Any]], Any]) -> Callable[[S], S | None]:
    """Return the transformation of objects of a kind: their `info`, without the rest; None where it cannot be read."""

    def keep(raw: S) -> S | None:
        meta = raw.metadata
        try:
            info = read(to_dict(raw))
        except (InvalidInput, KeyError, TypeError, AttributeError, ValueError) as error:
            log.warning("%s left out, since it cannot be read name=%s: %s", kind.RESOURCE.plural, meta.name, error)
            return None
        short = ObjectMeta(
            name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
        )
        return kind(metadata=short, info=info)

    return keep


class VolumeWatch:
    """Feeds the store of volumes of a model."""

    def __init__(self, client: Client, model: PodModel, clock: Clock) -> None:
        self.on_change: list[Callable[[], None]] = []  # of a claim or a volume
        self._model = model
        self._store = model.cache.volumes

        def follow(kind: type[S], read: Callable[[Mapping[str, Any]], Any], changed: Any) -> Informer[S]:
            informer = Informer(client, kind, keep=keeping(kind, read), clock=clock)
            informer.add_handler(changed)
            return informer

        self.informers: tuple[Informer[Any], ...] = (
            follow(StoredClaim, facts.compile_claim, self._claim_changed),
            follow(StoredVolume, facts.compile_volume, self._volume_changed),
            follow(StoredClass, facts.compile_class, self._class_changed),
            follow(StoredNodeDrivers, facts.compile_node_limits, self._limits_changed),
            follow(StoredDriver, facts.tracks_capacity, self._driver_changed),
            follow(StoredCapacity, facts.compile_capacity, self._capacity_changed),
            follow(StoredAttachment, facts.compile_attachment, self._attachment_changed),
        )

    def _claim_changed(self, old: StoredClaim | None, new: StoredClaim | None) -> None:
        if new is not None:
            self._store.set_claim(new.info)
        elif old is not None:
            self._store.remove_claim(old.info.key)
        info = (new or old or StoredClaim()).info
        if not _is_alike(old, new):
            self._model.storage_changed(ClusterEvent.CLAIM_CHANGED, (info.namespace, info.name))
        self._woken()

    def _volume_changed(self, old: StoredVolume | None, new: StoredVolume | None) -> None:
        if new is not None:
            self._store.set_volume(new.info)
        elif old is not None:
            self._store.remove_volume(old.info.name)
        if not _is_alike(old, new):
            self._model.storage_changed(ClusterEvent.VOLUME_CHANGED)
        self._woken()

    def _woken(self) -> None:
        for callback in self.on_change:
            callback()

    def _class_changed(self, old: StoredClass | None, new: StoredClass | None) -> None:
        _put(self._store.classes, old, new)
        self._model.storage_changed(ClusterEvent.STORAGE_CHANGED)

    def _limits_changed(self, old: StoredNodeDrivers | None, new: StoredNodeDrivers | None) -> None:
        _put(self._store.node_limits, old, new)
        self._model.storage_changed(ClusterEvent.ATTACHMENTS_CHANGED)

    def _driver_changed(self, old: StoredDriver | None, new: StoredDriver | None) -> None:
        name = (new or old or StoredDriver()).metadata.name
        if new is not None and new.info:
            self._store.tracked_drivers.add(name)
        else:
            self._store.tracked_drivers.discard(name)
        self._model.storage_changed(ClusterEvent.STORAGE_CHANGED)

    def _capacity_changed(self, old: StoredCapacity | None, new: StoredCapacity | None) -> None:
        if new is not None:
            self._store.capacities[new.info.key] = new.info
        elif old is not None:
            self._store.capacities.pop(old.info.key, None)
        self._model.storage_changed(ClusterEvent.STORAGE_CHANGED)

    def _attachment_changed(self, old: StoredAttachment | None, new: StoredAttachment | None) -> None:
        if new is not None:
            self._store.set_attachment(new.info)
        elif old is not None:
            self._store.remove_attachment(old.info.name)
        if new is None:
            self._model.storage_changed(ClusterEvent.ATTACHMENTS_CHANGED)


def _put(stored: dict[str, Any], old: StorageObject | None, new: StorageObject | None) -> None:
    if new is not None:
        stored[new.metadata.name] = new.info
    elif old is not None:
        stored.pop(old.metadata.name, None)


def _is_alike(old: StorageObject | None, new: StorageObject | None) -> bool:
    """Return whether two versions of an object are equal to all decisions."""
    if old is None or new is None:
        return False
    same: bool = msgspec.structs.replace(old.info, resource_version=new.info.resource_version) == new.info
    return same

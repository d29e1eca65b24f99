"""Follows resource claims, device classes and resource slices, for the scheduler's model.

The kinds are optional: API servers before Kubernetes 1.34 do not serve them, and have no pods with claims that this
scheduler could place.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gpuplane.scheduler.claims.volume_watch import StorageObject, keeping
from gpuplane.scheduler.pods.model import PodModel
from kubekit.api.kinds import built_in
from kubekit.api.meta import Resource
from kubekit.kube import Client, Clock, Informer
from kubekit.scheduling.devices.facts import compile_device_claim, compile_device_class
from kubekit.scheduling.devices.slices import compile_slice
from kubekit.scheduling.queue import ClusterEvent


class StoredDeviceClaim(StorageObject):
    """A ResourceClaim."""

    RESOURCE: ClassVar[Resource] = built_in("resource.k8s.io/v1", "ResourceClaim")

    status: dict[str, Any] = {}


class StoredDeviceClass(StorageObject):
    """A DeviceClass."""

    RESOURCE: ClassVar[Resource] = built_in("resource.k8s.io/v1", "DeviceClass")


class StoredSlice(StorageObject):
    """A ResourceSlice."""

    RESOURCE: ClassVar[Resource] = built_in("resource.k8s.io/v1", "ResourceSlice")


class DeviceWatch:
    """Feeds the store of devices of a model."""

    def __init__(self, client: Client, model: PodModel, clock: Clock) -> None:
        self._model = model
        self._store = model.cache.devices
        claims = Informer(
            client,
            StoredDeviceClaim,
            keep=keeping(StoredDeviceClaim, compile_device_claim),
            clock=clock,
            optional=True,
        )
        classes = Informer(
            client,
            StoredDeviceClass,
            keep=keeping(StoredDeviceClass, compile_device_class),
            clock=clock,
            optional=True,
        )
        slices = Informer(client, StoredSlice, keep=keeping(StoredSlice, compile_slice), clock=clock, optional=True)
        claims.add_handler(self._claim_changed)
        classes.add_handler(self._class_changed)
        slices.add_handler(self._slice_changed)
        self.claims = claims
        self.informers: tuple[Informer[Any], ...] = (claims, classes, slices)

    def _claim_changed(self, old: StoredDeviceClaim | None, new: StoredDeviceClaim | None) -> None:
        if new is not None:
            self._store.set_claim(new.info)
        elif old is not None:
            self._store.remove_claim(old.info.key)
        self._model.storage_changed(ClusterEvent.DEVICES_CHANGED)

    def _class_changed(self, old: StoredDeviceClass | None, new: StoredDeviceClass | None) -> None:
        if new is not None:
            self._store.classes[new.info.name] = new.info
        elif old is not None:
            self._store.classes.pop(old.info.name, None)
        self._model.storage_changed(ClusterEvent.DEVICES_CHANGED)

    def _slice_changed(self, old: StoredSlice | None, new: StoredSlice | None) -> None:
        if new is not None:
            self._store.set_slice(new.info)
        elif old is not None:
            self._store.remove_slice(old.info.name)
        self._model.storage_changed(ClusterEvent.DEVICES_CHANGED)

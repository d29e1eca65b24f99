"""Protection of VolumeAttributesClasses: one that is deleted stays until no claim and no volume names it.

Source: pkg/controller/volume/vacprotection of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinykube.apiserver.storage_defaults import CLASS_FINALIZER
from tinykube.controllers.following import follow
from tinykube.controllers.pods import is_terminating
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]


class AttributesClassController:
    """Takes the finalizer from classes that are deleted and unused."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._classes = registry.resource(("storage.k8s.io", "volumeattributesclasses"))
        self._users = tuple(registry.resource(name) for name in ("persistentvolumeclaims", "persistentvolumes"))
        self._worker: KeyWorker[str] = KeyWorker("volume attributes classes", self._look)
        follow(registry, self._classes, self._on_class)
        for resource in self._users:
            follow(registry, resource, self._on_user, existing=False)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self._worker,)

    def _on_class(self, event: str, obj: Object, old: Object | None) -> None:
        self._worker.add(obj["metadata"]["name"])

    def _on_user(self, event: str, obj: Object, old: Object | None) -> None:
        now = set() if event == "DELETED" else attributes_classes(obj)
        for name in (attributes_classes(old or {}) | attributes_classes(obj)) - now:
            self._worker.add(name)

    async def _look(self, name: str) -> float | None:
        found = self._registry.get(self._classes, "", name)
        if found is None or not is_terminating(found):
            return None
        meta = found["metadata"]
        finalizers = meta.get("finalizers") or []
        if CLASS_FINALIZER not in finalizers or self._is_used(name):
            return None
        rest = [one for one in finalizers if one != CLASS_FINALIZER]
        change = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": rest}}
        await self._registry.patch(self._classes, "", name, change, "merge")
        return None

    def _is_used(self, name: str) -> bool:
        return any(name in attributes_classes(obj) for users in self._users for obj in self._registry.list(users))


def attributes_classes(obj: Object) -> set[str]:
    """Return the names of the classes of a claim or volume: the wanted one, the present one, and the one on its way."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names = {
        spec.get("volumeAttributesClassName"),
        status.get("currentVolumeAttributesClassName"),
        (status.get("modifyVolumeStatus") or {}).get("targetVolumeAttributesClassName"),
    }
    return {name for name in names if name}

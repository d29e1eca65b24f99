"""Takes the objects of a CustomResourceDefinition away before it goes.

An object with a finalizer holds its definition, as on a real server: the program that set it has work to do, such as to
end the machine of a NodeClaim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.lifecycle import CLEANUP
from tinykube.controllers.everything import Everything
from tinykube.controllers.pods import is_terminating
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_PLURAL: Final = "customresourcedefinitions"
_CONDITION: Final = {
    "type": "Terminating",
    "status": "True",
    "reason": "InstanceDeletionInProgress",
    "message": "CustomResource deletion is in progress",
}


class DefinitionController:
    """Looks at each definition under deletion after each write of it or of its objects."""

    def __init__(self, registry: Registry, everything: Everything) -> None:
        self._registry = registry
        self.worker: KeyWorker[str] = KeyWorker("definition", self._look)
        everything.listen(self._follow)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _follow(self, info: ResourceInfo, event: str, obj: Object, old: Object | None) -> None:
        if info.plural == _PLURAL and info.group:
            if is_terminating(obj):
                self.worker.add(obj["metadata"]["name"])
        elif not info.model and event == "DELETED":
            self.worker.add(f"{info.plural}.{info.group}")

    async def _look(self, name: str) -> None:
        obj = self._registry.get(_PLURAL, "", name)
        if obj is None or not is_terminating(obj) or CLEANUP not in (obj["metadata"].get("finalizers") or ()):
            return
        if not any(condition["type"] == "Terminating" for condition in obj["status"]["conditions"]):
            conditions = [*obj["status"]["conditions"], {**_CONDITION, "lastTransitionTime": self._registry.now()}]
            body = {**obj, "status": {**obj["status"], "conditions": conditions}}
            await self._registry.update(_PLURAL, "", name, body, subresource="status")
            return  # the write queues it again
        resource = (obj["spec"]["group"], obj["spec"]["names"]["plural"])
        for found in self._registry.list(resource):
            if not is_terminating(found):
                await self._delete(resource, found["metadata"])
        if not self._registry.list(resource):
            left = [word for word in obj["metadata"]["finalizers"] if word != CLEANUP]
            await self._registry.update(_PLURAL, "", name, {**obj, "metadata": {**obj["metadata"], "finalizers": left}})

    async def _delete(self, resource: tuple[str, str], meta: Object) -> None:
        try:
            await self._registry.delete(resource, meta.get("namespace"), meta["name"], propagation="Background")
        except ApiFailure as error:
            if error.status not in (404, 409):
                raise

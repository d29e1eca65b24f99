"""The status of ResourceQuotas: what is allowed and what is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.quotas import ResourceQuotaUsage, text
from tinykube.controllers.everything import Everything
from tinykube.controllers.following import follow
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
SOON_S: Final = 0.05  # a burst of pods is one write


#: Kinds whose updates change what a quota counts.
_GROWING: Final = ("pods", "services", "persistentvolumeclaims")


class QuotaController:
    """Keeps the status of every quota true."""

    def __init__(self, registry: Registry, everything: Everything) -> None:
        self._registry = registry
        self._quotas = registry.resource("resourcequotas")
        self._usage = ResourceQuotaUsage(registry)
        self.worker: KeyWorker[tuple[str, str]] = KeyWorker("quota", self._look)
        follow(registry, self._quotas, self._on_quota)
        everything.listen(self._on_object)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_quota(self, event: str, obj: Object, old: Object | None) -> None:
        if event != "DELETED":
            self.worker.add((obj["metadata"]["namespace"], obj["metadata"]["name"]))

    def _on_object(self, info: ResourceInfo, event: str, obj: Object, old: Object | None) -> None:
        if not info.namespaced or (event == "MODIFIED" and info.plural not in _GROWING):
            return
        namespace = obj["metadata"].get("namespace", "")
        for quota in self._usage.of(namespace):
            self.worker.later((namespace, quota["metadata"]["name"]), SOON_S)

    async def _look(self, key: tuple[str, str]) -> float | None:
        obj = self._registry.get(self._quotas, *key)
        if obj is None:
            return None
        used = {name: text(amount, name) for name, amount in self._usage.used(obj).items()}
        status = {"hard": obj["spec"].get("hard") or {}, "used": used}
        if status != obj.get("status"):
            await self._registry.update(self._quotas, *key, {**obj, "status": status}, subresource="status")
        return None

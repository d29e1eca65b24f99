"""Pods of nodes that no longer exist: no kubelet can end them, so they are removed after a quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
QUARANTINE_S: Final = 40.0


class PodCollector:
    """A node that was deleted by mistake and comes back within the quarantine keeps its pods."""

    def __init__(self, registry: Registry, index: podstate.PodIndex) -> None:
        self._registry = registry
        self._index = index
        self._nodes = registry.resource("nodes")
        self._pods = registry.resource("pods")
        self.worker: KeyWorker[str] = KeyWorker("pod garbage collector", self._look)
        follow(registry, self._nodes, self._on_node, existing=False)
        follow(registry, self._pods, self._on_pod, existing=False)
        for node in index.nodes():
            self._suspect(node)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _suspect(self, node: str) -> None:
        if self._registry.get(self._nodes, "", node) is None:
            self.worker.later(node, QUARANTINE_S)

    def _on_node(self, event: str, obj: Object, old: Object | None) -> None:
        if event == "DELETED":
            self.worker.later(obj["metadata"]["name"], QUARANTINE_S)

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        node = obj["spec"].get("nodeName")
        newly_bound = node and (old is None or not old["spec"].get("nodeName"))
        if newly_bound and event != "DELETED":
            self._suspect(node)

    async def _look(self, node: str) -> float | None:
        if self._registry.get(self._nodes, "", node) is not None:
            return None
        for pod in list(self._index.on_node(node).values()):
            meta = pod["metadata"]
            try:
                await self._registry.delete(
                    self._pods, meta["namespace"], meta["name"], grace=0, preconditions={"uid": meta["uid"]}
                )
            except ApiFailure as error:
                if error.status != 404:
                    raise
        return None

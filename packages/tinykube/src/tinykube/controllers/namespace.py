"""Namespaces: what each is born with, and taking everything out of one before it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.everything import Everything
from tinykube.controllers.pods import is_terminating
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
FINALIZER: Final = "kubernetes"
ROOT_CA: Final = "kube-root-ca.crt"
_LOOK_AGAIN_S: Final = 5.0


class NamespaceController:
    """`ca` is the cluster's CA in PEM, which every namespace gets a copy of (empty: none)."""

    def __init__(self, registry: Registry, everything: Everything, ca: str) -> None:
        self._registry = registry
        self._everything = everything
        self._ca = ca
        self._namespaces = registry.resource("namespaces")
        self._accounts = registry.resource("serviceaccounts")
        self._configmaps = registry.resource("configmaps")
        self._leaving: set[str] = set()
        self.worker: KeyWorker[str] = KeyWorker("namespace", self._look)
        everything.listen(self._follow)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _follow(self, info: ResourceInfo, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        if info is self._namespaces or (info.plural == "namespaces" and not info.group):
            if event == "DELETED":
                self._leaving.discard(meta["name"])
                return
            if is_terminating(obj):
                self._leaving.add(meta["name"])
            if old is None or is_terminating(obj):
                self.worker.add(meta["name"])
            return
        namespace = meta.get("namespace")
        if not namespace:
            return
        given = info.plural in ("serviceaccounts", "configmaps") and meta["name"] in ("default", ROOT_CA)
        if namespace in self._leaving or (given and (event == "DELETED" or info.plural == "configmaps")):
            self.worker.add(namespace)

    async def _look(self, name: str) -> float | None:
        obj = self._registry.get(self._namespaces, "", name)
        if obj is None:
            return None
        if not is_terminating(obj):
            await self._furnish(name)
            return None
        return await self._empty(name, obj)

    async def _furnish(self, name: str) -> None:
        if self._registry.get(self._accounts, name, "default") is None:
            await self._create(self._accounts, name, {"metadata": {"name": "default"}})
        if not self._ca:
            return
        standing = self._registry.get(self._configmaps, name, ROOT_CA)
        data = {"ca.crt": self._ca}
        if standing is None:
            about = {"kubernetes.io/description": "The CA to verify the API server with, from inside this cluster."}
            await self._create(
                self._configmaps, name, {"metadata": {"name": ROOT_CA, "annotations": about}, "data": data}
            )
        elif standing.get("data") != data:
            await self._registry.update(self._configmaps, name, ROOT_CA, {**standing, "data": data})

    async def _create(self, resource: ResourceInfo, namespace: str, obj: dict[str, Any]) -> None:
        try:
            await self._registry.create(resource, namespace, obj)
        except ApiFailure as error:
            if error.reason != "AlreadyExists":
                raise

    async def _empty(self, name: str, obj: Object) -> float | None:
        if FINALIZER not in ((obj.get("spec") or {}).get("finalizers") or ()):
            return None
        remaining: dict[str, int] = {}
        finalizers: dict[str, int] = {}
        # Pods go first, as in Kubernetes: what they use (policies, secrets) stays as long as one of them runs.
        everything = [info for info in self._everything.resources() if info.namespaced]
        for turn in ([info for info in everything if info.qualified == "pods"], everything):
            await self._delete_all(name, turn, remaining, finalizers)
            if remaining:
                break
        if not remaining:
            left_over = [f for f in obj["spec"]["finalizers"] if f != FINALIZER]
            body = {**obj, "spec": {**obj["spec"], "finalizers": left_over}}
            await self._registry.update(self._namespaces, "", name, body, subresource="finalize")
            return None
        await self._tell(name, remaining, finalizers)
        # Every deletion in a leaving namespace queues it again; this is for changes without an event.
        return _LOOK_AGAIN_S

    async def _delete_all(
        self, name: str, resources: Iterable[ResourceInfo], remaining: dict[str, int], finalizers: dict[str, int]
    ) -> None:
        """Delete the objects of some resources, and count those that remain and their finalizers."""
        for info in resources:
            for found in self._registry.list(info, name):
                if not is_terminating(found):
                    await self._delete(info, name, found)
            for left in self._registry.list(info, name):
                remaining[info.qualified] = remaining.get(info.qualified, 0) + 1
                for finalizer in left["metadata"].get("finalizers") or ():
                    finalizers[finalizer] = finalizers.get(finalizer, 0) + 1

    async def _delete(self, info: ResourceInfo, namespace: str, found: Object) -> None:
        try:
            await self._registry.delete(info, namespace, found["metadata"]["name"], propagation="Background")
        except ApiFailure as error:
            if error.status not in (404, 409):
                raise

    async def _tell(self, name: str, remaining: Mapping[str, int], finalizers: Mapping[str, int]) -> None:
        """The conditions that say what a leaving namespace waits for."""
        obj = self._registry.get(self._namespaces, "", name)
        if obj is None:
            return
        now = self._registry.now()
        listed = ", ".join(
            f"{r}{'' if '.' in r else '.'} has {n} resource instances" for r, n in sorted(remaining.items())
        )
        held = ", ".join(f"{f} in {n} resource instances" for f, n in sorted(finalizers.items()))
        texts = (
            (
                "NamespaceDeletionDiscoveryFailure",
                False,
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                False,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            (
                "NamespaceDeletionContentFailure",
                False,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            (
                "NamespaceContentRemaining",
                bool(listed),
                "SomeResourcesRemain",
                f"Some resources are remaining: {listed}",
            ),
            (
                "NamespaceFinalizersRemaining",
                bool(held),
                "SomeFinalizersRemain",
                f"Some content in the namespace has finalizers remaining: {held}",
            ),
        )
        standing = {c["type"]: c for c in (obj.get("status") or {}).get("conditions") or ()}
        conditions = []
        for type_, on, reason, message in texts:
            status = "True" if on else "False"
            before = standing.get(type_, {})
            since = before["lastTransitionTime"] if before.get("status") == status else now
            if not on and type_.endswith("Remaining"):
                reason, message = "ContentRemoved", "All content successfully removed"
            conditions.append(
                {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
            )
        body = {**obj, "status": {**(obj.get("status") or {}), "conditions": conditions}}
        await self._registry.update(self._namespaces, "", name, body, subresource="status")

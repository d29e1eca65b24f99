"""ControllerRevisions of DaemonSets: what `kubectl rollout history` and `rollout undo` read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.daemonset.decide import CompiledDaemonSet
from tinykube.controllers.following import follow
from tinykube.controllers.pods import controller_of
from tinykube.controllers.templates import copied, owner_reference

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_KEPT: Final = 10
_HASH_LABEL: Final = "controller-revision-hash"
_GENERATION: Final = "deprecated.daemonset.template.generation"


class Revisions:
    """Keeps one revision per template that a DaemonSet had, the current one with the highest number."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revisions = registry.resource(("apps", "controllerrevisions"))
        self._by_owner: dict[str, dict[str, Mapping[str, Any]]] = {}
        follow(registry, self._revisions, self._follow)

    def _follow(self, event: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> None:
        owner = controller_of(obj)
        if owner is None:
            return
        known = self._by_owner.setdefault(owner["uid"], {})
        if event == "DELETED":
            known.pop(obj["metadata"]["name"], None)
            if not known:
                del self._by_owner[owner["uid"]]
        else:
            known[obj["metadata"]["name"]] = obj

    async def ensure(self, plan: CompiledDaemonSet) -> None:
        """The current template has the newest revision; the oldest beyond the history limit go."""
        meta = plan.obj["metadata"]
        namespace, name = meta["namespace"], f"{meta['name']}-{plan.hash}"
        history = sorted(self._by_owner.get(meta["uid"], {}).values(), key=lambda r: r["revision"])
        newest = history[-1]["revision"] if history else 0
        standing = next((r for r in history if r["metadata"]["name"] == name), None)
        try:
            if standing is None:
                await self._registry.create(self._revisions, namespace, _revision(plan, name, newest + 1))
            elif standing["revision"] < newest:
                patch = {"revision": newest + 1}
                await self._registry.patch(self._revisions, namespace, name, patch, "merge")
        except ApiFailure as error:
            if error.status != 409:
                raise
        limit = plan.obj["spec"].get("revisionHistoryLimit", _KEPT)
        old = [r for r in history if r["metadata"]["name"] != name]
        for revision in old[: max(0, len(old) - limit)]:
            await self._registry.delete(self._revisions, namespace, revision["metadata"]["name"])


def _revision(plan: CompiledDaemonSet, name: str, number: int) -> dict[str, Any]:
    meta = plan.obj["metadata"]
    labels = (plan.template.get("metadata") or {}).get("labels") or {}
    keep = {k: v for k, v in (meta.get("annotations") or {}).items() if k == "kubernetes.io/change-cause"}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {**labels, _HASH_LABEL: plan.hash},
            "annotations": {_GENERATION: str(meta.get("generation", 1)), **keep},
            "ownerReferences": [owner_reference(plan.obj, "apps/v1", "DaemonSet")],
        },
        # As the real controller stores it: a patch that brings the template back.
        "data": {"spec": {"template": {**copied(plan.template), "$patch": "replace"}}},
        "revision": number,
    }

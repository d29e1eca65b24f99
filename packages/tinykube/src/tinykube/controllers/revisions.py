"""ControllerRevisions of DaemonSets and StatefulSets: what `kubectl rollout history` and `rollout undo` read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.following import follow
from tinykube.controllers.pods import controller_of
from tinykube.controllers.templates import copied, owner_reference, template_hash

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_MOST: Final = 10


class TemplateRevision(msgspec.Struct, frozen=True):
    """The current template of a workload of `kind`, and what its revision carries besides."""

    owner: Object
    kind: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.owner['metadata']['name']}-{template_hash(self.owner['spec']['template'])}"

    def made(self, number: int) -> dict[str, Any]:
        """Return the object, under the next number."""
        template = self.owner["spec"]["template"]
        return {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": self.name,
                "namespace": self.owner["metadata"]["namespace"],
                "labels": {**((template.get("metadata") or {}).get("labels") or {}), **self.labels},
                "annotations": dict(self.annotations),
                "ownerReferences": [owner_reference(self.owner, "apps/v1", self.kind)],
            },
            # As the real controller stores it: a patch that brings the template back. Clients of Go find the current
            # revision by its bytes, whose keys are in order.
            "data": _in_order({"spec": {"template": {**template, "$patch": "replace"}}}),
            "revision": number,
        }


def _in_order(tree: Object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(tree, order="sorted"))


def template_of(revision: Object) -> dict[str, Any]:
    """Return the template that a revision stores."""
    template: dict[str, Any] = copied(revision["data"]["spec"]["template"])
    template.pop("$patch", None)
    return template


class Revisions:
    """Keeps one revision per template that a workload had, the current one with the highest number."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revisions = registry.resource(("apps", "controllerrevisions"))
        self._by_owner: dict[str, dict[str, Object]] = {}
        follow(registry, self._revisions, self._follow)

    def of(self, owner: Object) -> Mapping[str, Object]:
        """Return the revisions of a workload by name."""
        return self._by_owner.get(owner["metadata"]["uid"], {})

    def _follow(self, event: str, obj: Object, old: Object | None) -> None:
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

    async def ensure(self, wanted: TemplateRevision, used: Collection[str] = ()) -> None:
        """The current template has the newest revision; the oldest beyond the history limit go, but none in use."""
        namespace, name = wanted.owner["metadata"]["namespace"], wanted.name
        history = sorted(self.of(wanted.owner).values(), key=lambda r: r["revision"])
        newest = history[-1]["revision"] if history else 0
        standing = next((r for r in history if r["metadata"]["name"] == name), None)
        try:
            if standing is None:
                await self._registry.create(self._revisions, namespace, wanted.made(newest + 1))
            elif standing["revision"] < newest:
                patch = {"revision": newest + 1}
                await self._registry.patch(self._revisions, namespace, name, patch, "merge")
        except ApiFailure as error:
            if error.status != 409:
                raise
        limit = wanted.owner["spec"].get("revisionHistoryLimit", _MOST)
        old = [r for r in history if r["metadata"]["name"] not in (name, *used)]
        for revision in old[: max(0, len(old) - limit)]:
            await self._registry.delete(self._revisions, namespace, revision["metadata"]["name"])

"""The Deployment controller's shell: reads a Deployment and its ReplicaSets, asks `decide`, writes what changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kubekit.api.durations import parse_time
from kubekit.scheduling.selectors import Selector, compile_selector
from tinykube.apiserver.bynamespace import ByNamespace
from tinykube.controllers import pods as podstate
from tinykube.controllers.deployment import decide
from tinykube.controllers.deployment.decide import Bounds, SetFacts
from tinykube.controllers.following import follow
from tinykube.controllers.owners import OwnerKeys
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.templates import copied, owner_reference, template_hash
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
HASH_LABEL: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
_DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
_MAX: Final = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED: Final = frozenset(
    {"kubectl.kubernetes.io/last-applied-configuration", REVISION, _DESIRED, _MAX, "deprecated.deployment.rollback.to"}
)


class DeploymentController:
    """Rolls Deployments out."""

    def __init__(self, registry: Registry, index: podstate.PodIndex, recorder: Recorder) -> None:
        self._registry = registry
        self._index = index
        self._recorder = recorder
        self._deployments = registry.resource(("apps", "deployments"))
        self._sets = registry.resource(("apps", "replicasets"))
        self._owned: dict[str, dict[str, Object]] = {}  # ReplicaSets by the uid of their Deployment
        self._orphans: ByNamespace[Object] = ByNamespace()  # ReplicaSets without a controller
        self.worker: KeyWorker[str] = KeyWorker("deployment", self._look)
        self._keys = OwnerKeys(self.worker)
        for resource, callback in ((self._sets, self._on_set), (self._deployments, self._keys.on_owner)):
            follow(registry, resource, callback)
        follow(registry, registry.resource("pods"), self._on_pod, existing=False)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    # -- what changed --------------------------------------------------------------------------------------------
    def _on_set(self, event: str, obj: Object, old: Object | None) -> None:
        for version, current in ((old, False), (obj, event != "DELETED")):
            if version is None:
                continue
            owner = podstate.controller_of(version)
            if owner is None:
                self._note_orphan(version, current=current)
                continue
            known = self._owned.setdefault(owner["uid"], {})
            if current:
                known[version["metadata"]["name"]] = version
            else:
                known.pop(version["metadata"]["name"], None)
            self._keys.look(owner)
            if not known:
                del self._owned[owner["uid"]]

    def _note_orphan(self, one: Object, *, current: bool) -> None:
        meta = one["metadata"]
        if not current:
            self._orphans.discard(meta["namespace"], meta["name"])
            return
        self._orphans.put(meta["namespace"], meta["name"], one)
        self._keys.look_in(meta["namespace"])

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        # Recreate waits for the last old pod, of which no ReplicaSet's status tells.
        owner = podstate.controller_of(obj) if event == "DELETED" else None
        if owner is None:
            return
        owning = self._registry.get(self._sets, obj["metadata"]["namespace"], owner["name"])
        self._keys.look(podstate.controller_of(owning) if owning is not None else None)

    # -- one Deployment ------------------------------------------------------------------------------------------
    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        obj: Object | None = self._registry.get(self._deployments, namespace, name)
        if obj is None:
            return None
        spec = obj["spec"]
        if not podstate.is_terminating(obj):
            await self._claim(obj)
        sets = dict(self._owned.get(obj["metadata"]["uid"], {}))
        new_name = self._new_name(obj, sets)
        if podstate.is_terminating(obj):
            return await self._write_status(obj, sets, new_name)
        limits = decide.bounds(spec)
        new = sets.get(new_name)
        resized = decide.resize([_facts(s) for s in sets.values()], limits) if _only_scaled(obj, sets) else {}
        if spec.get("paused") or resized:
            for changed, size in resized.items():
                await self._size(obj, sets[changed], size, limits)
        else:
            await self._roll(obj, sets, new, limits)
            if new is not None:
                obj = await self._sync_revision(obj, sets, new)
            await self._clean_up(obj, sets, new_name)
        fresh = self._registry.get(self._deployments, namespace, name)
        if fresh is None or fresh["metadata"].get("generation") != obj["metadata"].get("generation"):
            return 0.0
        return await self._write_status(fresh, dict(self._owned.get(fresh["metadata"]["uid"], {})), new_name)

    async def _claim(self, obj: Object) -> None:
        """Adopt ReplicaSets that the selector selects, and let go of those that it no longer selects."""
        meta, selector = obj["metadata"], compile_selector(obj["spec"].get("selector")) or Selector()
        for one in list(self._orphans.of(meta["namespace"]).values()):
            if not podstate.is_terminating(one) and selector.matches(one["metadata"].get("labels") or {}):
                reference = owner_reference(obj, "apps/v1", "Deployment")
                await self._own(one, [*(one["metadata"].get("ownerReferences") or ()), reference])
        for one in list(self._owned.get(meta["uid"], {}).values()):
            if not podstate.is_terminating(one) and not selector.matches(one["metadata"].get("labels") or {}):
                await self._own(one, [r for r in one["metadata"]["ownerReferences"] if r["uid"] != meta["uid"]])

    async def _own(self, one: Object, references: list[Object]) -> None:
        meta = one["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "ownerReferences": references or None}}
        await self._registry.patch(self._sets, meta["namespace"], meta["name"], patch, "merge")

    def _new_name(self, obj: Object, sets: Mapping[str, Object]) -> str:
        """The name of the ReplicaSet with the current template, existing or not."""
        wanted = _without_hash(obj["spec"]["template"])
        for name, one in sorted(sets.items(), key=lambda item: item[1]["metadata"]["creationTimestamp"]):
            if _without_hash(one["spec"]["template"]) == wanted:
                return name
        collisions = (obj.get("status") or {}).get("collisionCount") or 0
        return f"{obj['metadata']['name']}-{template_hash(obj['spec']['template'], collisions)}"

    async def _roll(self, obj: Object, sets: Mapping[str, Object], new: Object | None, limits: Bounds) -> None:
        old = [one for one in sets.values() if one is not new]
        old_pods = sum(
            not podstate.is_finished(p) for one in old for p in self._index.owned(one["metadata"]["uid"]).values()
        )
        facts = _facts(new) if new is not None else None
        sizes = decide.rollout(facts, [_facts(s) for s in old], limits, old_pods=old_pods)
        for name, size in sizes.items():
            if name:
                await self._size(obj, sets[name], size, limits)
            elif new is not None:
                await self._size(obj, new, size, limits)
            else:
                await self._create(obj, sets, size, limits)

    async def _create(self, obj: Object, sets: Mapping[str, Object], size: int, limits: Bounds) -> None:
        meta, spec = obj["metadata"], obj["spec"]
        name = self._new_name(obj, sets)
        hash_ = name.rsplit("-", 1)[1]
        template = copied(spec["template"])
        template.setdefault("metadata", {}).setdefault("labels", {})[HASH_LABEL] = hash_
        selector = copied(spec["selector"])
        selector.setdefault("matchLabels", {})[HASH_LABEL] = hash_
        standing = self._registry.get(self._sets, meta["namespace"], name)
        if standing is not None:
            # Another owner's, or another template with the same hash: the next name.
            collisions = ((obj.get("status") or {}).get("collisionCount") or 0) + 1
            body = {**obj, "status": {**(obj.get("status") or {}), "collisionCount": collisions}}
            await self._registry.update(self._deployments, meta["namespace"], meta["name"], body, subresource="status")
            return
        revision = _next_revision(sets)
        annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in _NOT_COPIED}
        annotations |= {REVISION: str(revision), **_sizes(limits)}
        made = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": template["metadata"]["labels"],
                "annotations": annotations,
                "ownerReferences": [owner_reference(obj, "apps/v1", "Deployment")],
            },
            "spec": {
                "replicas": size,
                "selector": selector,
                "template": template,
                **({"minReadySeconds": spec["minReadySeconds"]} if spec.get("minReadySeconds") else {}),
            },
        }
        await self._registry.create(self._sets, meta["namespace"], made)
        await self._annotate(obj, revision)
        self._scaled(obj, name, 0, size)

    async def _size(self, obj: Object, one: Object, size: int, limits: Bounds) -> None:
        before = one["spec"].get("replicas", 1)
        if before == size:
            return
        meta = one["metadata"]
        patch = {"metadata": {"annotations": _sizes(limits)}, "spec": {"replicas": size}}
        await self._registry.patch(self._sets, meta["namespace"], meta["name"], patch, "merge")
        self._scaled(obj, meta["name"], before, size)

    def _scaled(self, obj: Object, name: str, before: int, size: int) -> None:
        way = "up" if size > before else "down"
        message = f"Scaled {way} replica set {name} from {before} to {size}"
        self._recorder.record(obj, "Deployment", "ScalingReplicaSet", message)

    async def _sync_revision(self, obj: Object, sets: Mapping[str, Object], new: Object) -> Object:
        """A template that comes back (a rollback) becomes the newest revision."""
        others = {name: one for name, one in sets.items() if one is not new}
        newest, revision = _next_revision(others), _revision(new)
        meta = new["metadata"]
        min_ready = obj["spec"].get("minReadySeconds") or 0
        patch: dict[str, Any] = {}
        if revision < newest:
            patch["metadata"] = {"annotations": {REVISION: str(newest)}}
            revision = newest
        if (new["spec"].get("minReadySeconds") or 0) != min_ready:
            patch["spec"] = {"minReadySeconds": min_ready or None}
        if patch:
            await self._registry.patch(self._sets, meta["namespace"], meta["name"], patch, "merge")
        return await self._annotate(obj, revision)

    async def _annotate(self, obj: Object, revision: int) -> Object:
        meta = obj["metadata"]
        if (meta.get("annotations") or {}).get(REVISION) == str(revision):
            return obj
        patch = {"metadata": {"annotations": {REVISION: str(revision)}}}
        return await self._registry.patch(self._deployments, meta["namespace"], meta["name"], patch, "merge")

    async def _clean_up(self, obj: Object, sets: Mapping[str, Object], new_name: str) -> None:
        """Old, empty ReplicaSets beyond the history limit go."""
        idle = [
            one
            for name, one in sets.items()
            if name != new_name
            and not one["spec"].get("replicas", 1)
            and not (one.get("status") or {}).get("replicas")
            and not podstate.is_terminating(one)
        ]
        limit = obj["spec"].get("revisionHistoryLimit", 10)
        for one in sorted(idle, key=_revision)[: max(0, len(idle) - limit)]:
            await self._registry.delete(self._sets, one["metadata"]["namespace"], one["metadata"]["name"])

    # -- status --------------------------------------------------------------------------------------------------
    async def _write_status(self, obj: Object, sets: Mapping[str, Object], new_name: str) -> float | None:
        meta, spec, now = obj["metadata"], obj["spec"], self._registry.now()
        new = sets.get(new_name)
        facts = [_facts(s) for s in sets.values()]
        limits = decide.bounds(spec)
        standing = obj.get("status") or {}
        status: dict[str, Any] = decide.counts(_facts(new) if new is not None else None, facts, limits)
        status["observedGeneration"] = meta.get("generation", 1)
        if standing.get("collisionCount"):
            status["collisionCount"] = standing["collisionCount"]
        conditions: list[dict[str, Any]] = []
        if status.get("availableReplicas", 0) >= limits.replicas - limits.unavailable:
            text = ("MinimumReplicasAvailable", "Deployment has minimum availability.")
            decide.with_condition(obj, conditions, "Available", "True", *text, now)
        else:
            text = ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
            decide.with_condition(obj, conditions, "Available", "False", *text, now)
        failure = podstate.condition(new, "ReplicaFailure") if new is not None else None
        if failure is not None:
            decide.with_condition(obj, conditions, "ReplicaFailure", "True", failure["reason"], failure["message"], now)
        again = self._progress(obj, status, conditions, new, now)
        status["conditions"] = conditions
        if status != standing:
            body = {**obj, "status": status}
            await self._registry.update(self._deployments, meta["namespace"], meta["name"], body, subresource="status")
        return again

    def _progress(
        self,
        obj: Object,
        status: Mapping[str, Any],
        conditions: list[dict[str, Any]],
        new: Object | None,
        now: str,
    ) -> float | None:
        """The condition Progressing; answers when its deadline has to be looked at."""
        spec, standing = obj["spec"], obj.get("status") or {}
        before = podstate.condition(obj, "Progressing")
        name = new["metadata"]["name"] if new is not None else ""
        deadline: float = spec.get("progressDeadlineSeconds", 600)
        if decide.complete(spec, status):
            message = f'ReplicaSet "{name}" has successfully progressed.'
            decide.with_condition(obj, conditions, "Progressing", "True", "NewReplicaSetAvailable", message, now)
            return None
        if spec.get("paused"):
            text = ("DeploymentPaused", "Deployment is paused")
            decide.with_condition(obj, conditions, "Progressing", "Unknown", *text, now)
            return None
        moved = before is None or any(
            status.get(field, 0) > standing.get(field, 0)
            for field in ("updatedReplicas", "readyReplicas", "availableReplicas")
        )
        moved = moved or (status.get("replicas", 0) - status.get("updatedReplicas", 0)) < (
            standing.get("replicas", 0) - standing.get("updatedReplicas", 0)
        )
        moved = moved or status["observedGeneration"] != standing.get("observedGeneration")
        if moved or before is None:
            message = f'ReplicaSet "{name}" is progressing.'
            decide.with_condition(
                obj, conditions, "Progressing", "True", "ReplicaSetUpdated", message, now, refresh=True
            )
            return deadline
        waited = (parse_time(now) - parse_time(before["lastUpdateTime"])).total_seconds()
        if before["reason"] == "ReplicaSetUpdated" and waited < deadline:
            conditions.append(dict(before))
            return deadline - waited
        if before["reason"] == "NewReplicaSetAvailable":
            # A finished rollout whose pods fail later has not stopped progressing.
            conditions.append(dict(before))
            return None
        message = f'ReplicaSet "{name}" has timed out progressing.'
        decide.with_condition(obj, conditions, "Progressing", "False", "ProgressDeadlineExceeded", message, now)
        return None


def _facts(one: Object) -> SetFacts:
    meta, status = one["metadata"], one.get("status") or {}
    return SetFacts(
        name=meta["name"],
        wanted=one["spec"].get("replicas", 1),
        actual=status.get("replicas") or 0,
        ready=status.get("readyReplicas") or 0,
        available=status.get("availableReplicas") or 0,
        terminating=status.get("terminatingReplicas") or 0,
        created=meta["creationTimestamp"],
        revision=_revision(one),
        limit=int((meta.get("annotations") or {}).get(_MAX, "0")),
    )


def _revision(one: Object) -> int:
    return int((one["metadata"].get("annotations") or {}).get(REVISION, "0"))


def _next_revision(sets: Mapping[str, Object]) -> int:
    return max((_revision(one) for one in sets.values()), default=0) + 1


def _sizes(limits: Bounds) -> dict[str, str]:
    return {_DESIRED: str(limits.replicas), _MAX: str(limits.replicas + (0 if limits.recreate else limits.surge))}


def _only_scaled(obj: Object, sets: Mapping[str, Object]) -> bool:
    """Return whether spec.replicas changed since the ReplicaSets were last sized."""
    wanted = str(obj["spec"].get("replicas", 1))
    return any(
        (one["metadata"].get("annotations") or {}).get(_DESIRED) not in (None, wanted)
        for one in sets.values()
        if one["spec"].get("replicas", 1)
    )


def _without_hash(template: Object) -> Object:
    meta = dict(template.get("metadata") or {})
    meta["labels"] = {k: v for k, v in (meta.get("labels") or {}).items() if k != HASH_LABEL}
    return {"metadata": {k: v for k, v in meta.items() if v}, "spec": template.get("spec")}

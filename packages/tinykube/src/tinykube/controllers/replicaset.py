"""The controller of ReplicaSets and of ReplicationControllers: as many pods of a template as they say.

Reads pods from the shared index, so creating and counting need no expectations: what was written is seen. Orphans that
match are adopted, pods that no longer match are released, as in kube-controller-manager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubekit.scheduling.selectors import Selector, compile_selector
from tinykube.apiserver.bynamespace import ByNamespace
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.templates import owner_reference, pod_from
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_BURST: Final = 500  # pods made or deleted in one look
_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"


class ReplicaKind(msgspec.Struct, frozen=True):
    """A kind that keeps a number of pods. A `plain` selector is a map of labels."""

    group: str
    plural: str
    kind: str
    plain: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    def selector_of(self, obj: Object) -> Selector:
        selector = obj["spec"].get("selector")
        return compile_selector({"matchLabels": selector} if self.plain else selector) or Selector()


REPLICA_SETS: Final = ReplicaKind("apps", "replicasets", "ReplicaSet")
REPLICATION_CONTROLLERS: Final = ReplicaKind("", "replicationcontrollers", "ReplicationController", plain=True)


def to_delete(pods: Iterable[Object], count: int, crowded: Mapping[str, int]) -> list[Object]:
    """Return the pods to delete first: not bound, not running, not ready, cheap by annotation, on crowded nodes, young.

    `crowded`: how many pods of the same owner each node has.
    """

    def rank(pod: Object) -> tuple[object, ...]:
        meta, node = pod["metadata"], pod["spec"].get("nodeName") or ""
        ready = podstate.condition(pod, "Ready")
        return (
            bool(node),
            {"Pending": 0, "Unknown": 1}.get(podstate.phase(pod), 2),
            podstate.is_ready(pod),
            int((meta.get("annotations") or {}).get(_DELETION_COST, "0")),
            -crowded.get(node, 0),
            _younger_first((ready or {}).get("lastTransitionTime") if podstate.is_ready(pod) else None),
            _younger_first(meta.get("creationTimestamp")),
        )

    return sorted(pods, key=rank)[:count]


def _younger_first(time: str | None) -> tuple[int, ...]:
    """Orders later times before earlier ones; no time comes last."""
    return tuple(-ord(c) for c in time) if time else (1,)


def status_of(
    obj: Object, pods: Sequence[Object], now: str, failure: str | None
) -> tuple[dict[str, Any], float | None]:
    """The status, and in how many seconds a pod becomes available by time alone."""
    spec = obj["spec"]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    min_ready = spec.get("minReadySeconds") or 0
    active = [pod for pod in pods if podstate.is_active(pod)]
    left = [podstate.available_in(pod, min_ready, now) for pod in active]
    counts = {
        "fullyLabeledReplicas": sum(labels.items() <= (p["metadata"].get("labels") or {}).items() for p in active),
        "readyReplicas": sum(value is not None for value in left),
        "availableReplicas": sum(value == 0 for value in left),
    }
    status: dict[str, Any] = {"replicas": len(active), **{k: v for k, v in counts.items() if v}}
    if obj["kind"] == "ReplicaSet":
        ending = [pod for pod in pods if podstate.is_terminating(pod) and not podstate.is_finished(pod)]
        status["terminatingReplicas"] = len(ending)
    status["observedGeneration"] = obj["metadata"].get("generation", 1)
    if failure:
        # NB: the first reason stays, as in Kubernetes: each names another pod, and each write would lead to the next.
        standing = podstate.condition(obj, "ReplicaFailure")
        status["conditions"] = [
            standing
            or {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": failure,
                "lastTransitionTime": now,
            }
        ]
    return status, min((value for value in left if value), default=None)


class ReplicaSetController:
    """Keeps the objects of a kind at their number of pods."""

    def __init__(
        self, registry: Registry, index: podstate.PodIndex, recorder: Recorder, kind: ReplicaKind = REPLICA_SETS
    ) -> None:
        self._registry = registry
        self._kind = kind
        self._index = index
        self._recorder = recorder
        self._sets = registry.resource((kind.group, kind.plural))
        self._pods = registry.resource("pods")
        self._selectors: ByNamespace[Selector] = ByNamespace()
        self._uids: dict[str, str] = {}
        self.worker: KeyWorker[str] = KeyWorker(kind.kind.lower(), self._look)
        for resource, callback in ((self._sets, self._on_set), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_set(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        if event == "DELETED":
            self._uids.pop(meta["uid"], None)
            self._selectors.discard(meta["namespace"], meta["name"])
            return
        self._uids[meta["uid"]] = key
        if old is None or old["spec"] != obj["spec"]:
            self._selectors.put(meta["namespace"], meta["name"], self._kind.selector_of(obj))
        self.worker.add(key)

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        owners = [podstate.controller_of(pod) for pod in (obj, old) if pod is not None]
        for owner in owners:
            if owner is not None and owner["uid"] in self._uids:
                self.worker.add(self._uids[owner["uid"]])
        if owners[0] is None:
            meta = obj["metadata"]
            for name, selector in self._selectors.of(meta["namespace"]).items():
                if selector.matches(meta.get("labels") or {}):
                    self.worker.add(f"{meta['namespace']}/{name}")

    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        obj = self._registry.get(self._sets, namespace, name)
        if obj is None:
            return None
        selector = self._selectors.of(namespace)[name]
        if not podstate.is_terminating(obj):
            await self._claim(obj, selector)
        pods = list(self._index.owned(obj["metadata"]["uid"]).values())
        failure = None
        if not podstate.is_terminating(obj):
            failure = await self._scale(obj, pods)
            pods = list(self._index.owned(obj["metadata"]["uid"]).values())
        again = await self._write_status(obj, pods, failure)
        if failure:
            # Refused (a quota, a webhook): the reason may go away without an event.
            return 5.0
        return again

    async def _claim(self, obj: Object, selector: Selector) -> None:
        meta = obj["metadata"]
        for pod in list(self._index.orphans(meta["namespace"]).values()):
            if podstate.is_active(pod) and selector.matches(pod["metadata"].get("labels") or {}):
                reference = owner_reference(obj, self._kind.api_version, self._kind.kind)
                references = [*(pod["metadata"].get("ownerReferences") or ()), reference]
                await self._own(pod, references)
        for pod in list(self._index.owned(meta["uid"]).values()):
            if not selector.matches(pod["metadata"].get("labels") or {}) and not podstate.is_terminating(pod):
                references = [r for r in pod["metadata"]["ownerReferences"] if r["uid"] != meta["uid"]]
                await self._own(pod, references)

    async def _own(self, pod: Object, references: list[Object]) -> None:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "ownerReferences": references or None}}
        await self._registry.patch(self._pods, meta["namespace"], meta["name"], patch, "merge")

    async def _scale(self, obj: Object, pods: list[Object]) -> str | None:
        """Makes or deletes what is missing or too much; answers why a pod could not be made."""
        active = [pod for pod in pods if podstate.is_active(pod)]
        missing = obj["spec"].get("replicas", 1) - len(active)
        namespace = obj["metadata"]["namespace"]
        if missing > 0:
            for turn in range(min(missing, _BURST)):
                body = pod_from(obj["spec"]["template"], obj, self._kind.api_version, self._kind.kind)
                try:
                    made = await self._registry.create(self._pods, namespace, body)
                except ApiFailure as error:
                    text = f"Error creating: {error}"
                    self._recorder.record(obj, self._kind.kind, "FailedCreate", text, "Warning")
                    return str(error)
                name = made["metadata"]["name"]
                self._recorder.record(obj, self._kind.kind, "SuccessfulCreate", f"Created pod: {name}")
                if turn % 16 == 15:
                    await asyncio.sleep(0)
        elif missing < 0:
            crowded: dict[str, int] = {}
            for pod in active:
                node = pod["spec"].get("nodeName") or ""
                crowded[node] = crowded.get(node, 0) + 1
            for pod in to_delete(active, min(-missing, _BURST), crowded):
                name = pod["metadata"]["name"]
                await self._registry.delete(self._pods, namespace, name)
                self._recorder.record(obj, self._kind.kind, "SuccessfulDelete", f"Deleted pod: {name}")
        if abs(missing) > _BURST:
            self.worker.add(f"{namespace}/{obj['metadata']['name']}")
        return None

    async def _write_status(self, obj: Object, pods: list[Object], failure: str | None) -> float | None:
        meta = obj["metadata"]
        fresh = self._registry.get(self._sets, meta["namespace"], meta["name"])
        if fresh is None:
            return None
        # NB: the generation that was acted on, not one that came in between.
        seen = {**fresh, "metadata": {**fresh["metadata"], "generation": meta.get("generation", 1)}}
        status, again = status_of(seen, pods, self._registry.now(), failure)
        if fresh.get("status") != status:
            body = {**fresh, "status": status}
            await self._registry.update(self._sets, meta["namespace"], meta["name"], body, subresource="status")
        return again

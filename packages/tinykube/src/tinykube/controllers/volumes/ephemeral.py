"""Claims of ephemeral volumes: one for each such volume of a pod, made from its template and owned by the pod.

Garbage collection deletes a claim with its pod.

Source: pkg/controller/volume/ephemeral of Kubernetes 1.36.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.following import follow
from tinykube.controllers.pods import is_terminating
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""


class EphemeralVolumeController:
    """Makes the claims of pods' ephemeral volumes."""

    def __init__(self, registry: Registry, recorder: Recorder) -> None:
        self._registry = registry
        self._recorder = recorder
        self._pods = registry.resource("pods")
        self._claims = registry.resource("persistentvolumeclaims")
        self._users: dict[Key, str] = {}  # claim -> pod that has a volume of it
        self.worker: KeyWorker[Key] = KeyWorker("ephemeral volumes", self._look_at_pod)
        follow(registry, self._pods, self._on_pod)
        follow(registry, self._claims, self._on_claim, existing=False)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        claims = [claim for claim, _ in ephemeral_claims(obj)]
        for claim in claims:
            if event == "DELETED":
                self._users.pop((namespace, claim), None)
            else:
                self._users[namespace, claim] = name
        if claims and event == "ADDED":
            self.worker.add((namespace, name))

    def _on_claim(self, event: str, obj: Object, old: Object | None) -> None:
        namespace = obj["metadata"]["namespace"]
        if event == "DELETED" and (pod := self._users.get((namespace, obj["metadata"]["name"]))):
            self.worker.add((namespace, pod))

    async def _look_at_pod(self, key: Key) -> float | None:
        pod = self._registry.get(self._pods, *key)
        if pod is None or is_terminating(pod):
            return None
        for name, volume in ephemeral_claims(pod):
            try:
                await self._make(pod, name, volume["ephemeral"]["volumeClaimTemplate"])
            except ApiFailure as error:
                text = f"ephemeral volume {volume['name']}: {error}"
                self._recorder.record(pod, "Pod", "FailedBinding", text, "Warning")
                raise
        return None

    async def _make(self, pod: Object, name: str, template: Object) -> None:
        """Make the claim unless it is there. Raises ApiFailure for a claim of another owner."""
        meta = pod["metadata"]
        claim = self._registry.get(self._claims, meta["namespace"], name)
        if claim is not None:
            if not is_own(pod, claim):
                where = f"{meta['namespace']}/{meta['name']}"
                text = f"PVC {meta['namespace']}/{name} was not created for pod {where} (pod is not owner)"
                raise ApiFailure(403, "Forbidden", text)
            return
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        inherited = template.get("metadata") or {}
        body = {
            "metadata": {
                "name": name,
                "labels": dict(inherited.get("labels") or {}),
                "annotations": dict(inherited.get("annotations") or {}),
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": copy.deepcopy(template["spec"]),
        }
        try:
            await self._registry.create(self._claims, meta["namespace"], body)
        except ApiFailure as error:
            raise ApiFailure(error.status, error.reason, f"create PVC {name}: {error}") from error


def ephemeral_claims(pod: Object) -> Iterator[tuple[str, Object]]:
    """Yield the name of the claim and the volume, for each ephemeral volume of a pod."""
    for volume in pod["spec"].get("volumes") or ():
        if volume.get("ephemeral") is not None:
            yield f"{pod['metadata']['name']}-{volume['name']}", volume


def is_own(pod: Object, claim: Object) -> bool:
    """Return whether a claim was made for a pod."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == pod["metadata"]["uid"] for owner in owners)

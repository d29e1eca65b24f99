"""The volume controller's shell: follows claims, volumes, classes and pods, asks `decide`, writes what changes.

A binding is written in four steps, each of which is left out where it is done: claim into volume, the volume's phase,
volume into claim, the claim's phase. A controller that ends in between goes on from what is stored.

It also has the part of Kubernetes' protection controllers: a claim stays until no pod with a node names it, a volume
until it is not bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kubekit.scheduling.volumes import facts
from tinykube.apiserver.storage_defaults import default_class, has_class
from tinykube.controllers.following import follow
from tinykube.controllers.pods import is_terminating
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.volumes.decide import (
    BOUND,
    EXTERNAL_EXPANDING,
    FAILED,
    RELEASED,
    ClaimDecision,
    decide_claim,
    decide_reclaim,
    decide_volume,
)
from tinykube.controllers.volumes.users import ClaimUsers
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""
CLAIM_FINALIZER: Final = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER: Final = "kubernetes.io/pv-protection"
_PROVISIONER: Final = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
_STORAGE: Final = "storage.k8s.io"


class VolumeController:
    """Binds claims to volumes, and protects both."""

    def __init__(self, registry: Registry, recorder: Recorder, expansion_recorder: Recorder) -> None:
        self._registry = registry
        self._recorder = recorder
        self._expansion_recorder = expansion_recorder
        self._claims = registry.resource("persistentvolumeclaims")
        self._volumes = registry.resource("persistentvolumes")
        self._claim_infos: dict[Key, facts.ClaimInfo] = {}
        self._volume_infos: dict[str, facts.VolumeInfo] = {}
        self._classes: dict[str, facts.StorageClassInfo] = {}
        self._users = ClaimUsers()
        self._said: dict[Key, tuple[str, str, str]] = {}  # last event of a claim
        self._grown: dict[Key, int] = {}  # claims that are larger than their volumes -> the size that was seen
        self.claim_worker: KeyWorker[Key] = KeyWorker("volume claims", self._look_at_claim)
        self.volume_worker: KeyWorker[str] = KeyWorker("volumes", self._look_at_volume)
        follow(registry, registry.resource((_STORAGE, "storageclasses")), self._on_class)
        follow(registry, self._volumes, self._on_volume)
        follow(registry, self._claims, self._on_claim)
        follow(registry, registry.resource("pods"), self._on_pod)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.claim_worker, self.volume_worker)

    # -- what changed ------------------------------------------------------------------------------------------------

    def _on_class(self, event: str, obj: Object, old: Object | None) -> None:
        name = obj["metadata"]["name"]
        if event == "DELETED":
            self._classes.pop(name, None)
        else:
            self._classes[name] = facts.compile_class(obj)
        self._look_at_waiting(name)
        if event != "DELETED":
            self._look_at_waiting("")  # it may be the default one

    def _look_at_waiting(self, storage_class: str) -> None:
        """Look at the claims of a class that are not bound."""
        for key, claim in self._claim_infos.items():
            if claim.storage_class == storage_class and not claim.bound:
                self.claim_worker.add(key)

    def _on_volume(self, event: str, obj: Object, old: Object | None) -> None:
        info = facts.compile_volume(obj)
        if event == "DELETED":
            self._volume_infos.pop(info.name, None)
        else:
            self._volume_infos[info.name] = info
            self.volume_worker.add(info.name)
        if info.claim is not None:
            self.claim_worker.add((info.claim.namespace, info.claim.name))
        elif info.available:
            self._look_at_waiting(info.storage_class)
        for key, claim in self._claim_infos.items():
            if claim.volume == info.name:
                self.claim_worker.add(key)

    def _on_claim(self, event: str, obj: Object, old: Object | None) -> None:
        info = facts.compile_claim(obj)
        key = info.namespace, info.name
        if event == "DELETED":
            self._claim_infos.pop(key, None)
            self._said.pop(key, None)
            self._grown.pop(key, None)
        else:
            self._claim_infos[key] = info
            self.claim_worker.add(key)
        for name, volume in self._volume_infos.items():
            if volume.claim is not None and (volume.claim.namespace, volume.claim.name) == key:
                self.volume_worker.add(name)

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        for key in self._users.set(obj, present=event != "DELETED"):
            self.claim_worker.add(key)

    # -- claims ------------------------------------------------------------------------------------------------------

    async def _look_at_claim(self, key: Key) -> float | None:
        claim: Object | None = self._registry.get(self._claims, *key)
        if claim is None:
            return None
        if is_terminating(claim):
            if not self._users.is_used(key):
                await self._protect(self._claims, claim, CLAIM_FINALIZER, wanted=False)
            return None
        claim = await self._protect(self._claims, claim, CLAIM_FINALIZER, wanted=True)
        info = facts.compile_claim(claim)
        storage = self._classes.get(info.storage_class)
        decision = decide_claim(info, self._volume_infos, storage, self._users.unplaced(key))
        if decision.volume:
            self._said.pop(key, None)
            volume = self._volume_infos[decision.volume]
            await self._bind(claim, info, volume)
            self._say_growth(key, claim, info, volume)
            return None
        if not info.volume and not has_class(claim) and (default := default_class(self._stored_classes())):
            await self._patch(self._claims, claim, {"spec": {"storageClassName": default}})
            return None  # the change brings the claim here again
        if decision.provisioner:
            claim = await self._annotate(claim, dict.fromkeys(_PROVISIONER, decision.provisioner))
        if (claim.get("status") or {}).get("phase") != decision.phase:
            status = {"phase": decision.phase, "accessModes": None, "capacity": None}
            claim = await self._write_status(self._claims, claim, status)
        self._say(key, claim, decision)
        return None

    def _say(self, key: Key, claim: Object, decision: ClaimDecision) -> None:
        if decision.event is not None and self._said.get(key) != decision.event:
            self._said[key] = decision.event
            self._recorder.record(claim, "PersistentVolumeClaim", *decision.event)

    def _stored_classes(self) -> list[Object]:
        return list(self._registry.list((_STORAGE, "storageclasses")))

    def _say_growth(self, key: Key, claim: Object, info: facts.ClaimInfo, volume: facts.VolumeInfo) -> None:
        """Report a claim that grew: no volume of the embedded cluster grows by itself."""
        if info.size_bytes <= volume.size_bytes:
            self._grown.pop(key, None)
        elif self._grown.get(key) != info.size_bytes:
            self._grown[key] = info.size_bytes
            self._expansion_recorder.record(claim, "PersistentVolumeClaim", *EXTERNAL_EXPANDING)

    async def _bind(self, claim: Object, info: facts.ClaimInfo, volume: facts.VolumeInfo) -> None:
        stored: Object | None = self._registry.get(self._volumes, "", volume.name)
        if stored is None:
            return
        if volume.claim is None or volume.claim.uid != info.uid:
            stored = await self._write_claim_into(stored, claim)
        await self._set_phase(stored, BOUND)
        notes = {facts.BIND_COMPLETED: "yes"}
        if not info.volume:
            notes[facts.BOUND_BY_CONTROLLER] = "yes"
        if not info.bound:
            claim = await self._patch(
                self._claims, claim, {"metadata": {"annotations": notes}, "spec": {"volumeName": volume.name}}
            )
        spec, status = stored["spec"], claim.get("status") or {}
        wanted = {"phase": BOUND, "accessModes": spec["accessModes"], "capacity": spec["capacity"]}
        if any(status.get(name) != value for name, value in wanted.items()):
            await self._write_status(self._claims, claim, wanted)

    async def _write_claim_into(self, volume: Object, claim: Object) -> Object:
        meta = claim["metadata"]
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        }
        patch: dict[str, Any] = {"spec": {"claimRef": reference}}
        if not volume["spec"].get("claimRef"):  # else an administrator reserved it, and it stays reserved
            patch["metadata"] = {"annotations": {facts.BOUND_BY_CONTROLLER: "yes"}}
        return await self._patch(self._volumes, volume, patch)

    async def _annotate(self, claim: Object, notes: Mapping[str, str]) -> Object:
        if notes.items() <= (claim["metadata"].get("annotations") or {}).items():
            return claim
        return await self._patch(self._claims, claim, {"metadata": {"annotations": notes}})

    # -- volumes -----------------------------------------------------------------------------------------------------

    async def _look_at_volume(self, name: str) -> float | None:
        volume: Object | None = self._registry.get(self._volumes, "", name)
        if volume is None:
            return None
        info, phase = facts.compile_volume(volume), (volume.get("status") or {}).get("phase") or ""
        claim = self._claim_infos.get((info.claim.namespace, info.claim.name)) if info.claim is not None else None
        decision = decide_volume(info, phase, claim)
        if not is_terminating(volume):
            volume = await self._protect(self._volumes, volume, VOLUME_FINALIZER, wanted=True)
        if decision.look_at_claim and info.claim is not None:
            self.claim_worker.add((info.claim.namespace, info.claim.name))
            return None
        if decision.unbind:
            volume = await self._unbind(volume)
        volume = await self._set_phase(volume, decision.phase)
        if decision.phase == RELEASED and not is_terminating(volume):
            await self._reclaim(volume)
        elif is_terminating(volume) and decision.phase != BOUND:
            await self._protect(self._volumes, volume, VOLUME_FINALIZER, wanted=False)
        return None

    async def _unbind(self, volume: Object) -> Object:
        """Take a claim out that is bound elsewhere; what an administrator reserved stays reserved."""
        if facts.BOUND_BY_CONTROLLER in (volume["metadata"].get("annotations") or {}):
            return await self._patch(
                self._volumes,
                volume,
                {"metadata": {"annotations": {facts.BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}},
            )
        return await self._patch(self._volumes, volume, {"spec": {"claimRef": {"uid": None}}})

    async def _reclaim(self, volume: Object) -> None:
        name = volume["metadata"]["name"]
        decision = decide_reclaim(name, volume["spec"])
        if decision.delete:
            await self._registry.delete(self._volumes, "", name, preconditions={"uid": volume["metadata"]["uid"]})
        elif decision.problem:
            self._recorder.record(volume, "PersistentVolume", decision.reason, decision.problem, "Warning")
            await self._write_status(self._volumes, volume, {"phase": FAILED, "message": decision.problem})

    async def _set_phase(self, volume: Object, phase: str) -> Object:
        if (volume.get("status") or {}).get("phase") == phase:
            return volume
        status = {"phase": phase, "message": None, "lastPhaseTransitionTime": self._registry.now()}
        return await self._write_status(self._volumes, volume, status)

    # -- writes: each names the version that it was decided on -------------------------------------------------------

    async def _protect(self, resource: Any, obj: Object, finalizer: str, *, wanted: bool) -> Object:
        """Add or take out a finalizer."""
        finalizers = obj["metadata"].get("finalizers") or []
        if (finalizer in finalizers) is wanted:
            return obj
        changed = [*finalizers, finalizer] if wanted else [one for one in finalizers if one != finalizer]
        return await self._patch(resource, obj, {"metadata": {"finalizers": changed}})

    async def _write_status(self, resource: Any, obj: Object, status: Mapping[str, Any]) -> Object:
        return await self._patch(resource, obj, {"status": status}, subresource="status")

    async def _patch(self, resource: Any, obj: Object, patch: Mapping[str, Any], **options: Any) -> Object:
        meta = obj["metadata"]
        versioned = {"resourceVersion": meta["resourceVersion"], **patch.get("metadata", {})}
        return await self._registry.patch(
            resource, meta.get("namespace", ""), meta["name"], {**patch, "metadata": versioned}, "merge", **options
        )

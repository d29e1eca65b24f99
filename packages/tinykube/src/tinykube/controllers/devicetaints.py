"""Evicts pods whose devices have NoExecute taints, at once or when the tolerations of their requests end.

A taint without a time counts from when it was first seen.

Source: pkg/controller/devicetainteviction of Kubernetes 1.36, without DeviceTaintRules, which 1.36 does not serve by
default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from kubekit.api.durations import parse_time
from kubekit.scheduling.devices.facts import compile_device_taint, compile_device_toleration
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.resourceclaims import claim_names
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Key = tuple[str, str]
DeviceId = tuple[str, str, str]
"""Driver, pool, device."""
_GROUP: Final = "resource.k8s.io"
_REASON: Final = "DeviceTaintManagerEviction"
_EFFECT: Final = "NoExecute"


class DeviceTaintEvictionController:
    """Looks at a claim when it, or a taint of one of its devices, changes, and when its pods are due."""

    def __init__(self, registry: Registry, recorder: Recorder) -> None:
        self._registry = registry
        self._recorder = recorder
        self._pods = registry.resource("pods")
        self._claims = registry.resource((_GROUP, "resourceclaims"))
        self._slices: dict[tuple[str, str], dict[str, Object]] = {}  # driver and pool -> slices by name
        self._holders: dict[DeviceId, set[Key]] = {}  # claims that have the device
        self._held: dict[Key, set[DeviceId]] = {}
        self._since: dict[tuple[DeviceId, str], datetime] = {}  # of taints without a time, by their keys
        self._due: set[str] = set()  # uids of pods that will be evicted
        self.worker: KeyWorker[Key] = KeyWorker("device taint eviction", self._look)
        follow(registry, registry.resource((_GROUP, "resourceslices")), self._on_slice)
        follow(registry, self._claims, self._on_claim)
        follow(registry, self._pods, self._on_pod)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    # -- what changed ------------------------------------------------------------------------------------------------

    def _on_slice(self, event: str, obj: Object, old: Object | None) -> None:
        pool = obj["spec"]["driver"], obj["spec"]["pool"]["name"]
        slices = self._slices.setdefault(pool, {})
        if event == "DELETED":
            slices.pop(obj["metadata"]["name"], None)
            if not slices:
                del self._slices[pool]
        else:
            slices[obj["metadata"]["name"]] = obj
        before, now = _tainted(old), _tainted(obj if event != "DELETED" else None)
        for name in before.keys() | now.keys():
            device = (*pool, name)
            left = {taint["key"] for taint in now.get(name, ())}
            for known in [one for one in self._since if one[0] == device and one[1] not in left]:
                del self._since[known]
            for key in self._holders.get(device, ()):
                self.worker.add(key)

    def _on_claim(self, event: str, obj: Object, old: Object | None) -> None:
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        results = _results(obj) if event != "DELETED" else ()
        devices = {(one["driver"], one["pool"], one["device"]) for one in results}
        for gone in self._held.pop(key, set()) - devices:
            self._holders[gone].discard(key)
            if not self._holders[gone]:
                del self._holders[gone]
        for device in devices:
            self._holders.setdefault(device, set()).add(key)
        if devices:
            self._held[key] = devices
            self.worker.add(key)

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        if event == "DELETED":
            self._due.discard(obj["metadata"]["uid"])
        elif obj["spec"].get("nodeName") and not ((old or {}).get("spec") or {}).get("nodeName"):
            for name in claim_names(obj):
                self.worker.add((obj["metadata"]["namespace"], name))

    # -- claims ------------------------------------------------------------------------------------------------------

    async def _look(self, key: Key) -> float | None:
        claim = self._registry.get(self._claims, *key)
        if claim is None or key not in self._held:
            return None
        now = parse_time(self._registry.now())
        due = min(self._evictions(claim, now), default=None)
        for user in (claim.get("status") or {}).get("reservedFor") or ():
            pod = self._registry.get(self._pods, key[0], user["name"])
            if pod is None or pod["metadata"]["uid"] != user["uid"] or not pod["spec"].get("nodeName"):
                continue
            if podstate.is_terminating(pod):
                continue
            if due is None:
                if user["uid"] in self._due:
                    self._due.discard(user["uid"])
                    self._record(pod, "Cancelling deletion")
            elif due <= now:
                await self._evict(pod)
            else:
                self._due.add(user["uid"])
        return max(0.0, (due - now).total_seconds()) if due is not None and due > now else None

    def _evictions(self, claim: Object, now: datetime) -> Iterator[datetime]:
        """Yield when the pods of a claim have to go, for each taint that their requests do not tolerate for ever."""
        for result in _results(claim):
            tolerations = [
                toleration
                for toleration in map(compile_device_toleration, result.get("tolerations") or ())
                if toleration.effect == _EFFECT
            ]
            device = result["driver"], result["pool"], result["device"]
            for raw in self._taints(device):
                matching = [one for one in tolerations if one.tolerates(compile_device_taint(raw))]
                if any(one.seconds is None for one in matching):
                    continue
                seconds = min((max(0, one.seconds or 0) for one in matching), default=0)
                yield self._added(device, raw, now) + timedelta(seconds=seconds)

    def _taints(self, device: DeviceId) -> Iterator[Object]:
        slices = list(self._slices.get(device[:2], {}).values())
        newest = max((one["spec"]["pool"].get("generation") or 0 for one in slices), default=0)
        for one in slices:
            if (one["spec"]["pool"].get("generation") or 0) == newest:
                for found in one["spec"].get("devices") or ():
                    if found["name"] == device[2]:
                        yield from _evicting(found)

    def _added(self, device: DeviceId, taint: Object, now: datetime) -> datetime:
        if taint.get("timeAdded"):
            return parse_time(taint["timeAdded"])
        return self._since.setdefault((device, taint["key"]), now)

    # -- pods --------------------------------------------------------------------------------------------------------

    def _record(self, pod: Object, text: str) -> None:
        self._recorder.record(pod, "Pod", _REASON, text)

    async def _evict(self, pod: Object) -> None:
        self._record(pod, "Marking for deletion")
        self._due.discard(pod["metadata"]["uid"])
        meta, preconditions = pod["metadata"], {"uid": pod["metadata"]["uid"]}
        reason = "DeletionByDeviceTaintManager"
        try:
            await podstate.mark_disrupted(
                self._registry, pod, reason, "Device Taint manager: deleting due to NoExecute taint"
            )
            await self._registry.delete(self._pods, meta["namespace"], meta["name"], preconditions=preconditions)
        except ApiFailure as error:
            if error.status != 404:
                raise


def _results(claim: Object) -> tuple[Object, ...]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return tuple((allocation.get("devices") or {}).get("results") or ())


def _evicting(device: Object) -> Iterator[Object]:
    yield from (taint for taint in device.get("taints") or () if taint.get("effect") == _EFFECT)


def _tainted(obj: Object | None) -> dict[str, list[Object]]:
    """Return the taints of a slice's devices by name, as far as they evict pods."""
    devices = obj["spec"].get("devices") or () if obj is not None else ()
    found = {device["name"]: list(_evicting(device)) for device in devices}
    return {name: taints for name, taints in found.items() if taints}

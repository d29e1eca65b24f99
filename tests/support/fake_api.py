"""An API server in memory with faults that the test chooses, for histories with faults at every call.

Watches deliver only when `deliver` is called, so that the extender may know as little as it ever may. `faults` are
taken one a write, `blind` makes reads fail. A write that is `late` is answered with an error and comes true when it
lands.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.pod_groups import PluginPodGroup, WorkloadPodGroup
from kubekit.api.core import ConfigMap, Event, Pod
from kubekit.kube import AlreadyExists, Conflict, NotFound, ServerError, Unreachable
from kubekit.kube.codec import ListPage
from kubekit.kube.watch import EventType
from kubekit.kube.watch import WatchEvent as WatchEvent


class Fault(Enum):
    NONE = "answered"
    BEFORE = "lost on its way there"
    AFTER = "done, and the answer lost"
    LATE = "no answer, and it comes true later"
    BROKEN = "500, and nothing done"
    REFUSED = "never sent"
    SLOW_BEFORE = "waits, then does it"
    SLOW_AFTER = "does it, then waits"


POD_GROUPS: Final = {kind: f"podgroups.{kind.RESOURCE.group}" for kind in (PluginPodGroup, WorkloadPodGroup)}
"""The names of the two kinds of PodGroups, which have one plural. Other kinds have the name of their plural."""


def table(kind: Any) -> str:
    """The name under which the objects of a kind are stored."""
    return POD_GROUPS.get(kind) or kind.RESOURCE.plural


class FakeApi:
    def __init__(self) -> None:
        self.objects: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)  # by the table of the kind
        self.faults: list[Fault] = []
        self.blind = False
        self.late: list[Callable[[], None]] = []
        self.waiting: list[asyncio.Event] = []
        self.uids = itertools.count(1)
        self.version = 0
        self._undelivered: list[tuple[str, str, dict[str, Any]]] = []
        self._watchers: list[tuple[str, asyncio.Queue[tuple[str, dict[str, Any]]]]] = []

    # -- what tests do -----------------------------------------------------------------------------------------------

    def put(self, plural: str, obj: dict[str, Any]) -> dict[str, Any]:
        meta = obj["metadata"]
        key = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
        self.version += 1
        known = self.objects[plural].get(key)
        meta = {**meta, "resourceVersion": str(self.version)}
        meta.setdefault("uid", f"uid-{next(self.uids)}")
        obj = {**obj, "metadata": meta}
        self.objects[plural][key] = obj
        if meta["name"] != names.MOVES_CONFIGMAP:  # no watcher follows it
            self._undelivered.append((plural, "MODIFIED" if known else "ADDED", obj))
        return obj

    def remove(self, plural: str, key: str) -> None:
        self.version += 1
        obj = self.objects[plural].pop(key)
        gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self._undelivered.append((plural, "DELETED", gone))

    def deliver(self, count: int | None = None) -> None:
        """Shows the watchers the next changes, all of them by default."""
        count = len(self._undelivered) if count is None else count
        now, self._undelivered = self._undelivered[:count], self._undelivered[count:]
        for plural, kind, obj in now:
            for watched, queue in self._watchers:
                if watched == plural:
                    queue.put_nowait((kind, obj))

    @property
    def behind(self) -> bool:
        """Return whether watchers do not know everything yet."""
        return bool(self._undelivered)

    def land(self, count: int | None = None) -> None:
        """Writes that were late come true now."""
        for write in self.late[:count]:
            write()
        del self.late[:count]

    def go_on(self) -> None:
        """Calls that wait are answered."""
        for event in self.waiting:
            event.set()
        self.waiting.clear()

    def unwatch(self) -> None:
        """The extender died."""
        self._watchers.clear()

    # -- what the extender's client does -----------------------------------------------------------------------------

    async def write(self, do: Callable[[], Any]) -> Any:
        fault = self.faults.pop(0) if self.faults else Fault.NONE
        if fault is Fault.REFUSED:
            raise Unreachable("nobody there", sent=False)
        if fault is Fault.BROKEN:
            raise ServerError("broken")
        if fault is Fault.BEFORE:
            raise Unreachable("cut")
        if fault is Fault.LATE:
            self.late.append(lambda: _quietly(do))
            raise Unreachable("cut")
        if fault is Fault.SLOW_BEFORE:
            await self._wait()
        answer = do()
        if fault is Fault.SLOW_AFTER:
            await self._wait()
        if fault is Fault.AFTER:
            raise Unreachable("cut")
        return answer

    async def _wait(self) -> None:
        event = asyncio.Event()
        self.waiting.append(event)
        await event.wait()

    def bind(self, key: str, binding: dict[str, Any]) -> None:
        pod = self.objects["pods"].get(key)
        if pod is None:
            raise NotFound("gone")
        if pod["metadata"]["uid"] != binding["metadata"]["uid"] or pod["spec"].get("nodeName"):
            raise Conflict("bound already, or another")
        annotations = {**pod["metadata"].get("annotations", {}), **binding["metadata"].get("annotations", {})}
        spec = {**pod["spec"], "nodeName": binding["target"]["name"]}
        # As the API server does it: a Binding ends the report that the pod waits.
        old = pod.get("status") or {}
        conditions = [one for one in old.get("conditions") or () if one["type"] != "PodScheduled"]
        status = {**old, "conditions": [*conditions, {"type": "PodScheduled", "status": "True"}]}
        meta = {**pod["metadata"], "annotations": annotations}
        self.put("pods", {**pod, "metadata": meta, "spec": spec, "status": status})

    def patch(self, plural: str, key: str, patch: dict[str, Any]) -> dict[str, Any]:
        known = self.objects[plural].get(key)
        if known is None:
            raise NotFound("gone")
        meta = patch.get("metadata", {})
        for field in ("uid", "resourceVersion"):
            if field in meta and meta[field] != known["metadata"][field]:
                raise Conflict(f"another {field}")
        annotations = {**known["metadata"].get("annotations", {}), **meta.get("annotations", {})}
        kept = {name: value for name, value in annotations.items() if value is not None}
        data = {"data": {**known.get("data", {}), **patch["data"]}} if "data" in patch else {}
        return self.put(plural, {**known, **data, "metadata": {**known["metadata"], "annotations": kept}})

    def create(self, plural: str, obj: dict[str, Any]) -> dict[str, Any]:
        if f"{obj['metadata']['namespace']}/{obj['metadata']['name']}" in self.objects[plural]:
            raise AlreadyExists("it is there")
        return self.put(plural, obj)

    def patch_status(self, key: str, patch: dict[str, Any]) -> dict[str, Any]:
        """A strategic patch of a pod's conditions, and a merge of the rest of its status."""
        known = self.objects["pods"].get(key)
        if known is None:
            raise NotFound("gone")
        for field, value in patch["metadata"].items():
            if value != known["metadata"][field]:
                raise Conflict(f"another {field}")
        status = known.get("status") or {}
        changed = {**status, **patch["status"]}
        by_type = {one["type"]: one for one in status.get("conditions") or ()}
        for condition in patch["status"].get("conditions") or ():
            by_type[condition["type"]] = {**by_type.get(condition["type"], {}), **condition}
        changed["conditions"] = list(by_type.values())
        return self.put(
            "pods", {**known, "status": {name: value for name, value in changed.items() if value is not None}}
        )


def _quietly(do: Callable[[], Any]) -> None:
    with contextlib.suppress(NotFound, Conflict, AlreadyExists):
        do()


class FakeClient:
    """The client's face, as far as the extender uses it.

    Faults are of the objects that a test is about: writes of ConfigMaps, in which moves are recorded, take one only
    where `records_fail`.
    """

    records_fail = False

    def __init__(self, api: FakeApi) -> None:
        self.api = api

    async def pages(
        self, kind: Any, namespace: Any = None, labels: str = "", fields: str = "", *, bad: Any = None
    ) -> AsyncIterator[ListPage]:
        items = [msgspec.convert(obj, kind, strict=False) for obj in self._chosen(kind, fields)]
        yield ListPage(items, str(self.api.version), "")

    async def list(self, kind: Any, namespace: Any = None, labels: str = "", fields: str = "") -> Any:
        return [one async for page in self.pages(kind, namespace, labels, fields) for one in page.items]

    def _chosen(self, kind: Any, fields: str) -> Sequence[dict[str, Any]]:
        _, _, name = fields.partition("metadata.name=")
        found = self.api.objects[table(kind)].values()
        return [obj for obj in found if not name or obj["metadata"]["name"] == name]

    def watch(
        self,
        kind: Any,
        namespace: Any = None,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        *,
        bad: Any = None,
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.api._watchers.append((table(kind), queue))
        seen, (_, _, name) = int(resource_version), fields.partition("metadata.name=")

        async def follow() -> AsyncGenerator[WatchEvent[Any], None]:
            while True:
                change, obj = await queue.get()
                if int(obj["metadata"]["resourceVersion"]) > seen and name in ("", obj["metadata"]["name"]):
                    found = msgspec.convert(obj, kind, strict=False)
                    yield WatchEvent(EventType(change), found, found.metadata.resource_version)

        return follow()

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        if self.api.blind and (kind is not ConfigMap or self.records_fail):
            raise Unreachable("cut")
        obj = self.api.objects[table(kind)].get(f"{namespace}/{name}" if namespace else name)
        if obj is None:
            raise NotFound("gone")
        return msgspec.convert(obj, kind, strict=False)

    async def request(self, method: str, path: str, params: Any = None, body: Any = None) -> bytes:
        if method == "GET" and path.startswith("/apis/"):
            raise NotFound("no such group")
        assert method == "POST" and path.endswith("/binding"), path
        space, name = path.split("/")[4], path.split("/")[6]
        await self.api.write(lambda: self.api.bind(f"{space}/{name}", body))
        return b"{}"

    async def patch(
        self,
        kind: Any,
        name: str,
        patch: dict[str, Any],
        namespace: str | None = None,
        type: str = "merge",
        subresource: str | None = None,
    ) -> Any:
        if kind is Event:
            return None
        key = f"{namespace}/{name}" if namespace else name
        if subresource == "status":
            return await self.api.write(lambda: self.api.patch_status(key, patch))
        stored = await self._write(kind, lambda: self.api.patch(table(kind), key, patch))
        return msgspec.convert(stored, kind, strict=False)

    async def _write(self, kind: Any, do: Callable[[], Any]) -> Any:
        return await self.api.write(do) if kind is not ConfigMap or self.records_fail else do()

    async def delete(self, kind: Any, name: str, namespace: str, uid: str) -> None:
        def remove() -> None:
            known = self.api.objects[table(kind)].get(f"{namespace}/{name}")
            if known is None:
                raise NotFound("gone")
            if known["metadata"]["uid"] != uid:
                raise Conflict("another uid")
            self.api.remove(table(kind), f"{namespace}/{name}")

        await self.api.write(remove)

    async def create(self, obj: Any, **_: Any) -> Any:
        if isinstance(obj, Event):
            return obj
        made = msgspec.to_builtins(obj)
        made["metadata"]["uid"] = f"uid-{made['metadata']['name']}"
        stored = await self._write(type(obj), lambda: self.api.create(table(type(obj)), made))
        return msgspec.convert(stored, type(obj), strict=False)


def pod_of(obj: dict[str, Any]) -> Pod:
    return msgspec.convert(obj, Pod, strict=False)

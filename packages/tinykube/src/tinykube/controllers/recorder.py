"""Events about objects, deduplicated and rate limited as client-go's broadcaster does it.

The same event again raises `count` of the one that stands. Each object has a bucket of 25 events, refilled one every
five minutes, so that a DaemonSet on 1,000 nodes says what it does without 1,000 objects. `record` never waits and never
fails its caller; what cannot be written is logged.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.apiserver.failure import ApiFailure

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_BURST: Final = 25
_REFILL_S: Final = 300.0
_REMEMBERED: Final = 4096
_log = logging.getLogger("tinykube.controllers")


class Recorder:
    """Writes events in the name of one component; `run` does the writing."""

    def __init__(self, registry: Registry, component: str) -> None:
        self._registry = registry
        self._component = component
        self._events = registry.resource("events")
        self._pending: deque[tuple[tuple[str, ...], dict[str, Any]]] = deque()
        self._standing: OrderedDict[tuple[str, ...], tuple[str, str, int]] = OrderedDict()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._wake = asyncio.Event()
        self._serial = 0

    def record(
        self, obj: Mapping[str, Any], kind: str, reason: str, message: str, type: str = "Normal", action: str = ""
    ) -> None:
        """Notes an event about `obj`; `kind` is its kind, since stored objects in lists may not carry one.

        With an `action` it is written in the format of events.k8s.io: with its time, and as a series when it is
        repeated.
        """
        meta = obj["metadata"]
        if not self._allowed(meta.get("uid") or meta["name"]):
            return
        api_version = obj.get("apiVersion", "v1")
        namespace = meta.get("namespace") or "default"
        about = {
            "kind": kind,
            "apiVersion": api_version,
            "name": meta["name"],
            "uid": meta.get("uid", ""),
            "resourceVersion": meta.get("resourceVersion", ""),
        }
        if meta.get("namespace"):
            about["namespace"] = namespace
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": namespace},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": type,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": "",
        }
        if action:
            body |= {"action": action, "reportingInstance": f"{self._component}-{platform.node()}", "source": {}}
        self._pending.append(((namespace, kind, meta["name"], about["uid"], reason, message, type), body))
        self._wake.set()

    def _allowed(self, about: str) -> bool:
        now = asyncio.get_running_loop().time()
        tokens, filled = self._buckets.pop(about, (float(_BURST), now))
        tokens = min(float(_BURST), tokens + (now - filled) / _REFILL_S)
        allowed = tokens >= 1
        self._buckets[about] = (tokens - allowed, now)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return allowed

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            self._wake.clear()
            while self._pending:
                same, body = self._pending.popleft()
                try:
                    await self._write(same, body)
                except ApiFailure as error:
                    # A namespace that is being deleted accepts no events.
                    if error.status not in (403, 404):
                        _log.warning("%s: event %s not written: %s", self._component, body["reason"], error)
                await asyncio.sleep(0)
            await self._wake.wait()

    async def _write(self, same: tuple[str, ...], body: dict[str, Any]) -> None:
        now, namespace = self._registry.now(), body["metadata"]["namespace"]
        standing = self._standing.pop(same, None)
        if standing is not None and self._registry.get(self._events, namespace, standing[0]) is not None:
            name, first, count = standing[0], standing[1], standing[2] + 1
            patch: dict[str, Any] = {"count": count, "lastTimestamp": now}
            if "action" in body:
                patch = {"series": {"count": count, "lastObservedTime": _micro(now)}}
            await self._registry.patch(self._events, namespace, name, patch, "merge")
        else:
            self._serial += 1
            name, first, count = f"{same[2]}.{self._suffix(now)}", now, 1
            body["metadata"]["name"] = name
            if "action" in body:
                body.update(eventTime=_micro(now), firstTimestamp=None, lastTimestamp=None)
            else:
                body.update(firstTimestamp=first, lastTimestamp=now, count=1)
            await self._registry.create(self._events, namespace, body)
        self._standing[same] = (name, first, count)
        if len(self._standing) > _REMEMBERED:
            self._standing.popitem(last=False)

    def _suffix(self, now: str) -> str:
        """Unique among all events of one name: the time, the component and a counter of this process."""
        digits = "".join(c for c in now if c.isdigit())
        return f"{int(digits):x}{sum(self._component.encode()):x}{self._serial:x}"


def _micro(now: str) -> str:
    """A time in whole seconds as a MicroTime."""
    return now.removesuffix("Z") + ".000000Z"

"""The two faces of an Event: `v1`, in which it is stored, and `events.k8s.io/v1`, in which newer clients write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, invalid_value, not_supported, required

Object = dict[str, Any]

# core name -> events.k8s.io name
_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_BACK: Final = {new: old for old, new in _NAMES.items()}
_GROUP: Final = "events.k8s.io/v1"
_MOST_TEXT: Final = 128
_MOST_NOTE: Final = 1024
_TYPES: Final = ("Normal", "Warning")


def to_core(obj: Object) -> Object:
    """Return an Event as it is stored."""
    renamed = {_BACK.get(name, name): value for name, value in obj.items()}
    renamed["apiVersion"] = "v1"
    fill_event(renamed)
    return renamed


def from_core(obj: Object) -> Object:
    """Return a stored Event as `events.k8s.io/v1`."""
    renamed = {_NAMES.get(name, name): value for name, value in obj.items()}
    renamed["apiVersion"] = _GROUP
    for name in ("reportingController", "reportingInstance"):
        if not renamed.get(name):
            renamed.pop(name, None)
    return renamed


def fill_event(obj: Object) -> None:
    """Set the fields that an Event of `v1` always has, in place."""
    for name in ("firstTimestamp", "lastTimestamp", "eventTime"):
        obj.setdefault(name, None)
    obj.setdefault("source", {})
    for name in ("reportingComponent", "reportingInstance"):
        obj.setdefault(name, "")


def validate_event(obj: Object, old: Object | None) -> list[Cause]:
    """The findings of an Event of either form; an update has none, as its writer adds to a series only."""
    if old is not None:
        return []
    newer = obj.get("apiVersion") == _GROUP
    event = to_core(obj) if newer else obj
    causes = list(_place(event))
    if event.get("eventTime"):
        causes += _reported(event)
    if newer:
        causes += _restricted(event)
    return causes


def _place(event: Object) -> Iterator[Cause]:
    namespace, about = event["metadata"].get("namespace"), (event.get("involvedObject") or {}).get("namespace") or ""
    # Events of an object without a namespace are in the default one.
    if about != namespace and (about or namespace != "default"):
        yield invalid_value("involvedObject.namespace", about, "does not match event.namespace")


def _reported(event: Object) -> Iterator[Cause]:
    for name, shown in (("reportingComponent", "reportingController"), ("reportingInstance", "reportingInstance")):
        yield from _text(event, name, shown)
    yield from _text(event, "action", "action")
    yield from _text(event, "reason", "reason")
    if len(event.get("message") or "") > _MOST_NOTE:
        yield invalid_value("message", "", f"can have at most {_MOST_NOTE} characters")


def _text(event: Object, name: str, shown: str) -> Iterator[Cause]:
    value = event.get(name) or ""
    if not value:
        yield required(shown)
    elif len(value) > _MOST_TEXT:
        yield invalid_value(shown, "", f"can have at most {_MOST_TEXT} characters")


def _restricted(event: Object) -> Iterator[Cause]:
    if not event.get("eventTime"):
        yield required("eventTime")
    if event.get("type") not in _TYPES:
        yield not_supported("type", event.get("type") or "", _TYPES)
    for name in ("firstTimestamp", "lastTimestamp"):
        if event.get(name):
            yield invalid_value(name, event[name], "needs to be unset")
    if event.get("count"):
        yield invalid_value("count", event["count"], "needs to be unset")
    if event.get("source"):
        yield invalid_value("source", "", "needs to be unset")

"""The two faces of an Event: `v1`, in which it is stored, and `events.k8s.io/v1`, in which newer clients write it."""

from __future__ import annotations

from typing import Any, Final

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


def to_core(obj: Object) -> Object:
    renamed = {_BACK.get(name, name): value for name, value in obj.items()}
    renamed["apiVersion"] = "v1"
    return renamed


def from_core(obj: Object) -> Object:
    renamed = {_NAMES.get(name, name): value for name, value in obj.items()}
    renamed["apiVersion"] = "events.k8s.io/v1"
    return renamed

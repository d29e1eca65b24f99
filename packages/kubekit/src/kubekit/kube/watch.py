"""The stream of a watch: one JSON event a line, decoded without I/O.

Invariant: an event moves the resource version forward even when its object cannot be decoded, so one odd object never
stops a watch or makes it start over.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

import msgspec

from kubekit.documents import cut_json
from kubekit.kube.errors import ServerError, from_response

T = TypeVar("T")


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change. `object` is None for a bookmark, and for an object that does not fit its Struct."""

    type: EventType
    object: T | None
    resource_version: str


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Version = _Version()


_decode_line: Final = msgspec.json.Decoder(_Line).decode
_decode_version: Final = msgspec.json.Decoder(_Versioned).decode
_TYPES: Final[dict[str, EventType]] = {member.value: member for member in EventType}


def watch_params(resource_version: str, seconds: int) -> dict[str, str]:
    params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
    if resource_version:
        params["resourceVersion"] = resource_version
    return params


def decode_event(
    decoder: msgspec.json.Decoder[Any], line: bytes, *, where: str, bad: Callable[[bytes, str], None] | None
) -> WatchEvent[Any]:
    """The event in one line. Raises what an ERROR event says (`Gone` for an expired version), ServerError for what is
    no event, or for an object that does not fit when `bad` is None.
    """
    try:
        parsed = _decode_line(line)
        kind = _TYPES.get(parsed.type)
        if kind is None:
            raise from_response(0, parsed.object, where=where)
        if kind is EventType.BOOKMARK:
            return WatchEvent(kind, None, _decode_version(parsed.object).metadata.resource_version)
        try:
            obj = decoder.decode(parsed.object)
        except msgspec.ValidationError as error:
            if bad is None:
                raise
            bad(bytes(parsed.object), str(error))
            return WatchEvent(kind, None, _decode_version(parsed.object).metadata.resource_version)
    except RecursionError:
        return decode_event(decoder, cut_json(line), where=where, bad=bad)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerError(f"a watch event cannot be decoded: {error}", where=where, reason="Undecodable") from error
    return WatchEvent(kind, obj, obj.metadata.resource_version)

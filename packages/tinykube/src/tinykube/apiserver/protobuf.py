"""Bodies in Kubernetes' protobuf form, as kubectl (`create`, `auth can-i`, `drain`) and other Go clients send them.

Only reading: answers are JSON, which every such client accepts. The envelope is four bytes `k8s\\0` and a
`runtime.Unknown` (1: apiVersion and kind, 2: the object). Fields that are zero and could not be told from absent are
left out, as the JSON form of the same Go types leaves them out.
"""

from __future__ import annotations

import base64
import struct
from datetime import UTC, datetime
from typing import Any, Final

from kubekit.documents import check_value, decode_json
from tinykube.apiserver.failure import bad_request
from tinykube.apiserver.fieldtable import SchemaField, SchemaMessage, table

Object = dict[str, Any]

MAGIC: Final = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Truncated(ValueError):
    """The bytes end inside a value, or begin with an unknown wire type."""


def decode(data: bytes) -> Object:
    """The object as its JSON form. Raises ApiFailure 400 for an invalid object or an unknown kind."""
    if not data.startswith(MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 'k8s\\0'")
    try:
        envelope = dict(_wire(data[len(MAGIC) :]))
        types = {number: _text(value) for number, value in _wire(envelope.get(1, b""))}
        api_version, kind = types.get(1, ""), types.get(2, "")
        message = table().of(api_version, kind)
        if message is None:
            raise bad_request(f'no kind "{kind}" is registered for version "{api_version}"')
        obj = _message(envelope.get(2, b""), message)
        check_value(obj)
    except (ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError, struct.error) as error:
        # A field of another type than the table's, a time beyond all calendars, a schema in thousands of schemas.
        raise bad_request(f"cannot read the protobuf body: {error}") from error
    return {"apiVersion": api_version, "kind": kind, **obj}


def _wire(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message in order: (number, int or bytes)."""
    found: list[tuple[int, Any]] = []
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            found.append((number, value - (1 << 64) if value >= 1 << 63 else value))
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise Truncated(f"wire type {kind}")
        if at + size > end:
            raise Truncated("a value goes beyond the end")
        found.append((number, data[at : at + size]))
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Truncated("a number goes beyond the end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _message(data: bytes, message: SchemaMessage) -> Object:
    obj: Object = {}
    for number, raw in _wire(data):
        field = message.numbered.get(number)
        if field is None:
            continue
        if field.inline:
            obj.update(_message(raw, field.message))
        elif field.shape == "[]":
            obj.setdefault(field.name, []).append(_value(raw, field))
        elif field.shape == "{}":
            entry = dict(_wire(raw))
            obj.setdefault(field.name, {})[_text(entry.get(1, b""))] = _value(entry.get(2, b""), field)
        else:
            value = _value(raw, field)
            # NB: an empty message stands (`emptyDir: {}`); an empty time, text or number was never set.
            if value is not None and (value or value == {} or field.pointer or field.always):
                obj[field.name] = value
    return obj


def _value(raw: Any, field: SchemaField) -> Any:
    if field.instead:
        return _message_or(raw, field)
    if not field.scalar:
        return _message(raw, field.message)
    return _SCALARS[field.scalar](raw)


def _message_or(raw: bytes, field: SchemaField) -> Any:
    """A schema, or what may stand in its place; the wire has both as fields of one message."""
    found: dict[int, list[Any]] = {}
    for number, value in _wire(raw):
        found.setdefault(number, []).append(value)
    schema, others = (2, 1) if field.instead == "bool" else (1, 2)
    if schema in found:
        return _message(found[schema][-1], field.message)
    values = found.get(others, [])
    if field.instead == "bool":
        return bool(values and values[-1])
    return [_text(value) if field.instead == "strings" else _message(value, field.message) for value in values]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8")


def _double(raw: bytes) -> float:
    return float(struct.unpack("<d", raw)[0])


def _seconds(raw: bytes) -> tuple[int, int]:
    parts = dict(_wire(raw))
    return parts.get(1, 0), parts.get(2, 0)


def _time(raw: bytes) -> str | None:
    if not raw:
        return None
    return _moment(_seconds(raw)[0]) + "Z"


def _micro_time(raw: bytes) -> str | None:
    if not raw:
        return None
    seconds, nanos = _seconds(raw)
    return f"{_moment(seconds)}.{nanos // 1000:06d}Z"


def _moment(seconds: int) -> str:
    """Seconds since 1970 as a date and a time. NB: `strftime` writes the year 1 without its zeros."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="seconds")


def _duration(raw: bytes) -> str:
    return f"{dict(_wire(raw)).get(1, 0) / 1e9:g}s"


def _quantity(raw: bytes) -> str:
    return _text(dict(_wire(raw)).get(1, b"")) or "0"


def _int_or_string(raw: bytes) -> int | str:
    parts = dict(_wire(raw))
    return _text(parts.get(3, b"")) if parts.get(1) else int(parts.get(2, 0))


def _raw(raw: bytes) -> Any:
    inner = dict(_wire(raw)).get(1, b"")
    return decode_json(inner) if inner else None


_SCALARS: Final[dict[str, Any]] = {
    "string": _text,
    "int": int,
    "bool": bool,
    "double": _double,
    "bytes": lambda raw: base64.b64encode(raw).decode(),
    "time": _time,
    "microtime": _micro_time,
    "duration": _duration,
    "quantity": _quantity,
    "intstr": _int_or_string,
    "raw": _raw,
    "strings": lambda raw: [_text(value) for _, value in _wire(raw)],
}

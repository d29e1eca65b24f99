"""Unknown fields and wrong types in built-in kinds, found as the real server's typed decoding finds them.

Unknown fields are dropped and told (strict clients refuse them, others warn); a wrong type is a 400 at once. Empty maps
and lists and nulls go, as they do where the same kinds are Go types; quantities written as numbers become text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure, bad_request
from tinykube.apiserver.fieldtable import SchemaField, SchemaMessage, table

Object = dict[str, Any]

_KINDS: Final[dict[type, str]] = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
}
# scalar -> (types that JSON may have there, the Go type to name in the message)
_ALLOWED: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "string": ((str,), "string"),
    "int": ((int,), "int32"),
    "bool": ((bool,), "bool"),
    "double": ((int, float), "float64"),
    "bytes": ((str,), "[]uint8"),
    "time": ((str,), "Time"),
    "microtime": ((str,), "MicroTime"),
    "duration": ((str,), "Duration"),
    "quantity": ((str, int, float), "Quantity"),
    "intstr": ((str, int), "IntOrString"),
    "strings": ((list,), "[]string"),
}
# Form in the place of a message -> its type
_INSTEAD: Final = {"bool": bool, "list": list, "strings": list}
_ZEROS: Final[dict[str, Any]] = {
    "string": "",
    "int": 0,
    "bool": False,
    "double": 0.0,
    "bytes": "",
    "quantity": "0",
    "intstr": 0,
    "time": "",
    "microtime": "",
    "duration": "0s",
    "raw": None,
    "strings": [],
}


def pruner_of(info: ResourceInfo) -> Callable[[Object, Object | None], Sequence[str]]:
    """The function that drops the unknown fields of a built-in kind, in place, and gives their paths.

    Parts that equal the old object are passed over: they were checked when it was stored.
    """

    api_version, name = info.api_version, info.kind

    def prune(obj: Object, old: Object | None) -> Sequence[str]:
        message = table().of(api_version, name)
        if message is None:
            return ()
        unknown: list[str] = []
        _object(obj, old, message, "", unknown, name, top=True)
        return unknown

    return prune


def unlike(info: ResourceInfo, api_version: str, kind: str, obj: Object) -> Exception:
    """400 for a body of another kind than the built-in one that is wanted: it is read as what it says that it is."""
    message = table().of(api_version, kind)
    if message is None:
        why = f'no kind "{kind}" is registered for version "{api_version}" in scheme "pkg/runtime/scheme.go:111"'
        version = api_version.rpartition("/")[2]
        return bad_request(f'{kind} in version "{version}" cannot be handled as a {info.kind}: {why}')
    try:
        _object(obj, None, message, "", [], kind, top=True)
    except ApiFailure as error:
        return bad_request(error.message.replace(f"handled as a {kind}:", f"handled as a {info.kind}:"))
    if api_version != info.api_version:
        return bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version ({info.api_version})"
        )
    return bad_request(f"the kind in the data ({kind}) does not match the expected kind ({info.kind})")


def prune_metadata(obj: Object, old: Object | None, kind: str) -> list[str]:
    """As a pruner, for the metadata of an object of any kind."""
    unknown: list[str] = []
    before = old["metadata"] if old is not None else None
    _object(obj["metadata"], before, table().messages["meta.ObjectMeta"], "metadata", unknown, kind)
    return unknown


def _object(
    obj: Object, old: Any, message: SchemaMessage, path: str, unknown: list[str], kind: str, *, top: bool = False
) -> None:
    known = old if isinstance(old, dict) else {}
    named = message.named
    dropped: list[str] = []
    empty: list[str] = []
    for name, value in obj.items():
        before = known.get(name)
        if before is not None and before == value:
            continue
        field = named.get(name)
        if field is None:
            if not (top and name in ("apiVersion", "kind")):
                dropped.append(name)
        elif value is None or (field.shape and not field.always and value in ({}, [])):
            empty.append(name)
        else:
            where = f"{path}.{name}" if path else name
            shape = field.shape
            if not shape:
                fixed = _value(value, before, field, message, where, unknown, kind)
                if fixed is not value:
                    obj[name] = fixed
            elif shape == "[]":
                if type(value) is not list:
                    raise _wrong(kind, message, where, value, f"[]{_go_type(field)}")
                for index, item in enumerate(value):
                    value[index] = (
                        _zero(field)
                        if item is None
                        else _value(item, None, field, message, f"{where}[{index}]", unknown, kind)
                    )
            else:
                if type(value) is not dict:
                    raise _wrong(kind, message, where, value, f"map[string]{_go_type(field)}")
                for key, item in value.items():
                    value[key] = (
                        _zero(field)
                        if item is None
                        else _value(item, None, field, message, f"{where}.{key}", unknown, kind)
                    )
    for name in empty:
        del obj[name]
    for name in dropped:
        del obj[name]
        unknown.append(f"{path}.{name}" if path else name)


def _value(
    value: Any, old: Any, field: SchemaField, parent: SchemaMessage, path: str, unknown: list[str], kind: str
) -> Any:
    scalar = field.scalar
    if not scalar:
        if type(value) is dict:
            _object(value, old, field.message, path, unknown, kind)
        elif type(value) is not _INSTEAD.get(field.instead):
            raise _wrong(kind, parent, path, value, _go_type(field))
        return value
    if scalar == "raw":
        return value
    types, go_type = _ALLOWED[scalar]
    if type(value) not in types:
        raise _wrong(kind, parent, path, value, go_type)
    if scalar == "quantity":
        text = value if type(value) is str else str(value)
        _check_quantity(text, kind)
        return text
    if scalar == "bytes":
        _check_base64(value, kind)
    elif scalar in _TIMES and value != "":
        return _time(value, scalar, kind)
    return value


_TIMES: Final = {"time": "2006-01-02T15:04:05Z07:00", "microtime": "2006-01-02T15:04:05.000000Z07:00"}  # as Go says
_RFC_3339: Final = re.compile(r"\d{4}-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?(?:Z|[+-](\d\d):(\d\d))")
_ZONE: Final = "time zone offset"
# group of the pattern -> what the number is called, and the last that it may be
_PARTS: Final = {
    1: ("month", 12),
    3: ("hour", 23),
    4: ("minute", 59),
    5: ("second", 59),
    7: (f"{_ZONE} hour", 24),
    8: (f"{_ZONE} minute", 60),
}
_KNOWN_TIMES: Final = 1024  # the same few stand in all conditions of an object
_YEAR_1: Final = ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z")


@lru_cache(_KNOWN_TIMES)
def _time(text: str, scalar: str, kind: str) -> str | None:
    """A time in UTC; None for the first second of the year 1, which is no time."""
    match = _RFC_3339.fullmatch(text)
    micro = scalar == "microtime"
    if match is None or (micro and len(match[6] or "") != 7):
        rest = f'"{text[match.end(5) :]}" as ".000000"' if match is not None else "it"
        raise _unreadable(kind, f'parsing time "{text}" as "{_TIMES[scalar]}": cannot parse {rest}')
    try:
        if int(match[8] or 0) > _PARTS[8][1]:
            raise ValueError
        moment = datetime.fromisoformat(text if micro else text.replace(match[6] or "", "", 1)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _unreadable(kind, f'parsing time "{text}": {_out_of_range(match)}') from None
    text = moment.replace(tzinfo=None).isoformat(timespec="microseconds" if micro else "seconds") + "Z"
    return None if text in _YEAR_1 else text


def _out_of_range(match: re.Match[str]) -> str:
    wrong = [name for group, (name, last) in _PARTS.items() if int(match[group] or 0) > last]
    if match[1] == "00":
        wrong.insert(0, "month")
    return f"{wrong[0] if wrong else 'day'} out of range"


_QUANTITY: Final = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*")


def _check_quantity(text: str, kind: str) -> None:
    try:
        parse_quantity(text)
    except InvalidInput:
        if re.match(_QUANTITY, text):
            raise _unreadable(kind, "unable to parse quantity's suffix") from None
        raise _unreadable(kind, f"quantities must match the regular expression '{_QUANTITY}'") from None


def _check_base64(text: str, kind: str) -> None:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        sound = _BASE64.match(text)
        at = sound.end() if sound else 0
        at -= at % 4 if at == len(text) else 0  # where the last group begins that is not whole
        raise _unreadable(kind, f"illegal base64 data at input byte {at}") from None


def _unreadable(kind: str, why: str) -> Exception:
    return bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {why}')


def _zero(field: SchemaField) -> Any:
    """Return the value for a null among the items of a list or map."""
    return _ZEROS.get(field.scalar, {})


def _go_type(field: SchemaField) -> str:
    return _ALLOWED[field.scalar][1] if field.scalar in _ALLOWED else field.message.name.rpartition(".")[2]


def _wrong(kind: str, message: SchemaMessage, path: str, value: Any, wanted: str) -> Exception:
    found = _KINDS.get(type(value), "null")
    where = f"{message.name.rpartition('.')[2]}.{path}"
    return _unreadable(kind, f"json: cannot unmarshal {found} into Go struct field {where} of type {wanted}")

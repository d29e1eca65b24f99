"""Validates ConfigMaps and Secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Final

from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value, required
from tinykube.apiserver.validation.names import config_key
from tinykube.apiserver.validation.tables import Object, immutable

_MOST_BYTES: Final = 1 << 20
#: The keys that Secrets of a type must have.
_KEYS: Final = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_ACCOUNT: Final = "kubernetes.io/service-account.name"


def validate_config_map(obj: Object, old: Object | None) -> list[Cause]:
    causes: list[Cause] = []
    binary = obj.get("binaryData") or {}
    for field in ("data", "binaryData"):
        for key in obj.get(field) or {}:
            where = f"{field}[{key}]"
            causes += config_key(key, where)
            if field == "data" and key in binary:
                causes.append(invalid_value(where, key, "duplicate of key present in binaryData"))
    size = sum(
        len(key) + len(value) for field in ("data", "binaryData") for key, value in (obj.get(field) or {}).items()
    )
    if size > _MOST_BYTES:
        causes.append(Cause("FieldValueTooLong", f"Too long: may not be more than {_MOST_BYTES} bytes", ""))
    return [*causes, *_unchanged(obj, old)]


def _unchanged(obj: Object, old: Object | None) -> Iterator[Cause]:
    """Find what an update changes of an immutable object."""
    if old is None or not old.get("immutable"):
        return
    if not obj.get("immutable"):
        yield forbidden_value("immutable", "field is immutable when `immutable` is set")
    for field in ("data", "binaryData"):
        if (obj.get(field) or {}) != (old.get(field) or {}):
            yield forbidden_value(field, "field is immutable when `immutable` is set")


def validate_secret(obj: Object, old: Object | None) -> list[Cause]:
    data = obj.get("data") or {}
    kind = obj.get("type") or ""
    causes = [cause for key in data for cause in config_key(key, f"data[{key}]")]
    if sum(len(key) + len(value) * 3 // 4 for key, value in data.items()) > _MOST_BYTES:
        causes.append(Cause("FieldValueTooLong", f"Too long: may not be more than {_MOST_BYTES} bytes", "data"))
    causes += [required(f"data[{key}]") for key in _KEYS.get(kind, ()) if key not in data]
    if kind in ("kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson") and not causes:
        causes += _is_json(data[_KEYS[kind][0]], f"data[{_KEYS[kind][0]}]")
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & set(data):
        causes += [required("data[username]"), required("data[password]")]
    annotations = obj["metadata"].get("annotations") or {}
    if kind == "kubernetes.io/service-account-token" and not annotations.get(_ACCOUNT):
        causes.append(required(f"metadata.annotations[{_ACCOUNT}]"))
    causes += _unchanged(obj, old)
    return causes if old is None else [*causes, *immutable(obj, old, "type")]


def _is_json(value: str, where: str) -> Iterator[Cause]:
    text = base64.b64decode(value).decode("utf-8", "replace")
    try:
        json.loads(text)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        why = (
            f"invalid character '{text[at]}' looking for beginning of value"
            if at < len(text)
            else "unexpected end of JSON input"
        )
        yield invalid_value(where, "<secret contents redacted>", why)

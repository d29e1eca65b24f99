"""Pods made from templates: their hash, their body, their owner reference."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

Object = Mapping[str, Any]
# No vowels and nothing that looks alike, so that no hash is a word.
_SAFE: Final = "bcdfghjklmnpqrstvwxz2456789"
_encode = msgspec.json.Encoder(order="deterministic").encode


def template_hash(template: Object, collisions: int = 0) -> str:
    """Ten characters that name a pod template; equal templates, whatever the order of their keys, have equal hashes."""
    digest = hashlib.sha256(_encode(template) + (str(collisions).encode() if collisions else b"")).digest()
    return "".join(_SAFE[byte % len(_SAFE)] for byte in digest[:10])


def owner_reference(owner: Object, api_version: str, kind: str) -> dict[str, Any]:
    meta = owner["metadata"]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def copied(obj: Any) -> Any:
    """Return a deep copy of JSON data, for callers that change it."""
    return msgspec.json.decode(msgspec.json.encode(obj))


def pod_from(template: Object, owner: Object, api_version: str, kind: str, labels: Object = {}) -> dict[str, Any]:  # noqa: B006 - read only
    """A new pod of a template, named after and owned by `owner`; `labels` are added to the template's."""
    made = copied(template)
    meta = made.get("metadata") or {}
    kept = {field: meta[field] for field in ("annotations", "finalizers") if meta.get(field)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **kept,
            "generateName": owner["metadata"]["name"][:57] + "-",
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(meta.get("labels") or {}), **labels},
            "ownerReferences": [owner_reference(owner, api_version, kind)],
        },
        "spec": made.get("spec") or {},
    }


def scaled(value: int | str | None, total: int, *, up: bool) -> int:
    """An int-or-percent field as a number of `total`; percentages round up or down. None is 0."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    percent = int(value.removesuffix("%"))
    return -(-total * percent // 100) if up else total * percent // 100

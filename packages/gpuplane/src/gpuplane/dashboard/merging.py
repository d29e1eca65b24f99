"""JSON merge patches (RFC 7396) between two states of a document. Pure.

Invariants: documents are dicts with keys of text, without null, which means "remove" in a patch; for such documents
`apply(old, patch(old, new)) == new`. Lists are replaced as a whole, so what changes piece by piece is a dict.
"""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


def patch(old: Document, new: Document) -> Document:
    """Return the patch that turns `old` into `new`; empty where they are equal."""
    found: Document = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        # NB: dicts are compared item by item, also a dict with itself.
        if key in old and (before is value or before == value):
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := patch(before, value):
                found[key] = inner
        else:
            # NB: a dict in a patch is merged into nothing, also where it is new.
            found[key] = value
    return found


def apply(old: Document, changes: Document) -> Document:
    """Return `old` with the patch applied; `old` stays as it is."""
    result = dict(old)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = apply(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result

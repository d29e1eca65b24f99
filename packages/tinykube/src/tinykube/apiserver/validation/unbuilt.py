"""Fields that the embedded cluster does not build: refused, since what relies on them would be misled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause

Object = dict[str, Any]

#: Of a pod's spec: the field and what would not happen.
_OF_PODS: Final = {"resourceClaims": "no device would be allocated"}


def unbuilt_of_pod(spec: Object, field: str) -> Iterator[Cause]:
    """Return a finding for each field of a pod's spec that is set and has no effect; `field` is the spec's path."""
    yield from _set(spec, field, _OF_PODS)


def _set(spec: Object, field: str, effects: dict[str, str]) -> Iterator[Cause]:
    for name, effect in effects.items():
        if spec.get(name) not in (None, [], {}):
            yield _refused(f"{field}.{name}", effect)


def _refused(field: str, effect: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: the embedded cluster has not built it, {effect}", field)

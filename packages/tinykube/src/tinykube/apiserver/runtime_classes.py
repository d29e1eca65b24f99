"""Admission of pods by the RuntimeClass that they name: overhead, node selector and tolerations.

The functions change the spec of a pod in place, and return why the pod is refused, "" for nothing.

Source: plugin/pkg/admission/runtimeclass and pkg/util/tolerations of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tinykube.apiserver.hooks import Object
from tinykube.apiserver.validation.tables import amount

_NO_OVERHEAD: Final = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
_OTHER_OVERHEAD: Final = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"


def fill_pod(spec: Object, runtime_class: Object | None) -> str:
    """Give a pod what its class defines. `runtime_class` is None for a pod that names no class."""
    return _fill_overhead(spec, runtime_class or {}) or _fill_scheduling(spec, runtime_class or {})


def _fill_overhead(spec: Object, runtime_class: Object) -> str:
    own = spec.get("overhead")
    if runtime_class.get("overhead") is None:
        return "" if own is None else _NO_OVERHEAD
    wanted = runtime_class["overhead"].get("podFixed") or {}
    if own and {name: amount(value) for name, value in own.items()} != {
        name: amount(value) for name, value in wanted.items()
    }:
        return _OTHER_OVERHEAD
    spec.pop("overhead", None)
    if wanted:
        spec["overhead"] = {**wanted}
    return ""


def _fill_scheduling(spec: Object, runtime_class: Object) -> str:
    scheduling = runtime_class.get("scheduling")
    if scheduling is None:
        return ""
    wanted, own = scheduling.get("nodeSelector") or {}, spec.get("nodeSelector") or {}
    for key, value in wanted.items():
        if own.get(key, value) != value:
            places = f"runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {own[key]}"
            return f"conflict: {places}"
    if own or wanted:
        spec["nodeSelector"] = {**own, **wanted}
    spec["tolerations"] = merge_tolerations(spec.get("tolerations") or [], scheduling.get("tolerations") or [])
    return ""


def merge_tolerations(first: list[Object], second: list[Object]) -> list[Object]:
    """Return the tolerations of both lists, without those that another one includes. Of equal ones the first stays."""
    every, merged = [*first, *second], list[Object]()
    for at, one in enumerate(every):
        earlier = any(_includes(other, one) for other in merged)
        if not earlier and not any(other != one and _includes(other, one) for other in every[at + 1 :]):
            merged.append(one)
    return merged


def _includes(wide: Mapping[str, Any], narrow: Mapping[str, Any]) -> bool:
    """Return whether `wide` tolerates every taint that `narrow` tolerates, for as long."""
    if wide == narrow:
        return True
    every_key = not wide.get("key") and wide.get("operator") == "Exists"
    if not every_key and (wide.get("key") or "") != (narrow.get("key") or ""):
        return False
    effect = wide.get("effect") or ""
    if effect and effect != narrow.get("effect"):
        return False
    most, seconds = wide.get("tolerationSeconds"), narrow.get("tolerationSeconds")
    if effect == "NoExecute" and most is not None and (seconds is None or seconds > most):
        return False
    if wide.get("operator") == "Exists":
        return True
    # NB: only a toleration that spells its operator counts as narrow here, as on a real server.
    is_equal = wide.get("operator") in ("Equal", "", None) and narrow.get("operator") == "Equal"
    return is_equal and (wide.get("value") or "") == (narrow.get("value") or "")

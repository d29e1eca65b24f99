"""Validates PersistentVolumes, their claims, StorageClasses and CSIDrivers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import (
    Cause,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)
from tinykube.apiserver.validation.names import dns_subdomain, label_value, qualified_name, validate_selector
from tinykube.apiserver.validation.placement import node_selector
from tinykube.apiserver.validation.tables import (
    Check,
    Needs,
    Object,
    RuleTable,
    amount,
    immutable,
    no_way_up,
    one_of,
)
from tinykube.apiserver.validation.volumes import HOST_PATH, NFS

_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_SOURCES: Final[dict[str, Check]] = {
    "hostPath": HOST_PATH,
    "nfs": NFS,
    "local": RuleTable(("path", Needs(), no_way_up)),
    "csi": RuleTable(("driver", Needs(), dns_subdomain), ("volumeHandle", Needs())),
    "iscsi": RuleTable(("targetPortal", Needs()), ("iqn", Needs())),
    "fc": RuleTable(),
}


def _access_modes(modes: list[str], where: str, message: str = "") -> Iterator[Cause]:
    if not modes:
        yield required(where, message)
    for mode in modes:
        if mode not in _MODES:
            yield not_supported(where, mode, _MODES)
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        yield forbidden_value(where, "may not use ReadWriteOncePod with other access modes")


def _size(value: Any, where: str) -> Iterator[Cause]:
    if amount(value) <= 0:
        yield invalid_value(where, value, "must be greater than zero")


_COMMON: Final = RuleTable(("storageClassName", dns_subdomain), ("volumeMode", one_of("Block", "Filesystem")))
_VOLUME: Final = RuleTable(
    ("nodeAffinity", RuleTable(("required", node_selector))),
    ("persistentVolumeReclaimPolicy", one_of("Delete", "Recycle", "Retain")),
)


def validate_volume(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    capacity = spec.get("capacity") or {}
    causes = [*_access_modes(spec.get("accessModes") or [], "spec.accessModes")]
    if not capacity:
        causes.append(required("spec.capacity"))
    if "storage" not in capacity or len(capacity) > 1:
        causes.append(not_supported("spec.capacity", capacity or None, ("storage",)))
    for name, value in capacity.items():
        causes += _size(value, f"spec.capacity[{name}]")
    causes += _VOLUME(spec, "spec")
    kinds = [name for name in _SOURCES if spec.get(name) is not None]
    for name in kinds[:1]:
        causes += _SOURCES[name](spec[name], f"spec.{name}")
    causes += [forbidden_value(f"spec.{name}", "may not specify more than 1 volume type") for name in kinds[1:]]
    if not kinds:
        causes.append(required("spec", "must specify a volume type"))
    if "local" in kinds and not spec.get("nodeAffinity"):
        causes.append(required("spec.nodeAffinity", "Local volume requires node affinity"))
    if (spec.get("hostPath") or {}).get("path") == "/" and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        text = "may not be 'recycle' for a hostPath mount of '/'"
        causes.append(forbidden_value("spec.persistentVolumeReclaimPolicy", text))
    causes += _COMMON(spec, "spec")
    return causes if old is None else [*causes, *_changes_of_volume(spec, old.get("spec") or {})]


def _changes_of_volume(spec: Object, before: Object) -> Iterator[Cause]:
    if any(spec.get(name) != before.get(name) for name in _SOURCES):
        text = "spec.persistentvolumesource is immutable after creation"
        yield forbidden_value("spec.persistentvolumesource", text)
    if before.get("nodeAffinity") and spec.get("nodeAffinity") != before["nodeAffinity"]:
        yield invalid_value("spec.nodeAffinity", spec.get("nodeAffinity"), "field is immutable")
    yield from immutable(spec, before, "volumeMode")


def _source(value: Any, where: str) -> Iterator[Cause]:
    for name in ("name", "kind"):
        if not value.get(name):
            yield required(f"{where}.{name}")


def _selector(value: Any, where: str) -> list[Cause]:
    return validate_selector(value, where)


_CLAIM: Final = RuleTable(("selector", _selector))
_CLAIM_REST: Final = RuleTable(("dataSource", _source), ("dataSourceRef", _source))
_FIXED: Final = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def validate_claim_spec(spec: Object, field: str) -> Iterator[Cause]:
    modes = spec.get("accessModes") or []
    yield from _access_modes(modes, f"{field}.accessModes", "at least 1 access mode is required")
    yield from _CLAIM(spec, field)
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if size is None:
        yield required(f"{field}.resources[storage]")
    else:
        yield from _size(size, f"{field}.resources[storage]")
    yield from _COMMON(spec, field)
    yield from _CLAIM_REST(spec, field)


def validate_claim(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    causes = [*validate_claim_spec(spec, "spec")]
    if old is not None and _fixed_part(obj) != _fixed_part(old):
        causes.append(forbidden_value("spec", _FIXED))
    return causes


def _fixed_part(claim: Object) -> Object:
    """Return what of a claim never changes: all but the size of a bound one, and the volume that a binding sets."""
    spec: Object = claim.get("spec") or {}
    loose: tuple[str, ...] = ("volumeName", "volumeAttributesClassName")
    if (claim.get("status") or {}).get("phase") == "Bound":
        loose = (*loose, "resources")
    return {name: value for name, value in spec.items() if name not in loose}


def _values(value: Any, where: str) -> Iterator[Cause]:
    for index, one in enumerate(value):
        yield from label_value(one, f"{where}[{index}]")


def _key(value: Any, where: str) -> Iterator[Cause]:
    yield from qualified_name(value.get("key") or "", f"{where}.key")


_TERM: Final = RuleTable(("values", Needs(), _values), ("", _key))


def _provisioner(value: Any, where: str) -> Iterator[Cause]:
    yield from qualified_name(value.lower(), where)


_CLASS: Final = RuleTable(
    ("provisioner", Needs(), _provisioner),
    ("reclaimPolicy", one_of("Delete", "Retain")),
    ("volumeBindingMode", one_of("Immediate", "WaitForFirstConsumer")),
    ("allowedTopologies[]", RuleTable(("matchLabelExpressions[]", _TERM))),
)


def validate_storage_class(obj: Object, old: Object | None) -> list[Cause]:
    causes = [*_CLASS(obj, "")]
    names = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
    return causes if old is None else [*causes, *immutable(obj, old, *names)]


def _lifecycle_modes(value: Any, where: str) -> Iterator[Cause]:
    for mode in value:
        if mode not in ("Persistent", "Ephemeral"):
            yield not_supported(where, mode, ("Persistent", "Ephemeral"))


_DRIVER: Final = RuleTable(
    ("fsGroupPolicy", one_of("File", "None", "ReadWriteOnceWithFSType")), ("volumeLifecycleModes", _lifecycle_modes)
)


def validate_csi_driver(obj: Object, old: Object | None) -> list[Cause]:
    return list(_DRIVER(obj.get("spec") or {}, "spec"))

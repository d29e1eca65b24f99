"""Validates PersistentVolumes, their claims, StorageClasses, VolumeAttributesClasses and CSIDrivers."""

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

_ATTRIBUTES: Final = "volumeAttributesClassName"
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
    if (attributes := spec.get(_ATTRIBUTES)) is not None:
        where = f"spec.{_ATTRIBUTES}"
        causes += dns_subdomain(attributes, where) if attributes else [required(where, "an empty string is disallowed")]
        if "csi" not in kinds:
            causes.append(required("spec.csi", f"has to be specified when using {_ATTRIBUTES}"))
    return causes if old is None else [*causes, *_changes_of_volume(spec, old.get("spec") or {})]


def _changes_of_volume(spec: Object, before: Object) -> Iterator[Cause]:
    if any(spec.get(name) != before.get(name) for name in _SOURCES):
        text = "spec.persistentvolumesource is immutable after creation"
        yield forbidden_value("spec.persistentvolumesource", text)
    if before.get("nodeAffinity") and spec.get("nodeAffinity") != before["nodeAffinity"]:
        yield invalid_value("spec.nodeAffinity", spec.get("nodeAffinity"), "field is immutable")
    yield from immutable(spec, before, "volumeMode")
    if before.get(_ATTRIBUTES) is not None and spec.get(_ATTRIBUTES) is None:
        yield forbidden_value(f"spec.{_ATTRIBUTES}", "update from non-nil value to nil is forbidden")


def _source(value: Any, where: str) -> Iterator[Cause]:
    for name in ("name", "kind"):
        if not value.get(name):
            yield required(f"{where}.{name}")


def _selector(value: Any, where: str) -> list[Cause]:
    return validate_selector(value, where)


def _class_name(value: Any, where: str) -> Iterator[Cause]:
    """Check the name of a VolumeAttributesClass; an empty name stands for no class."""
    if value:
        yield from dns_subdomain(value, where)


_CLAIM: Final = RuleTable(("selector", _selector))
_CLAIM_REST: Final = RuleTable(
    ("dataSource", _source), ("dataSourceRef", _source), ("volumeAttributesClassName", _class_name)
)
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
    if old is not None:
        causes += _changes_of_claim(obj, old)
    return causes


def _changes_of_claim(obj: Object, old: Object) -> Iterator[Cause]:
    loose = _loose_fields(old)
    spec, before = obj.get("spec") or {}, old.get("spec") or {}
    if {k: v for k, v in spec.items() if k not in loose} != {k: v for k, v in before.items() if k not in loose}:
        yield forbidden_value("spec", _FIXED)
    size, earlier = _request(spec), _request(before)
    least = ((old.get("status") or {}).get("capacity") or {}).get("storage") or 0
    if size < earlier and size <= amount(least):
        yield forbidden_value("spec.resources.requests.storage", "field can not be less than status.capacity")
    now, applied = spec.get(_ATTRIBUTES), (old.get("status") or {}).get("currentVolumeAttributesClassName")
    if applied is not None and not now and now != before.get(_ATTRIBUTES):
        to = "nil" if now is None else "empty string"
        text = f"update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"
        yield forbidden_value(f"spec.{_ATTRIBUTES}", text)


def _loose_fields(claim: Object) -> set[str]:
    """Return the fields that may change: the volume and the class as long as there is none, the size of a bound one."""
    spec: Object = claim.get("spec") or {}
    bound = (claim.get("status") or {}).get("phase") == "Bound"
    loose = {"resources", _ATTRIBUTES} if bound else set()
    loose |= {"volumeName"} if not spec.get("volumeName") else set()
    beta = (claim["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    return loose | ({"storageClassName"} if spec.get("storageClassName") is None and beta is None else set())


def _request(spec: Object) -> Any:
    return amount(((spec.get("resources") or {}).get("requests") or {}).get("storage") or 0)


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


_MOST_PARAMETERS: Final = 512
_MOST_PARAMETER_BYTES: Final = 256 << 10


def _parameters(value: Any, where: str) -> Iterator[Cause]:
    if len(value) > _MOST_PARAMETERS:
        yield Cause("FieldValueTooLong", f"Too long: may not be more than {_MOST_PARAMETERS} bytes", where)
        return
    if "" in value:
        yield invalid_value(where, "", "field can not be empty.")
    if sum(len(key.encode()) + len(text.encode()) for key, text in value.items()) > _MOST_PARAMETER_BYTES:
        yield Cause("FieldValueTooLong", f"Too long: may not be more than {_MOST_PARAMETER_BYTES} bytes", where)


_ATTRIBUTES_CLASS: Final = RuleTable(("driverName", Needs(), _provisioner), ("parameters", _parameters))


def validate_attributes_class(obj: Object, old: Object | None) -> list[Cause]:
    changed = [] if old is None else [one for one in ("driverName", "parameters") if obj.get(one) != old.get(one)]
    causes = [forbidden_value(name, f"updates to {name} are forbidden.") for name in changed]
    causes += _ATTRIBUTES_CLASS(obj, "")
    if not obj.get("parameters"):
        causes.append(required("parameters", "must contain at least one key/value pair"))
    return causes


def _lifecycle_modes(value: Any, where: str) -> Iterator[Cause]:
    for mode in value:
        if mode not in ("Persistent", "Ephemeral"):
            yield not_supported(where, mode, ("Persistent", "Ephemeral"))


_DRIVER: Final = RuleTable(
    ("fsGroupPolicy", one_of("File", "None", "ReadWriteOnceWithFSType")), ("volumeLifecycleModes", _lifecycle_modes)
)


def validate_csi_driver(obj: Object, old: Object | None) -> list[Cause]:
    return list(_DRIVER(obj.get("spec") or {}, "spec"))

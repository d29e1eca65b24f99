"""Rules for volumes of pods, and for the sources that volumes of pods and PersistentVolumes have alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, duplicate, forbidden_value, invalid_value, required
from tinykube.apiserver.validation.environment import FILE_FIELDS, RESOURCE_FIELD, pod_field
from tinykube.apiserver.validation.names import dns_label, dns_subdomain
from tinykube.apiserver.validation.tables import (
    Check,
    Needs,
    Object,
    RuleTable,
    absolute_path,
    amount,
    between,
    no_way_up,
    one_of,
    relative_path,
)

_mode: Final = between(0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive")
_ITEM: Final = RuleTable(("key", Needs()), ("path", Needs(), relative_path), ("mode", _mode))
_PATH_TYPES: Final = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
HOST_PATH: Final = RuleTable(("path", Needs(), no_way_up), ("type", one_of(*_PATH_TYPES)))
NFS: Final = RuleTable(("server", Needs()), ("path", Needs(), absolute_path))


def _size(value: Any, where: str) -> Iterator[Cause]:
    if amount(value) < 0:
        yield forbidden_value(where, "SizeLimit field must be a valid resource quantity")


def _downward_items(value: Any, where: str) -> Iterator[Cause]:
    """The files of a downward volume. The real server names the volume, not the file."""
    for item in value.get("items") or ():
        field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
        if not item.get("path"):
            yield required(f"{where}.path")
        else:
            yield from relative_path(item["path"], f"{where}.path")
        if field is not None:
            yield from _field(field, f"{where}.fieldRef")
            if resource is not None:
                text = "fieldRef and resourceFieldRef can not be specified simultaneously"
                yield invalid_value(where, "resource", text)
        elif resource is not None:
            yield from _resource(resource, f"{where}.resourceFieldRef")
        else:
            yield required(where, "one of fieldRef and resourceFieldRef is required")
        if item.get("mode") is not None:
            yield from _mode(item["mode"], f"{where}.mode")


_field: Final = pod_field(FILE_FIELDS)
_resource: Final = RuleTable(("containerName", Needs()), ("", RESOURCE_FIELD))
_DOWNWARD: Final = RuleTable(("defaultMode", _mode), ("", _downward_items))

_TEN_MINUTES: Final = 600
_LONGEST: Final = 1 << 32


def _token(value: Any, where: str) -> Iterator[Cause]:
    seconds = value.get("expirationSeconds")
    if seconds is not None and seconds < _TEN_MINUTES:
        text = "may not specify a duration less than 10 minutes"
        yield invalid_value(f"{where}.expirationSeconds", seconds, text)
    if seconds is not None and seconds > _LONGEST:
        text = "may not specify a duration larger than 2^32 seconds"
        yield invalid_value(f"{where}.expirationSeconds", seconds, text)


def _projected(value: Any, where: str) -> Iterator[Cause]:
    for index, source in enumerate(value.get("sources") or ()):
        here = f"{where}.sources[{index}]"
        kinds = [name for name in _PROJECTED if source.get(name) is not None]
        if len(kinds) > 1:
            yield forbidden_value(here, "may not specify more than 1 volume type per source")
            continue
        for name in kinds:
            yield from _PROJECTED[name](source[name], f"{here}.{name}")
            if name == "serviceAccountToken" and not source[name].get("path"):
                yield required(f"{where}.path")


_PROJECTED: Final[dict[str, Check]] = {
    "secret": RuleTable(("name", Needs()), ("items[]", _ITEM)),
    "configMap": RuleTable(("name", Needs()), ("items[]", _ITEM)),
    "downwardAPI": _downward_items,
    "serviceAccountToken": _token,
    "clusterTrustBundle": RuleTable(("path", Needs())),
    "podCertificate": RuleTable(("signerName", Needs())),
}

#: The sources of a volume, in the order in which a second one is named.
_SOURCES: Final[dict[str, Check]] = {
    "emptyDir": RuleTable(("sizeLimit", _size)),
    "hostPath": HOST_PATH,
    "gitRepo": RuleTable(("repository", Needs())),
    "secret": RuleTable(("secretName", Needs()), ("defaultMode", _mode), ("items[]", _ITEM)),
    "nfs": NFS,
    "iscsi": RuleTable(("targetPortal", Needs()), ("iqn", Needs())),
    "persistentVolumeClaim": RuleTable(("claimName", Needs(), dns_subdomain)),
    "configMap": RuleTable(("name", Needs()), ("defaultMode", _mode), ("items[]", _ITEM)),
    "downwardAPI": _DOWNWARD,
    "projected": RuleTable(("defaultMode", _mode), ("", _projected)),
    "csi": RuleTable(("driver", Needs(), dns_subdomain)),
    "image": RuleTable(("reference", Needs()), ("pullPolicy", one_of("Always", "IfNotPresent", "Never"))),
    "ephemeral": RuleTable(("volumeClaimTemplate", Needs())),
}


def _source(value: Any, where: str) -> Iterator[Cause]:
    kinds = [name for name in _SOURCES if value.get(name) is not None]
    for name in kinds[1:]:
        yield forbidden_value(f"{where}.{name}", "may not specify more than 1 volume type")
    if kinds:
        yield from _SOURCES[kinds[0]](value[kinds[0]], f"{where}.{kinds[0]}")


_VOLUME: Final = RuleTable(("", _source), ("name", Needs(), dns_label))


def validate_volumes(volumes: list[Object], where: str) -> tuple[list[Cause], dict[str, Object]]:
    """Return the findings, and the volumes by name that containers may mount: those without a finding."""
    causes: list[Cause] = []
    sound: dict[str, Object] = {}
    for index, volume in enumerate(volumes):
        found = list(_VOLUME(volume, f"{where}[{index}]"))
        name = volume.get("name") or ""
        if name in sound:
            found.append(duplicate(f"{where}[{index}].name", name))
        if not found:
            sound[name] = volume
        causes += found
    return causes, sound

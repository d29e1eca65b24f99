"""Validates the metadata of every object."""

from __future__ import annotations

import json
from typing import Any, Final

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import Cause, invalid_value, required
from tinykube.apiserver.validation.addresses import canonical_address
from tinykube.apiserver.validation.names import (
    DNS_1035,
    DNS_1035_TEXT,
    DNS_LABEL,
    LABEL_TEXT,
    SUBDOMAIN,
    SUBDOMAIN_TEXT,
    qualified,
    validate_labels,
)

Object = dict[str, Any]

_OWNER: Final = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
_STANDARD_FINALIZERS: Final = frozenset(("kubernetes", "orphan", "foregroundDeletion"))
_ANNOTATIONS_BYTES: Final = 256 * 1024


def validate_metadata(info: ResourceInfo, obj: Object, old: Object | None) -> list[Cause]:
    """Name, labels, annotations, finalizers and owners; of an update only those that changed."""
    metadata = obj["metadata"]
    before = old["metadata"] if old is not None else {}
    causes: list[Cause] = []
    if old is None:
        causes += _name(info, metadata)
    labels = metadata.get("labels")
    if labels and labels != before.get("labels"):
        causes += validate_labels(labels, "metadata.labels")
    annotations = metadata.get("annotations")
    if annotations and annotations != before.get("annotations"):
        causes += _annotations(annotations)
    finalizers = metadata.get("finalizers")
    if finalizers and finalizers != before.get("finalizers"):
        causes += _finalizers(finalizers)
    owners = metadata.get("ownerReferences")
    if owners and owners != before.get("ownerReferences"):
        causes += _owners(owners)
    return causes


def _name(info: ResourceInfo, metadata: Object) -> list[Cause]:
    name = metadata.get("name")
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    if not isinstance(name, str):
        return [invalid_value("metadata.name", name, "must be a string")]
    if info.group == "rbac.authorization.k8s.io":
        if name in (".", ".."):
            return [invalid_value("metadata.name", name, f"may not be '{name}'")]
        return [invalid_value("metadata.name", name, f"may not contain '{bad}'") for bad in "/%" if bad in name]
    if info.plural == "ipaddresses" and info.group:
        return list(canonical_address(name, "metadata.name"))
    if info.plural == "namespaces" and not info.group:
        pattern, text, limit = DNS_LABEL, "must not contain dots" if "." in name else LABEL_TEXT, 63
    elif info.plural == "services" and not info.group:
        pattern, text, limit = DNS_1035, "must not contain dots" if "." in name else DNS_1035_TEXT, 63
    else:
        pattern, text, limit = SUBDOMAIN, SUBDOMAIN_TEXT, 253
    causes = [] if pattern.match(name) else [invalid_value("metadata.name", name, text)]
    if len(name) > limit:
        causes.append(invalid_value("metadata.name", name, f"must be no more than {limit} characters"))
    return causes


def _annotations(annotations: Any) -> list[Cause]:
    field = "metadata.annotations"
    if not isinstance(annotations, dict):
        return [invalid_value(field, annotations, "must be an object of strings")]
    causes: list[Cause] = []
    size = 0
    for key, value in annotations.items():
        causes += [invalid_value(field, key, wrong) for wrong in qualified(key.lower())]
        if not isinstance(value, str):
            causes.append(invalid_value(field, value, "must be a string"))
        else:
            size += len(key) + len(value)
    if size > _ANNOTATIONS_BYTES:
        causes.append(Cause("FieldValueTooLong", f"Too long: may not be more than {_ANNOTATIONS_BYTES} bytes", field))
    return causes


def _owners(owners: list[Object]) -> list[Cause]:
    causes: list[Cause] = []
    where = "metadata.ownerReferences"
    for owner in owners:
        missing = [name for name in ("apiVersion", "kind", "name", "uid") if not owner.get(name)]
        causes += [invalid_value(f"{where}.{name}", "", "must not be empty") for name in missing]
    controllers = [f"{owner.get('kind')}/{owner.get('name')}" for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        shown = json.dumps(
            [{key: owner[key] for key in _OWNER if key in owner} for owner in owners], separators=(",", ":")
        )
        text = 'Only one reference can have Controller set to true. Found "true" in references for '
        causes.append(
            Cause("FieldValueInvalid", f"Invalid value: {shown}: {text}{' and '.join(controllers[:2])}", where)
        )
    return causes


def _finalizers(finalizers: list[str]) -> list[Cause]:
    """Qualified names; a bare name only where Kubernetes itself uses it."""
    causes: list[Cause] = []
    for index, name in enumerate(finalizers):
        field = f"metadata.finalizers[{index}]"
        if wrong := qualified(name):
            causes += [invalid_value(field, name, text) for text in wrong]
        elif "/" not in name and name not in _STANDARD_FINALIZERS:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value(field, name, text))
    return causes

"""Rules for the environment of containers, and for the fields of a pod that volumes and variables read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, invalid_value, not_supported, required
from tinykube.apiserver.validation.names import config_key, dns_subdomain, qualified_name
from tinykube.apiserver.validation.tables import Check, Needs, Object, RuleTable, amount, text_like

_VARIABLE_TEXT: Final = (
    "a valid environment variable name must consist only of printable ASCII characters other than '='"
)
_variable: Final = text_like(re.compile(r"[ -<>-~]+"), _VARIABLE_TEXT)

_OF_METADATA: Final = ("metadata.name", "metadata.namespace", "metadata.uid")
VARIABLE_FIELDS: Final = (
    *_OF_METADATA,
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
FILE_FIELDS: Final = ("metadata.annotations", "metadata.labels", *_OF_METADATA)
_KNOWN_FIELDS: Final = frozenset(
    (
        *VARIABLE_FIELDS,
        *FILE_FIELDS,
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.hostNetwork",
        "status.phase",
        "status.nominatedNodeName",
    )
)
_SUBSCRIPT: Final = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")


def pod_field(allowed: tuple[str, ...]) -> Check:
    """An ObjectFieldSelector that names one of these fields of a pod, or one label or annotation."""

    def check(value: Any, where: str) -> Iterator[Cause]:
        path = value.get("fieldPath")
        if not path:
            yield required(f"{where}.fieldPath")
        elif value.get("apiVersion", "v1") != "v1":
            text = f"error converting fieldPath: unsupported pod version: {value['apiVersion']}"
            yield invalid_value(f"{where}.fieldPath", path, text)
        elif found := _SUBSCRIPT.fullmatch(path):
            yield from qualified_name(found[2], where)
        elif path not in _KNOWN_FIELDS:
            text = f"error converting fieldPath: field label not supported: {path}"
            yield invalid_value(f"{where}.fieldPath", path, text)
        elif path not in allowed:
            yield not_supported(f"{where}.fieldPath", path, allowed)

    return check


_OF_CONTAINERS: Final = ("cpu", "ephemeral-storage", "memory")
_RESOURCES: Final = tuple(f"{kind}.{name}" for kind in ("limits", "requests") for name in _OF_CONTAINERS)
_DIVISORS: Final = {
    "cpu": ("1m", "1"),
    "memory": ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"),
}


def _resource_name(value: Any, where: str) -> Iterator[Cause]:
    if value not in _RESOURCES and not value.partition(".")[2].startswith("hugepages-"):
        yield not_supported(where, value, _RESOURCES)


def _divisor(value: Any, where: str) -> Iterator[Cause]:
    resource = value.get("resource") or ""
    name = resource.partition(".")[2]
    divisor = amount(value.get("divisor") or "0")
    allowed = _DIVISORS["cpu" if name == "cpu" else "memory"]
    if resource in _RESOURCES and divisor and divisor not in [amount(one) for one in allowed]:
        listed = f"{', '.join(allowed[:-1])} and {allowed[-1]}" if len(allowed) > 2 else " and ".join(allowed)
        text = f"only divisor's values {listed} are supported with the {name} resource"
        yield invalid_value(f"{where}.divisor", resource, text)


RESOURCE_FIELD: Final = RuleTable(("resource", Needs(), _resource_name), ("", _divisor))


def any_name(value: Any, where: str) -> Iterator[Cause]:
    """A name of an object, where an absent one is an empty text that is no name."""
    yield from dns_subdomain(value.get("name") or "", f"{where}.name")


_KEY_OF_OBJECT: Final = RuleTable(("", any_name), ("key", Needs(), config_key))

_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def _one_source(value: Any, where: str) -> Iterator[Cause]:
    sources = [name for name in _SOURCES if value.get(name) is not None]
    if not sources:
        named = ", ".join(f"`{name}`" for name in _SOURCES[:-1])
        yield invalid_value(where, "", f"must specify one of: {named} or `{_SOURCES[-1]}`")
    elif len(sources) > 1:
        yield invalid_value(where, "", "may not have more than one field specified at a time")


def _no_value_beside(value: Any, where: str) -> Iterator[Cause]:
    if value.get("value") and value.get("valueFrom"):
        yield invalid_value(f"{where}.valueFrom", "", "may not be specified when `value` is not empty")


_SOURCE: Final = RuleTable(
    ("fieldRef", pod_field(VARIABLE_FIELDS)),
    ("resourceFieldRef", RESOURCE_FIELD),
    ("configMapKeyRef", _KEY_OF_OBJECT),
    ("secretKeyRef", _KEY_OF_OBJECT),
    ("", _one_source),
)
VARIABLE: Final = RuleTable(("name", Needs(), _variable), ("", _no_value_beside), ("valueFrom", _SOURCE))


def variables_from(value: Any, where: str) -> Iterator[Cause]:
    """The sources of a container's `envFrom`; whose number is a finding of the list."""
    for index, source in enumerate(value):
        if source.get("prefix"):
            yield from _variable(source["prefix"], f"{where}[{index}].prefix")
        given = [source[name] for name in ("configMapRef", "secretRef") if source.get(name) is not None]
        if not given:
            yield invalid_value(where, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(given) > 1:
            yield invalid_value(where, "", "may not have more than one field specified at a time")
        for name in ("configMapRef", "secretRef"):
            reference: Object | None = source.get(name)
            if reference is not None:
                yield from any_name(reference, f"{where}[{index}].{name}")

"""Validates ConfigMaps and Secrets, Services, role bindings and PodDisruptionBudgets."""

from __future__ import annotations

import re
from typing import Any

from tinykube.apiserver.failure import Cause, invalid_value, not_supported, required
from tinykube.apiserver.validation.names import validate_selector

Object = dict[str, Any]


def validate_config(obj: Object, old: Object | None) -> list[Cause]:
    causes: list[Cause] = []
    for group in ("data", "binaryData"):
        values = obj.get(group)
        if values is None:
            continue
        if not isinstance(values, dict):
            causes.append(invalid_value(group, values, "must be an object of strings"))
            continue
        for key, value in values.items():
            if not re.match(r"^[-._a-zA-Z0-9]{1,253}$", key):
                text = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
                causes.append(invalid_value(f"{group}[{key}]", key, text))
            if not isinstance(value, str):
                causes.append(invalid_value(f"{group}[{key}]", value, "must be a string"))
    if old is not None and old.get("immutable"):
        for group in ("data", "binaryData", "immutable"):
            if obj.get(group) != old.get(group):
                text = "Forbidden: field is immutable when `immutable` is set"
                causes.append(Cause("FieldValueForbidden", text, group))
    if old is not None and obj.get("type") != old.get("type"):
        causes.append(invalid_value("type", str(obj.get("type")), "field is immutable"))
    return causes


def validate_service(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes: list[Cause] = []
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec.get("type") not in kinds:
        causes.append(not_supported("spec.type", str(spec.get("type")), kinds))
    ports = spec.get("ports") or ()
    if not ports and spec.get("type") != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(required("spec.ports"))
    for index, port in enumerate(ports):
        number = port.get("port")
        if not isinstance(number, int) or not 1 <= number <= 65535:
            causes.append(invalid_value(f"spec.ports[{index}].port", number, "must be between 1 and 65535, inclusive"))
        if len(ports) > 1 and not port.get("name"):
            causes.append(required(f"spec.ports[{index}].name"))
    before = (old or {}).get("spec") or {}
    if before.get("clusterIP") and spec.get("clusterIP") != before["clusterIP"] and spec.get("type") != "ExternalName":
        causes.append(invalid_value("spec.clusterIPs[0]", str(spec.get("clusterIP")), "field is immutable"))
    return causes


def validate_role_binding(obj: Object, old: Object | None) -> list[Cause]:
    reference = obj.get("roleRef")
    if not isinstance(reference, dict) or not reference.get("name"):
        return [required("roleRef.name")]
    if old is not None and reference != old.get("roleRef"):
        return [invalid_value("roleRef", str(reference), "cannot change roleRef")]
    return []


def validate_disruption_budget(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    selector = spec.get("selector")
    causes = validate_selector(selector, "spec.selector") if selector is not None else []
    given = [name for name in ("minAvailable", "maxUnavailable") if spec.get(name) is not None]
    if len(given) == 2:
        causes.append(invalid_value("spec", str(given), "minAvailable and maxUnavailable cannot be both set"))
    for name in given:
        value = spec[name]
        if isinstance(value, str) and not re.match(r"^[0-9]+%$", value):
            causes.append(invalid_value(f"spec.{name}", value, "must be a number or a percentage (e.g. '50%')"))
    return causes

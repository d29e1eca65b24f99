"""Validates pods, and the templates of pods."""

from __future__ import annotations

import re
from typing import Any, Final

from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput
from tinykube.apiserver.failure import Cause, duplicate, invalid_value, not_supported, required
from tinykube.apiserver.validation.names import dns_label
from tinykube.apiserver.validation.unbuilt import unbuilt_of_pod

Object = dict[str, Any]

_ENV: Final = re.compile(r"^[^=\x00-\x1f\x7f]+$")


def validate_pod_spec(spec: Any, field: str) -> list[Cause]:
    if not isinstance(spec, dict):
        return [required(field)]
    causes: list[Cause] = []
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or ()):
        where = f"{field}.volumes[{index}].name"
        causes += dns_label(volume.get("name"), where)
        if volume.get("name") in volumes:
            causes.append(duplicate(where, volume["name"]))
        volumes.add(volume.get("name"))
    containers = spec.get("containers")
    if not containers:
        causes.append(required(f"{field}.containers"))
    names: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{field}.{group}[{index}]"
            causes += _container(container, where, volumes)
            name = container.get("name")
            if name in names:
                causes.append(duplicate(f"{where}.name", name))
            names.add(name)
    policy = spec.get("restartPolicy")
    if policy not in ("Always", "OnFailure", "Never"):
        causes.append(not_supported(f"{field}.restartPolicy", str(policy), ("Always", "OnFailure", "Never")))
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        operator = toleration.get("operator")
        if operator not in (None, "", "Equal", "Exists", "Lt", "Gt"):
            causes.append(not_supported(f"{field}.tolerations[{index}].operator", operator, ("Equal", "Exists")))
    causes += unbuilt_of_pod(spec, field)
    return causes


def _container(container: Object, field: str, volumes: set[str]) -> list[Cause]:
    causes = dns_label(container.get("name"), f"{field}.name")
    if not container.get("image"):
        causes.append(required(f"{field}.image"))
    policy = container.get("imagePullPolicy")
    if policy not in ("Always", "IfNotPresent", "Never"):
        allowed = ("Always", "IfNotPresent", "Never")
        causes.append(not_supported(f"{field}.imagePullPolicy", str(policy), allowed))
    for index, entry in enumerate(container.get("env") or ()):
        name = entry.get("name")
        if not name:
            causes.append(required(f"{field}.env[{index}].name"))
        elif not _ENV.match(name):
            causes.append(invalid_value(f"{field}.env[{index}].name", name, "must be printable and without '='"))
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{field}.volumeMounts[{index}]"
        name = mount.get("name")
        if not name:
            causes.append(required(f"{where}.name"))
        elif name not in volumes:
            causes.append(Cause("FieldValueNotFound", f'Not found: "{name}"', f"{where}.name"))
        if not mount.get("mountPath"):
            causes.append(required(f"{where}.mountPath"))
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for field_name, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            if str(value).startswith("-") and _negative(str(value)):
                where = f"{field}.resources.{field_name}[{name}]"
                causes.append(invalid_value(where, str(value), "must be greater than or equal to 0"))
            if "/" in name and not str(value).isdigit() and _fraction(str(value)):
                causes.append(invalid_value(f"{field}.resources.{field_name}[{name}]", value, "must be an integer"))
    for name, value in requests.items():
        # Extended resources cannot be overcommitted: what is asked is what is allowed.
        if "/" in name and limits.get(name) != value:
            if name in limits:
                text = f"must be equal to {name} limit"
                causes.append(invalid_value(f"{field}.resources.requests", str(value), text))
            else:
                text = "Limit must be set for non overcommitable resources"
                causes.append(required(f"{field}.resources.limits", text))
    return causes


def _negative(quantity: str) -> bool:
    try:
        return parse_quantity(quantity) < 0
    except InvalidInput:
        return False  # another check reports an invalid quantity


def _fraction(quantity: str) -> bool:
    """Return whether it is no whole number."""
    try:
        return parse_quantity(quantity) % 1 != 0
    except InvalidInput:
        return False  # another check reports an invalid quantity


_POD_MUTABLE: Final = (
    "containers",
    "initContainers",
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
)
_POD_SET_ONCE: Final = (
    "nodeName",
    "schedulingGates",
    "ephemeralContainers",
    "priority",
    "resources",
    "nodeSelector",
    "affinity",
)


def validate_pod(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec")
    if old is None:
        return validate_pod_spec(spec, "spec")
    before = old.get("spec") or {}
    if not isinstance(spec, dict) or spec == before:
        return []
    causes = validate_pod_spec(spec, "spec")
    loose = (*_POD_MUTABLE, *_POD_SET_ONCE)
    changed = {k for k in {*spec, *before} if spec.get(k) != before.get(k) and k not in loose}
    if before.get("nodeName") and spec.get("nodeName") != before["nodeName"]:
        changed.add("nodeName")
    for group in ("containers", "initContainers"):
        if [_without_image(c) for c in spec.get(group) or ()] != [_without_image(c) for c in before.get(group) or ()]:
            changed.add(group)
    if changed:
        text = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously "
            "negative)"
        )
        causes.append(Cause("FieldValueForbidden", f"{text}\nchanged: {', '.join(sorted(changed))}", "spec"))
    return causes


def _without_image(container: Object) -> Object:
    # Resources change through the resize subresource, images by a plain update.
    return {key: value for key, value in container.items() if key not in ("image", "imagePullPolicy", "resources")}

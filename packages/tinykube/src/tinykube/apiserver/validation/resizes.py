"""Validates resizes of pods in place. Source: `ValidatePodResize` of Kubernetes 1.36."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kubekit.api.quantity import parse_quantity
from tinykube.apiserver.defaults.pods import qos_class
from tinykube.apiserver.failure import Cause, duplicate, forbidden_value, invalid_value, not_supported, required
from tinykube.apiserver.validation.tables import Object

RESIZABLE: Final = ("cpu", "memory")
_POLICIES: Final = ("NotRequired", "RestartContainer")
_ONLY: Final = "only cpu and memory resources are mutable"
_MIRROR: Final = "kubernetes.io/config.mirror"


def validate_resize_policies(policies: Any, where: str, restarts: str) -> Iterator[Cause]:
    """The resize policies of a container; `restarts` is the restart policy of its pod."""
    seen = set()
    for index, policy in enumerate(policies):
        resource, wanted = policy.get("resourceName"), policy.get("restartPolicy")
        if resource in seen:
            yield duplicate(f"{where}[{index}]", resource)
        seen.add(resource)
        if not resource:
            yield required(where)
        elif resource not in RESIZABLE:
            yield not_supported(where, resource, RESIZABLE)
        if not wanted:
            yield required(where)
        elif wanted not in _POLICIES:
            yield not_supported(where, wanted, _POLICIES)
        if restarts == "Never" and wanted != "NotRequired":
            yield invalid_value(where, wanted, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")


def resize_findings(pod: Object, old: Object) -> list[Cause]:
    """Return what a resize may not do; the spec itself is validated elsewhere."""
    spec, before = pod["spec"], old["spec"]
    if _MIRROR in (old["metadata"].get("annotations") or {}):
        return [forbidden_value("", "static pods cannot be resized")]
    if (before.get("os") or {}).get("name") == "windows":
        return [forbidden_value("", "windows pods cannot be resized")]
    causes = []
    if qos_class(before) != qos_class(spec):
        shown = (old.get("status") or {}).get("qosClass", "")
        causes.append(invalid_value("spec", shown, "Pod QOS Class may not change as a result of resizing"))
    if not _node_resizes(old):
        causes.append(forbidden_value("spec", "Pod running on node without support for resize"))
    if (spec.get("resources") or {}) != (before.get("resources") or {}):
        text = "resize of pods with pod-level resources is forbidden when "
        text += "InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled"
        return [*causes, forbidden_value("", text)]
    if others := list(_other_containers(spec, before)):
        return [*causes, *others]
    for group in ("initContainers", "containers"):
        for index, (new, one) in enumerate(zip(spec.get(group) or (), before.get(group) or (), strict=True)):
            causes += _removals(new, one, f"spec.{group}[{index}].resources")
    for new, one in zip(spec.get("containers") or (), before.get("containers") or (), strict=True):
        if _differs(new, one):
            causes.append(forbidden_value("spec", _ONLY))
    for index, (new, one) in enumerate(
        zip(spec.get("initContainers") or (), before.get("initContainers") or (), strict=True)
    ):
        where = f"spec.initContainers[{index}]"
        if _differs(new, one):
            text = "only cpu and memory resources for init or sidecar containers are mutable"
            causes.append(forbidden_value(where, text))
        policies = new.get("resizePolicy") or ()
        restarts = any(policy.get("restartPolicy") == "RestartContainer" for policy in policies)
        if restarts and new != one and new.get("restartPolicy") != "Always":
            text = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
            causes.append(forbidden_value(where, text))
    return causes


def _node_resizes(pod: Object) -> bool:
    """Return whether the pod's kubelet knows resizes: its first running container says what it has."""
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        if "running" in (one.get("state") or {}):
            return one.get("resources") is not None
    return True


def _other_containers(spec: Object, before: Object) -> Iterator[Cause]:
    for group in ("containers", "initContainers"):
        new, old = spec.get(group) or (), before.get(group) or ()
        if len(new) != len(old):
            yield forbidden_value(f"spec.{group}", f"{group} may not be added or removed on resize")
            continue
        for index, (one, other) in enumerate(zip(new, old, strict=True)):
            if one.get("name") != other.get("name"):
                where = f"spec.{group}[{index}].name"
                yield forbidden_value(where, f"{group} may not be renamed or reordered on resize")


def _removals(new: Object, old: Object, where: str) -> Iterator[Cause]:
    for field, what in (("requests", "resource requests"), ("limits", "resource limits")):
        if set((old.get("resources") or {}).get(field) or ()) - set((new.get("resources") or {}).get(field) or ()):
            yield forbidden_value(f"{where}.{field}", f"{what} cannot be removed")


def _differs(new: Object, old: Object) -> bool:
    """Return whether anything but CPU and memory changes. Claims count as a change, as on the real server."""
    if {**new, "resources": None} != {**old, "resources": None}:
        return True
    return _others(new.get("resources") or {}, claims=False) != _others(old.get("resources") or {}, claims=True)


def _others(resources: Object, *, claims: bool) -> list[Any]:
    amounts = [
        {name: parse_quantity(value) for name, value in (resources.get(field) or {}).items() if name not in RESIZABLE}
        for field in ("requests", "limits")
    ]
    return [*amounts, resources.get("claims") or [] if claims else []]

"""Admission of pods by their PriorityClasses, and of PriorityClasses: one at most is the default.

Source: plugin/pkg/admission/priority of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinykube.apiserver.failure import forbidden
from tinykube.apiserver.hooks import AdmissionRequest, Find, Object

GROUP: Final = "scheduling.k8s.io"
CLASSES: Final = "priorityclasses"
QUALIFIED: Final = f"{CLASSES}.{GROUP}"
#: The priority classes that every cluster has.
SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def fill_pod(request: AdmissionRequest, spec: Object, find: Find, classes: Sequence[Object]) -> None:
    """Give a new pod the priority of its class. `classes` are all.

    Raises ApiFailure 403 for an unknown class, and for a priority or a policy that is not that of the class.
    """
    name = spec.get("priorityClassName")
    chosen: Object | None = None
    if name:
        chosen = find(CLASSES, "", name)
        if chosen is None and name not in SYSTEM_PRIORITIES:
            raise forbidden(request.info, request.name, f"no PriorityClass with name {name} was found")
    else:
        chosen = _default(classes)
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    value = int(chosen.get("value", 0)) if chosen is not None else SYSTEM_PRIORITIES.get(name or "", 0)
    policy = (chosen or {}).get("preemptionPolicy", "PreemptLowerPriority")
    given = (
        ("priority", "integer value of priority", value),
        ("preemptionPolicy", "string value of PreemptionPolicy", policy),
    )
    for field, words, wanted in given:
        if spec.get(field) not in (None, wanted):
            text = f"the {words} ({spec[field]}) must not be provided in pod spec; priority admission controller "
            text += f"computed {wanted} from the given PriorityClass name"
            raise forbidden(request.info, request.name, text)
        spec[field] = wanted


def check_default(request: AdmissionRequest, classes: Sequence[Object]) -> None:
    """Raise ApiFailure 403 for a class that would be the second default one. `classes` are the stored ones."""
    first = _default(classes)
    if request.obj is None or not request.obj.get("globalDefault") or first is None:
        return
    name = first["metadata"]["name"]
    if request.operation == "CREATE" or name != request.name:
        text = f"PriorityClass {name} is already marked as default. Only one default can exist"
        raise forbidden(request.info, request.name, text)


def _default(classes: Sequence[Object]) -> Object | None:
    defaults = [one for one in classes if one.get("globalDefault")]
    return min(defaults, key=lambda one: int(one.get("value", 0)), default=None)

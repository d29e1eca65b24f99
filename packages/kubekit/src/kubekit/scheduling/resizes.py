"""Requests of running pods: what their containers hold while a resize in place is not carried out.

A container may be resized to less: until the kubelet has done that, it holds what it had. It may be resized to more
than its node has: the kubelet refuses that (`Infeasible`), and the container holds what it had, whatever it requests.
Else a tenant could fill a node by a number.

Source: `determineContainerReqs` of k8s.io/component-helpers/resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kubekit.api.quantity import parse_quantity

_RESIZABLE: Final = ("cpu", "memory")
_NOTHING: Final[dict[str, Any]] = {}


def with_resizes(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec of a pod with the requests that its containers hold now. Raises InvalidInput."""
    statuses = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    held = {one.get("name"): sources for one in statuses if any(sources := _held(one))}
    if not held:
        return spec
    infeasible = any(
        one.get("type") == "PodResizePending" and one.get("reason") == "Infeasible"
        for one in status.get("conditions") or ()
    )
    lists = {name: spec[name] for name in ("containers", "initContainers") if spec.get(name)}
    return {
        **spec,
        **{
            name: [_resized(one, held.get(one.get("name"), ()), infeasible=infeasible) for one in containers]
            for name, containers in lists.items()
        },
    }


def _held(status: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return what the container has, and what the kubelet has allocated for it."""
    actual = (status.get("resources") or _NOTHING).get("requests") or _NOTHING
    return actual, status.get("allocatedResources") or _NOTHING


def _resized(
    container: Mapping[str, Any], held: tuple[Mapping[str, Any], ...], *, infeasible: bool
) -> Mapping[str, Any]:
    resources = container.get("resources") or _NOTHING
    wanted = resources.get("requests") or _NOTHING
    requests = dict(wanted)
    for name in _RESIZABLE:
        amounts = [source[name] for source in held if name in source]
        if name in wanted and not (infeasible and amounts):
            amounts.append(wanted[name])
        if amounts and any(amount != wanted.get(name) for amount in amounts):
            requests[name] = max(amounts, key=parse_quantity)
    return container if requests == wanted else {**container, "resources": {**resources, "requests": requests}}

"""Writes devices that were found for a claim as the `allocation` of its status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from kubekit.scheduling.devices.allocation import ChosenDevice, ClaimDevices
from kubekit.scheduling.devices.facts import DeviceClaim, DeviceClassInfo, DeviceRequest


def allocation_of(
    claim: DeviceClaim,
    chosen: ClaimDevices,
    node: str,
    classes: Mapping[str, DeviceClassInfo],
    new_share: Callable[[], str],
) -> dict[str, Any]:
    """Return the allocation of a claim on a node.

    Args:
        new_share: returns the id of a share that is like no other.
    """
    allocation: dict[str, Any] = {
        "devices": {"results": [_result(one, new_share) for one in chosen], "config": _config(claim, chosen, classes)}
    }
    selector = _node_selector(chosen, node)
    if selector is not None:
        allocation["nodeSelector"] = selector
    return allocation


def _result(one: ChosenDevice, new_share: Callable[[], str]) -> dict[str, Any]:
    driver, pool, device = one.candidate.id
    result: dict[str, Any] = {"request": one.request.path, "driver": driver, "pool": pool, "device": device}
    if one.request.admin:
        result["adminAccess"] = True
    if one.request.tolerations:
        result["tolerations"] = [
            {
                "operator": toleration.operator,
                **({"key": toleration.key} if toleration.key else {}),
                **({"value": toleration.value} if toleration.value else {}),
                **({"effect": toleration.effect} if toleration.effect else {}),
                **({"tolerationSeconds": toleration.seconds} if toleration.seconds is not None else {}),
            }
            for toleration in one.request.tolerations
        ]
    if one.consumed is not None:
        result["shareID"] = new_share()
        if one.consumed:
            result["consumedCapacity"] = {name: _quantity(amount) for name, amount in one.consumed.items()}
    return result


def _quantity(amount: Decimal) -> str:
    """Write an amount with the largest binary suffix that is exact, as kube-scheduler does for a rounded one."""
    if amount == amount.to_integral_value():
        whole, suffix = int(amount), ""
        for larger in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"):
            if not whole or whole % 1024:
                break
            whole, suffix = whole // 1024, larger
        return f"{whole}{suffix}"
    return f"{(amount * 1000).to_integral_value():f}m"


def _config(claim: DeviceClaim, chosen: ClaimDevices, classes: Mapping[str, DeviceClassInfo]) -> list[dict[str, Any]]:
    """Return the parameters for drivers: those of each class once, then those of the claim for requests that count."""
    requests = _selected(claim, chosen)
    named: dict[str, list[str]] = {}
    for request in requests:
        named.setdefault(request.device_class, []).append(request.path)
    found = [
        {**one, "source": "FromClass", "requests": paths}
        for name, paths in named.items()
        for one in classes[name].config
    ]
    paths = {path for request in requests for path in (request.path, request.parent) if path}
    found += [
        {**one, "source": "FromClaim"}
        for one in claim.config
        if not one.get("requests") or not paths.isdisjoint(one["requests"])
    ]
    return found


def _selected(claim: DeviceClaim, chosen: ClaimDevices) -> list[DeviceRequest]:
    """Return each request of a claim, or the alternative of it that was chosen."""
    used = {one.request.path for one in chosen}
    return [request for options in claim.requests for request in options if request.path in used]


def _node_selector(chosen: ClaimDevices, node: str) -> dict[str, Any] | None:
    term: dict[str, list[dict[str, Any]]] = {"matchFields": [], "matchExpressions": []}
    for one in chosen:
        where = one.candidate.device.nodes if one.candidate.slice.each else one.candidate.slice.nodes
        if where.node or one.candidate.device.binds_to_node:
            field = {"key": "metadata.name", "operator": "In", "values": [node]}
            return {"nodeSelectorTerms": [{"matchFields": [field]}]}
        for raw in where.raw_terms:
            for kind, requirements in term.items():
                requirements += [item for item in raw.get(kind) or () if item not in requirements]
    kept = {kind: requirements for kind, requirements in term.items() if requirements}
    return {"nodeSelectorTerms": [kept]} if kept else None

"""Reads ResourceSlices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubekit.api.quantity import parse_quantity
from kubekit.scheduling.devices.facts import (
    Amounts,
    Attribute,
    DeviceCapacity,
    NodeChoice,
    RequestPolicy,
    SliceDevice,
    SliceInfo,
    compile_device_taint,
)
from kubekit.scheduling.selectors import compile_node_terms


def compile_slice(obj: Mapping[str, Any]) -> SliceInfo:
    """Read a ResourceSlice. Raises InvalidInput for an invalid quantity."""
    spec = obj["spec"]
    pool, driver = spec["pool"], spec["driver"]
    return SliceInfo(
        name=obj["metadata"]["name"],
        driver=driver,
        pool=pool["name"],
        generation=pool.get("generation") or 0,
        slices=pool.get("resourceSliceCount") or 0,
        nodes=_nodes(spec),
        each=bool(spec.get("perDeviceNodeSelection")),
        devices=tuple(_device(one, driver) for one in spec.get("devices") or ()),
        counters=tuple((one["name"], _amounts(one.get("counters"))) for one in spec.get("sharedCounters") or ()),
    )


def qualified(name: str, driver: str) -> str:
    """Return the name of an attribute or a capacity with its domain, which is the driver if it names none."""
    return name if "/" in name else f"{driver}/{name}"


def _device(raw: Mapping[str, Any], driver: str) -> SliceDevice:
    return SliceDevice(
        name=raw["name"],
        attributes={qualified(name, driver): _attribute(one) for name, one in (raw.get("attributes") or {}).items()},
        capacity={name: _capacity(one) for name, one in (raw.get("capacity") or {}).items()},
        consumes=tuple((one["counterSet"], _amounts(one.get("counters"))) for one in raw.get("consumesCounters") or ()),
        taints=tuple(map(compile_device_taint, raw.get("taints") or ())),
        nodes=_nodes(raw),
        binds_to_node=bool(raw.get("bindsToNode")),
        shareable=bool(raw.get("allowMultipleAllocations")),
        conditional=bool(raw.get("bindingConditions")),
    )


def _attribute(raw: Mapping[str, Any]) -> Attribute:
    for kind in ("string", "int", "bool", "version"):
        if kind in raw:
            return kind, raw[kind]
    return "", None


def _capacity(raw: Mapping[str, Any]) -> DeviceCapacity:
    policy = raw.get("requestPolicy")
    if policy is None:
        return DeviceCapacity(parse_quantity(raw["value"]))
    bounds = policy.get("validRange") or {}

    def amount(source: Mapping[str, Any], field: str) -> Any:
        return parse_quantity(source[field]) if source.get(field) is not None else None

    values = tuple(parse_quantity(one) for one in policy.get("validValues") or ())
    read = RequestPolicy(
        amount(policy, "default"), values, amount(bounds, "min"), amount(bounds, "max"), amount(bounds, "step")
    )
    return DeviceCapacity(parse_quantity(raw["value"]), read)


def _amounts(counters: Mapping[str, Any] | None) -> Amounts:
    return {name: parse_quantity(one["value"]) for name, one in (counters or {}).items()}


def _nodes(raw: Mapping[str, Any]) -> NodeChoice:
    selector = raw.get("nodeSelector")
    return NodeChoice(
        node=raw.get("nodeName") or "",
        all_nodes=bool(raw.get("allNodes")),
        terms=compile_node_terms(selector),
        raw_terms=tuple((selector or {}).get("nodeSelectorTerms") or ()),
    )

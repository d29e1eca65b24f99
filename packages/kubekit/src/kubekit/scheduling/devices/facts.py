"""Resource claims, device classes and resource slices as the scheduler sees them, compiled from their objects once.

Amounts are exact (`Decimal`). Names of attributes have the driver's domain where they have none. `compile_*` raise
InvalidInput for an invalid quantity. Source: resource.k8s.io/v1 of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from kubekit.api.quantity import parse_quantity
from kubekit.scheduling.selectors import NodeTerm, compile_node_terms

ALL: Final = "All"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
DeviceId = tuple[str, str, str]
"""Driver, pool, name."""
Amounts = dict[str, Decimal]
Attribute = tuple[str, Any]
"""Kind of the value (string, int, bool, version), and the value."""


class PodClaim(msgspec.Struct, frozen=True):
    """A resource claim of a pod. `claim` is its name: empty until it is made, None where none is needed.

    `made`: it is made from a template, for this pod alone.
    """

    name: str
    claim: str | None
    made: bool = False


class DeviceTaint(msgspec.Struct, frozen=True):
    """A taint of a device."""

    key: str
    value: str
    effect: str


class DeviceToleration(msgspec.Struct, frozen=True):
    """A toleration of device taints. `seconds`: how long it lasts, None for ever."""

    key: str
    operator: str
    value: str
    effect: str
    seconds: int | None = None

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Return whether it is for the taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value)


class DeviceRequest(msgspec.Struct, frozen=True):
    """Devices that a claim requests. `parent` is the request that this is an alternative of.

    `all_devices`: every device that matches, else `count`. `admin`: access next to other users of a device.
    """

    name: str
    device_class: str
    parent: str = ""
    all_devices: bool = False
    count: int = 1
    admin: bool = False
    selectors: tuple[str, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: tuple[tuple[str, Decimal], ...] = ()

    @property
    def path(self) -> str:
        """Return how the allocation names the request."""
        return f"{self.parent}/{self.name}" if self.parent else self.name


class DeviceConstraint(msgspec.Struct, frozen=True):
    """All devices of the requests (none named: of all) have one value of an attribute, or each its own (`distinct`)."""

    attribute: str
    requests: frozenset[str] = frozenset()
    distinct: bool = False


class AllocatedDevice(msgspec.Struct, frozen=True):
    """A device of an allocation. `share` is the id of a share; `consumed` what the share takes of its capacity."""

    id: DeviceId
    admin: bool = False
    share: str = ""
    consumed: tuple[tuple[str, Decimal], ...] = ()


class DeviceClaim(msgspec.Struct, frozen=True):
    """A ResourceClaim. A request is a tuple of alternatives, the preferred one first.

    `config` and `allocation` are as in the object; `devices` and `nodes` are read of the allocation.
    """

    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    requests: tuple[tuple[DeviceRequest, ...], ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[dict[str, Any], ...] = ()
    allocation: dict[str, Any] | None = None
    devices: tuple[AllocatedDevice, ...] = ()
    nodes: tuple[NodeTerm, ...] | None = None
    users: tuple[str, ...] = ()
    owner: str = ""
    protected: bool = False
    deleting: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class DeviceClassInfo(msgspec.Struct, frozen=True):
    """A DeviceClass."""

    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[dict[str, Any], ...] = ()


class RequestPolicy(msgspec.Struct, frozen=True):
    """Rules by which shares of a capacity are rounded. `step` and `largest` go with `least`."""

    default: Decimal | None = None
    values: tuple[Decimal, ...] = ()
    least: Decimal | None = None
    largest: Decimal | None = None
    step: Decimal | None = None


class DeviceCapacity(msgspec.Struct, frozen=True):
    """An amount that a device has."""

    value: Decimal
    policy: RequestPolicy | None = None


class NodeChoice(msgspec.Struct, frozen=True):
    """The nodes that can reach a slice or a device: one, all, or those of a selector."""

    node: str = ""
    all_nodes: bool = False
    terms: tuple[NodeTerm, ...] | None = None
    raw_terms: tuple[dict[str, Any], ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node can reach it."""
        if self.node:
            return self.node == name
        return self.all_nodes or (self.terms is not None and any(term.matches(name, labels) for term in self.terms))


class SliceDevice(msgspec.Struct, frozen=True):
    """A device of a slice. `consumes`: counter set -> counters. `shareable`: several claims may have shares of it.

    `conditional`: drivers have to attach it before a pod is bound, which is not supported.
    """

    name: str
    attributes: dict[str, Attribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes: tuple[tuple[str, Amounts], ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    nodes: NodeChoice = NodeChoice()
    binds_to_node: bool = False
    shareable: bool = False
    conditional: bool = False


class SliceInfo(msgspec.Struct, frozen=True):
    """A ResourceSlice. `each`: its devices name their nodes themselves. `counters`: counter set -> counters."""

    name: str
    driver: str
    pool: str
    generation: int
    slices: int
    nodes: NodeChoice
    each: bool = False
    devices: tuple[SliceDevice, ...] = ()
    counters: tuple[tuple[str, Amounts], ...] = ()


# -- pods and claims ---------------------------------------------------------------------------------------------------


def compile_pod_claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[PodClaim, ...]:
    """Return the resource claims of a pod."""
    made = {one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()}
    found = []
    for one in spec.get("resourceClaims") or ():
        named = one.get("resourceClaimName")
        found.append(PodClaim(one["name"], named) if named else PodClaim(one["name"], made.get(one["name"], ""), True))
    return tuple(found)


def compile_device_claim(obj: Mapping[str, Any]) -> DeviceClaim:
    """Read a ResourceClaim."""
    meta, status = obj["metadata"], obj.get("status") or {}
    devices = (obj.get("spec") or {}).get("devices") or {}
    allocation = status.get("allocation")
    owners = meta.get("ownerReferences") or ()
    return DeviceClaim(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        requests=tuple(map(_alternatives, devices.get("requests") or ())),
        constraints=tuple(map(_constraint, devices.get("constraints") or ())),
        config=tuple(devices.get("config") or ()),
        allocation=allocation,
        devices=allocated_devices(allocation or {}),
        nodes=compile_node_terms((allocation or {}).get("nodeSelector")),
        users=tuple(one.get("uid", "") for one in status.get("reservedFor") or ()),
        owner=next((one.get("uid", "") for one in owners if one.get("controller")), ""),
        protected=FINALIZER in (meta.get("finalizers") or ()),
        deleting=bool(meta.get("deletionTimestamp")),
    )


def allocated_devices(allocation: Mapping[str, Any]) -> tuple[AllocatedDevice, ...]:
    """Return the devices of an allocation."""
    return tuple(
        AllocatedDevice(
            (one["driver"], one["pool"], one["device"]),
            bool(one.get("adminAccess")),
            one.get("shareID") or "",
            tuple((name, parse_quantity(amount)) for name, amount in (one.get("consumedCapacity") or {}).items()),
        )
        for one in (allocation.get("devices") or {}).get("results") or ()
    )


def _alternatives(request: Mapping[str, Any]) -> tuple[DeviceRequest, ...]:
    if (exactly := request.get("exactly")) is not None:
        return (_request(request["name"], "", exactly),)
    return tuple(_request(one["name"], request["name"], one) for one in request.get("firstAvailable") or ())


def _request(name: str, parent: str, raw: Mapping[str, Any]) -> DeviceRequest:
    capacity = ((raw.get("capacity") or {}).get("requests") or {}).items()
    return DeviceRequest(
        name=name,
        parent=parent,
        device_class=raw.get("deviceClassName") or "",
        all_devices=raw.get("allocationMode") == ALL,
        count=raw.get("count") or 1,
        admin=bool(raw.get("adminAccess")),
        selectors=_selectors(raw),
        tolerations=tuple(map(compile_device_toleration, raw.get("tolerations") or ())),
        capacity=tuple((key, parse_quantity(amount)) for key, amount in capacity),
    )


def compile_device_toleration(raw: Mapping[str, Any]) -> DeviceToleration:
    """Read a toleration of device taints."""
    operator = raw.get("operator") or "Equal"
    words = raw.get("key") or "", operator, raw.get("value") or "", raw.get("effect") or ""
    return DeviceToleration(*words, raw.get("tolerationSeconds"))


def compile_device_taint(raw: Mapping[str, Any]) -> DeviceTaint:
    """Read a taint of a device."""
    return DeviceTaint(raw["key"], raw.get("value") or "", raw.get("effect") or "")


def _selectors(raw: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple((one.get("cel") or {}).get("expression") or "" for one in raw.get("selectors") or ())


def _constraint(raw: Mapping[str, Any]) -> DeviceConstraint:
    distinct = raw.get("distinctAttribute")
    return DeviceConstraint(
        distinct or raw.get("matchAttribute") or "", frozenset(raw.get("requests") or ()), distinct is not None
    )


def compile_device_class(obj: Mapping[str, Any]) -> DeviceClassInfo:
    """Read a DeviceClass."""
    spec = obj.get("spec") or {}
    return DeviceClassInfo(obj["metadata"]["name"], _selectors(spec), tuple(spec.get("config") or ()))

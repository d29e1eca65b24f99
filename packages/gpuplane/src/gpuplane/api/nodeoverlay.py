"""NodeOverlay (`karpenter.sh/v1alpha1`, cluster-wide): other prices, and further resources, of matching instance types.

Prices of a contract or costs of licences, and resources that no cloud knows of, for example of a device plugin. GPUs
need none: replicas, MPS, MIG and shares of a node to come are known without it.

The definition admits and refuses what Karpenter's own does. Further errors are found at run time, and reported in the
object's conditions.

Source: the CRD and the run-time validation of Karpenter 1.15.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.karpenter import GROUP, OPERATORS, PoolRequirement
from gpuplane.api.karpenter_labels import RESTRICTED, is_restricted
from kubekit.api.meta import Condition, ObjectMeta, Resource, Struct
from kubekit.api.quantity import Quantity, parse_quantity
from kubekit.errors import InvalidInput

PRICE: Final = r"^\d+(\.\d+)?$"
PRICE_ADJUSTMENT: Final = r"^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$"
OWN_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage", "pods")  # those that the type alone decides
MOST_WEIGHT: Final = 10_000
MOST_REQUIREMENTS: Final = 100
CAPACITY_TYPES: Final = ("spot", "on-demand", "reserved")
HOSTNAME: Final = "kubernetes.io/hostname"
KEY: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
)
_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LONGEST_VALUE, _LONGEST_KEY, _LONGEST_NAME = 63, 316, 63
_COMPARE: Final = ("Gt", "Lt", "Gte", "Lte")


class NodeOverlaySpec(Struct):
    """`spec` of a NodeOverlay.

    `price` is dollars an hour, `price_adjustment` an amount or a percentage with its sign; one of both at most.
    """

    requirements: tuple[PoolRequirement, ...]
    price: str | None = None
    price_adjustment: str | None = None
    capacity: dict[str, Quantity] = {}
    weight: int | None = None


class NodeOverlayStatus(Struct):
    """`status` of a NodeOverlay."""

    conditions: tuple[Condition, ...] = ()


class NodeOverlay(Struct, kw_only=True):
    """Other prices and further resources of the instance types that its requirements admit."""

    RESOURCE: ClassVar[Resource] = Resource(GROUP, "v1alpha1", "nodeoverlays", "NodeOverlay", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeOverlaySpec
    status: NodeOverlayStatus = NodeOverlayStatus()


def is_overlay(data: Any) -> bool:
    """Return whether an object is a NodeOverlay of the version that is served."""
    place = (NodeOverlay.RESOURCE.api_version, NodeOverlay.RESOURCE.kind)
    return isinstance(data, Mapping) and (data.get("apiVersion"), data.get("kind")) == place


def read_overlay(data: Mapping[str, Any]) -> NodeOverlay:
    """Read a NodeOverlay of a file. Raises InvalidInput with a finding for each rule that it breaks."""
    meta = data.get("metadata")
    where = f"{NodeOverlay.RESOURCE.kind}/{meta.get('name', '') if isinstance(meta, Mapping) else ''}"
    try:
        overlay = msgspec.convert(data, NodeOverlay)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), where=where, cure="correct the field") from error
    if found := [f"{path}: {why}" for path, why in overlay_problems(overlay)]:
        what = f"the overlay breaks {len(found)} rule{'s' * (len(found) > 1)} of its kind"
        raise InvalidInput(what, where=where, cure="correct the fields", findings=tuple(found))
    return overlay


def overlay_problems(overlay: NodeOverlay) -> Iterator[tuple[str, str]]:
    """Yield path and message of each rule that an overlay breaks, those of its definition and those of run time."""
    yield from _definition_problems(overlay.spec)
    yield from run_time_problems(overlay)


def run_time_problems(overlay: NodeOverlay) -> Iterator[tuple[str, str]]:
    """Yield path and message of each rule that the definition cannot judge."""
    for at, one in enumerate(overlay.spec.requirements):
        path = f"spec.requirements[{at}]"
        if is_restricted(one.key) and one.key != karpenter.POOL_LABEL:
            yield f"{path}.key", f"{one.key} {RESTRICTED}"
        if len(one.key.rpartition("/")[2]) > _LONGEST_NAME:
            yield f"{path}.key", f"the name of {one.key} is longer than {_LONGEST_NAME} characters"
        for value in one.values:
            if len(value) > _LONGEST_VALUE or not _VALUE.fullmatch(value):
                yield f"{path}.values", f"{value!r} is no value of a label"
        known = one.key == karpenter.CAPACITY_TYPE_LABEL and one.operator == "In"
        if known and one.values and not set(one.values) & set(CAPACITY_TYPES):
            yield f"{path}.values", f"none of {', '.join(one.values)} is one of {', '.join(CAPACITY_TYPES)}"


def _definition_problems(spec: NodeOverlaySpec) -> Iterator[tuple[str, str]]:
    if len(spec.requirements) > MOST_REQUIREMENTS:
        yield "spec.requirements", f"{len(spec.requirements)} are more than {MOST_REQUIREMENTS}"
    for at, one in enumerate(spec.requirements):
        path = f"spec.requirements[{at}]"
        if len(one.key) > _LONGEST_KEY or not re.search(KEY, one.key):
            yield f"{path}.key", f"{one.key!r} is no key of a label"
        if one.operator not in OPERATORS:
            yield f"{path}.operator", f"{one.operator!r} is unknown, choose of {', '.join(OPERATORS)}"
        if one.operator in ("In", "NotIn") and not one.values:
            yield f"{path}.values", f"{one.operator} needs values"
        if one.operator in _COMPARE and not (len(one.values) == 1 and re.fullmatch("[0-9]+", one.values[0])):
            yield f"{path}.values", f"{one.operator} needs one whole number from 0 on"
    if spec.price is not None and spec.price_adjustment is not None:
        yield "spec.price", "price and priceAdjustment exclude each other"
    if spec.price is not None and not re.search(PRICE, spec.price, re.ASCII):
        yield "spec.price", f"{spec.price!r} is no price such as 0.5"
    if spec.price_adjustment is not None and not re.search(PRICE_ADJUSTMENT, spec.price_adjustment, re.ASCII):
        yield "spec.priceAdjustment", f"{spec.price_adjustment!r} is no change such as -0.5, +10% or -15%"
    if spec.weight is not None and not 1 <= spec.weight <= MOST_WEIGHT:
        yield "spec.weight", f"{spec.weight} is not from 1 to {MOST_WEIGHT}"
    for name, amount in spec.capacity.items():
        if name in OWN_RESOURCES:
            yield f"spec.capacity.{name}", "is decided by the instance type"
        try:
            parse_quantity(amount)
        except InvalidInput as error:
            yield f"spec.capacity.{name}", error.what

"""Answers of the cloud itself, because moto has none or invents them: prices, and the images of EKS. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpulab.cloud.catalogue import cloud_types, price
from gpulab.cloud.query import CloudRefusal
from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT
from gpuplane.autoscaler.providers.aws_types import ZONES

_PUBLIC: Final = "/aws/service/"


def spot_prices(parameters: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Answer DescribeSpotPriceHistory: one price for each type and zone, on one page."""
    wanted = set(parameters.get("InstanceType") or cloud_types())
    zones = set(ZONES)
    if zone := parameters.get("AvailabilityZone"):
        zones &= {zone}
    for each in parameters.get("Filter") or ():
        values = set(each.get("Value") or ())
        if each.get("Name") == "instance-type":
            wanted &= values
        elif each.get("Name") == "availability-zone":
            zones &= values
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return {
        "spotPriceHistorySet": [
            {
                "availabilityZone": zone,
                "instanceType": name,
                "productDescription": "Linux/UNIX",
                "spotPrice": f"{price(name, SPOT):.6f}",
                "timestamp": moment,
            }
            for name in cloud_types()
            if name in wanted
            for zone in sorted(zones)
        ]
    }


def products(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Answer GetProducts of the price list: the on-demand price of each type, on one page."""
    equal = {each.get("Field"): each.get("Value") for each in parameters.get("Filters") or ()}
    wanted = equal.get("instanceType")
    listed = [_product(name) for name in cloud_types() if wanted in (None, name)]
    return {"FormatVersion": "aws_v1", "PriceList": [msgspec.json.encode(one).decode() for one in listed]}


def _product(name: str) -> dict[str, Any]:
    found = cloud_types()[name]
    attributes = {"instanceType": name, "operatingSystem": "Linux", "tenancy": "Shared", "vcpu": str(found.vcpu)}
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price(name, ON_DEMAND):.10f}"}}
    offer = {"priceDimensions": {f"{name}.hour": dimension}}
    return {
        "product": {"productFamily": "Compute Instance", "attributes": attributes},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {f"{name}.on-demand": offer}},
    }


def is_public(name: str) -> bool:
    """Return whether a parameter of SSM is one that AWS publishes."""
    return name.startswith(_PUBLIC)


def parameter(name: str, known: Mapping[str, str]) -> dict[str, Any]:
    """Answer GetParameter for a public parameter. Raises CloudRefusal for an unknown one."""
    if name not in known:
        raise CloudRefusal("ParameterNotFound", f"Parameter {name} not found.")
    return {"Parameter": _parameter(name, known[name])}


def parameters(names: Iterable[str], known: Mapping[str, str]) -> dict[str, Any]:
    """Answer GetParameters for public parameters."""
    listed = list(names)
    return {
        "Parameters": [_parameter(name, known[name]) for name in listed if name in known],
        "InvalidParameters": [name for name in listed if name not in known],
    }


def _parameter(name: str, value: str) -> dict[str, Any]:
    return {"Name": name, "Type": "String", "Value": value, "Version": 1, "DataType": "aws:ec2:image"}

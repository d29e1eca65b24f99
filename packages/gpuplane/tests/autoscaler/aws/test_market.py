"""Types and prices as AWS reports them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuplane.autoscaler.catalogue import aws_catalogue
from gpuplane.autoscaler.providers.aws.market import read_products, read_spot
from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from gpuplane.autoscaler.providers.aws.types import read_types
from kubekit.errors import Retryable
from packages.gpuplane.tests.autoscaler.aws.account import Account
from tests.support.until import until
from tests.support.virtual_time import VirtualClock


def product(name: str, price: str) -> dict[str, Any]:
    rate = {"priceDimensions": {"x": {"pricePerUnit": {"USD": price}}}}
    return {"product": {"attributes": {"instanceType": name}}, "terms": {"OnDemand": {"y": rate}}}


async def test_types_are_those_of_the_list_where_both_know_them(account: Account, provider: AwsProvider) -> None:
    found = {machine.name: machine for machine in await provider.types()}
    listed = {machine.name: machine for machine in aws_catalogue()}
    assert len(found) > 20
    assert found == {name: listed[name] for name in found}


async def test_spot_prices_and_on_demand_prices_come_from_aws(
    account: Account, provider: AwsProvider, clock: VirtualClock
) -> None:
    account.endpoint.spot_prices = {"g4dn.xlarge": 0.2}
    account.endpoint.products = [product("g4dn.xlarge", "0.6"), product("m5.large", "0.096"), {"product": {}}]
    first = {machine.name: dict(machine.prices) for machine in await provider.types()}
    assert first["g4dn.xlarge"] == {"on-demand": 0.526, "spot": 0.2}
    assert "m5.large" not in first  # its price is still unknown

    async def priced() -> bool:
        return any(machine.name == "m5.large" for machine in await provider.types())

    await until(priced)
    second = {machine.name: dict(machine.prices) for machine in await provider.types()}
    assert second["g4dn.xlarge"]["on-demand"] == 0.6


async def test_ec2_out_of_reach_leaves_the_earlier_types(
    account: Account, provider: AwsProvider, clock: VirtualClock
) -> None:
    account.endpoint.plan("DescribeInstanceTypes", code="RequestLimitExceeded", status=503, times=3)
    with pytest.raises(Retryable):
        await provider.types()
    before = await provider.types()
    assert before
    account.endpoint.plan("DescribeInstanceTypes", code="RequestLimitExceeded", status=503, times=3)
    clock.jump(301)
    assert await provider.types() == before


def test_spot_prices_are_the_newest_of_the_dearest_zone() -> None:
    def entry(zone: str, time: int, price: str) -> dict[str, Any]:
        return {"InstanceType": "g4dn.xlarge", "AvailabilityZone": zone, "Timestamp": time, "SpotPrice": price}

    assert read_spot([entry("a", 1, "0.9"), entry("a", 2, "0.2"), entry("b", 1, "0.3"), entry("b", 2, "none")]) == {
        "g4dn.xlarge": 0.3
    }


def test_a_product_that_cannot_be_read_does_not_stop_the_others() -> None:
    texts = ["{", json.dumps([]), json.dumps(product("a.large", "0.0000")), product("b.large", "much")]
    assert read_products([*texts, json.dumps(product("c.large", "1.5"))]) == {"c.large": 1.5}


def described(name: str = "x1.large", **more: Any) -> dict[str, Any]:
    return {
        "InstanceType": name,
        "ProcessorInfo": {"SupportedArchitectures": ["arm64"]},
        "VCpuInfo": {"DefaultVCpus": 2},
        "MemoryInfo": {"SizeInMiB": 4096},
        "NetworkInfo": {"MaximumNetworkInterfaces": 3, "Ipv4AddressesPerInterface": 10},
        "SupportedUsageClasses": ["on-demand", "spot"],
    } | more


def gpus(**more: Any) -> dict[str, Any]:
    card = {"Name": "RTX New", "Manufacturer": "NVIDIA", "Count": 2, "MemoryInfo": {"SizeInMiB": 1024}}
    return {"GpuInfo": {"Gpus": [card | more]}}


def test_a_type_needs_a_price_and_a_zone() -> None:
    types = [described("a"), described("b"), described("c", SupportedUsageClasses=["on-demand"])]
    zones = {"a": ("z",), "c": ("z",)}
    found = read_types(types, {"a": 1.0, "b": 1.0}, {"a": 0.5, "c": 0.5}, zones)
    assert [(one.name, one.prices, one.arch, one.max_pods) for one in found] == [
        ("a", (("on-demand", 1.0), ("spot", 0.5)), "arm64", 29)
    ]


def test_gpus_of_an_unknown_model_have_aws_figures_and_other_makers_count_none() -> None:
    def read(**more: Any) -> Any:
        found = read_types([described(**more)], {"x1.large": 1.0}, {}, {"x1.large": ("z",)})
        return found[0] if found else None

    machine = read(**gpus())
    assert machine.gpus == 2 and machine.gpu is not None
    assert (machine.gpu.label, machine.gpu.model, machine.gpu.memory_mib) == ("rtx-new", "NVIDIA RTX New", 1024)
    assert read(**gpus(Manufacturer="AMD")).gpus == 0
    assert read(**gpus(GpuPartitionSize=0.125)) is None

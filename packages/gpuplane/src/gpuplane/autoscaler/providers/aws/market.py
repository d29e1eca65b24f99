"""Types, offerings and prices of a region, asked of AWS and remembered.

Prices on demand come from the price list service; until it has answered, and where it cannot be reached, the built-in
list counts. Prices of spot come from EC2. A price that is wrong makes a purchase dearer, never wrong, so old prices are
better than none.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.aws.types import listed_prices, read_types
from kubekit.documents import DocumentError, decode_json
from kubekit.errors import KubekitError
from kubekit.kube.clock import Clock

log = logging.getLogger("gpuplane.autoscaler")

_TYPES_SECONDS: Final = 300.0
_SPOT_SECONDS: Final = 1800.0
_PRICES_SECONDS: Final = 12 * 3600.0
_PRODUCT: Final = {
    "serviceCode": "AmazonEC2",
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


class AwsMarket:
    """The types that can be bought now."""

    def __init__(self, settings: AwsSettings, calls: AwsCalls, clock: Clock) -> None:
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._types: tuple[InstanceType, ...] = ()
        self._on_demand = listed_prices()
        self._spot: dict[str, float] = {}
        self._due = {"types": 0.0, "spot": 0.0, "prices": 0.0}
        self._asking = asyncio.Lock()
        self._pricing: asyncio.Task[None] | None = None

    async def types(self) -> tuple[InstanceType, ...]:
        """Return the types. Raises Retryable or Terminal where EC2 has never answered."""
        async with self._asking:
            if self._is_due("types", _TYPES_SECONDS):
                await self._refresh()
            return self._types

    async def aclose(self) -> None:
        """Stop asking for prices."""
        if self._pricing is not None:
            self._pricing.cancel()

    async def _refresh(self) -> None:
        try:
            described, zones = await asyncio.gather(
                self._calls.pages("ec2", "describe_instance_types", "InstanceTypes"), self._offered()
            )
        except KubekitError as error:
            if not self._types:
                self._due["types"] = 0.0
                raise
            log.warning("instance types unknown, the earlier ones count: %s", error)
            return
        await self._ask_spot()
        if not self._settings.isolated and self._is_due("prices", _PRICES_SECONDS):
            # The list of a region takes ten seconds and more, and nothing has to wait for it.
            self._pricing = asyncio.create_task(self._ask_prices())
        self._types = read_types(described, self._on_demand, self._spot, zones)

    async def _offered(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, set[str]] = defaultdict(set)
        for one in await self._calls.pages(
            "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", LocationType="availability-zone"
        ):
            found[one["InstanceType"]].add(one["Location"])
        return {name: tuple(sorted(zones)) for name, zones in found.items()}

    async def _ask_spot(self) -> None:
        if not self._is_due("spot", _SPOT_SECONDS):
            return
        now = datetime.datetime.fromisoformat(self._clock.wall())
        try:
            found = await self._calls.pages(
                "ec2",
                "describe_spot_price_history",
                "SpotPriceHistory",
                ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
                StartTime=now,
            )
        except KubekitError as error:
            log.warning("spot prices unknown, the earlier ones count: %s", error)
            self._due["spot"] = 0.0
            return
        self._spot = read_spot(found)

    async def _ask_prices(self) -> None:
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in _PRODUCT.items()]
        filters.append({"Type": "TERM_MATCH", "Field": "regionCode", "Value": await self._calls.region()})
        try:
            found = await self._calls.pages(
                "pricing", "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters
            )
        except KubekitError as error:
            log.warning("prices unknown, the built-in list of us-east-1 counts: %s", error)
            self._due["prices"] = 0.0
            return
        self._on_demand |= read_products(found)
        self._due["types"] = 0.0

    def _is_due(self, what: str, every: float) -> bool:
        if self._clock.now() < self._due[what]:
            return False
        self._due[what] = self._clock.now() + every
        return True


def read_spot(found: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return type -> the newest price of spot in its dearest zone: a saving is never promised that a zone lacks."""
    newest: dict[tuple[str, str], tuple[Any, float]] = {}
    for one in found:
        key = one["InstanceType"], one["AvailabilityZone"]
        price = _price(one.get("SpotPrice"))
        if price is not None and (key not in newest or one["Timestamp"] > newest[key][0]):
            newest[key] = one["Timestamp"], price
    prices: dict[str, float] = {}
    for (name, _), (_, price) in newest.items():
        prices[name] = max(price, prices.get(name, 0.0))
    return prices


def read_products(found: Iterable[str | Mapping[str, Any]]) -> dict[str, float]:
    """Return type -> dollars an hour on demand. A product that cannot be read does not stop the others."""
    prices: dict[str, float] = {}
    for text in found:
        try:
            product = decode_json(text) if isinstance(text, str) else text
            name = product["product"]["attributes"]["instanceType"]
            terms = product["terms"]["OnDemand"].values()
            rates = [rate for term in terms for rate in term["priceDimensions"].values()]
            price = _price(rates[0]["pricePerUnit"].get("USD"))
        except (DocumentError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue
        if price is not None:
            prices[name] = price
    return prices


def _price(text: Any) -> float | None:
    """Return a price above nothing; None for what is no price. The list has products at 0 that cannot be bought."""
    try:
        price = float(text)
    except (TypeError, ValueError):
        return None
    return price if 0.0 < price < float("inf") else None

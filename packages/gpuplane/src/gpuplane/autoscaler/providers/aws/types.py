"""Instance types as EC2 describes them, with prices, as the catalogue has them. Pure.

Source: the API reference of EC2, DescribeInstanceTypes; the rule of pods is that of the VPC CNI: each network interface
keeps one address for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT, CatalogueGPU, InstanceType
from gpuplane.autoscaler.providers import aws_types

_ARCHES: Final = {"x86_64": "amd64", "arm64": "arm64"}
_HOST_PODS: Final = 2  # pods with the host's network, which take no address: kube-proxy and the CNI


def read_types(
    described: Iterable[Mapping[str, Any]],
    on_demand: Mapping[str, float],
    spot: Mapping[str, float],
    zones: Mapping[str, tuple[str, ...]],
) -> tuple[InstanceType, ...]:
    """Return the types that can be bought, by name: those with a price, an offering and whole GPUs.

    Args:
        on_demand, spot: type -> dollars an hour.
        zones: type -> the zones that offer it.
    """
    found = []
    for one in described:
        name = one["InstanceType"]
        known = {ON_DEMAND: on_demand.get(name), SPOT: spot.get(name)}
        usable = one.get("SupportedUsageClasses", (ON_DEMAND,))
        prices = tuple((kind, price) for kind, price in known.items() if price is not None and kind in usable)
        machine = _read_type(one, prices) if prices and zones.get(name) else None
        if machine is not None:
            found.append(machine)
    return tuple(sorted(found, key=lambda machine: machine.name))


def listed_prices() -> dict[str, float]:
    """Return the on-demand prices of the built-in list; they are those of us-east-1."""
    return {row[0]: row[-1] for row in (*aws_types.AMD64, *aws_types.ARM64)}


def _read_type(one: Mapping[str, Any], prices: tuple[tuple[str, float], ...]) -> InstanceType | None:
    """Return a type; None for one of another architecture, or with parts of a GPU."""
    arches = [arch for arch in one["ProcessorInfo"]["SupportedArchitectures"] if arch in _ARCHES]
    if not arches or "hvm" not in one.get("SupportedVirtualizationTypes", ("hvm",)):
        return None
    cards = [card for card in (one.get("GpuInfo") or {}).get("Gpus", ()) if card.get("Manufacturer") == "NVIDIA"]
    if any(card.get("GpuPartitionSize", 1.0) < 1.0 for card in cards):
        return None  # NB: a vGPU, which wants a licensed driver
    network = one.get("NetworkInfo") or {}
    storage = one.get("InstanceStorageInfo") or {}
    return InstanceType(
        name=one["InstanceType"],
        vcpu=one["VCpuInfo"]["DefaultVCpus"],
        memory_mib=one["MemoryInfo"]["SizeInMiB"],
        max_pods=_max_pods(network),
        prices=prices,
        arch=_ARCHES[arches[0]],
        gpus=sum(card["Count"] for card in cards),
        gpu=_gpu(cards[0]) if cards else None,
        nvme_gb=storage.get("TotalSizeInGB", 0) if storage.get("NvmeSupport") != "unsupported" else 0,
        network_mbps=_bandwidth(network),
    )


def _max_pods(network: Mapping[str, Any]) -> int:
    cards = network.get("NetworkCards") or ()
    default = network.get("DefaultNetworkCardIndex", 0)
    interfaces = next(
        (card["MaximumNetworkInterfaces"] for card in cards if card.get("NetworkCardIndex") == default),
        network.get("MaximumNetworkInterfaces", 1),
    )
    return int(interfaces) * (int(network.get("Ipv4AddressesPerInterface", 1)) - 1) + _HOST_PODS


def _bandwidth(network: Mapping[str, Any]) -> int:
    cards = network.get("NetworkCards") or ()
    return round(1000 * sum(card.get("BaselineBandwidthInGbps") or 0.0 for card in cards))


def _gpu(card: Mapping[str, Any]) -> CatalogueGPU:
    label, memory = card["Name"].lower().replace(" ", "-"), card["MemoryInfo"]["SizeInMiB"]
    model, nvml_memory = aws_types.MODELS.get((label, memory), (f"NVIDIA {card['Name']}", memory))
    return CatalogueGPU(label, memory, model, nvml_memory)

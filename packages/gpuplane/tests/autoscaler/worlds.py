"""Small worlds of pools, types and pods for the tests of purchases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.karpenter import DeclaredPool, PoolRequirement
from gpuplane.autoscaler.asks import PodAsk, read_asks, selected_values
from gpuplane.autoscaler.catalogue import ON_DEMAND, CatalogueGPU, InstanceType, aws_catalogue
from gpuplane.autoscaler.options import NodeOption, PoolOptions, SharingSettings, make_options

ZONES = ("a", "b", "c")
FOUR = ("g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.12xlarge")
AWS = {machine.name: machine for machine in aws_catalogue()}
T4 = CatalogueGPU("t4", 16384, "Tesla T4", 15360)
TEN_REPLICAS = """
version: v1
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 10}]
"""
REPLICAS = SharingSettings(configs={"default": "version: v1", "shared": TEN_REPLICAS}, default="default")


def machine(name: str, vcpu: int, price: float, *, gpus: int = 0) -> InstanceType:
    """Return a type with 4 GiB of memory for each CPU, and T4s."""
    return InstanceType(name, vcpu, vcpu * 4096, 20, ((ON_DEMAND, price),), gpus=gpus, gpu=T4 if gpus else None)


def requirement(key: str, operator: str, *values: str, least: int = 0) -> PoolRequirement:
    return PoolRequirement(key=key, operator=operator, values=values, min_values=least)


def types_named(*found: str) -> PoolRequirement:
    return requirement(karpenter.TYPE_LABEL, "In", *found)


def pool(name: str = "gpu", *requirements: PoolRequirement, shared: bool = False, **fields: Any) -> DeclaredPool:
    labels = dict(fields.pop("labels", {}))
    if shared:
        labels[names.PLUGIN_CONFIG_LABEL] = "shared"
    return DeclaredPool(name=name, labels=labels, requirements=requirements or (types_named(*FOUR),), **fields)


def shares_pool(name: str = "gpu", *requirements: PoolRequirement, **fields: Any) -> DeclaredPool:
    return pool(name, *requirements, labels={names.SHARE_LABEL: "enable"}, **fields)


def pod(name: str, gpus: int = 0, *, cpu: str = "100m", core: int = 0, **spec: Any) -> dict[str, Any]:
    resources: dict[str, Any] = {"cpu": cpu}
    if gpus:
        resources[names.GPU_RESOURCE] = gpus
    if core:
        resources[names.VCUDA_CORE] = core
    labels = spec.pop("labels", {})
    container = {"name": "main", "resources": {"requests": resources, "limits": resources}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": labels},
        "spec": {"containers": [container], **spec},
    }


def pods(count: int, gpus: int = 0, **fields: Any) -> list[PodAsk]:
    return read_asks(pod(f"p-{number}", gpus, **fields) for number in range(count))


def options_of(
    asks: list[PodAsk],
    *pools: DeclaredPool,
    sharing: SharingSettings = REPLICAS,
    catalogue: list[InstanceType] | None = None,
    **more: Any,
) -> list[PoolOptions]:
    types = catalogue or list(AWS.values())
    asked = selected_values(asks)
    return [make_options(one, (), types, sharing, zones=ZONES, asked=asked, **more) for one in pools]


def fits_gpus(option: NodeOption, asks: Sequence[PodAsk]) -> bool:
    """Return whether a division of the shares over the GPUs holds all of them: a search of the tests' own."""
    sizes = sorted((ask.info.requests.get(names.VCUDA_CORE, 0) for ask in asks), reverse=True)

    def search(left: tuple[int, ...], rest: list[int]) -> bool:
        if not rest or not rest[0]:
            return True
        size, more = rest[0], rest[1:]
        if size >= 100:
            whole = [at for at, free in enumerate(left) if free == 100][: size // 100]
            rest_of_each = tuple(0 if at in whole else free for at, free in enumerate(left))
            return len(whole) == size // 100 and search(rest_of_each, more)
        tried = {free: at for at, free in enumerate(left) if free >= size}
        return any(search((*left[:at], free - size, *left[at + 1 :]), more) for free, at in tried.items())

    return search((100,) * option.machine.gpus, sizes)

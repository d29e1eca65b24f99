"""Prices of GPU hours: from a file, else from the node pool that bought the node, else from the list of AWS.

A pool's price is that of the launch: on demand or spot, with overlays. The autoscaler writes it on the node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.karpenter import (
    CAPACITY_TYPE_LABEL,
    INSTANCE_LABEL_PREFIX,
    POOL_LABEL,
    PROVISIONER_LABEL,
    TYPE_LABEL,
)
from gpuplane.metering.cost import HourPrice, Price
from kubekit.api.core import Node
from kubekit.errors import InvalidInput, KubekitError
from kubekit.kube import Client

SPOT: Final = "spot"  # capacity type
CURE: Final = "write for example `models: {Tesla T4: 0.35}` and `nodes: {gpu-1: 2.5}`, dollars of a GPU hour"
_POOL: Final = "node pool "  # the beginning of the source of a price that a pool paid


class GPUPrices(msgspec.Struct, frozen=True):
    """Prices of GPU hours, by node and by model; a node's price goes before its model's."""

    nodes: dict[str, HourPrice] = {}
    models: dict[str, HourPrice] = {}

    def __call__(self, node: str, model: str) -> HourPrice | None:
        return self.nodes.get(node, self.models.get(model))


def first_of(*prices: Price) -> Price:
    """Return the prices of the first that has one."""
    return lambda node, model: next((found for one in prices if (found := one(node, model)) is not None), None)


def price_file(path: Path) -> Price:
    """Read a file of prices. Raises InvalidInput with every wrong entry, FileError or DocumentError."""
    from gpuplane.cli.inputs import read_input
    from kubekit.yaml_documents import load_yaml  # late: 20 ms

    data = load_yaml(read_input(path), where=str(path), plain=True)
    findings: list[str] = []
    found: dict[str, dict[str, HourPrice]] = {"nodes": {}, "models": {}}
    if not isinstance(data, dict) or not data:
        raise InvalidInput("there are no prices in it", where=str(path), cure=CURE)
    for kind, entries in data.items():
        if kind not in found:
            findings.append(f"{kind}: no such part; there are models and nodes")
        elif not isinstance(entries, dict):
            findings.append(f"{kind}: it has no names with prices")
        else:
            for name, price in entries.items():
                if _is_price(price):
                    found[kind][str(name)] = HourPrice(float(price), path.name)
                else:
                    findings.append(f"{kind}.{name}: {price!r} is no price; write a number of dollars such as 2.5")
    if findings:
        raise InvalidInput("the prices are wrong", where=str(path), cure=CURE, findings=tuple(findings))
    return GPUPrices(**found)


def _is_price(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


async def read_prices(client: Client) -> GPUPrices:
    """Return the prices of the cluster's nodes; none where the user may not list them: hours count without dollars."""
    try:
        return node_prices(await client.list(Node))
    except KubekitError:
        return node_prices([])


def node_prices(nodes: Iterable[Node]) -> GPUPrices:
    """Return the prices of nodes that a pool bought, or whose instance type is listed, divided by the GPUs of the node.

    A model has the lowest price of the listed types, for nodes that ended.
    """
    listed, of_model = _listed()
    priced: dict[str, HourPrice] = {}
    of_cloud = False
    for node in nodes:
        kind = node.metadata.labels.get(TYPE_LABEL, "")
        of_cloud = of_cloud or kind in listed
        if (found := bought_price(node)) is not None:
            priced[node.metadata.name] = found
        elif kind in listed:
            gpus, dollars, source = listed[kind]
            spot = ", of a spot node" if node.metadata.labels.get(CAPACITY_TYPE_LABEL) == SPOT else ""
            priced[node.metadata.name] = HourPrice(dollars / gpus, source + spot)
    # Without a node of the cloud the hardware is the user's own, and the cloud's prices would mislead.
    return GPUPrices(priced, of_model if of_cloud else {})


@lru_cache(1)
def _listed() -> tuple[dict[str, tuple[int, float, str]], dict[str, HourPrice]]:
    """Return the listed types with GPUs: their GPUs, dollars an hour, and the list; and the lowest price by model."""
    from gpuplane.autoscaler.providers.aws_types import AMD64, ARM64, MODELS, PRICED  # late: only for prices

    source = f"AWS list on demand ({PRICED})"
    types: dict[str, tuple[int, float, str]] = {}
    models: dict[str, HourPrice] = {}
    for name, _, _, _, gpu, count, mib, _, _, dollars in (*AMD64, *ARM64):
        if count:
            types[name] = count, dollars, source
            model = MODELS.get((gpu, mib), ("", 0))[0]
            before = models.get(model)
            if before is None or dollars / count < before.dollars:
                models[model] = HourPrice(dollars / count, source)
    return types, models


def node_gpus(node: Node) -> int:
    """Return the GPUs of a node by its labels; 0 where they do not say."""
    labels = node.metadata.labels
    text = labels.get(f"{INSTANCE_LABEL_PREFIX}gpu-count", "")
    if text.isdecimal() and len(text) < 6:
        return int(text)
    return _listed()[0].get(labels.get(TYPE_LABEL, ""), (0, 0.0, ""))[0]


def bought_price(node: Node) -> HourPrice | None:
    """Return the price at which a node pool bought a node, by GPU; None for a node that no pool bought."""
    labels = node.metadata.labels
    pool, gpus = labels.get(POOL_LABEL) or labels.get(PROVISIONER_LABEL, ""), node_gpus(node)
    try:
        dollars = float(node.metadata.annotations.get(names.PRICE_ANNOTATION, "nan"))
    except ValueError:
        return None
    if not pool or not gpus or not 0 <= dollars < math.inf:
        return None
    return HourPrice(dollars / gpus, f"{_POOL}{pool}, {labels.get(CAPACITY_TYPE_LABEL) or 'unknown'} at launch")


def without_pool(source: str) -> str:
    """Return where a price comes from, without the name of a node pool, for users who may not list node pools. Pure."""
    return f"a {_POOL.rstrip()},{source.rpartition(',')[2]}" if source.startswith(_POOL) else source

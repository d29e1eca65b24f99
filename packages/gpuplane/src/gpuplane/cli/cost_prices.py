"""Prices of GPU hours: from a file, else from the instance types of the cluster's nodes and the list of AWS."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane.api.karpenter import TYPE_LABEL
from gpuplane.metering.cost import Price
from kubekit.api.core import Node
from kubekit.errors import InvalidInput, KubekitError
from kubekit.kube import Client

CURE: Final = "write for example `models: {Tesla T4: 0.35}` and `nodes: {gpu-1: 2.5}`, dollars of a GPU hour"


class GPUPrices(msgspec.Struct, frozen=True):
    """Dollars of a GPU hour, by node and by model; a node's price goes before its model's."""

    nodes: dict[str, float] = {}
    models: dict[str, float] = {}

    def __call__(self, node: str, model: str) -> float | None:
        return self.nodes.get(node, self.models.get(model))


def price_file(path: Path) -> Price:
    """Read a file of prices. Raises InvalidInput with every wrong entry, FileError or DocumentError."""
    from gpuplane.cli.inputs import read_input
    from kubekit.yaml_documents import load_yaml  # late: 20 ms

    data = load_yaml(read_input(path), where=str(path), plain=True)
    findings: list[str] = []
    found: dict[str, dict[str, float]] = {"nodes": {}, "models": {}}
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
                    found[kind][str(name)] = float(price)
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
    """Return the prices of nodes whose instance type is listed: on demand, divided by the GPUs of the type.

    A model has the lowest price of the listed types, for nodes that ended.
    """
    from gpuplane.autoscaler.providers.aws_types import AMD64, ARM64, MODELS

    of_type: dict[str, float] = {}
    of_model: dict[str, float] = {}
    for name, _, _, _, gpu, count, mib, _, _, dollars in (*AMD64, *ARM64):
        if count:
            of_type[name] = dollars / count
            model = MODELS.get((gpu, mib), ("", 0))[0]
            of_model[model] = min(of_type[name], of_model.get(model, math.inf))
    nodes = [node for node in nodes if node.metadata.labels.get(TYPE_LABEL) in of_type]
    priced = {node.metadata.name: of_type[node.metadata.labels[TYPE_LABEL]] for node in nodes}
    # Without a node of the cloud the hardware is the user's own, and the cloud's prices would mislead.
    return GPUPrices(priced, of_model if priced else {})

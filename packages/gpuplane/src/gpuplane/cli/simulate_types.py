"""The CSV of instance types of `gpuplane simulate nodes --types`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT, CatalogueGPU, InstanceType
from gpuplane.cli.simulate_files import CsvCell, read_name, read_number, read_rows
from kubekit.errors import InvalidInput

COLUMNS: Final = ("type", "vcpu", "memory_mib", "max_pods", "on_demand")


def read_types(path: Path) -> list[InstanceType]:
    """Read instance types. Raises InvalidInput with file and line."""
    found: dict[str, InstanceType] = {}
    for where, cell in read_rows(path, COLUMNS):
        name = read_name(cell("type"), where)
        if name in found:
            raise InvalidInput(f"type {name} is listed already", where=where, cure="list each type once")
        prices = [(kind, _price(cell, column, where)) for kind, column in ((ON_DEMAND, "on_demand"), (SPOT, "spot"))]
        gpus = read_number(cell, "gpus", where, most=1024) if cell("gpus") else 0
        found[name] = InstanceType(
            name=name,
            vcpu=_above_zero(cell, "vcpu", where),
            memory_mib=_above_zero(cell, "memory_mib", where),
            max_pods=_above_zero(cell, "max_pods", where),
            prices=tuple((kind, dollars) for kind, dollars in prices if dollars is not None),
            arch=cell("arch") or "amd64",
            gpus=gpus,
            gpu=_gpu(cell, where) if gpus else None,
        )
    return list(found.values())


def _above_zero(cell: CsvCell, column: str, where: str) -> int:
    number = read_number(cell, column, where)
    if not number:
        raise InvalidInput(f"{column} is 0", where=where, cure="a whole number above 0")
    return number


def _gpu(cell: CsvCell, where: str) -> CatalogueGPU:
    model, memory = read_name(cell("gpu"), where), read_number(cell, "gpu_memory_mib", where)
    return CatalogueGPU(re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-"), memory, model, memory)


def _price(cell: CsvCell, column: str, where: str) -> float | None:
    """Return dollars an hour; None for an empty cell: it is not offered so."""
    text = cell(column)
    if not text:
        return None
    try:
        dollars = float(text)
    except ValueError:
        dollars = math.nan
    if not 0 < dollars < math.inf:
        raise InvalidInput(f"{column} is {text!r}, which is no price above 0", where=where, cure="dollars an hour")
    return dollars

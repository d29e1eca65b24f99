"""Memory: NUMA, swap, NVDIMMs, huge pages."""

from __future__ import annotations

import re

from gpuplane.discovery.features import Attributes, Features
from gpuplane.discovery.sources.reading import boolean, names, text, values
from gpuplane.host import Host

_NODES = "sys/devices/system/node"
_NVDIMMS = "sys/bus/nd/devices"
_PAGES = "sys/kernel/mm/hugepages"


def discover(host: Host) -> Features:
    nodes = sum(1 for name in names(host, _NODES) if re.fullmatch(r"node\d+", name))
    attributes: dict[str, Attributes] = {"memory.hugepages": _huge_pages(host)}
    if nodes:
        attributes["memory.numa"] = {"is_numa": boolean(nodes > 1), "node_count": str(nodes)}
    swaps = text(host, "proc/swaps")
    if swaps is not None:
        attributes["memory.swap"] = {"enabled": boolean(len(swaps.splitlines()) > 1)}
    nvdimms = tuple(
        {"name": name, **values(host, f"{_NVDIMMS}/{name}", ("devtype", "mode"))} for name in names(host, _NVDIMMS)
    )
    return Features(attributes=attributes, instances={"memory.nv": nvdimms})


def _huge_pages(host: Host) -> dict[str, str]:
    found = {}
    for name in names(host, _PAGES):
        size = re.fullmatch(r"hugepages-(\d+)kB", name)
        count = text(host, f"{_PAGES}/{name}/nr_hugepages") if size else None
        if size and count is not None:
            found[f"hugepages-{_quantity(int(size[1]))}"] = count
    return {"enabled": boolean(any(count not in ("", "0") for count in found.values())), **found}


def _quantity(kib: int) -> str:
    """As Kubernetes writes a size: 2048 is 2Mi."""
    for unit, factor in (("Gi", 1 << 20), ("Mi", 1 << 10)):
        if kib % factor == 0:
            return f"{kib // factor}{unit}"
    return f"{kib}Ki"

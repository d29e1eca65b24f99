"""Measures the price of nodes for waiting pods, with our way and Karpenter's, and the time of a decision.

    python benchmarks/nodes.py [--data DIR]

DIR has the openb traces (Alibaba's cluster-trace-gpu-v2023); also from GPUPLANE_OPENB, else the traces next to this
checkout. Without traces only the example of ten pods is run. Prices are those of the built-in list. Karpenter's figures
were measured on its own code, 1.13; its way is also computed here, so that both are compared on the same types. The
floor is a linear program over the sums of CPU, memory and GPUs; no purchase is cheaper.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import show
from gpuplane import names
from gpuplane.api.karpenter import TYPE_LABEL, DeclaredPool, PoolRequirement
from gpuplane.autoscaler.asks import PodAsk, counted_in_gpus, read_asks
from gpuplane.autoscaler.catalogue import InstanceType, aws_catalogue
from gpuplane.autoscaler.options import NodeOption, SharingSettings, make_options
from gpuplane.autoscaler.purchase import NodePurchase, decide_as_karpenter, decide_purchase

TEN_REPLICAS = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n"
FOUR = ("g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.12xlarge")
EARLIER = ("g3.", "g3s.", "p2.", "p3.")  # families that AWS calls previous generation
PODS = 1_000
KARPENTER_TEN, GOAL_TEN = 11.736, 0.526
KARPENTER_OPENB, GOAL_OPENB, GOAL_SECONDS = 1_765.68, 880.0, 2.0
UNAWARE = SharingSettings(known=False)
BESIDE = Path(__file__).parents[2] / "shared" / "data" / "openb"


def pod(name: str, resources: Mapping[str, Any]) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": resources, "requests": resources}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container]}}


def decide(
    asks: Sequence[PodAsk], pool: DeclaredPool, types: Sequence[InstanceType], sharing: SharingSettings
) -> NodePurchase:
    options = make_options(pool, (), types, sharing)
    return (decide_purchase if sharing.known else decide_as_karpenter)(asks, [options])


def ten_pods() -> None:
    wanted = PoolRequirement(key=TYPE_LABEL, operator="In", values=FOUR)
    pool = DeclaredPool(name="gpu", requirements=(wanted,))
    asks = read_asks(pod(f"p-{number}", {names.GPU_RESOURCE: 1}) for number in range(10))
    ours = decide(asks, pool, aws_catalogue(), SharingSettings({"shared": TEN_REPLICAS}, "shared"))
    theirs = decide(counted_in_gpus(asks), pool, aws_catalogue(), UNAWARE)
    peer = f"{KARPENTER_TEN} Karpenter; {theirs.price:.3f} by its way here"
    show("ten pods of a GPU, four types, ten replicas", ours.price, "$/h", goal=GOAL_TEN, peer=peer)


def trace(data: Path) -> list[dict[str, Any]]:
    """The first pods of the default list with a GPU, as shares."""
    with (data / "openb_pod_list_default.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["num_gpu"])][:PODS]
    found = []
    for row in rows:
        gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        core = 100 * gpus if milli == 1000 else -(-milli // 10)
        asked = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi", names.VCUDA_CORE: core}
        found.append(pod(row["name"], asked))
    return found


def openb(data: Path) -> None:
    types = [
        t for t in aws_catalogue() if t.arch == "amd64" and not t.name.startswith(EARLIER) and ".metal" not in t.name
    ]
    asks = read_asks(trace(data))
    pool = DeclaredPool(name="gpu", labels={names.SHARE_LABEL: "enable"})
    began = time.process_time()
    ours = decide(asks, pool, types, SharingSettings())
    seconds = time.process_time() - began
    theirs = decide(counted_in_gpus(asks), pool, types, UNAWARE)
    assert not ours.waiting and not theirs.waiting
    options = make_options(pool, (), types, SharingSettings()).options
    floor = least_price(asks, options)
    print(f"\nopenb: {PODS:,} pods with a GPU, {len(types)} NVIDIA types")
    peer = f"{KARPENTER_OPENB:,} Karpenter; {theirs.price:,.2f} by its way here"
    show("price of all nodes", ours.price, "$/h", goal=GOAL_OPENB, peer=peer)
    show("  floor of the sums", floor, "$/h")
    show("  nodes", len(ours.nodes), "", peer=f"131 Karpenter; {len(theirs.nodes)} by its way here")
    show("decided in", seconds, "s", goal=GOAL_SECONDS)


def least_price(asks: Sequence[PodAsk], options: Sequence[NodeOption]) -> float:
    """The highest price of all pods by prices of CPU, memory and GPUs under which no node is worth more than it costs.

    The vertices of that linear program are few enough to try them all.
    """
    resources = ("cpu", "memory", names.VCUDA_CORE)
    totals = [sum(ask.info.requests.get(name, 0) for ask in asks) for name in resources]
    rows = {
        tuple(option.free[name] / total for name, total in zip(resources, totals, strict=True)): option.price
        for option in options
    }
    bounds = list(rows.items()) + [(tuple(float(i == j) for j in range(3)), 0.0) for i in range(3)]
    best = 0.0
    for (a, x), (b, y), (c, z) in itertools.combinations(bounds, 3):
        found = solved((a, b, c), (x, y, z))
        if found is None or min(found) < -1e-9:
            continue
        if all(
            sum(part * value for part, value in zip(row, found, strict=True)) <= price + 1e-9
            for row, price in rows.items()
        ):
            best = max(best, sum(found))
    return best


def solved(rows: Sequence[Sequence[float]], right: Sequence[float]) -> tuple[float, float, float] | None:
    """Cramer's rule for three equations; None for dependent ones."""

    def det(m: Sequence[Sequence[float]]) -> float:
        (a, b, c), (d, e, f), (g, h, i) = m
        return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)

    whole = det(rows)
    if abs(whole) < 1e-15:
        return None

    def column(at: int) -> float:
        return det([[right[r] if c == at else rows[r][c] for c in range(3)] for r in range(3)]) / whole

    return column(0), column(1), column(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = os.environ.get("GPUPLANE_OPENB") or (BESIDE if BESIDE.exists() else None)
    parser.add_argument("--data", type=Path, default=known, help="the openb traces")
    options = parser.parse_args()
    ten_pods()
    if options.data is None:
        print("openb skipped: --data DIR or GPUPLANE_OPENB names the directory of the traces")
        return
    openb(options.data)


if __name__ == "__main__":
    main()

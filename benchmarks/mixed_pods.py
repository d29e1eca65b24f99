"""Measures decisions about nodes for many pods whose places depend on each other: Karpenter's own benchmarks.

    python benchmarks/mixed_pods.py [PODS ...]

The mix has five kinds in equal parts: plain pods; pods spread over zones; pods spread over nodes; pods that want the
zone of their like; pods that want a node without their like, all against all. 400 types of 1 to 400 CPUs, on-demand in
three zones and spot in two, one price for both. The second benchmark has 4,000 equal pods that prefer a zone and prefer
to be apart. Types and kinds are those of Karpenter's scheduling_benchmark_test.go; its random numbers are Go's and not
repeated here, so that only the distributions are the same.

Measured is the controller's path: the views that its informers keep, then snapshot and decision. Reading the objects
into views is a line of its own, since it happens when they arrive. Peers: Karpenter 1.13 on two cores.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from figures import show
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT, InstanceType
from gpuplane.autoscaler.observed import PodView, view_pod
from gpuplane.autoscaler.purchase import NodePurchase, decide_as_karpenter, decide_purchase
from gpuplane.autoscaler.snapshot import CloudFacts, ClusterSnapshot, ScalingFacts, take_snapshot
from kubekit.api.raw import RawPod

ZONES = ("test-zone-1", "test-zone-2", "test-zone-3")
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
SIZES = (1_000, 5_000, 20_000)
PREFERRING = 4_000
GOAL_MIX, GOAL_PREFERRING = 1_000.0, 500.0  # pods a second
PEER_MIX, PEER_PREFERRING = "260-350 pods/s Karpenter", "44-51 pods/s Karpenter"


def types() -> tuple[InstanceType, ...]:
    found = []
    for cpus in range(1, 401):
        price = 0.1 * cpus + 0.1 * (2 * cpus << 30) / 1e9
        prices = ((SPOT, price), (ON_DEMAND, price))
        found.append(InstanceType(f"fake-it-{cpus - 1}", cpus, 2048 * cpus, 10 * cpus, prices))
    return tuple(found)


def pod(name: str, labels: dict[str, str], cpu: int, memory: int, **spec: Any) -> dict[str, Any]:
    """An unscheduled pod; `cpu` in thousandths, `memory` in MiB."""
    container = {"name": "main", "resources": {"requests": {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}}}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels},
        "spec": {"containers": [container], **spec},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


def term(key: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}}


def mix(count: int, seed: int = 42) -> list[dict[str, Any]]:
    chance = random.Random(seed)

    def letter() -> str:
        return chance.choice("abcdefg")

    def make(kind: str, number: int, labels: dict[str, str], **spec: Any) -> dict[str, Any]:
        cpu, memory = chance.choice((100, 250, 500, 1000, 1500)), chance.choice((100, 256, 512, 1024, 2048, 4096))
        return pod(f"{kind}-{number}", labels, cpu, memory, **spec)

    def spread(kind: str, number: int, key: str) -> dict[str, Any]:
        labels = {"my-label": letter()}
        constraint = term(key, {"my-label": letter()}) | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        return make(kind, number, labels, topologySpreadConstraints=[constraint])

    def near(number: int) -> dict[str, Any]:
        labels = {"my-affininity": letter()}
        return make("near", number, labels, affinity={"podAffinity": required(term(ZONE, labels))})

    def apart(number: int) -> dict[str, Any]:
        labels = {"app": "nginx"}
        return make("apart", number, labels, affinity={"podAntiAffinity": required(term(HOST, labels))})

    each = range(count // 5)
    found = [make("plain", number, {"my-label": letter()}) for number in range(count - 4 * len(each))]
    found += [spread("zones", number, ZONE) for number in each] + [spread("hosts", number, HOST) for number in each]
    return found + [near(number) for number in each] + [apart(number) for number in each]


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}


def preferred(*terms: tuple[int, str, dict[str, Any]]) -> dict[str, Any]:
    found = [{"weight": weight, field: value} for weight, field, value in terms]
    return {"preferredDuringSchedulingIgnoredDuringExecution": found}


def preferring(count: int, seed: int = 42) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    cpu, memory = chance.choice((100, 250, 500, 1000, 1500)), chance.choice((100, 256, 512, 1024, 2048, 4096))
    labels = {"app": "nginx"}
    in_zone = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [ZONES[0]]}]}
    affinity = {
        "nodeAffinity": preferred((1, "preference", in_zone)),
        "podAntiAffinity": preferred(
            (10, "podAffinityTerm", term(ZONE, labels)), (1, "podAffinityTerm", term(HOST, labels))
        ),
    }
    return [pod(f"p-{number}", labels, cpu, memory, affinity=affinity) for number in range(count)]


def read(objects: Iterable[dict[str, Any]]) -> list[PodView]:
    views = [view_pod(msgspec.convert(one, RawPod)) for one in objects]
    return [view for view in views if view is not None]


def snapshot_of(views: list[PodView], machines: tuple[InstanceType, ...]) -> ClusterSnapshot:
    pool = DeclaredPool(name="default", limits={"cpu": "10000000", "memory": "10000000Gi"})
    closed = frozenset((SPOT, machine.name, ZONES[2]) for machine in machines)
    cloud = CloudFacts(types=machines, zones={pool.name: ZONES}, closed=closed)
    return take_snapshot(ScalingFacts(pods=views, pools=(pool,)), cloud)


def decide(views: list[PodView], machines: tuple[InstanceType, ...]) -> NodePurchase:
    """Decide about a batch as the provisioning controller does."""
    snapshot = snapshot_of(views, machines)
    return decide_purchase(snapshot.asks, snapshot.offers, snapshot.nodes)


def measure(what: str, objects: list[dict[str, Any]], goal: float, peer: str) -> None:
    machines = types()
    began = time.process_time()
    views = read(objects)
    reading = time.process_time() - began
    began = time.process_time()
    answer = decide(views, machines)
    seconds = time.process_time() - began
    count = len(objects)
    rate = f"{count / seconds:,.0f} pods/s; goal {goal:,.0f}; {peer}"
    show(what, seconds, "s", goal=count / goal, peer=rate)
    show("  read into views before", reading, "s")
    snapshot = snapshot_of(views, machines)
    theirs = decide_as_karpenter(snapshot.asks, snapshot.offers)
    show("  price of all nodes", answer.price, "$/h", peer=f"{theirs.price:,.2f} by Karpenter's way here")
    least = f"{len(theirs.nodes):,} by Karpenter's way here"
    show("  nodes", len(answer.nodes), "", goal=len(theirs.nodes), peer=least)
    if answer.waiting:
        why = Counter(reason for reasons in answer.waiting.values() for reason in reasons).most_common(1)[0][0]
        show("  pods without a node", len(answer.waiting), "", goal=0, peer=why)


def main(sizes: list[int]) -> None:
    for count in sizes:
        measure(f"{count:,} pods of five kinds, 400 types", mix(count), GOAL_MIX, PEER_MIX)
    if sizes == list(SIZES):
        what = f"{PREFERRING:,} pods, that prefer a zone and to be apart"
        measure(what, preferring(PREFERRING), GOAL_PREFERRING, PEER_PREFERRING)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or list(SIZES))

"""Consolidation of a large cluster: the time of one pass, and the price to which passes lead.

    python benchmarks/large_cluster.py [NODES PODS]

1,000 nodes of 8 CPUs, ten pods on each, a third of the room asked for; 144 types as Karpenter's kwok
provider has them, on demand only. A pass decides one move of up to 100 nodes. Then passes follow, each move carried out
at once in the model below, and the price that is reached is set against the least by the sums of CPU and memory. At
last one pass is decided for pods of which the twenty of each application prefer to be on different nodes, and some
passes for pods of which every second application is spread over nodes with a skew of 1 at most.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from figures import show
from gpuplane.api.karpenter import DeclaredPool, PoolDisruption
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.catalogue import ON_DEMAND, InstanceType
from gpuplane.autoscaler.disruption.cluster_world import ClusterWorld
from gpuplane.autoscaler.disruption.consolidation import ConsolidationMove, ConsolidationRound, decide_consolidation
from gpuplane.autoscaler.disruption.observe import disruptable_node
from gpuplane.autoscaler.disruption.removal import RemovalOutcome, removal_outcome
from gpuplane.autoscaler.observed import PodView, view_pod
from gpuplane.autoscaler.overhead import allocatable
from gpuplane.autoscaler.purchase import decide_purchase
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.autoscaler.snapshot import CloudFacts, ScalingFacts
from kubekit.api.core import Node, Pod
from kubekit.api.raw import RawPod

GOAL_PASS_SECONDS, GOAL_ABOVE_BOUND = 5.0, 3.0
POOL, ZONE_LABEL, TYPE_LABEL = "default", "topology.kubernetes.io/zone", "node.kubernetes.io/instance-type"
NOW: Final = "2026-11-01T00:00:00Z"
PASSES: Final = 60
SPREAD_PASSES: Final = 12  # of which the last ones decide about a full cluster


def kwok_types() -> tuple[InstanceType, ...]:
    found = []
    for cpus in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256):
        for letter, factor in (("c", 2), ("s", 4), ("m", 8)):
            price = 0.025 * cpus + 0.001 * (factor * cpus << 30) / 1e9
            name = f"{letter}-{cpus}x"
            found.append(InstanceType(name, cpus, factor * cpus << 10, min(16 * cpus, 1024), ((ON_DEMAND, price),)))
    return tuple(found)


TYPES: Final = {machine.name: machine for machine in kwok_types()}


def node_objects(number: int, machine: InstanceType) -> tuple[dict[str, Any], dict[str, Any]]:
    """A node that is ready, and its claim."""
    name, provider = f"node-{number}", f"kwok:///zone-a/i-{number:05}"
    labels = {
        **machine.labels(),
        "karpenter.sh/nodepool": POOL,
        "karpenter.sh/capacity-type": ON_DEMAND,
        ZONE_LABEL: "zone-a",
        "kubernetes.io/hostname": name,
    }
    offers = as_quantities(allocatable(machine))
    true = [{"type": kind, "status": "True", "lastTransitionTime": NOW} for kind in ("Ready", "Initialized")]
    conditions = [*true, {"type": "Consolidatable", "status": "True", "lastTransitionTime": NOW}]
    meta = {"uid": f"uid-{name}", "creationTimestamp": NOW, "resourceVersion": str(number + 1)}
    node = {
        "metadata": {**meta, "name": name, "labels": {**labels, "karpenter.sh/initialized": "true"}},
        "spec": {"providerID": provider},
        "status": {"allocatable": offers, "capacity": offers, "conditions": true[:1]},
    }
    claim = {
        "metadata": {**meta, "name": f"claim-{number}", "labels": labels, "finalizers": ["karpenter.sh/termination"]},
        "spec": {"requirements": [], "resources": {"requests": {"cpu": "1"}}},
        "status": {
            **{"nodeName": name, "providerID": provider, "allocatable": offers, "capacity": offers},
            "conditions": [*conditions, *({**true[0], "type": kind} for kind in ("Launched", "Registered"))],
        },
    }
    return node, claim


def pod_object(number: int, node: str, cpu: int, memory: int) -> dict[str, Any]:
    """A pod that runs, with the fields that API servers send. `cpu` in thousandths, `memory` in MiB."""
    app = f"app-{number // 20}"
    meta = {"name": f"{app}-{number}", "namespace": f"team-{number % 50}", "uid": f"{number:032x}"}
    fields = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:part{i}": {".": {}} for i in range(30)}}]
    resources = {"requests": {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}}
    seconds = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": NOW} for kind in ("Ready", "PodScheduled")]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": f"r-{app}", "controller": True}
    return {
        "metadata": {
            **meta,
            **{"labels": {"app": app, "pod-template-hash": f"{number // 20:x}"}, "annotations": {"note": "x" * 100}},
            **{"creationTimestamp": NOW, "resourceVersion": str(number + 1), "managedFields": fields},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "registry.example/app:1", "resources": resources}],
            "tolerations": [{"key": f"node.kubernetes.io/{key}", **seconds} for key in ("not-ready", "unreachable")],
            "priority": 0,
            "serviceAccountName": "default",
        },
        "status": {"phase": "Running", "startTime": NOW, "conditions": conditions},
    }


def prefers_apart(pod: dict[str, Any], number: int) -> dict[str, Any]:
    """The pod in the namespace of its application, preferring a node without a pod of it."""
    labels = {"app": pod["metadata"]["labels"]["app"]}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    wanted = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    metadata = {**pod["metadata"], "namespace": f"team-{number // 20 % 50}"}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "affinity": {"podAntiAffinity": wanted}}}


def is_spread(pod: dict[str, Any], number: int) -> dict[str, Any]:
    """The pod in the namespace of its application, those of every second application spread over nodes."""
    metadata = {**pod["metadata"], "namespace": f"team-{number // 20 % 50}"}
    labels = {"app": metadata["labels"]["app"]}
    constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    spread = {"topologySpreadConstraints": [{**constraint, "labelSelector": {"matchLabels": labels}}]}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], **(spread if number // 20 % 2 else {})}}


Variant = Callable[[dict[str, Any], int], dict[str, Any]]


def cluster(
    nodes: int, pods: int, variant: Variant = lambda pod, number: pod
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Nodes, claims and pods, by a fixed seed."""
    chance = random.Random(42)
    pairs = [node_objects(number, TYPES["s-8x"]) for number in range(nodes)]
    running = []
    for number in range(pods):
        cpu, memory = chance.choice((100, 200, 250, 300, 400, 500)), chance.choice((256, 512, 1024, 2048))
        pod = pod_object(number, f"node-{number % nodes}", cpu, memory)
        running.append(variant(pod, number))
    return [node for node, _ in pairs], [claim for _, claim in pairs], running


# -- consolidation -------------------------------------------------------------------------------------------------


class PlayedCluster:
    """A cluster on which moves are carried out at once: nodes go, their pods are where the decision placed them."""

    def __init__(self, nodes: int, pods: int, variant: Variant = lambda pod, number: pod) -> None:
        made, claims, running = cluster(nodes, pods, variant)
        self.nodes = {one["metadata"]["name"]: msgspec.convert(one, Node) for one in made}
        self.claims = {one["status"]["nodeName"]: msgspec.convert(one, NodeClaim) for one in claims}
        self.pods = {f"{one['metadata']['namespace']}/{one['metadata']['name']}": one for one in running}
        self.seen: set[str] = set()
        self._made = nodes

    def world(self) -> tuple[ClusterWorld, ConsolidationRound]:
        views = [view_pod(msgspec.convert(one, RawPod)) for one in self.pods.values()]
        typed: dict[str, list[Pod]] = {}
        for one in self.pods.values():
            typed.setdefault(one["spec"]["nodeName"], []).append(msgspec.convert(one, Pod))
        pools = (DeclaredPool(name=POOL),)
        kept: Sequence[PodView] = [view for view in views if view is not None]
        facts = ScalingFacts(pods=kept, nodes=[*self.nodes.values()], claims=[*self.claims.values()], pools=pools)
        self.began = time.process_time()  # the informers have read the objects by then
        zones = {POOL: ("zone-a",)}
        world = ClusterWorld(facts, CloudFacts(types=[*TYPES.values()], zones=zones), cast(Any, None))
        prices = world.prices()
        nodes = [
            disruptable_node(claim, self.nodes[name], typed.get(name, ()), {}, 2e9, price=prices.get(name))
            for name, claim in self.claims.items()
        ]
        self.price = sum(prices.values())

        def ask(without: Any) -> RemovalOutcome:
            return removal_outcome(world.question(without))

        policy = {POOL: PoolDisruption(policy="WhenEmptyOrUnderutilized")}
        return world, ConsolidationRound(nodes, policy, {POOL: 100.0}, ask, self.seen, {}, world.screen())

    def carry_out(self, move: ConsolidationMove, world: ClusterWorld) -> None:
        plan, bought = move
        question = world.question([one.node for one in plan.nodes])
        answer = decide_purchase(question.asks, question.offers, question.nodes)
        for pod, place in answer.placed.items():
            self.pods[pod]["spec"]["nodeName"] = place
        for node in bought:
            made, claim = node_objects(self._made, node.option.machine)
            name = made["metadata"]["name"]
            self.nodes[name], self.claims[name] = msgspec.convert(made, Node), msgspec.convert(claim, NodeClaim)
            self._made += 1
            for pod in node.pods:
                self.pods[pod]["spec"]["nodeName"] = name
        for one in plan.nodes:
            del self.nodes[one.node], self.claims[one.node]

    def bound(self) -> float:
        """The least price by the sums of CPU and memory: the best of the prices under which no type is worth more."""
        views = [view_pod(msgspec.convert(one, RawPod)) for one in self.pods.values()]
        asked = [view.info.requests for view in views if view is not None and view.info is not None]
        cpu, memory = (sum(one.get(name, 0) for one in asked) for name in ("cpu", "memory"))
        offers = [(allocatable(one), one.prices[0][1]) for one in TYPES.values()]
        best = 0.0
        for step in range(1001):  # the price of all CPU as a part of the whole
            part = step / 1000
            rates = [price / (part * o["cpu"] / cpu + (1 - part) * o["memory"] / memory) for o, price in offers]
            best = max(best, min(rates))
        return best


def consolidation(nodes: int = 1_000, pods: int = 10_000) -> None:
    played = PlayedCluster(nodes, pods)
    bound = played.bound()
    slowest = 0.0
    for number in range(PASSES):
        world, facts = played.world()
        move = decide_consolidation(facts)
        seconds = time.process_time() - played.began
        slowest = max(slowest, seconds)
        if number == 0:
            what = "" if move is None else f"{len(move[0].nodes)} nodes go, {len(move[1])} are bought"
            peer = f"60 to 180 Karpenter, then cut off; {what}"
            show(f"one pass, {nodes:,} nodes, {pods:,} pods", seconds, "s", goal=GOAL_PASS_SECONDS, peer=peer)
            show("  price before", played.price, "$/h", peer=f"{bound:,.2f} least by the sums of CPU and memory")
        if move is None:
            break
        played.carry_out(move, world)
    show(f"  price after {number + 1} passes (a model's moves)", played.price, "$/h", peer=f"{len(played.nodes)} nodes")
    show("  above the least", 100 * (played.price / bound - 1), "%", goal=GOAL_ABOVE_BOUND)
    show("  slowest pass", slowest, "s", goal=GOAL_PASS_SECONDS)
    passes(nodes, pods, prefers_apart, "pods that prefer to be apart", 1)
    passes(nodes, pods, is_spread, "half of the pods spread over nodes", SPREAD_PASSES)


def passes(nodes: int, pods: int, variant: Variant, label: str, count: int) -> None:
    """Time the first pass, and the slowest of some, over a variant of the pods."""
    played = PlayedCluster(nodes, pods, variant)
    slowest = 0.0
    for number in range(count):
        world, facts = played.world()
        move = decide_consolidation(facts)
        seconds = time.process_time() - played.began
        slowest = max(slowest, seconds)
        if number == 0:
            what = "" if move is None else f"{len(move[0].nodes)} nodes go, {len(move[1])} are bought"
            show(f"one pass, {label}", seconds, "s", goal=GOAL_PASS_SECONDS, peer=what)
        if move is not None:
            played.carry_out(move, world)
    if count > 1:
        show(f"  slowest of {count} passes", slowest, "s", goal=GOAL_PASS_SECONDS, peer=f"{len(played.nodes)} nodes")


if __name__ == "__main__":
    consolidation(*(int(word) for word in sys.argv[1:3]))

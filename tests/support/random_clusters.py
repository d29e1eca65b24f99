"""Random clusters for schedulers: nodes, pods that run on them, and pods that wait; all of what filters look at.

Everything is plain objects of Kubernetes, decided by a seed alone. No pod asks for GPUs.
"""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

ZONES: Final = ("a", "b", "c")
DISKS: Final = ("ssd", "hdd")
APPS: Final = ("web", "db", "cache")
NAMESPACES: Final = {"red": {"team": "red"}, "blue": {"team": "blue"}}
ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"
TAINTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class RandomCluster(NamedTuple):
    """Objects as they are posted: nodes with their status, pods with a node, and pods without."""

    nodes: list[dict[str, Any]]
    running: list[dict[str, Any]]
    waiting: list[dict[str, Any]]


def random_cluster(seed: int, scheduler: str) -> RandomCluster:
    """Return the cluster of a seed; names have the seed in them. `scheduler` is that of the pods that wait."""
    dice = random.Random(seed)
    nodes = [_node(dice, f"n{seed}-{number}") for number in range(dice.randint(2, 7))]
    names = [node["metadata"]["name"] for node in nodes]
    running = [_pod(dice, f"r{seed}-{number}") for number in range(dice.randint(0, 10))]
    for pod in running:
        pod["spec"]["nodeName"] = dice.choice(names)
    waiting = [_pod(dice, f"w{seed}-{number}", names) for number in range(4)]
    for pod in waiting:
        pod["spec"]["schedulerName"] = scheduler
    return RandomCluster(nodes, running, waiting)


def _node(dice: random.Random, name: str) -> dict[str, Any]:
    amounts = {
        "cpu": dice.choice(("2", "3500m", "8", "16")),
        "memory": dice.choice(("1Gi", "4Gi", "15.5Gi")),
        "ephemeral-storage": dice.choice(("10Gi", "50Gi")),
        "pods": dice.choice(("2", "4", "110")),
    }
    if dice.random() < 0.3:
        amounts["example.com/dongle"] = str(dice.randint(0, 3))
    labels = {HOST: name, "disk": dice.choice(DISKS), "size": str(dice.randint(1, 5))}
    if dice.random() < 0.9:
        labels[ZONE] = dice.choice(ZONES)
    spec: dict[str, Any] = {}
    if dice.random() < 0.08:
        spec["unschedulable"] = True
    if dice.random() < 0.2:
        spec["taints"] = [
            {"key": key, "effect": dice.choice(TAINTS), **({"value": "x"} if dice.random() < 0.5 else {})}
            for key in dice.sample(("dedicated", "spot"), dice.randint(1, 2))
        ]
    status = {"capacity": amounts, "allocatable": amounts}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


def _pod(dice: random.Random, name: str, nodes: list[str] | None = None) -> dict[str, Any]:
    labels = {"app": dice.choice(APPS)} | ({"track": "canary"} if dice.random() < 0.3 else {})
    labels |= {"revision": dice.choice("12")} if dice.random() < 0.7 else {}
    spec: dict[str, Any] = {"containers": [_container(dice, "main")]}
    if dice.random() < 0.2:
        spec["containers"].append(_container(dice, "second"))
    if dice.random() < 0.2:
        first = _container(dice, "first") | ({"restartPolicy": "Always"} if dice.random() < 0.5 else {})
        spec["initContainers"] = [first]
    if nodes is not None and dice.random() < 0.12:
        spec["nodeSelector"] = dice.choice(({"disk": "ssd"}, {ZONE: "a"}, {"disk": "hdd", ZONE: "b"}))
    affinity = _affinity(dice, nodes)
    if affinity:
        spec["affinity"] = affinity
    if dice.random() < 0.35:
        spec["tolerations"] = [_toleration(dice) for _ in range(dice.randint(1, 2))]
    if nodes is not None and dice.random() < 0.35:
        spec["topologySpreadConstraints"] = [
            _spread(dice, key) for key in dice.sample((ZONE, HOST), dice.randint(1, 2))
        ]
    return {"metadata": {"name": name, "namespace": dice.choice(list(NAMESPACES)), "labels": labels}, "spec": spec}


def _container(dice: random.Random, name: str) -> dict[str, Any]:
    requests: dict[str, str] = {}
    if dice.random() < 0.8:
        requests["cpu"] = dice.choice(("100m", "500m", "1", "0.1", "2"))
    if dice.random() < 0.6:
        requests["memory"] = dice.choice(("64Mi", "500M", "1Gi", "3Gi"))
    if dice.random() < 0.2:
        requests["ephemeral-storage"] = dice.choice(("1Gi", "20Gi"))
    limits = {"example.com/dongle": str(dice.randint(1, 2))} if dice.random() < 0.15 else {}
    found: dict[str, Any] = {
        "name": name,
        "image": "none",
        "resources": {"requests": requests | limits, "limits": limits},
    }
    if dice.random() < 0.12:
        port: dict[str, Any] = {"containerPort": 80, "hostPort": dice.choice((8080, 8081))}
        port |= {"protocol": "UDP"} if dice.random() < 0.3 else {}
        port |= {"hostIP": dice.choice(("0.0.0.0", "127.0.0.1", "10.0.0.1"))} if dice.random() < 0.5 else {}
        found["ports"] = [port]
    return found


def _affinity(dice: random.Random, nodes: list[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if nodes is not None and dice.random() < 0.2:
        terms = [_node_term(dice, nodes) for _ in range(dice.randint(1, 2))]
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    for kind, chance in (("podAffinity", 0.1), ("podAntiAffinity", 0.15)):
        if dice.random() < chance:
            terms = [_pod_term(dice) for _ in range(dice.randint(1, 2))]
            found[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return found


def _node_term(dice: random.Random, nodes: list[str]) -> dict[str, Any]:
    expressions: list[dict[str, Any]] = [
        {"key": ZONE, "operator": "In", "values": dice.sample(ZONES, 2)},
        {"key": ZONE, "operator": "NotIn", "values": [dice.choice(ZONES)]},
        {"key": ZONE, "operator": dice.choice(("Exists", "DoesNotExist"))},
        {"key": "size", "operator": dice.choice(("Gt", "Lt")), "values": [str(dice.randint(1, 5))]},
        {"key": "disk", "operator": "In", "values": list(DISKS)},
    ]
    term: dict[str, Any] = {"matchExpressions": dice.sample(expressions, dice.randint(1, 2))}
    if dice.random() < 0.15:
        operator = dice.choice(("In", "NotIn"))
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [dice.choice(nodes)]}]
    return term


def _selector(dice: random.Random) -> dict[str, Any]:
    chosen = dice.sample(APPS, dice.randint(1, 2))
    choices: tuple[dict[str, Any], ...] = (
        {"matchLabels": {"app": dice.choice(APPS)}},
        {"matchExpressions": [{"key": "app", "operator": dice.choice(("In", "NotIn")), "values": chosen}]},
        {"matchExpressions": [{"key": "track", "operator": dice.choice(("Exists", "DoesNotExist"))}]},
        {},
    )
    return dice.choice(choices)


def _pod_term(dice: random.Random) -> dict[str, Any]:
    term: dict[str, Any] = {"labelSelector": _selector(dice), "topologyKey": dice.choice((ZONE, HOST, "disk"))}
    where = dice.random()
    if where < 0.2:
        term["namespaces"] = dice.sample(list(NAMESPACES), dice.randint(1, 2))
    elif where < 0.4:
        term["namespaceSelector"] = dice.choice(({}, {"matchLabels": {"team": "blue"}}))
    if dice.random() < 0.15:
        term["matchLabelKeys"] = ["revision"]
    return term


def _toleration(dice: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"operator": dice.choice(("Exists", "Equal"))}
    if found["operator"] == "Equal" or dice.random() < 0.8:
        found["key"] = dice.choice(("dedicated", "spot", "node.kubernetes.io/unschedulable"))
    if found["operator"] == "Equal":
        found["value"] = dice.choice(("x", ""))
    if dice.random() < 0.4:
        found["effect"] = dice.choice(("NoSchedule", "NoExecute"))
    return found


def _spread(dice: random.Random, key: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "maxSkew": dice.randint(1, 2),
        "topologyKey": key,
        "whenUnsatisfiable": dice.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": _selector(dice),
    }
    if found["whenUnsatisfiable"] == "DoNotSchedule" and dice.random() < 0.3:
        found["minDomains"] = dice.randint(1, 4)
    if dice.random() < 0.3:
        found["nodeAffinityPolicy"] = dice.choice(("Honor", "Ignore"))
    if dice.random() < 0.3:
        found["nodeTaintsPolicy"] = dice.choice(("Honor", "Ignore"))
    if dice.random() < 0.2:
        found["matchLabelKeys"] = ["revision"]
    return found

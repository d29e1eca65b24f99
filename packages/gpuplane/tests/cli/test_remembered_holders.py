"""An overview that is updated after each change equals a new overview, at the cost of the change."""

from __future__ import annotations

import random

import msgspec

from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.holders import PodHolder, RememberedHolders
from gpuplane.cli.overview import overview
from gpuplane.cli.status_views import Overview
from kubekit.api.core import Pod
from packages.gpuplane.tests.cli.status_objects import gpunode, pod, share, with_faults

GPUS = 4


def holders(seen: Overview) -> dict[str, PodHolder]:
    return {one.pod: one for node in seen.nodes for one in node.held_by}


def made(nodes: dict[str, GPUNode], pods: dict[str, Pod], units: dict[str, str], hold: RememberedHolders) -> Overview:
    hold.begin()
    offered = {name: {units[name]: "400" if "core" in units[name] else "4"} for name in nodes}
    again = overview(nodes.values(), pods.values(), offered, hold=hold)
    assert again == overview(nodes.values(), pods.values(), offered)
    return again


def test_what_is_remembered_is_what_is_computed() -> None:
    chosen, hold = random.Random(5), RememberedHolders()
    nodes = {name: gpunode(name, gpus=GPUS) for name in ("n1", "n2", "n3")}
    units = dict.fromkeys(nodes, "nvidia.com/gpu")
    pods: dict[str, Pod] = {}
    for _ in range(200):
        name, on = f"p{chosen.randrange(12)}", chosen.choice(list(nodes))
        match chosen.randrange(5):
            case 0:
                pods[name] = share(name, on, chosen.choice((20, 50, 100)), 4, chosen.choice((None, 0, 1, 3)))
            case 1:
                pods[name] = pod(name, chosen.choice((on, "")), chosen.randrange(1, GPUS))
            case 2:
                pods.pop(name, None)
            case 3:
                nodes[on] = with_faults(nodes[on], chosen.choice(("", "Xid 79: fallen off the bus")))
            case _:
                units[on] = chosen.choice(("nvidia.com/gpu", "tencent.com/vcuda-core", "nvidia.com/gpu.shared"))
        made(nodes, pods, units, hold)


def test_pods_that_stay_are_not_read_again_and_those_that_go_are_forgotten() -> None:
    hold = RememberedHolders()
    nodes = {name: gpunode(name, gpus=GPUS) for name in ("n1", "n2")}
    units = dict.fromkeys(nodes, "nvidia.com/gpu")
    pods = {name: pod(name, on, 1) for name, on in (("a", "n1"), ("b", "n2"))}
    first = holders(made(nodes, pods, units, hold))
    # Another reading of the same GPUs, as after a change of the node's other facts.
    nodes["n1"] = msgspec.convert(msgspec.to_builtins(nodes["n1"]), GPUNode)
    pods["b"] = msgspec.convert(msgspec.to_builtins(pods["b"]), Pod)
    second = holders(made(nodes, pods, units, hold))
    assert second["ml/a"] is first["ml/a"]
    assert second["ml/b"] is not first["ml/b"] and second["ml/b"] == first["ml/b"]
    units["n1"] = "nvidia.com/gpu.shared"
    third = holders(made(nodes, pods, units, hold))
    assert third["ml/a"] is not first["ml/a"] and third["ml/b"] is second["ml/b"]
    made(nodes, {}, units, hold)
    made(nodes, {}, units, hold)
    assert holders(made(nodes, pods, units, hold))["ml/b"] is not second["ml/b"]

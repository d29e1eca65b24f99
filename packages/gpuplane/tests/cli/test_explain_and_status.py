"""`gpuplane explain` and `gpuplane status` agree on random clusters."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.offers import UnitKind
from gpuplane.cli.holders import free_core, free_units
from gpuplane.cli.overview import overview
from gpuplane.cli.status_views import NodeView
from gpuplane.explain.world import World
from kubekit.api.core import Node, Pod
from packages.gpuplane.tests.cli import explained_clusters as built

# Nodes whose GPUs are shares, whole, replicas and MIG devices: name -> number of GPUs, what it offers.
KINDS: dict[str, tuple[int, dict[str, int] | None]] = {
    "a": (1, None),
    "b": (2, None),
    "c": (2, None),
    "whole": (1, {names.GPU_RESOURCE: 1}),
    "wholes": (3, {names.GPU_RESOURCE: 3}),
    "replicas": (1, {names.GPU_RESOURCE: 10}),
    "renamed": (2, {f"{names.GPU_RESOURCE}.shared": 8}),
    "mig": (1, {"nvidia.com/mig-1g.10gb": 7}),
}
steps = st.lists(
    st.tuples(
        st.sampled_from(("share", "whole", "plain", "ended")),
        st.sampled_from(sorted(KINDS)),
        st.integers(0, 1),
        st.integers(1, 9),
    ),
    max_size=12,
)


@given(steps, st.sets(st.sampled_from(sorted(KINDS))))
@settings(deadline=None, max_examples=100)
def test_explain_and_status_agree_on_what_is_free_of_each_gpu_and_on_who_holds_it(steps: Any, lost: set[str]) -> None:
    cluster = built.Cluster()
    for name, (gpus, devices) in KINDS.items():
        offers = (names.VCUDA_CORE, names.VCUDA_MEMORY)
        cluster.node(name, gpus, lost=(0,) if name in lost else (), offers=offers, devices=devices)
        if name == "mig":
            split = tuple(msgspec.structs.replace(gpu, mig="enabled") for gpu in cluster.gpunodes[-1].status.gpus)
            status = msgspec.structs.replace(cluster.gpunodes[-1].status, gpus=split)
            cluster.gpunodes[-1] = msgspec.structs.replace(cluster.gpunodes[-1], status=status)
    for number, (kind, node, gpu, part) in enumerate(steps):
        gpus, devices = KINDS[node]
        if devices is not None:
            (resource,) = devices
            pod = cluster.pod(f"p{number}", limits={resource: min(1 + part // 4, devices[resource])}, on=node)
        elif kind == "share":
            cluster.share(f"p{number}", f"{node}/{min(gpu, gpus - 1)}", 10 * part, 1)
            continue
        elif kind == "whole":
            cluster.whole(f"p{number}", f"{node}/{min(gpu, gpus - 1)}")
            continue
        else:
            pod = cluster.pod(f"p{number}", limits={names.VCUDA_CORE: 10 * part, names.VCUDA_MEMORY: 4}, on=node)
        pod["status"]["phase"] = "Succeeded" if kind == "ended" else "Running"
    facts = cluster.facts()
    nodes = [msgspec.convert(raw, Node) for raw in facts.nodes]
    seen = overview(
        facts.gpunodes,
        [msgspec.convert(raw, Pod) for raw in facts.pods],
        {node.metadata.name: node.status.allocatable for node in nodes},
    )
    world = World(facts)
    for view in seen.nodes:
        state = world.holdings.node(view.name)
        cores = free_core(view.gpus, view.sick, view.held_by)
        if not state.by_count:  # of replicas and MIG devices, only the number counts
            assert (cores is None) == (world.holdings.is_guessed(view.name) or _too_much(view)), view.name
            if cores is not None:
                free = [0 if gpu.fault else core for gpu, core in zip(state.gpus, state.core, strict=True)]
                assert cores == free, view.name
        for unit in view.units:
            if unit.kind in (UnitKind.REPLICA, UnitKind.MIG):
                asking = cluster.pod("asks", limits={unit.resource: unit.count + 1})
                (verdict,) = world.judge(cluster.pods.pop(), [view.name])
                assert asking and verdict.reason.endswith(f"asked, {free_units(unit, view.held_by)} free")
        for holder in view.held_by:
            raw = next(pod for pod in facts.pods if pod["metadata"]["name"] == holder.pod.partition("/")[2])
            held = cluster.explain(raw).held
            told = [(f"{view.name}/{part.index}", part.core, part.memory_mib, part.unit) for part in holder.parts]
            if view.name not in lost or view.gpus[1:]:  # of a node whose only GPU is lost, `status` counts no units
                assert [(one.gpu, one.core, one.memory_mib, one.unit) for one in held] == told


def _too_much(view: NodeView) -> bool:
    held: dict[int, int] = {}
    for part in (part for holder in view.held_by for part in holder.parts):
        held[part.index] = held.get(part.index, 0) + part.core
    return any(core > 100 for core in held.values())

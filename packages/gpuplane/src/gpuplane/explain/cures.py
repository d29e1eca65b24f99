"""Cures for a waiting pod: changes of the pod or of the cluster, each proved by deciding again. Pure.

A cure is listed only if the changed pod, or the pod in the changed cluster, is placed now. The least invasive come
first: changes of the pod, then of what keeps pods off nodes, then what other pods notice, then what costs a node.
"""

from __future__ import annotations

from typing import Final

from gpuplane.explain import cluster_cures, pod_cures
from gpuplane.explain.proving import Cure
from gpuplane.explain.world import NodeVerdict, Object, World

MOST: Final = 4


def cures(world: World, raw: Object, verdicts: list[NodeVerdict]) -> list[Cure]:
    """Return at most MOST cures, the smallest changes first."""
    found: list[Cure] = []
    for search in (
        pod_cures.pod_cures,
        cluster_cures.uncordoned,
        cluster_cures.offered,
        cluster_cures.others_gone,
        cluster_cures.recovered,
        cluster_cures.more_nodes,
    ):
        for cure in search(world, raw, verdicts):
            if cure.change not in {one.change for one in found}:
                found.append(cure)
            if len(found) == MOST:
                return found
    return found

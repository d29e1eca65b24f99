"""The room of domains, counted again for changed nodes only, equals a count of all nodes, and is never too little."""

from __future__ import annotations

import pytest

from gpuplane.scheduler.gangs.gang import GPU, NODE, Gang
from gpuplane.scheduler.gangs.placing import GangPlacer
from gpuplane.scheduler.gangs.rooms import GangRooms
from gpuplane.scheduler.gangs.topology import Domain
from gpuplane.scheduler.pods.objects import ScheduledPod
from packages.gpuplane.tests.pod_scheduler.test_ranking import GPUS, NODES, RankedCluster

MOST = 40
"""More pods than have room on a node."""


def counted(rooms: GangRooms, level: str, pod: ScheduledPod) -> dict[int, set[Domain]]:
    """The domains with room for at least so many pods."""
    found = rooms.of(level, pod)
    return {count: set(found.candidates(count)) for count in range(1, MOST)}


@pytest.mark.parametrize("seed", range(4))
def test_only_changed_nodes_are_counted_again(seed: int) -> None:
    cluster = RankedCluster(seed)
    held = GangRooms(cluster.model.cache, cluster.leader.cluster, cluster.ranking)
    placer = GangPlacer(cluster.model.cache, cluster.leader.cluster, cluster.leader.filtering, cluster.ranking)
    some = 0
    for _ in range(100):
        pod = cluster.pod()
        for level in (GPU, NODE):
            fresh = GangRooms(cluster.model.cache, cluster.leader.cluster, cluster.ranking)
            expected = counted(fresh, level, pod)
            assert counted(held, level, pod) == expected
            decision = placer.place(Gang("g", 1, required=level), [pod])
            if decision.places:
                assert any(decision.places[0].node in domain.nodes for domain in expected[1]), "it has room there"
                some += 1
        node = cluster.check(pod)
        match cluster.dice.randrange(8):
            case 0:
                cluster.node(f"n{cluster.dice.randrange(NODES + 1)}")
            case 1:
                cluster.gpus(f"n{cluster.dice.randrange(NODES)}")
            case 2 | 3 if cluster.placed:
                cluster.remove()
            case _ if node:
                cluster.place(pod, node)
    assert some > 50, "pods are placed"


def test_gpus_with_the_least_room_come_first() -> None:
    cluster = RankedCluster(0)
    rooms = GangRooms(cluster.model.cache, cluster.leader.cluster, cluster.ranking)
    pod = next(pod for pod in iter(cluster.pod, None) if pod.request.core == 30)
    found = list(rooms.of(GPU, pod).candidates(1))
    assert GPUS < len(found) <= NODES * GPUS
    cluster.place(pod, next(iter(found[-1].nodes)))
    first = next(rooms.of(GPU, pod).candidates(1))
    held = cluster.leader.cluster.ledger.holding(pod.metadata.uid)
    assert held is not None and {first.uuid} == {uuid for uuid, _ in held[1].held()}

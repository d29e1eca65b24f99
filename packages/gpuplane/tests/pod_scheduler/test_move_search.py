"""The search for moves: as few as any way has, each proved, nothing moved that may not be, nothing changed by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.nodeclaim import DO_NOT_DISRUPT
from gpuplane.scheduler.defrag.candidates import MoveRules, candidates
from gpuplane.scheduler.defrag.search import MovePlan, MoveSearch, found_by
from gpuplane.scheduler.quota import NamespaceQuota
from gpuplane.scheduler.simulation.offline import OfflineCluster
from gpuplane.sharing import violations
from kubekit.scheduling.preemption import Budget
from kubekit.scheduling.selectors import EVERYTHING
from tests.support.fragmented import bound_pod, fragmented, read, waiting_pod

RULES = MoveRules()
Holder = tuple[str, int, int, bool]
"""Node, GPU, core, and whether the pod may be moved."""


def cluster_of(nodes: dict[str, int], holders: Sequence[Holder], policy: str = "tightest") -> OfflineCluster:
    cluster = fragmented(nodes, policy)
    for at, (node, gpu, core, movable) in enumerate(holders):
        cluster.add_pod(bound_pod(f"p{at}", core, node, gpu, movable=movable))
    return cluster


def search_of(cluster: OfflineCluster) -> MoveSearch:
    return MoveSearch(cluster.cache, cluster.cluster, cluster.filtering, cluster.policies)


def room_for(cluster: OfflineCluster, core: int, most: int = 4, budgets: Sequence[Budget] = ()) -> MovePlan | None:
    cluster.add_pod(waiting_pod("w", core))
    movable = candidates(cluster.known_pods(), budgets, 0.0, RULES).by_node
    return found_by(search_of(cluster).room_for(read(cluster, "w"), movable, most))


def text(plan: MovePlan | None) -> list[str]:
    """`p0 n1 -> n2/0` for each move."""
    assert plan is not None
    return [
        f"{move.pod.metadata.name} {move.source} -> {move.node}/{','.join(one[-1] for one in move.given.uuids())}"
        for move in plan.moves
    ]


def state_of(cluster: OfflineCluster) -> Any:
    """All that a search could change."""
    nodes = {state.name: (state.core, state.memory, state.cpu_milli) for state in cluster.cluster.ledger.nodes()}
    pods = {key: (pod.node_name, pod.terminating) for key, pod in cluster.cache.pods.items()}
    return nodes, pods, sorted(cluster.cluster.ledger.pods()), cluster.cluster.usage.sums()


@pytest.mark.parametrize(
    ("nodes", "holders", "core", "moves"),
    [
        # 60% waits next to 40% + 40%: the smallest pod goes to the other GPU.
        ({"n1": 2}, [("n1", 0, 40, True), ("n1", 0, 20, True), ("n1", 1, 60, True)], 60, ["p1 n1 -> n1/1"]),
        # Two shares on two GPUs of one node: one goes next to the other, and a whole GPU is free.
        ({"n1": 2}, [("n1", 0, 40, True), ("n1", 1, 50, True)], 100, ["p0 n1 -> n1/1"]),
        # The pod that may not be moved stays; the other one goes.
        ({"n1": 2}, [("n1", 0, 40, False), ("n1", 1, 50, True)], 100, ["p1 n1 -> n1/0"]),
        # The smaller one has to leave room for the larger one: places are tried, not only the tightest.
        (
            {"n1": 2, "n2": 2},
            [("n1", 0, 50, True), ("n1", 1, 60, True), ("n2", 0, 50, False), ("n2", 1, 40, False)],
            200,
            ["p1 n1 -> n2/1", "p0 n1 -> n2/0"],
        ),
    ],
)
def test_the_fewest_moves_make_room(nodes: dict[str, int], holders: list[Holder], core: int, moves: list[str]) -> None:
    assert text(room_for(cluster_of(nodes, holders), core)) == moves


def test_a_pod_that_fits_needs_no_moves_and_one_that_cannot_fit_has_no_plan() -> None:
    holders = [("n1", 0, 60, True), ("n1", 1, 60, True)]
    assert room_for(cluster_of({"n1": 2}, holders), 40) is None
    assert room_for(cluster_of({"n1": 2}, holders), 60) is None  # no place for a pod that would leave
    assert room_for(cluster_of({"n1": 2, "n2": 1}, holders), 60, most=0) is None


@pytest.mark.parametrize(
    ("metadata", "spec", "reason"),
    [
        ({"annotations": {}}, {}, f"no {names.MOVABLE_ANNOTATION}"),
        ({"annotations": {names.MOVABLE_ANNOTATION: "yes"}}, {}, f"no {names.MOVABLE_ANNOTATION}"),
        ({"annotations": {names.MOVABLE_ANNOTATION: "true", DO_NOT_DISRUPT: "true"}}, {}, DO_NOT_DISRUPT),
        ({"annotations": {names.MOVABLE_ANNOTATION: "true", DO_NOT_DISRUPT: "1h"}}, {}, DO_NOT_DISRUPT),
        ({"ownerReferences": []}, {}, "no controller that creates another pod"),
        ({"annotations": {names.MOVABLE_ANNOTATION: "true", names.GANG_ANNOTATION: "g"}}, {}, "pod of a gang"),
        (
            {"annotations": {names.MOVABLE_ANNOTATION: "true"}, "labels": {names.POD_GROUP_LABEL: "g"}},
            {},
            "pod of a gang",
        ),
        ({}, {"schedulerName": "default-scheduler"}, "schedulerName is not gpuplane"),
        ({}, {"resourceClaims": [{"name": "r"}]}, "resource claims that bind it to its node"),
        ({}, {"workloadRef": {"name": "w"}}, "fields that the scheduler does not support"),
        (
            {},
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "volumes that bind it to its node",
        ),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}, "being deleted"),
    ],
)
def test_a_pod_that_says_no_stays(metadata: dict[str, Any], spec: dict[str, Any], reason: str) -> None:
    cluster = fragmented({"n1": 2})
    cluster.add_pod(bound_pod("q", 50, "n1", 1, movable=False))
    pod = bound_pod("p", 40, "n1", 0)
    said = {**pod["metadata"]["annotations"], **metadata.pop("annotations", {names.MOVABLE_ANNOTATION: "true"})}
    if reason == f"no {names.MOVABLE_ANNOTATION}":
        said |= {names.MOVABLE_ANNOTATION: "no"}
    pod["metadata"] |= {"annotations": said, **metadata}
    pod["spec"] |= spec
    cluster.add_pod(pod)
    assert room_for(cluster, 100) is None
    found = candidates(cluster.known_pods(), (), 0.0, RULES)
    assert found.why[reason] >= 1
    assert not found.by_node


def test_a_pod_of_a_daemonset_stays_and_is_not_counted() -> None:
    cluster = fragmented({"n1": 2})
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
    cluster.add_pod(bound_pod("p", 40, "n1", 0, ownerReferences=[daemon]))
    found = candidates(cluster.known_pods(), (), 0.0, RULES)
    assert (found.by_node, found.why, found.staying) == ({}, {}, {})


def test_a_disruption_budget_without_an_eviction_left_keeps_its_pods() -> None:
    holders = [("n1", 0, 40, True), ("n1", 1, 50, True)]
    full = Budget("default", EVERYTHING, 0)
    assert room_for(cluster_of({"n1": 2}, holders), 100, budgets=[full]) is None
    left = Budget("default", EVERYTHING, 1)
    assert room_for(cluster_of({"n1": 2}, holders), 100, budgets=[left]) is not None
    assert room_for(cluster_of({"n1": 2}, holders), 100, budgets=[left, left]) is None
    assert room_for(cluster_of({"n1": 2}, holders), 100, budgets=[Budget("other", EVERYTHING, 0)]) is not None


def test_a_moved_pod_cools_down() -> None:
    moved = {names.MOVABLE_ANNOTATION: "true", names.MOVED_ANNOTATION: "1970-01-01T00:10:00Z"}
    cluster = fragmented({"n1": 2})
    cluster.add_pod(bound_pod("p", 40, "n1", 0, annotations=moved))
    assert not candidates(cluster.known_pods(), (), 600.0 + 3599.0, RULES).by_node
    assert candidates(cluster.known_pods(), (), 600.0 + 3600.0, RULES).by_node


def test_a_quota_holds_for_the_replacement_and_the_waiting_pod() -> None:
    """The replacement counts instead of the pod that moves; the waiting pod counts besides."""
    for percent, moves in ((150, None), (190, 1)):
        limit = NamespaceQuota({"": percent})
        cluster = fragmented({"n1": 2}, quotas=lambda namespace, limit=limit: limit)
        for at, core in enumerate((40, 50)):
            cluster.add_pod(bound_pod(f"p{at}", core, "n1", at))
        plan = room_for(cluster, 100)
        assert (len(plan.moves) if plan is not None else None) == moves


def test_a_node_becomes_free_of_the_fewest_pods() -> None:
    holders = [("n1", 0, 30, True), ("n1", 1, 30, True), ("n2", 0, 30, True), ("n3", 0, 30, False)]
    cluster = cluster_of({"n1": 2, "n2": 2, "n3": 2}, holders)
    found = candidates(cluster.known_pods(), (), 0.0, RULES)
    plan = found_by(search_of(cluster).free_node(found.by_node, found.staying, 4))
    assert plan is not None
    assert (plan.node, plan.waiting, len(plan.moves)) == ("n2", None, 1)
    assert plan.moves[0].node in ("n1", "n3")  # never an empty node: that would free none


def test_no_node_is_freed_by_filling_an_empty_one() -> None:
    cluster = cluster_of({"n1": 2, "n2": 2}, [("n1", 0, 30, True)])
    found = candidates(cluster.known_pods(), (), 0.0, RULES)
    assert found_by(search_of(cluster).free_node(found.by_node, found.staying, 4)) is None


# -- against every way there is -----------------------------------------------------------------------------------


def fewest_by_brute_force(nodes: dict[str, int], holders: Sequence[Holder], core: int, most: int) -> int | None:
    """The fewest moves of pods of one node, each to any GPU with room while the pod still holds its own."""
    free = {(node, gpu): 100 for node, gpus in nodes.items() for gpu in range(gpus)}
    for node, gpu, part, _ in holders:
        free[node, gpu] -= part

    def fits(node: str, now: dict[tuple[str, int], int]) -> bool:
        rooms = [room for (name, _), room in now.items() if name == node]
        return max(rooms) >= core if core < 100 else rooms.count(100) >= core // 100

    if any(fits(node, free) for node in nodes):
        return None  # it needs no moves

    def after(node: str, now: dict[tuple[str, int], int], left: frozenset[int], moves: int) -> bool:
        if moves == 0:
            return fits(node, now)
        for at in left:
            _, gpu, part, _ = holders[at]
            for place, room in now.items():
                if place != (node, gpu) and room >= part:
                    then = {**now, place: room - part}
                    then[node, gpu] += part
                    if after(node, then, left - {at}, moves - 1):
                        return True
        return False

    for moves in range(1, most + 1):
        for node in nodes:
            mine = frozenset(at for at, one in enumerate(holders) if one[0] == node and one[3])
            if after(node, free, mine, moves):
                return moves
    return None


@st.composite
def small_clusters(draw: st.DrawFn) -> tuple[dict[str, int], list[Holder], int, str]:
    nodes = {f"n{at}": draw(st.integers(1, 2)) for at in range(draw(st.integers(1, 3)))}
    holders: list[Holder] = []
    for node, gpus in nodes.items():
        for gpu in range(gpus):
            free = 100
            for _ in range(draw(st.integers(0, 3))):
                part = 10 * draw(st.integers(1, 6))
                if part <= free:
                    free -= part
                    holders.append((node, gpu, part, draw(st.integers(0, 4)) > 0))
    core = draw(st.sampled_from([30, 50, 60, 70, 80, 90, 100, 200]))
    return nodes, holders, core, draw(st.sampled_from(["tightest", "opportunity", "spread"]))


@settings(max_examples=150, deadline=None)
@given(small_clusters())
def test_no_way_has_fewer_moves_and_nothing_is_changed(
    drawn: tuple[dict[str, int], list[Holder], int, str],
) -> None:
    nodes, holders, core, policy = drawn
    cluster = cluster_of(nodes, holders, policy)
    cluster.add_pod(waiting_pod("w", core))
    before = state_of(cluster)
    plan = room_for(cluster, core, most=3)
    assert state_of(cluster) == before
    wanted = fewest_by_brute_force(nodes, holders, core, 3)
    assert (len(plan.moves) if plan is not None else None) == wanted
    if plan is not None:
        search = search_of(cluster)
        assert search.prove(plan)
        assert state_of(cluster) == before
        assert search.apply(plan)
        assert violations(cluster.cluster.ledger) == []
        assert all(holders[int(move.pod.metadata.name[1:])][3] for move in plan.moves)

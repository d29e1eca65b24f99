"""The answer of `gpuplane defrag` as data: moves that make room for pods that wait, or that free nodes. Pure.

The scheduler's own view is built from the objects that were read, and its own search finds and proves the moves. Each
plan holds after the plans before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from gpuplane.explain.scheduler_view import offline_cluster
from gpuplane.explain.world import ClusterFacts
from gpuplane.scheduler.defrag.candidates import Candidates, MoveRules, candidates
from gpuplane.scheduler.defrag.search import Move, MovePlan, MoveSearch, found_by
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.simulation.offline import OfflineCluster
from gpuplane.sharing import Assignment
from kubekit.scheduling.preemption import Budget

MOST_WAITING: Final = 200  # different pods to make room for; a search takes some milliseconds for each


class PlannedMove(msgspec.Struct, frozen=True, rename="camel"):
    """A pod's move. `source` and `target` are node/GPU,GPU, or a node for a pod without GPUs. `core` is in percent."""

    pod: str
    source: str
    target: str
    core: int
    uid: str
    source_node: str
    target_node: str
    target_gpus: tuple[str, ...] = ()


class PlannedGain(msgspec.Struct, frozen=True, rename="camel"):
    """The gain of some moves: `pod` runs at `place`, or the node `node` is free with its `gpus` GPUs."""

    moves: tuple[PlannedMove, ...]
    pod: str = ""
    place: str = ""
    core: int = 0
    node: str = ""
    gpus: int = 0


class Defragmentation(msgspec.Struct, frozen=True, rename="camel"):
    """`waiting` pods find no room, and the moves of `plans` help some; `without_plan` are the others.

    `movable` pods may be moved; `staying` counts the others by reason. `of_other_schedulers` wait too, and are not
    looked at.
    """

    plans: tuple[PlannedGain, ...]
    waiting: int
    without_plan: tuple[str, ...]
    movable: int
    staying: dict[str, int]
    of_other_schedulers: int
    failed: str = ""  # why a move was not carried out, where moves were


def defragmentation(
    facts: ClusterFacts,
    budgets: Sequence[Budget],
    now: float,
    *,
    namespace: str = "",
    most: int,
    free_nodes: bool,
    rules: MoveRules,
) -> Defragmentation:
    """Return the fewest moves, `most` at most.

    Args:
        facts: with bound pods of all namespaces as they are stored.
        now: Unix time in seconds.
        namespace: make room for pods of this namespace only; empty for all.
        free_nodes: free whole nodes too.
    """
    cluster = offline_cluster(facts)
    search = MoveSearch(cluster.cache, cluster.cluster, cluster.filtering, cluster.policies)
    pods = cluster.known_pods()
    movable = candidates(pods, budgets, now, rules)
    waiting = _waiting(pods, namespace)
    plans: list[PlannedGain] = []
    without, hopeless, looked_at = [], set[bytes](), 0
    for pod in waiting:
        plan = None
        if pod.kind not in hopeless and looked_at < MOST_WAITING:
            looked_at += 1
            plan = found_by(search.room_for(pod, movable.by_node, min(most, rules.most_moves)))
        if plan is None:
            if node := search.node_now(pod):
                search.apply(MovePlan((), node, pod))  # its scheduler is about to bind it
            else:
                hopeless.add(pod.kind)
                without.append(pod.shown)
            continue
        most -= len(plan.moves)
        plans.append(_carry_out(search, plan, movable, cluster))
    while free_nodes and (plan := found_by(search.free_node(movable.by_node, movable.staying, most))) is not None:
        most -= len(plan.moves)
        plans.append(_carry_out(search, plan, movable, cluster))
    count = sum(map(len, candidates(pods, budgets, now, rules).by_node.values()))
    return Defragmentation(
        tuple(plans),
        len(without) + sum(bool(plan.pod) for plan in plans),
        tuple(without),
        count,
        dict(movable.why),
        _of_other_schedulers(cluster),
    )


def _of_other_schedulers(cluster: OfflineCluster) -> int:
    """Return the number of pods that wait for other schedulers for GPUs."""
    return sum(not one.spec.node_name and not one.ours and bool(one.request) for one in cluster.known_pods())


def _waiting(pods: Iterable[ScheduledPod], namespace: str) -> list[ScheduledPod]:
    """Return the pods that wait for the scheduler, in its order."""
    found = [
        pod
        for pod in pods
        if pod.ours
        and pod.info is not None
        and not pod.info.gates
        and not pod.info.terminating
        and not pod.trouble
        and namespace in ("", pod.metadata.namespace)
    ]
    return sorted(found, key=_order)


def _order(pod: ScheduledPod) -> tuple[int, str, str]:
    assert pod.info is not None
    return -pod.info.priority, pod.info.created, pod.shown


def _carry_out(search: MoveSearch, plan: MovePlan, movable: Candidates, cluster: OfflineCluster) -> PlannedGain:
    """Carry the plan out on the view, so that the next one begins behind it."""
    moves = tuple(_move(move, cluster) for move in plan.moves)
    search.apply(plan)
    gone = {move.pod.metadata.uid for move in plan.moves}
    for node in {move.source for move in plan.moves}:
        movable.by_node[node] = [pod for pod in movable.by_node[node] if pod.metadata.uid not in gone]
        if not movable.by_node[node]:
            del movable.by_node[node]
    for move in plan.moves:
        movable.staying[move.node] += 1
    if plan.waiting is not None:
        movable.staying[plan.node] += 1
        place = _place(plan.node, plan.given)
        return PlannedGain(moves, plan.waiting.shown, place, plan.waiting.request.core)
    state = cluster.cluster.ledger.node(plan.node)
    return PlannedGain(moves, node=plan.node, gpus=len(state.gpus) if state is not None else 0)


def _move(move: Move, cluster: OfflineCluster) -> PlannedMove:
    source = _place(move.source, move.pod.assignment)
    return PlannedMove(
        move.pod.shown,
        source,
        _place(move.node, move.given),
        move.pod.request.core,
        move.pod.metadata.uid,
        move.source,
        move.node,
        move.given.uuids(),
    )


def _place(node: str, given: Assignment | None) -> str:
    """Return node/0,1."""
    indices: Collection[int] = {index for _, index in given.held()} if given is not None else ()
    return f"{node}/{','.join(map(str, sorted(indices)))}" if indices else node

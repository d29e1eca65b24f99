"""Finds the fewest moves that give a waiting pod a place, or that free a node; proves each before it is returned.

A move takes one pod from the node that is to have room directly to a place that is free while the pod still holds its
own. Each move is tried on the cache and the ledger, after the moves before it, with the filters, quotas and policy that
will place the replacement. After the last move the waiting pod must fit. So a plan is a proof for one moment. The
search gives the loop back between two nodes, and the caller proves the plan again when it acts.

With n moves no plan is found only if none exists with n moves within the limits below; small clusters never reach them.
Nothing is changed: cache and ledger are as before whenever the search yields or returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop
from itertools import combinations, islice, permutations
from math import comb
from typing import Final, TypeVar

import msgspec

from gpuplane.scheduler.cluster import NO_GPUS, Cluster
from gpuplane.scheduler.defrag.trial import Trial
from gpuplane.scheduler.feasibility import FITS
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.pods.decide import choose_node
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.policies import Policies
from gpuplane.sharing import Assignment, NodeState, Request
from gpuplane.sharing.placement import Placement, place
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.check import FilterCheck

MOST_NODES: Final = 64  # to make room on, those first that lack the least
MOST_PLACES: Final = 24  # for one replacement, the best first
MOST_TRIES: Final = 400  # replacements to place, for one node and one number of moves
TRIES_OF_A_SET: Final = 100  # of these, for one set of pods; nothing else is done meanwhile
MOST_SETS: Final = 4000  # of pods to move, for one node and one number of moves
_AT_ONCE: Final = 16  # quick looks between two pauses
_ALL_ORDERS: Final = 4  # moves up to which every order is tried
REPLACEMENT: Final = "replacement:"  # begins the uid of a pod that does not exist yet


class Move(msgspec.Struct, frozen=True):
    """One pod's move: from what it holds to the place of its replacement, `given` on `node`."""

    pod: ScheduledPod
    node: str
    given: Assignment

    @property
    def source(self) -> str:
        """Return the node that the pod leaves."""
        return self.pod.spec.node_name


class MovePlan(msgspec.Struct, frozen=True):
    """Moves in their order, and the gain: `node` has room for the pod `waiting`, or is free of pods if there is none.

    `given` are the GPUs that the waiting pod would get.
    """

    moves: tuple[Move, ...]
    node: str
    waiting: ScheduledPod | None = None
    given: Assignment = NO_GPUS


Search = Generator[None, None, MovePlan | None]
"""Steps of a search; nothing is changed between two of them."""
T = TypeVar("T")


def found_by(search: Generator[None, None, T]) -> T:
    """Return the result of a search, without a pause."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            result: T = end.value
            return result


class MoveSearch:
    """Searches on the scheduler's view of the cluster."""

    def __init__(self, cache: SchedulerCache, cluster: Cluster, filtering: Filtering, policies: Policies) -> None:
        self.trial = Trial(cache, cluster)
        self._cache = cache
        self._cluster = cluster
        self._filtering = filtering
        self._policies = policies
        self._tries = 0

    # -- goals -------------------------------------------------------------------------------------------------------

    def room_for(self, pod: ScheduledPod, movable: Mapping[str, Sequence[ScheduledPod]], most: int) -> Search:
        """Find the fewest moves, `most` at most, that give a waiting pod a place. Raises Retryable without quotas.

        Args:
            movable: the pods that may be moved, by node.
        """
        if pod.info is None or pod.info.volumes or pod.info.claims or pod.trouble or pod.gang is not None:
            return None
        nodes = yield from self._nodes_for(pod, movable)
        for count in range(1, most + 1):
            for node in nodes:
                plan = yield from self._make_room(pod, node, movable[node], count)
                if plan is not None:
                    return plan
        return None

    def free_node(self, movable: Mapping[str, Sequence[ScheduledPod]], staying: Collection[str], most: int) -> Search:
        """Find the fewest moves, `most` at most, after which a node with GPUs has no pods but its own.

        Args:
            staying: nodes with pods that may not be moved.
        """
        nodes = [node for node in movable if node not in staying and self._cluster.ledger.node(node) is not None]
        in_use = {name for name, node in self._cache.nodes.items() if name in movable or name in staying}
        for node in sorted(nodes, key=lambda name: (len(movable[name]), name))[:MOST_NODES]:
            if len(movable[node]) > most:
                break
            if self._holds_others(node, movable[node]):
                continue
            self._tries = 0
            moves = self._first(movable[node], in_use - {node}, lambda: NO_GPUS)
            if moves is not None:
                return MovePlan(moves[0], node)
            yield
        return None

    def node_now(self, pod: ScheduledPod) -> str:
        """Return the node that a waiting pod would get without any move; empty for none."""
        return choose_node(pod, self._cache, self._filtering).node

    def prove(self, plan: MovePlan) -> bool:
        """Return whether the plan holds on the cluster as it is now. Raises Retryable while quotas are unknown."""
        with self.trial.attempt():
            return self._carried_out(plan)

    def proves_move(self, move: Move) -> bool:
        """Return whether this move can be carried out now, whatever it is for. Raises Retryable without quotas."""
        with self.trial.attempt():
            return self._moved(move)

    def move_to(self, pod: ScheduledPod, node: str, uuids: tuple[str, ...]) -> Move | None:
        """Return the move of a bound pod to these GPUs of a node; None where they are not free."""
        if pod.info is None:
            return None
        if not pod.request:
            return Move(pod, node, NO_GPUS)
        state = self._filtering.feasibility.hosting(node, pod.request)
        wanted = pod.request.uuids
        if not uuids or (wanted and not set(uuids) <= set(wanted)):
            return None
        given = self._placed(state, within(pod.request, uuids))
        return Move(pod, node, given) if given is not None else None

    def apply(self, plan: MovePlan) -> bool:
        """Carry the plan out on this view of the cluster, to search on behind it; return whether it holds."""
        return self._carried_out(plan)

    def _carried_out(self, plan: MovePlan) -> bool:
        for move in plan.moves:
            if not self._moved(move):
                return False
        if plan.waiting is None:
            return not self._holds_others(plan.node, ())
        assert plan.waiting.info is not None
        given = self._place_for(plan.waiting, plan.node)
        if given is None or plan.waiting.info.key in self._cache.pods:  # it is bound, or about to be
            return False
        self.trial.put(plan.waiting, plan.node, given)
        return True

    # -- one node ----------------------------------------------------------------------------------------------------

    def _nodes_for(
        self, pod: ScheduledPod, movable: Mapping[str, Sequence[ScheduledPod]]
    ) -> Generator[None, None, list[str]]:
        """Return the nodes that the pod would fit without the movable pods, those first that lack the least."""
        found = choose_node(pod, self._cache, self._filtering).found
        if found is None or found.feasible:
            return []
        names = [name for name, failure in found.failures.items() if failure.resolvable and name in movable]
        names.sort(key=lambda name: (self._lacks(name, pod.request), len(movable[name]), name))
        fitting: list[str] = []
        for at, name in enumerate(names[: 4 * MOST_NODES]):
            if at % _AT_ONCE == 0:
                yield
            if self._frees(pod, name, movable[name]):
                fitting.append(name)
                if len(fitting) == MOST_NODES:
                    break
        return fitting

    def _lacks(self, node: str, request: Request) -> int:
        """Return how much core the freest GPUs of the node lack for the request."""
        state = self._cluster.ledger.node(node)
        if state is None or not request:
            return 0
        free = sorted((state.core[at] for at, gpu in enumerate(state.gpus) if gpu.usable), reverse=True)
        wanted = sorted((ask.each for ask in request.asks for _ in range(ask.gpus or 1)), reverse=True)
        return sum(max(0, want - have) for want, have in zip(wanted, free, strict=False))

    def _make_room(self, pod: ScheduledPod, node: str, pods: Sequence[ScheduledPod], count: int) -> Search:
        """Return a plan with `count` moves from the node."""
        tries = 0
        for at, victims in enumerate(self._sets(pod, node, pods, count)):
            if tries >= MOST_TRIES:
                return None
            if at % _AT_ONCE == 0:
                yield
            if self._frees(pod, node, victims):
                self._tries = 0
                found = self._first(victims, None, lambda: self._place_for(pod, node))
                if found is not None:
                    return MovePlan(found[0], node, pod, found[1])
                tries += self._tries
                yield
        return None

    def _sets(
        self, pod: ScheduledPod, node: str, pods: Sequence[ScheduledPod], count: int
    ) -> Iterator[Sequence[ScheduledPod]]:
        """Yield sets of pods to move: all of them if they are few, else those that hold the same GPUs."""
        pods = sorted(pods, key=_least_important_first)
        if comb(len(pods), count) <= MOST_SETS:
            yield from combinations(pods, count)
            return
        holders: dict[str, list[ScheduledPod]] = {}
        for one in pods:
            for uuid, _ in one.assignment.held() if one.assignment is not None else ():
                holders.setdefault(uuid, []).append(one)
        state, gpus = self._cluster.ledger.node(node), sum(ask.gpus for ask in pod.request.asks)
        if gpus and state is not None:
            free = sum(have == state.scale for have in state.core)
            fewest = sorted(holders.values(), key=len)[: max(0, gpus - free)]
            together = {one.metadata.uid: one for group in fewest for one in group}
            if len(together) == count:
                yield list(together.values())
            return
        groups: Iterable[Sequence[ScheduledPod]] = holders.values() if pod.request else (pods,)
        yield from islice((found for group in groups for found in combinations(group, count)), MOST_SETS)

    def _frees(self, pod: ScheduledPod, node: str, victims: Iterable[ScheduledPod]) -> bool:
        """Return whether the pod fits the node without the victims."""
        with self.trial.attempt():
            for victim in victims:
                self.trial.take_off(victim)
            return self._place_for(pod, node) is not None

    def _first(
        self, victims: Sequence[ScheduledPod], within: Collection[str] | None, goal: Callable[[], Assignment | None]
    ) -> tuple[tuple[Move, ...], Assignment] | None:
        """Return the first moves of all victims after which the goal has a place."""
        largest_first = sorted(victims, key=lambda one: (-one.request.core, one.metadata.namespace, one.metadata.name))
        orders = permutations(largest_first) if len(largest_first) <= _ALL_ORDERS else iter((tuple(largest_first),))
        for order in orders:
            found = self._moves(order, within, goal, ())
            if found is not None:
                return found
            if self._tries >= TRIES_OF_A_SET:
                return None
        return None

    def _moves(
        self,
        victims: Sequence[ScheduledPod],
        within: Collection[str] | None,
        goal: Callable[[], Assignment | None],
        done: tuple[Move, ...],
    ) -> tuple[tuple[Move, ...], Assignment] | None:
        """Return `done` and a move of each victim in this order, after which the goal has a place."""
        if not victims:
            given = goal()
            return None if given is None else (done, given)
        for move in self._places(victims[0], within):
            if self._tries >= TRIES_OF_A_SET:
                return None
            self._tries += 1
            with self.trial.attempt():
                if self._moved(move):
                    found = self._moves(victims[1:], within, goal, (*done, move))
                    if found is not None:
                        return found
        return None

    # -- one move ----------------------------------------------------------------------------------------------------

    def _places(self, victim: ScheduledPod, within: Collection[str] | None) -> list[Move]:
        """Return places for the victim's replacement that are free now: other nodes first, the best by the policy."""
        replacement = replacement_of(victim)
        assert replacement.info is not None
        here = victim.spec.node_name, victim.assignment.uuids() if victim.assignment is not None else ()
        answers = self._filtering.answers(replacement.request)
        names = [node.name for node in self._cache.candidates() if within is None or node.name in within]
        if replacement.request:
            names = [name for name in names if answers.lacking(name) is FITS]
        # Places on its own node come last: there they may take the room that is to be made.
        best_first = [(name == here[0], -answers.value(name), name) for name in names]
        heapify(best_first)  # only the first few are looked at
        found: list[Move] = []
        with self.trial.attempt():
            self.trial.leave(victim)
            check = FilterCheck(replacement.info, self._cache)
            while best_first:
                _, _, name = heappop(best_first)
                if self._cluster.unusable(name) or check(self._cache.nodes[name]) is not None:
                    continue
                found += [
                    Move(victim, name, given)
                    for given in self._assignments(replacement, name)
                    if (name, given.uuids()) != here
                ]
                if len(found) >= MOST_PLACES:
                    break
        return found

    def _assignments(self, pod: ScheduledPod, node: str) -> Iterator[Assignment]:
        """Yield the GPUs that the pod may get on the node: the policy's choice, then each other GPU for a share."""
        if not pod.request:
            yield NO_GPUS
            return
        state = self._filtering.feasibility.hosting(node, pod.request)
        best = self._placed(state, pod.request)
        if state is None or best is None:
            return
        yield best
        ask = pod.request.asks[0]
        if len(pod.request.asks) != 1 or ask.gpus or not best.containers:
            return
        wanted, chosen = pod.request.uuids, best.uuids()
        seen = {_likeness(state, at) for at, gpu in enumerate(state.gpus) if gpu.uuid in chosen}
        for at, gpu in enumerate(state.gpus):
            if not gpu.usable or (wanted and gpu.uuid not in wanted) or _likeness(state, at) in seen:
                continue
            if state.core[at] < ask.core or state.memory[at] < ask.memory_mib:
                continue  # a refusal in words takes ten times as long
            other = self._placed(state, within(pod.request, (gpu.uuid,)))
            if other is not None:
                seen.add(_likeness(state, at))
                yield other

    def _placed(self, state: NodeState | None, request: Request) -> Assignment | None:
        if state is None:
            return None
        found = place(state, request, *self._policies.of(request))
        return found.assignment if isinstance(found, Placement) else None

    def _moved(self, move: Move) -> bool:
        """Carry the move out in the trial; return False where its replacement does not get the place."""
        replacement = replacement_of(move.pod)
        assert replacement.info is not None
        node = self._cache.nodes.get(move.node)
        if node is None or node.facts is None or self._cluster.unusable(move.node):
            return False
        with self.trial.attempt():
            # The place is reserved while the pod still holds its own.
            self.trial.leave(move.pod)
            if FilterCheck(replacement.info, self._cache)(node) is not None or not self._has(move, replacement):
                return False
        self.trial.take_off(move.pod)
        if FilterCheck(replacement.info, self._cache)(node) is not None:
            return False
        if replacement.request and self._filtering.check(replacement)(move.node).reason:
            return False
        self.trial.put(replacement, move.node, move.given)
        return True

    def _has(self, move: Move, replacement: ScheduledPod) -> bool:
        """Return whether the GPUs of the move are free, next to pods that are nominated to the node."""
        if not replacement.request:
            return True
        state = self._filtering.feasibility.hosting(move.node, replacement.request)
        request = within(replacement.request, move.given.uuids())
        if state is None or self._placed(state, request) is None:
            return False
        return not self._filtering.refused_by_nominated(replacement, move.node)

    def _place_for(self, pod: ScheduledPod, node: str) -> Assignment | None:
        """Return what a waiting pod would get on the node now; None where it does not fit."""
        assert pod.info is not None
        state = self._cache.nodes.get(node)
        if state is None or state.facts is None or FilterCheck(pod.info, self._cache)(state) is not None:
            return None
        if not pod.request:
            return NO_GPUS
        if not self._filtering.allows(pod, node):
            return None
        return self._placed(self._filtering.feasibility.hosting(node, pod.request), pod.request)

    def _holds_others(self, node: str, pods: Sequence[ScheduledPod]) -> bool:
        """Return whether something is on the node, or about to be, besides these pods: then moving them is no gain."""
        uids = {pod.metadata.uid for pod in pods}
        ledger = self._cluster.ledger
        state = ledger.node(node)
        holders = {one.pod for gpu in (state.gpus if state else ()) for one in ledger.holders(node, gpu.uuid)}
        return not holders <= uids or bool(self._cache.nodes[node].nominated)


def replacement_of(pod: ScheduledPod) -> ScheduledPod:
    """Return the pod that its controller creates after an eviction, as far as it is known before."""
    assert pod.info is not None
    uid = REPLACEMENT + pod.metadata.uid
    name = f"{pod.metadata.name} (replacement)"  # no pod can have this name
    info = msgspec.structs.replace(pod.info, name=name, uid=uid, node_name="", nominated="", terminating=False)
    meta = msgspec.structs.replace(pod.metadata, name=name, uid=uid, deletion_timestamp=None)
    spec = msgspec.structs.replace(pod.spec, node_name="")
    return msgspec.structs.replace(
        pod, metadata=meta, spec=spec, info=info, assignment=None, order=None, stays="", moved_at=""
    )


def within(request: Request, uuids: tuple[str, ...]) -> Request:
    """Return the request for these GPUs alone."""
    return msgspec.structs.replace(request, uuids=uuids) if uuids else request


def _likeness(state: NodeState, at: int) -> tuple[int, int, str]:
    """Return what is equal for two GPUs of a node that are the same choice for a share."""
    return state.core[at], state.memory[at], state.gpus[at].model


def _least_important_first(pod: ScheduledPod) -> tuple[int, int, str, str]:
    assert pod.info is not None
    return pod.info.priority, pod.request.core, pod.metadata.namespace, pod.metadata.name

"""Caches placement's answers for (request, node) until the node changes.

A cluster has few different requests, and few nodes change between two pods with the same request. So a filter over
5,000 nodes asks `gpuplane.sharing.placement` about few nodes, and finds the others in the cache. The first filter for a
request looks at all nodes. It takes a shorter way for pods with GPUs in one container, as most pods have; a test
compares it with placement. Nothing is decided here.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.scheduler.policies import Policies
from gpuplane.sharing import Ledger, LedgerGPU, NodeState, Request, empty
from gpuplane.sharing.placement import Placement, Policy, Refusal, place
from gpuplane.sharing.placement.alike import AlikeNodes
from gpuplane.sharing.placement.fit import find, place_by_count, rate, usable_gpus
from gpuplane.sharing.placement.lacking import cannot_host, refusal

_REQUESTS: Final = 64
_NEVER: Final = float("-inf")
UNKNOWN: Final = "has no GPUs that gpuplane knows of"
Hardware = tuple[tuple[str, int, bool], ...]
"""(model, memory, usable) of each GPU: what decides whether an empty node would do."""


class Lacking(msgspec.Struct, frozen=True):
    """Why a pod does not fit a node; no `reason` where it does. `hopeless`: not even if the node's other pods went."""

    reason: str = ""
    hopeless: bool = False


FITS: Final = Lacking()
_UNKNOWN: Final = Lacking(UNKNOWN, hopeless=True)


class _Room(msgspec.Struct, frozen=True, gc=False):
    """The inputs of a node for a pod with one container and no selectors: `whole` GPUs free of `usable` ones, and the
    (core, memory) of free shares, without those that are less in both.
    """

    state: NodeState
    usable: int
    whole: int
    shares: tuple[tuple[int, int], ...]


class _Known(msgspec.Struct):
    revision: int
    policies: int  # version of the policies that `values` are by
    by_count: bool
    short: bool  # one container and no selectors, so that the room of a node decides
    lacks: dict[str, Lacking] = {}  # by node
    values: dict[str, float] = {}
    words: dict[tuple[int, int, int], str] = {}  # for one container: by what the refusal's words depend on
    hopeless: dict[Hardware, bool] = {}
    lackings: dict[tuple[str, bool], Lacking] = {}  # one object for all equal ones


class FeasibilityCache:
    """`of(request)` answers for one request; ask again for each pod, since the ledger changes."""

    def __init__(self, ledger: Ledger, policies: Policies) -> None:
        self._ledger = ledger
        self._policies = policies
        self._known: OrderedDict[Request, _Known] = OrderedDict()
        self._hardware: dict[str, tuple[tuple[LedgerGPU, ...], Hardware]] = {}
        self.rooms: dict[str, _Room] = {}
        self.state = ledger.node
        self._alike: AlikeNodes | None = None

    def hosting(self, node: str, request: Request) -> NodeState | None:
        """Return the node's state, without CPU and memory where they do not suffice for the pod.

        The scheduler decides about both, and has decided for the node when it asks about it.
        """
        state = self._ledger.node(node)
        if state is None or not cannot_host(state, request):
            return state
        return msgspec.structs.replace(state, cpu_milli=None, host_memory_mib=None)

    def of(self, request: Request) -> Answers:
        version = self._policies.version
        known = self._known.get(request)
        if known is None:
            first = request.asks[0] if len(request.asks) == 1 and not request.selects else None
            short = first is not None and bool(first.gpus or first.memory_mib)
            known = self._known[request] = _Known(self._ledger.revision, version, request.by_count, short)
            if len(self._known) > _REQUESTS:
                self._known.popitem(last=False)
        self._known.move_to_end(request)
        changed = self._ledger.changed_since(known.revision)
        known.revision = self._ledger.revision
        if changed is None:
            known.lacks.clear()
            known.values.clear()
        else:
            for node in changed:
                known.lacks.pop(node, None)
                known.values.pop(node, None)
        if known.policies != version:
            known.policies = version
            known.values.clear()
        return Answers(self, known, request, *self._policies.of(request))

    def alike(self) -> AlikeNodes:
        """Return the nodes of the ledger by number of their state."""
        names = [state.name for state in self._ledger.nodes()]
        if self._alike is None or self._alike.names != names:
            self._alike = AlikeNodes(self._ledger, names, self._alike)
        return self._alike

    def hardware(self, state: NodeState) -> Hardware:
        known = self._hardware.get(state.name)
        if known is None or known[0] is not state.gpus:
            found = tuple((gpu.model, gpu.memory_mib, gpu.usable) for gpu in state.gpus)
            known = self._hardware[state.name] = (state.gpus, found)
        return known[1]

    def room(self, state: NodeState) -> _Room:
        known = self.rooms.get(state.name)
        if known is None or known.state is not state:
            known = self.rooms[state.name] = _room(state)
        return known


def _room(state: NodeState) -> _Room:
    usable = usable_gpus(state, _ANY)
    shares: list[tuple[int, int]] = []
    for share in sorted({(state.core[at], state.memory[at]) for at in usable}, reverse=True):
        if not shares or share[1] > shares[-1][1]:
            shares.append(share)
    return _Room(state, len(usable), sum(state.core[at] == state.scale for at in usable), tuple(shares))


_ANY: Final = Request()


class Answers:
    """Placement's answers about one request, node by node. `known` and `values` are the cached ones, for loops over all
    nodes; they have other nodes as soon as this object is asked.
    """

    def __init__(
        self, cache: FeasibilityCache, known: _Known, request: Request, policy: Policy, gpu_policy: Policy
    ) -> None:
        self._cache = cache
        self.known: Mapping[str, Lacking] = known.lacks
        self.values: Mapping[str, float] = known.values
        self._known = known
        self._request = request
        self._policy = policy
        self._gpu_policy = gpu_policy
        self._by_count = known.by_count
        self._short = known.short

    def rate_all(self) -> None:
        """Fill the cache with the values of all nodes that the pod fits: those in the same state are rated once."""
        request, policy = self._request, self._policy
        if request.uuids or request.not_uuids:
            return
        alike = self._cache.alike()
        numbers = alike.numbers()
        found = [(number, state) for number in set(numbers) if (state := alike.state(number)) is not None]
        states = {number: state for number, state in found if not (state.by_count and self._by_count)}
        values = alike.share_values(states, request, policy) if self._gpu_policy is policy else None
        if values is None:
            rated = {one: rate(state, request, policy, self._gpu_policy) for one, state in states.items()}
            values = {one: pair[1] for one, pair in rated.items() if pair is not None}
        known = self._known.values
        for name, number in zip(alike.names, numbers, strict=True):
            value = values.get(number, _NEVER)
            if value != _NEVER:
                known[name] = value

    def prepare(self, nodes: Sequence[str]) -> None:
        """Fill the cache with the nodes on which the pod fits: faster than node by node, if few nodes are cached."""
        lacks, rooms, state_of = self._known.lacks, self._cache.rooms, self._cache.state
        if not self._short or len(lacks) * 2 > len(nodes):
            return
        ask = self._request.asks[0]
        gpus, size, asked, by_count = ask.gpus, ask.core, ask.memory_mib, self._by_count
        for node in nodes:
            state = state_of(node)
            if state is None:
                continue
            if by_count and state.by_count:
                lacks[node] = FITS  # NB: only requests without selectors come here
                continue
            # NB: thousands of turns; a call of `room` for each takes as long as the rest.
            room = rooms.get(node)
            if room is None or room.state is not state:
                room = self._cache.room(state)
            if gpus:
                if room.whole >= gpus:
                    lacks[node] = FITS
                continue
            for core, memory in room.shares:
                if core < size:
                    break
                if memory >= asked:
                    lacks[node] = FITS
                    break

    def lacking(self, node: str) -> Lacking:
        """Return why the pod does not fit the node now; FITS if it does."""
        known = self._known.lacks.get(node)
        if known is None:
            state = self._cache.hosting(node, self._request)
            if state is None:
                return _UNKNOWN  # not cached: a caller may ask about a million names
            by_count = place_by_count(state, self._request)
            if isinstance(by_count, Refusal):
                return Lacking(by_count.reason, hopeless=True)
            reason = "" if by_count is not None else self._reason(state)
            if reason:
                key = (reason, self._hopeless(state))
                known = self._known.lackings.setdefault(key, Lacking(*key))
            else:
                known = FITS
            self._known.lacks[node] = known
        return known

    def value(self, node: str) -> float:
        """Return the value of the node for the pod, by its policy, for comparison; -inf where it does not fit, or where
        kube-scheduler counts by itself: no GPU is better than another there.

        For a pod without GPUs it is what the node's free GPUs lose, and 0 where there are none.
        """
        known = self._known.values.get(node)
        if known is None:
            state = self._cache.hosting(node, self._request)
            ranked = state is not None and not (state.by_count and self._by_count)
            rated = rate(state, self._request, self._policy, self._gpu_policy) if state is not None and ranked else None
            known = self._known.values[node] = (_NEVER if self._request else 0.0) if rated is None else rated[1]
        return known

    def better_counted(self, nodes: Sequence[str]) -> frozenset[str]:
        """Return the nodes where a replica or a MIG device does for the pod, so that whole GPUs stay for other pods.

        Empty for a pod that requests more than one GPU, and where no other node is a choice.
        """
        if not self._by_count or self._request.core != 100:
            return frozenset()
        counted = {name for name in nodes if (state := self._cache.state(name)) is not None and state.by_count}
        fitting = frozenset(name for name in counted if self.lacking(name) is FITS)
        return fitting if len(counted) < len(nodes) else frozenset()

    @staticmethod
    def ranks(value: float) -> bool:
        """Return whether the value says that a node is better than others."""
        return value != _NEVER

    def score(self, value: float) -> int:
        """Convert a value to 0-100."""
        return 0 if value == _NEVER else self._policy.score(value)

    def place(self, node: str) -> Placement | Refusal:
        """Decide the pod's placement on the node now."""
        state = self._cache.hosting(node, self._request)
        return Refusal(UNKNOWN) if state is None else place(state, self._request, self._policy, self._gpu_policy)

    def _hopeless(self, state: NodeState) -> bool:
        by_place = self._request.uuids or self._request.not_uuids
        hardware = self._cache.hardware(state)
        known = None if by_place else self._known.hopeless.get(hardware)
        if known is None:
            found = find(empty(state.name, state.gpus, state.scale), self._request, self._gpu_policy)
            known = isinstance(found, Refusal)
            if not by_place:
                self._known.hopeless[hardware] = known
        return known

    def _reason(self, state: NodeState) -> str:
        if not self._short:
            found = find(state, self._request, self._gpu_policy)
            return sys.intern(found.reason) if isinstance(found, Refusal) else ""
        ask, room = self._request.asks[0], self._cache.room(state)
        if ask.gpus:
            if room.whole >= ask.gpus:
                return ""
        else:
            for core, memory in room.shares:
                if core >= ask.core and memory >= ask.memory_mib:
                    return ""
        key = (len(state.gpus), room.usable, room.whole if ask.gpus else 0)
        words = self._known.words.get(key)
        if words is None:
            words = self._known.words[key] = refusal(state, self._request, details=False).reason
        return words

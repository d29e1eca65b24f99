"""A node to buy while it is filled, and what it can still become. Pure.

A claim is a set of options that can still hold all of its pods; the price decides at the end, when the cheapest is
taken. The filters of `kubekit.scheduling` and the placement of `gpuplane.sharing` decide what fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from gpuplane.autoscaler.asks import PodAsk, admits_ask
from gpuplane.autoscaler.existing import hold_pod
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.volume_limits import VolumeRoom
from gpuplane.sharing.node import NodeState
from kubekit.scheduling.podinfo import Requests

OfferingGroup = tuple[str, str, str]
"""Pool, zone and capacity type."""
MOST_OPTIONS: Final = 60  # offerings that one launch names
ROOM: Final = "room"  # kinds of refusal: no option has room,
DOMAIN: Final = "domain"  # the pods that are placed refuse it,
PRICE: Final = "price"  # it would cost more than a new node for the pod,
NEVER: Final = "never"  # no option admits the pod by its labels


class NodeClaimDraft(msgspec.Struct, eq=False):
    """A node to buy, while it is filled. `options` are the cheapest first, and the first holds all pods.

    Of the others only those are left out that cannot hold them: `ClaimFilling.settle` tries them all. `state` has the
    GPUs of the first with the pods. `group` is the offering of all options, None if they are of several. `volumes` can
    be attached still. `places` has a pod for each way in which labels and taints admit its pods. `refused` is room of
    pods -> kind of refusal, for refusals that last. `replaced`: a larger claim has its name and its pods.
    """

    name: str
    pool: PoolOptions
    options: tuple[NodeOption, ...]
    reserved: tuple[NodeOption, ...]  # the largest of these counts against the limits
    state: NodeState | None
    group: OfferingGroup | None
    volumes: VolumeRoom
    asks: list[PodAsk] = []
    places: dict[int, PodAsk] = {}
    requested: Requests = {}
    places_gpus: bool = False
    refused: dict[int, str] = {}
    replaced: bool = False

    @property
    def option(self) -> NodeOption:
        """Return the option that is bought."""
        return self.options[0]


class JoinedClaim(NamedTuple):
    """The parts of a claim that a pod more changes; the fields are those of `NodeClaimDraft`."""

    options: tuple[NodeOption, ...]
    state: NodeState | None
    group: OfferingGroup | None
    volumes: VolumeRoom
    requested: Requests


class Compatibility:
    """Decides whether taints and labels of an option admit a pod; once for all pods that they admit in the same way."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}
        self._admitted: dict[tuple[int, int], tuple[PoolOptions, tuple[NodeOption, ...], dict[str, NodeOption]]] = {}

    def __call__(self, ask: PodAsk, option: NodeOption) -> bool:
        pair = (ask.place, id(option))
        known = self._known.get(pair)
        if known is None:
            known = self._known[pair] = admits_ask(ask, option.facts)
        return known

    def admitted(self, ask: PodAsk, found: PoolOptions) -> tuple[NodeOption, ...]:
        """Return the options of a pool that admit a pod, whatever room there is."""
        return self._of(ask, found)[1]

    def lacking(self, ask: PodAsk, found: PoolOptions) -> NodeOption | None:
        """Return the option with most of a resource of which no option that admits the pod has enough; None if all fit.

        So pods that no type can ever hold cost no look at each type.
        """
        most = self._of(ask, found)[2]
        for name, amount in ask.info.requests.items():
            option = most.get(name)
            if option is not None and amount > option.free.get(name, 0):
                return option
        return None

    def _of(self, ask: PodAsk, found: PoolOptions) -> tuple[PoolOptions, tuple[NodeOption, ...], dict[str, NodeOption]]:
        place = (ask.place, id(found))
        known = self._admitted.get(place)
        if known is None:
            admitted = tuple(one for one in found.options if self(ask, one))
            most: dict[str, NodeOption] = {}
            for one in admitted:
                for name, amount in one.free.items():
                    if name not in most or amount > most[name].free[name]:
                        most[name] = one
            known = self._admitted[place] = (found, admitted, most)
        return known


def first_holding(
    fits: Compatibility, claim: NodeClaimDraft, options: Sequence[NodeOption], ask: PodAsk, requested: Requests
) -> tuple[int, NodeState | str | None]:
    """Return the first option that holds a pod with those of a claim, and its GPUs then; else the kind of refusal.

    Args:
        requested: the sum over all of these pods.
    """
    refusal = NEVER
    for at, option in enumerate(options):
        if not fits(ask, option):
            continue
        refusal = ROOM
        if option is claim.option:
            after = hold_pod(option, claim.requested, len(claim.asks), claim.state, ask)
        else:
            after = holds_claim(fits, claim, option, requested, (ask,))
        if not isinstance(after, str):
            return at, after
    return 0, refusal


def holds_claim(
    fits: Compatibility,
    claim: NodeClaimDraft,
    option: NodeOption,
    requested: Requests,
    more: tuple[PodAsk, ...] = (),
) -> NodeState | str | None:
    """Return the GPUs of an option with all pods of a claim and some more, or a text if they do not fit.

    Args:
        requested: the sum over all of these pods.
    """
    if not has_room(option, requested, len(claim.asks) + len(more)):
        return ROOM
    if not all(fits(one, option) for one in claim.places.values()):
        return NEVER
    places_gpus = claim.places_gpus or any(ask.request for ask in more)
    return place_shares(option, (*claim.asks, *more)) if places_gpus else option.gpus


def cheapen(
    claim: NodeClaimDraft,
    limits: PoolLimits,
    fits: Compatibility,
    keeps: Callable[[NodeClaimDraft, NodeOption], bool],
) -> None:
    """Replace the options of a claim by the cheapest of its pool that holds the same pods, if one is cheaper.

    Args:
        keeps: whether pods that depend on others stay where they were placed.
    """
    limits.give_back(claim.reserved)
    claim.reserved = (claim.option,)
    for option in claim.pool.options:
        if option.price >= claim.option.price:
            break
        if not limits.lacking(option) and _is_enough(claim, option, fits) and keeps(claim, option):
            claim.options, claim.reserved = (option,), (option,)
            break
    limits.take(claim.reserved)


def settle(claim: NodeClaimDraft, fits: Compatibility) -> None:
    """Leave those options of a claim that hold all of its pods, and no more than a launch names."""
    head, *others = claim.options
    enough = (one for one in others if _is_enough(claim, one, fits))
    claim.options = (head, *(enough if claim.pool.has_min_values else itertools.islice(enough, MOST_OPTIONS)))


def _is_enough(claim: NodeClaimDraft, option: NodeOption, fits: Compatibility) -> bool:
    return not isinstance(holds_claim(fits, claim, option, claim.requested), str)


def holds_all(
    option: NodeOption, asks: Sequence[PodAsk], fits: Callable[[PodAsk, NodeOption], bool] | None = None
) -> bool:
    """Return whether a node of the option holds all these pods, none of which depends on others."""
    requested: Requests = {}
    for ask in asks:
        for name, amount in ask.info.requests.items():
            requested[name] = requested.get(name, 0) + amount
    if not has_room(option, requested, len(asks)):
        return False
    places = {ask.place: ask for ask in asks}
    if not all(fits(ask, option) if fits is not None else admits_ask(ask, option.facts) for ask in places.values()):
        return False
    return not isinstance(place_shares(option, asks), str)


def has_room(option: NodeOption, requested: Requests, pods: int) -> bool:
    """Return whether the sums over some pods are there, whatever GPUs they take shares of."""
    free = option.free
    if pods > free.get("pods", 0):
        return False
    return not any(amount > free.get(name, 0) for name, amount in requested.items() if amount)


def place_shares(option: NodeOption, asks: Iterable[PodAsk]) -> NodeState | str | None:
    """Return the GPUs of an option with the pods, whose sums are there; else the reason, as a text."""
    state: NodeState | str | None = option.gpus
    if state is None:
        return None
    for ask in asks:
        if ask.request and not isinstance(state, str):
            state = hold_pod(option, {}, 0, state, ask)
    return state


def group_of(option: NodeOption) -> OfferingGroup:
    """Return the offering of an option, without its type."""
    return option.pool.name, option.zone, option.capacity_type


def by_offering(options: Sequence[NodeOption]) -> list[tuple[NodeOption, ...]]:
    """Return options by zone and capacity type: a claim of pods that depend on others is of one offering."""
    groups: dict[tuple[str, str], list[NodeOption]] = {}
    for option in options:
        groups.setdefault((option.zone, option.capacity_type), []).append(option)
    return [tuple(group) for group in groups.values()]

"""NodeOverlays applied to the offers of pools: other prices, and further resources of nodes to come. Pure.

Offers leave this module with the changes made, so no decision behind it knows overlays. Of overlays that set the same
price or the same resource of one offer, the one of the highest weight counts. At equal weights the user's intention is
unknown: then the overlay whose name comes first in the alphabet is in conflict, and is not applied at all.

Source: the order and the conflicts of Karpenter 1.15. There a resource counts for every offering of a type if one
offering matches; here it counts for those that match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.api.nodeoverlay import NodeOverlay, NodeOverlaySpec, run_time_problems
from gpuplane.autoscaler.options import NodeOption, PoolOptions
from gpuplane.autoscaler.requirements import NodeConditions, admits_labels, pool_conditions
from kubekit.scheduling.podinfo import Requests, amounts

VALID: Final = "ValidationSucceeded"
LEAST_PRICE: Final = 1e-6  # dollars an hour of an offer that costs nothing: decisions divide by prices


class OverlayVerdict(msgspec.Struct, frozen=True):
    """Why an overlay is not applied: `reason` is RuntimeValidation or Conflict; both are empty for a sound overlay."""

    reason: str = ""
    message: str = ""


class _Change(msgspec.Struct, frozen=True):
    """An overlay, read once. `capacity` is as in `Requests`; `price` says whether it changes prices."""

    name: str
    spec: NodeOverlaySpec
    conditions: NodeConditions
    capacity: Requests
    price: bool


def adjusted_price(price: float, spec: NodeOverlaySpec) -> float:
    """Return a price in dollars an hour after the change of an overlay; `LEAST_PRICE` at least."""
    if spec.price is not None:
        return max(float(spec.price), LEAST_PRICE)
    change = spec.price_adjustment
    if change is None:
        return price
    if change.endswith("%"):
        return max(price * (1 + float(change[:-1]) / 100), LEAST_PRICE)
    return max(price + float(change), LEAST_PRICE)


def in_order(overlays: Iterable[NodeOverlay]) -> list[NodeOverlay]:
    """Return overlays in the order in which they count: by weight, then the name later in the alphabet first."""
    by_name = sorted(overlays, key=lambda one: one.metadata.name, reverse=True)
    return sorted(by_name, key=lambda one: -(one.spec.weight or 0))


def is_applied(overlay: NodeOverlay) -> bool:
    """Return whether the overlay, as it is now, was found sound: it counts from then on."""
    return any(
        one.type == VALID and one.status == "True" and one.observed_generation == overlay.metadata.generation
        for one in overlay.status.conditions
    )


def judge_overlays(overlays: Iterable[NodeOverlay], offers: Sequence[PoolOptions]) -> dict[str, OverlayVerdict]:
    """Return the verdict about each overlay, by name.

    Args:
        offers: what the pools could buy, without overlays.
    """
    verdicts: dict[str, OverlayVerdict] = {}
    accepted: list[tuple[_Change, set[int]]] = []
    options = [option for found in offers for option in found.options]
    for overlay in in_order(overlays):
        name = overlay.metadata.name
        if problems := list(run_time_problems(overlay)):
            verdicts[name] = OverlayVerdict("RuntimeValidation", "; ".join(f"{path}: {why}" for path, why in problems))
            continue
        change = _read(overlay)
        met = {at for at, option in enumerate(options) if admits_labels(change.conditions, option.facts.labels)}
        verdicts[name] = _conflict(change, met, accepted, options)
        if not verdicts[name].reason:
            accepted.append((change, met))
    return verdicts


def _conflict(
    change: _Change, met: set[int], accepted: Sequence[tuple[_Change, set[int]]], options: Sequence[NodeOption]
) -> OverlayVerdict:
    """Return the conflict with an overlay of the same weight that sets the same of some offer."""
    for other, theirs in accepted:
        both = met & theirs
        if not both or (other.spec.weight or 0) != (change.spec.weight or 0):
            continue
        same = ["the price"] if change.price and other.price else []
        same += [name for name in sorted(change.capacity) if name in other.capacity]
        if same:
            machine = options[min(both)].machine.name
            what = f"conflict with the overlay {other.name}, which sets {same[0]} of {machine} at the same weight"
            return OverlayVerdict("Conflict", f"{what}; give one of them another weight")
    return OverlayVerdict()


def apply_overlays(found: PoolOptions, overlays: Iterable[NodeOverlay]) -> PoolOptions:
    """Return the offers of a pool with the changes of overlays, the cheapest first.

    Args:
        overlays: those without a conflict.
    """
    changes = [_read(overlay) for overlay in in_order(overlays)]
    if not changes or not found.options:
        return found
    options = [_changed(option, changes) for option in found.options]
    options.sort(key=lambda option: (option.price, option.machine.name, option.zone, option.capacity_type))
    return msgspec.structs.replace(found, options=tuple(options))


def overlaid(
    offers: Sequence[PoolOptions], overlays: Sequence[NodeOverlay]
) -> tuple[list[PoolOptions], Mapping[str, OverlayVerdict]]:
    """Return the offers with the overlays that are sound, and the verdict about each overlay."""
    verdicts = judge_overlays(overlays, offers)
    sound = [one for one in overlays if not verdicts[one.metadata.name].reason]
    return [apply_overlays(found, sound) for found in offers], verdicts


def _read(overlay: NodeOverlay) -> _Change:
    spec = overlay.spec
    price = spec.price is not None or spec.price_adjustment is not None
    return _Change(overlay.metadata.name, spec, pool_conditions(spec.requirements, {}), amounts(spec.capacity), price)


def _changed(option: NodeOption, changes: Sequence[_Change]) -> NodeOption:
    price: float | None = None
    more: Requests = {}
    for change in changes:
        if not admits_labels(change.conditions, option.facts.labels):
            continue
        if change.price and price is None:
            price = adjusted_price(option.price, change.spec)
        more = change.capacity | more
    if price is not None:
        option = msgspec.structs.replace(option, price=price)
    if not more:
        return option
    held = {name: sum(pod.requests.get(name, 0) for pod in option.daemons) for name in more}
    return msgspec.structs.replace(
        option,
        facts=msgspec.structs.replace(option.facts, allocatable=option.facts.allocatable | more),
        free=option.free | {name: amount - held[name] for name, amount in more.items()},
        capacity=option.capacity | more,
    )

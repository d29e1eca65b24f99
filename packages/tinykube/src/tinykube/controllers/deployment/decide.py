"""Decides how many replicas each ReplicaSet of a Deployment should have now, and the Deployment's status. Pure, on
plain data.

Rules as in kube-controller-manager: the new set grows within maxSurge, old ones shrink as far as maxUnavailable allows
(unhealthy replicas first), a paused or merely scaled Deployment is resized in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tinykube.controllers.pods import condition
from tinykube.controllers.templates import scaled

Object = Mapping[str, Any]


class SetFacts(msgspec.Struct, frozen=True):
    """A ReplicaSet as the decisions see it; `wanted` is its spec.replicas, `limit` its max-replicas annotation."""

    name: str
    wanted: int
    actual: int
    ready: int
    available: int
    created: str
    revision: int = 0
    limit: int = 0
    terminating: int = 0


class Bounds(msgspec.Struct, frozen=True):
    """A Deployment's numbers: replicas, and how far a rollout may go above and below them."""

    replicas: int
    surge: int
    unavailable: int
    recreate: bool = False


def bounds(spec: Object) -> Bounds:
    replicas = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Bounds(replicas, 0, replicas, recreate=True)
    rolling = strategy.get("rollingUpdate") or {}
    surge = scaled(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = scaled(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    if not surge and not unavailable:
        unavailable = 1  # neither would ever move
    return Bounds(replicas, surge, min(unavailable, replicas))


def rollout(new: SetFacts | None, old: Sequence[SetFacts], limits: Bounds, *, old_pods: int) -> dict[str, int]:
    """Sizes to set, by ReplicaSet name (the new one is named ""); empty when nothing is to do now.

    `old_pods`: pods of old sets that still exist in any state; Recreate waits for the last of them.
    """
    if limits.recreate:
        going = {s.name: 0 for s in old if s.wanted}
        if going or old_pods:
            return going
        return {} if new is not None and new.wanted == limits.replicas else {"": limits.replicas}
    grown = _grow(new, old, limits)
    if new is None or grown != new.wanted:
        return {"": grown}
    return _shrink(new, old, limits)


def _grow(new: SetFacts | None, old: Sequence[SetFacts], limits: Bounds) -> int:
    wanted = new.wanted if new is not None else 0
    if wanted >= limits.replicas:
        return limits.replicas
    room = limits.replicas + limits.surge - wanted - sum(s.wanted for s in old)
    return wanted + max(0, min(room, limits.replicas - wanted))


def _shrink(new: SetFacts, old: Sequence[SetFacts], limits: Bounds) -> dict[str, int]:
    total_old = sum(s.wanted for s in old)
    if not total_old:
        return {}
    minimum = limits.replicas - limits.unavailable
    excess = total_old + new.wanted - minimum - (new.wanted - new.available)
    if excess <= 0:
        return {}
    sizes = {s.name: s.wanted for s in old}
    by_age = sorted(old, key=lambda s: (s.created, s.name))
    for one in by_age:  # broken replicas serve no client
        dead = min(one.wanted - one.available, excess)
        if dead > 0:
            sizes[one.name] -= dead
            excess -= dead
    spare = sum(s.available for s in old) + new.available - minimum
    for one in by_age:
        going = min(sizes[one.name], max(0, spare))
        sizes[one.name] -= going
        spare -= going
    return {s.name: sizes[s.name] for s in old if sizes[s.name] != s.wanted}


def resize(sets: Sequence[SetFacts], limits: Bounds) -> dict[str, int]:
    """Sizes after `spec.replicas` changed in the middle of a rollout: each active set gets its proportion."""
    active = [s for s in sets if s.wanted]
    if len(active) == 1:
        return {active[0].name: limits.replicas} if active[0].wanted != limits.replicas else {}
    total = sum(s.wanted for s in active)
    allowed = limits.replicas + (0 if limits.recreate else limits.surge) if limits.replicas else 0
    change = allowed - total
    if not change or not total:
        return {}
    # Largest first; of equals newest first when growing, oldest first when shrinking.
    ordered = sorted(active, key=lambda s: s.created, reverse=change > 0)
    ordered.sort(key=lambda s: -s.wanted)
    sizes = {}
    left = change
    for one in ordered:
        base = one.limit or total
        share = round(one.wanted * allowed / base) - one.wanted
        share = max(min(share, left), 0) if change > 0 else min(max(share, left), 0)
        sizes[one.name] = max(0, one.wanted + share)
        left -= share
    sizes[ordered[0].name] = max(0, sizes[ordered[0].name] + left)
    return {s.name: sizes[s.name] for s in active if sizes[s.name] != s.wanted}


def counts(new: SetFacts | None, sets: Sequence[SetFacts], limits: Bounds) -> dict[str, int]:
    """The numbers of the status. Those that are zero are left out, but for the pods that end."""
    available = sum(s.available for s in sets)
    total = sum(s.wanted for s in sets)
    numbers = {
        "replicas": sum(s.actual for s in sets),
        "updatedReplicas": new.actual if new is not None else 0,
        "readyReplicas": sum(s.ready for s in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, max(total, limits.replicas) - available),
    }
    shown = {name: value for name, value in numbers.items() if value}
    return {**shown, "terminatingReplicas": sum(s.terminating for s in sets)}


def complete(spec: Object, numbers: Mapping[str, int]) -> bool:
    wanted: int = spec.get("replicas", 1)
    return (
        numbers.get("updatedReplicas", 0) == wanted
        and numbers.get("replicas", 0) == wanted
        and numbers.get("availableReplicas", 0) == wanted
    )


def with_condition(
    obj: Object,
    conditions: list[dict[str, Any]],
    type: str,
    status: str,
    reason: str,
    message: str,
    now: str,
    *,
    refresh: bool = False,
) -> None:
    """Sets a condition in `conditions`, keeping its times unless it moved (`refresh`: progress was made)."""
    before = condition(obj, type)
    same = before is not None and before["status"] == status
    unchanged = same and before is not None and before["reason"] == reason and before.get("message") == message
    conditions.append(
        {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": before["lastTransitionTime"] if same and before is not None else now,
            "lastUpdateTime": before["lastUpdateTime"] if unchanged and not refresh and before is not None else now,
        }
    )

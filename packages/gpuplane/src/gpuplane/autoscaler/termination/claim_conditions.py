"""Conditions of a claim: reading, and writing those that this part of the autoscaler decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuplane import names
from gpuplane.api.nodeclaim import NodeClaim
from kubekit.api.meta import Condition, to_dict
from kubekit.kube import Client, NotFound

MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"


def condition_of_claim(claim: NodeClaim, kind: str) -> Condition | None:
    """Return a condition of a claim by its type."""
    return next((one for one in claim.status.conditions if one.type == kind), None)


def holds(claim: NodeClaim, kind: str) -> bool:
    """Return whether a condition of the claim is True."""
    found = condition_of_claim(claim, kind)
    return found is not None and found.status == "True"


def changed_conditions(
    claim: NodeClaim, wanted: Mapping[str, tuple[bool, str] | None], now: str
) -> tuple[Condition, ...] | None:
    """Return all conditions of the claim with the wanted ones in place; None if nothing changes.

    `wanted` maps a type to (whether it holds, reason), or to None for a condition that is to be absent. The time of a
    condition is that of its last change between True and False.
    """
    old = {one.type: one for one in claim.status.conditions}
    new = dict(old)
    for kind, verdict in wanted.items():
        if verdict is None:
            new.pop(kind, None)
            continue
        status, reason = "True" if verdict[0] else "False", verdict[1]
        before = old.get(kind)
        if before is not None and (before.status, before.reason) == (status, reason):
            continue
        since = before.last_transition_time if before is not None and before.status == status else now
        new[kind] = Condition(type=kind, status=status, reason=reason, last_transition_time=since)
    return tuple(new.values()) if new != old else None


async def set_conditions(
    client: Client,
    claim: NodeClaim,
    wanted: Mapping[str, tuple[bool, str] | None],
    now: str,
    more: Mapping[str, str] | None = None,
) -> bool:
    """Write the wanted conditions (see `changed_conditions`), if the claim is still as it was read.

    `more` are other fields of the status to write with them. Returns whether anything was written. Raises Conflict if
    another writer was first.
    """
    conditions = changed_conditions(claim, wanted, now)
    if conditions is None and not more:
        return False
    status: dict[str, Any] = dict(more or {})
    if conditions is not None:
        status["conditions"] = [to_dict(one) for one in conditions]
    patch = {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}
    try:
        await client.patch(NodeClaim, claim.metadata.name, patch, subresource="status", manager=MANAGER)
    except NotFound:
        return False  # gone meanwhile: nothing is left to say about it
    return True

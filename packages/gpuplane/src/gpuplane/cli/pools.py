"""The node pools of `gpuplane status` as data: nodes that are there, on their way and ending, against limits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpuplane.api import karpenter, nodeclaim
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.cli.status_views import PoolLimitView, PoolView
from kubekit.api.quantity import Quantity


def pool_views(
    pools: Iterable[DeclaredPool], claims: Sequence[NodeClaim], troubles: Mapping[str, tuple[str, str]] = {}
) -> tuple[PoolView, ...]:
    """Return the pools by name; the claims name their pools by label, in either generation.

    Args:
        troubles: pool -> why it buys nothing at all, and the cure.
    """
    of_pool: dict[str, list[NodeClaim]] = {}
    for claim in claims:
        labels = claim.metadata.labels
        name = labels.get(karpenter.POOL_LABEL) or labels.get(karpenter.PROVISIONER_LABEL, "")
        of_pool.setdefault(name, []).append(claim)
    return tuple(
        _view(pool, of_pool.get(pool.name, []), troubles.get(pool.name))
        for pool in sorted(pools, key=lambda pool: pool.name)
    )


def _view(pool: DeclaredPool, claims: Sequence[NodeClaim], trouble: tuple[str, str] | None) -> PoolView:
    ending = [claim for claim in claims if claim.metadata.deletion_timestamp]
    ready = [claim for claim in claims if claim not in ending and _status(claim, nodeclaim.INITIALIZED) == "True"]
    types = Counter(claim.metadata.labels.get(karpenter.TYPE_LABEL, "") for claim in claims)
    types.pop("", None)
    what, cure = trouble or (next((text for claim in claims if (text := _why_not_launched(claim))), ""), "")
    return PoolView(
        name=pool.name,
        kind=pool.kind,
        nodes=len(ready),
        joining=len(claims) - len(ending) - len(ready),
        ending=len(ending),
        types=dict(sorted(types.items())),
        limits=tuple(PoolLimitView(name, _used(pool, name), str(limit)) for name, limit in sorted(pool.limits.items())),
        trouble=what,
        cure=cure,
    )


def _used(pool: DeclaredPool, resource: str) -> str:
    used: Quantity = pool.used.get(resource, "0")
    return str(used)


def _status(claim: NodeClaim, condition: str) -> str:
    return next((one.status for one in claim.status.conditions if one.type == condition), "")


def _why_not_launched(claim: NodeClaim) -> str:
    found = next((one for one in claim.status.conditions if one.type == nodeclaim.LAUNCHED), None)
    return (found.message or found.reason) if found is not None and found.status == "False" else ""

"""Writes what each pool's nodes have together into the pool's `status.resources`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.karpenter import NodePool, Provisioner
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.autoscaler.snapshot import used_of_pool
from gpuplane.autoscaler.watch import ClusterWatch
from kubekit.kube import Client, Clock, Controller, NotFound, Source

_MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"
_GATHER_SECONDS: Final = 1.0


class PoolStatusController:
    """Reconciles the status of pools; one key for each."""

    def __init__(self, client: Client, watch: ClusterWatch, clock: Clock) -> None:
        self._client = client
        self._watch = watch
        self._clock = clock
        self.controller = Controller(
            "pools",
            [watch.provisioners, watch.node_pools, Source(watch.claims, _pool_of)],
            self.reconcile,
            clock=clock,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Write the sums of one pool, unless they are there already."""
        # Claims of one purchase come together; gathered, they cost one write.
        await self._clock.sleep(_GATHER_SECONDS)
        pool = self._watch.pool_object(name)
        if pool is None:
            return None
        used = used_of_pool(name, self._watch.claims.items(), None)
        wanted: dict[str, Any] = dict(as_quantities(used))
        if wanted == {key: str(amount) for key, amount in pool.status.resources.items()}:
            return None
        kind = NodePool if isinstance(pool, NodePool) else Provisioner
        stale = dict.fromkeys(pool.status.resources)
        try:
            patch = {"status": {"resources": {**stale, **wanted}}}
            await self._client.patch(kind, name, patch, subresource="status", manager=_MANAGER)
        except NotFound:
            return None
        return None


def _pool_of(claim: NodeClaim) -> Iterable[str]:
    pool = claim.metadata.labels.get(karpenter.POOL_LABEL)
    return (pool,) if pool else ()

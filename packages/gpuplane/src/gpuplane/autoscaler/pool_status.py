"""Writes the status of pools: the sums over their nodes, and whether nodes can be bought for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.karpenter import NodePool, Provisioner, declared_pool
from gpuplane.api.nodeclaim import READY, NodeClaim
from gpuplane.autoscaler.cloud import CloudView
from gpuplane.autoscaler.lifecycle.registrations import Registrations
from gpuplane.autoscaler.nodeclaims import with_condition
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.autoscaler.snapshot import used_of_pool
from gpuplane.autoscaler.watch import ClusterWatch, why_refused
from kubekit.api.meta import Condition, to_dict
from kubekit.errors import Retryable
from kubekit.kube import Client, Clock, Controller, NotFound, Source

log = logging.getLogger("gpuplane.autoscaler")
VALID: Final = "ValidationSucceeded"
CLASS_READY: Final = "NodeClassReady"
JOINING: Final = "NodeRegistrationHealthy"
_NOT_JOINING: Final = (
    "half of the last four nodes or more did not join within 15 min; look at the machine's user data, role and network"
)
LOOK_SECONDS: Final = 60.0  # between two looks at what a class means in the cloud
_MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"
_GATHER_SECONDS: Final = 1.0


class PoolStatusController:
    """Reconciles the status of pools; one key for each."""

    def __init__(
        self, client: Client, watch: ClusterWatch, cloud: CloudView, registrations: Registrations, clock: Clock
    ) -> None:
        self._client = client
        self._registrations = registrations
        self._watch = watch
        self._cloud = cloud
        self._clock = clock
        self.controller = Controller(
            "pools",
            [
                *(watch.provisioners, watch.node_pools, Source(watch.claims, _pool_of)),
                *(Source(one, self._all) for one in (watch.templates, watch.node_classes)),
            ],
            self.reconcile,
            clock=clock,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Write the status of one pool, unless it is there already; returns the seconds until the next look."""
        # Claims of one purchase come together; gathered, they cost one write.
        await self._clock.sleep(_GATHER_SECONDS)
        pool = self._watch.pool_object(name)
        if pool is None or pool.metadata.deletion_timestamp:
            return None
        status = await self._status(pool)
        resources = {key: str(amount) for key, amount in pool.status.resources.items()}
        now: dict[str, Any] = {"resources": resources, "conditions": to_dict(pool.status.conditions)}
        now |= {"nodes": pool.status.nodes} if "nodes" in status else {}
        if status == now:
            return LOOK_SECONDS
        kind = NodePool if isinstance(pool, NodePool) else Provisioner
        status["resources"] = {**dict.fromkeys(pool.status.resources), **status["resources"]}
        try:
            await self._client.patch(kind, name, {"status": status}, subresource="status", manager=_MANAGER)
        except NotFound:
            return None
        return LOOK_SECONDS

    async def _status(self, pool: Provisioner | NodePool) -> dict[str, Any]:
        used = used_of_pool(pool.metadata.name, self._watch.claims.items(), None)
        refused = why_refused(pool)
        now = self._clock.wall()
        conditions: tuple[Condition, ...] = pool.status.conditions
        try:
            trouble = (
                "" if refused else (await self._cloud.class_of(declared_pool(pool), self._watch.classes())).trouble
            )
            conditions = pool_conditions_of(pool, refused, trouble, now)
        except Retryable as error:
            log.warning("class not looked up, its pool's conditions stay pool=%s: %s", pool.metadata.name, error)
        healthy = self._registrations.healthy(pool.metadata.name)
        if healthy is not None:
            state = ("True", JOINING, "") if healthy else ("False", "RegistrationFailed", _NOT_JOINING)
            conditions = with_condition(conditions, JOINING, *state, now, pool.metadata.generation)
        status: dict[str, Any] = {"resources": dict(as_quantities(used)), "conditions": to_dict(conditions)}
        return status | ({"nodes": used["nodes"]} if isinstance(pool, NodePool) else {})

    def _all(self, changed: object) -> Iterable[str]:
        return [pool.metadata.name for pool in self._watch.pool_objects()]


def pool_conditions_of(pool: Provisioner | NodePool, refused: str, trouble: str, now: str) -> tuple[Condition, ...]:
    """Return a pool's conditions: valid, its class ready, and both together as Ready.

    Args:
        refused: why nothing is bought for it; empty for a sound pool.
        trouble: why nothing can be launched of its class; empty for none.
    """
    conditions: tuple[Condition, ...] = pool.status.conditions
    for name, why, reason in ((VALID, refused, "Invalid"), (CLASS_READY, refused or trouble, "NodeClassNotReady")):
        state = ("False", reason, why) if why else ("True", name, "")
        conditions = with_condition(conditions, name, *state, now, pool.metadata.generation)
    why = refused or trouble
    state = ("False", "Invalid" if refused else "NodeClassNotReady", why) if why else ("True", READY, "")
    return with_condition(conditions, READY, *state, now, pool.metadata.generation)


def _pool_of(claim: NodeClaim) -> Iterable[str]:
    pool = claim.metadata.labels.get(karpenter.POOL_LABEL)
    return (pool,) if pool else ()

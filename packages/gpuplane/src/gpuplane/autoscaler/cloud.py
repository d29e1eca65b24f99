"""The cloud's offers as the autoscaler sees them now: types, zones of each pool, and offerings that had no capacity."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from gpuplane.api.karpenter import DeclaredClass, DeclaredPool
from gpuplane.api.karpenter_hash import class_hash
from gpuplane.autoscaler.catalogue import MEMORY_OVERHEAD, InstanceType, with_overhead
from gpuplane.autoscaler.options import Learned
from gpuplane.autoscaler.providers.provider import CloudProvider, MachineClass, Offering, ResolvedClass
from gpuplane.autoscaler.snapshot import ClosedOffering, CloudFacts
from kubekit.errors import KubekitError, Retryable, Terminal
from kubekit.kube import Clock

log = logging.getLogger("gpuplane.autoscaler")
PRICES_SECONDS: Final = 300.0
RETRY_SECONDS: Final = 10.0
CLOSED_SECONDS: Final = 180.0  # an offering without capacity is not asked for again before


class ClosedOfferings:
    """The offerings that the cloud refused lately. `reopened()` is called when some of them may be tried again."""

    def __init__(self, clock: Clock, reopened: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._until: dict[ClosedOffering, float] = {}
        self._reopened = reopened

    def close(self, offerings: Iterable[Offering]) -> None:
        """Close offerings for three minutes from now."""
        until = self._clock.now() + CLOSED_SECONDS
        for one in offerings:
            self._until[one.capacity_type, one.machine, one.zone] = until
            log.info("closed offering type=%s zone=%s capacity_type=%s", one.machine, one.zone, one.capacity_type)
        self._clock.call_later(CLOSED_SECONDS, self._reopened)

    def now(self) -> frozenset[ClosedOffering]:
        """Return the offerings that are closed at this moment."""
        now = self._clock.now()
        self._until = {offering: until for offering, until in self._until.items() if until > now}
        return frozenset(self._until)


def machine_class(pool: DeclaredPool, classes: Iterable[DeclaredClass]) -> MachineClass | None:
    """Return the machines of a pool; None while its class does not exist."""
    if not pool.class_name:
        return MachineClass(pool.kind, "", pool.machines, class_hash(pool.machines))
    for one in classes:
        if (one.kind, one.name) == (pool.class_kind, pool.class_name):
            return machines_of(one)
    return None


def machines_of(one: DeclaredClass) -> MachineClass:
    """Return the machines that a class declares."""
    return MachineClass(one.kind, one.name, one.spec, one.hash)


class CloudView:
    """The provider's answers, read for each decision; the provider remembers them.

    `prices` are dollars an hour by (type, capacity type), and `known` the types, as they were known last.

    Args:
        region: the value of the region's label, empty for an unknown region.
        overhead: the part of a type's memory that no kubelet sees.
    """

    def __init__(
        self,
        provider: CloudProvider,
        closed: ClosedOfferings,
        region: str = "",
        overhead: float = MEMORY_OVERHEAD,
    ) -> None:
        self._provider = provider
        self._closed = closed
        self._region = region
        self._overhead = overhead
        self.prices: dict[tuple[str, str], float] = {}
        self.known: Sequence[InstanceType] = ()

    async def types(self) -> Sequence[InstanceType]:
        """Return the types of the region, and remember their prices."""
        types = with_overhead(await self._provider.types(), self._overhead)
        self.known = types
        self.prices = {(one.name, kind): price for one in types for kind, price in one.prices}
        return types

    async def run(self, clock: Clock) -> None:
        """Keep prices current until cancelled."""
        while True:
            try:
                await self.types()
                pause = PRICES_SECONDS
            except KubekitError as error:
                log.warning("types not read, retrying: %s", error)
                pause = RETRY_SECONDS
            await clock.sleep(pause)

    async def resolved(self, pool: DeclaredPool, classes: Sequence[DeclaredClass]) -> ResolvedClass:
        """Return what a pool's class means now; whatever fails is its `trouble`, so that other pools go on."""
        try:
            return await self.class_of(pool, classes)
        except Retryable as error:
            return ResolvedClass(trouble=str(error))

    async def class_of(self, pool: DeclaredPool, classes: Sequence[DeclaredClass]) -> ResolvedClass:
        """Return what a pool's class means now. Raises Retryable where the cloud could not be asked."""
        machines = machine_class(pool, classes)
        if machines is None:
            what = f"{pool.class_kind} {pool.class_name}, which the pool names, does not exist"
            return ResolvedClass(trouble=f"{what}; create it")
        try:
            found = await self._provider.resolve(machines)
        except Terminal as error:
            return ResolvedClass(trouble=str(error))
        if any(one.ends for one in classes if (one.kind, one.name) == (machines.kind, machines.name)):
            what = f"{machines.kind} {machines.name} is being deleted; name another class"
            return msgspec.structs.replace(found, trouble=what)
        return found

    async def meaning(self, one: DeclaredClass) -> ResolvedClass:
        """Return what a class means now. Raises Retryable or Terminal where the cloud could not be asked."""
        return await self._provider.resolve(machines_of(one))

    async def facts(
        self, pools: Sequence[DeclaredPool], classes: Sequence[DeclaredClass], learned: Learned
    ) -> CloudFacts:
        """Return the offers of this moment. Raises what the provider raises where no type is known at all."""
        resolved = {pool.name: await self.resolved(pool, classes) for pool in pools}
        return CloudFacts(
            types=await self.types(),
            region=self._region,
            zones={name: _zones(one) for name, one in resolved.items()},
            troubles={name: one.trouble for name, one in resolved.items() if one.trouble},
            closed=self._closed.now(),
            learned=learned,
            disks={name: one.disk_bytes for name, one in resolved.items() if one.disk_bytes},
        )


def _zones(resolved: ResolvedClass) -> tuple[str, ...]:
    return resolved.zones or tuple(sorted({zone for _, zone in resolved.subnets}))

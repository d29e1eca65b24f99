"""A cloud in memory with faults: no capacity, lost answers, instances that are seen late or never join.

It counts what an account would pay for: `launched` has every instance that ever ran.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from enum import Enum

import msgspec

from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.providers.provider import (
    CloudInstance,
    Interruption,
    LaunchRequest,
    MachineClass,
    NoCapacity,
    ResolvedClass,
)
from kubekit.errors import NoAnswer
from tests.support.virtual_time import VirtualClock

ZONES = ("zone-1", "zone-2")


class CloudFault(Enum):
    NONE = "answered"
    BEFORE = "lost on its way there"
    AFTER = "done, and the answer lost"


class FakeCloud:
    """A region. `late` are the seconds until a new instance is listed, `ending` until an ended one is gone.

    Args:
        fault: what happens to the next call.
        launching: told of each new instance with its request.
    """

    def __init__(
        self,
        clock: VirtualClock,
        machines: Sequence[InstanceType],
        *,
        fault: Callable[[], CloudFault] = lambda: CloudFault.NONE,
        launching: Callable[[CloudInstance, LaunchRequest], None] = lambda instance, request: None,
        ending: Callable[[CloudInstance], None] = lambda instance: None,
    ) -> None:
        self.clock = clock
        self.machines = tuple(machines)
        self.closed: set[tuple[str, str, str]] = set()  # (capacity type, type, zone) without capacity
        self.resolved = ResolvedClass(zones=ZONES, images=(("image-1", "amd64", True),))
        self.image = "image-1"
        self.late = 0.0
        self.launched: list[CloudInstance] = []
        self.ended: list[str] = []
        self.rebooted: list[str] = []
        self.released: list[str] = []  # classes
        self.requests: list[LaunchRequest] = []
        self._tokens: dict[str, str] = {}
        self._running: dict[str, CloudInstance] = {}
        self._fault = fault
        self._launching = launching
        self._ending = ending

    def running(self) -> list[CloudInstance]:
        """Return what is paid for now."""
        return list(self._running.values())

    def _reach(self) -> CloudFault:
        fault = self._fault()
        if fault is CloudFault.BEFORE:
            raise NoAnswer("the cloud did not answer")
        return fault

    async def types(self) -> Sequence[InstanceType]:
        self._reach()
        return self.machines

    async def resolve(self, machines: MachineClass) -> ResolvedClass:
        self._reach()
        return self.resolved

    async def launch(self, request: LaunchRequest) -> CloudInstance:
        fault = self._reach()
        self.requests.append(request)
        known = self._tokens.get(request.token)
        if known is None or known not in self._running:
            known = self._launch(request)
        if fault is CloudFault.AFTER:
            raise NoAnswer("the cloud did not answer")
        return self._running[known]

    def _launch(self, request: LaunchRequest) -> str:
        for one in request.offerings:
            if (one.capacity_type, one.machine, one.zone) not in self.closed:
                break
        else:
            raise NoCapacity("no capacity", closed=request.offerings)
        provider_id = f"fake:///{one.zone}/i-{len(self.launched):04}"
        instance = CloudInstance(
            provider_id=provider_id,
            claim=request.claim,
            pool=request.pool,
            machine=one.machine,
            zone=one.zone,
            capacity_type=one.capacity_type,
            image=self.image,
            state="running",
            launched=self.clock.wall(),
        )
        self._tokens[request.token] = provider_id
        self._running[provider_id] = instance
        self.launched.append(instance)
        self._launching(instance, request)
        return provider_id

    def _seen(self, instance: CloudInstance) -> bool:
        launched, now = unix_time(instance.launched), unix_time(self.clock.wall())
        assert launched is not None and now is not None
        return now - launched >= self.late

    async def instance(self, provider_id: str) -> CloudInstance | None:
        self._reach()
        found = self._running.get(provider_id)
        return found if found is not None and self._seen(found) else None

    async def instances(self) -> Sequence[CloudInstance]:
        self._reach()
        return [one for one in self._running.values() if self._seen(one)]

    async def terminate(self, provider_id: str) -> None:
        fault = self._reach()
        found = self._running.pop(provider_id, None)
        if found is not None:
            self.ended.append(provider_id)
            self._ending(msgspec.structs.replace(found, state="gone"))
        if fault is CloudFault.AFTER:
            raise NoAnswer("the cloud did not answer")

    async def reboot(self, provider_id: str) -> None:
        self._reach()
        self.rebooted.append(provider_id)

    async def release(self, machines: MachineClass) -> None:
        fault = self._reach()
        self.released.append(machines.name)
        if fault is CloudFault.AFTER:
            raise NoAnswer("the cloud did not answer")

    async def interruptions(self) -> AsyncGenerator[Interruption, None]:
        return
        yield

    async def acknowledge(self, notice: Interruption) -> None:
        self._reach()

    async def aclose(self) -> None:
        pass

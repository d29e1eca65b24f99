"""The AWS provider: `CloudProvider` on EC2, SSM and SQS.

Instances carry the cluster's, the claim's and the launch's names as tags, so a launch whose answer was lost is
found again. State in memory saves calls and bridges EC2's delays; a new process begins with nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.aws.health import StatusChecks
from gpuplane.autoscaler.providers.aws.inventory import AwsInstances
from gpuplane.autoscaler.providers.aws.launcher import InstanceLauncher
from gpuplane.autoscaler.providers.aws.machines import where_of
from gpuplane.autoscaler.providers.aws.market import AwsMarket
from gpuplane.autoscaler.providers.aws.notices import NoticeQueue
from gpuplane.autoscaler.providers.aws.resolve import ClassResolver
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.provider import (
    CloudInstance,
    Interruption,
    LaunchRequest,
    MachineClass,
    ResolvedClass,
)
from kubekit.errors import Terminal
from kubekit.kube.clock import Clock, SystemClock


class AwsProvider:
    """One region of one account, for one cluster."""

    def __init__(self, settings: AwsSettings, *, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self.settings = settings
        self.calls = AwsCalls(settings)
        self._classes = ClassResolver(settings, self.calls, clock)
        self._market = AwsMarket(settings, self.calls, clock)
        self._instances = AwsInstances(settings.cluster, self.calls, clock)
        self._launcher = InstanceLauncher(settings, self.calls, self._instances, self._market, clock)
        self._queue = NoticeQueue(settings.queue, self.calls, clock, self._instances.provider_ids)
        self._checks = StatusChecks(self.calls, clock, self._instances.provider_ids)

    async def types(self) -> Sequence[InstanceType]:
        """Return the types of the region."""
        return await self._market.types()

    async def resolve(self, machines: MachineClass) -> ResolvedClass:
        """Return what a class means now."""
        return (await self._classes.resolve(machines)).public()

    async def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch one instance, or return that of an earlier launch with the same token."""
        found = await self._classes.resolve(request.machines)
        if found.trouble:
            raise Terminal(found.trouble, where=where_of(request.machines))
        return await self._launcher.launch(request, found)

    async def instance(self, provider_id: str) -> CloudInstance | None:
        """Return an instance; None if it is gone."""
        return await self._instances.one(provider_id)

    async def instances(self) -> Sequence[CloudInstance]:
        """Return this cluster's instances that are not gone, those included that EC2 does not show yet."""
        return await self._instances.all()

    async def terminate(self, provider_id: str) -> None:
        """Begin to end an instance; one that is gone is no error."""
        await self._instances.terminate(provider_id)

    async def reboot(self, provider_id: str) -> None:
        """Restart an instance."""
        await self._instances.reboot(provider_id)

    async def release(self, machines: MachineClass) -> None:
        """Delete the launch templates that were made of a class."""
        await self._launcher.release(machines)

    async def interruptions(self) -> AsyncGenerator[Interruption, None]:
        """Yield notices for ever: those of the queue, if one is configured, and failed status checks."""
        async for notice in merged(self._queue.notices(), self._checks.notices()):
            yield notice

    async def acknowledge(self, notice: Interruption) -> None:
        """Delete a notice from the queue; one of a status check comes no more while the check fails."""
        if notice.receipt:
            await self._queue.acknowledge(notice)
        else:
            self._checks.acknowledge(notice)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._market.aclose()
        await self.calls.aclose()


async def merged(*sources: AsyncIterator[Interruption]) -> AsyncIterator[Interruption]:
    """Yield from several endless sources as notices come; what a source raises is raised here."""
    ready: asyncio.Queue[Interruption | Exception] = asyncio.Queue(1)

    async def pump(source: AsyncIterator[Interruption]) -> None:
        try:
            async for notice in source:
                await ready.put(notice)
        except Exception as error:
            await ready.put(error)

    pumps = [asyncio.create_task(pump(source)) for source in sources]
    try:
        while True:
            found = await ready.get()
            if isinstance(found, Exception):
                raise found
            yield found
    finally:
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

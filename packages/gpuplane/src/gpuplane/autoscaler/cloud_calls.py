"""The provider with a count and a duration of each call: metrics by Karpenter's names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.counting import Durations, LabelledCounts, sample_counts
from gpuplane.autoscaler.providers.provider import (
    IMPAIRED,
    CloudInstance,
    CloudProvider,
    Interruption,
    LaunchRequest,
    MachineClass,
    NoCapacity,
    ResolvedClass,
)
from gpuplane.autoscaler.snapshot import ClosedOffering
from kubekit.errors import KubekitError
from kubekit.kube import Clock
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, extend, series

_PREFIX: Final = "karpenter_cloudprovider_"
_Result = TypeVar("_Result")


class MeteredProvider:
    """A provider that counts its calls."""

    def __init__(self, provider: CloudProvider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._seconds, self._errors = Durations(), LabelledCounts()
        self._refused, self._not_ended = LabelledCounts(), LabelledCounts()
        self._deleted, self._impaired = LabelledCounts(), LabelledCounts()

    async def _call(self, method: str, work: Awaitable[_Result]) -> _Result:
        began = self._clock.now()
        try:
            return await work
        except KubekitError as error:
            self._errors.add(method=method, error=type(error).__name__)
            raise
        finally:
            self._seconds.observe(self._clock.now() - began, method=method)

    async def types(self) -> Sequence[InstanceType]:
        """Return the types of the region."""
        return await self._call("GetInstanceTypes", self._provider.types())

    async def resolve(self, machines: MachineClass) -> ResolvedClass:
        """Return what a class means now."""
        return await self._call("ResolveClass", self._provider.resolve(machines))

    async def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch one instance; the offerings that the cloud refuses are counted."""
        try:
            return await self._call("Create", self._provider.launch(request))
        except NoCapacity as error:
            for one in error.closed:
                self._refused.add(zone=one.zone, capacity_type=one.capacity_type, reason="InsufficientCapacity")
            raise

    async def instance(self, provider_id: str) -> CloudInstance | None:
        """Return an instance; None if it is gone."""
        return await self._call("Get", self._provider.instance(provider_id))

    async def instances(self) -> Sequence[CloudInstance]:
        """Return this cluster's instances that are not gone."""
        return await self._call("List", self._provider.instances())

    async def terminate(self, provider_id: str) -> None:
        """Begin to end an instance."""
        try:
            await self._call("Delete", self._provider.terminate(provider_id))
        except KubekitError:
            self._not_ended.add(zone=_zone_of(provider_id))
            raise

    async def reboot(self, provider_id: str) -> None:
        """Restart an instance."""
        await self._call("Reboot", self._provider.reboot(provider_id))

    async def release(self, machines: MachineClass) -> None:
        """Delete what was made in the cloud for a class."""
        await self._call("ReleaseClass", self._provider.release(machines))

    async def interruptions(self) -> AsyncGenerator[Interruption, None]:
        """Yield notices for ever; failed status checks are counted."""
        async with aclosing(self._provider.interruptions()) as notices:
            async for notice in notices:
                if notice.kind == IMPAIRED:
                    self._impaired.add(category="status_check")
                yield notice

    async def acknowledge(self, notice: Interruption) -> None:
        """Tell the cloud that a notice has been acted upon."""
        await self._call("Acknowledge", self._provider.acknowledge(notice))
        if notice.receipt:
            self._deleted.add()

    async def aclose(self) -> None:
        """Give back connections and threads."""
        await self._provider.aclose()

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of one moment."""
        return _families(self._seconds, self._errors, self._refused, self._not_ended, self._deleted, self._impaired)


def _families(
    seconds: Durations,
    errors: LabelledCounts,
    refused: LabelledCounts,
    not_ended: LabelledCounts,
    deleted: LabelledCounts,
    impaired: LabelledCounts,
) -> Iterator[MetricFamily]:
    about = "Seconds that a call of the cloud's provider took, by method."
    yield seconds.family(Metric(f"{_PREFIX}duration_seconds", MetricType.HISTOGRAM, about))
    for name, counts, about in (
        (f"{_PREFIX}errors_total", errors, "Calls that failed, by method and error."),
        (
            f"{_PREFIX}instance_launch_failures_total",
            refused,
            "Offerings that the cloud refused to launch, by zone, capacity type and reason.",
        ),
        (
            f"{_PREFIX}instance_termination_failures_total",
            not_ended,
            "Failed calls to end an instance, by zone.",
        ),
        ("karpenter_interruption_deleted_messages_total", deleted, "Messages deleted from the queue."),
        (
            "karpenter_interruption_instance_status_unhealthy_total",
            impaired,
            "Instances that failed the cloud's status checks, by category.",
        ),
    ):
        yield counts.family(Metric(name, MetricType.COUNTER, about))


def call_samples() -> Iterator[MetricFamily]:
    """Yield the metrics of calls with one value each, for documents that list their labels."""
    seconds = Durations()
    seconds.observe(0.0, method="")
    return _families(
        seconds,
        sample_counts("method", "error"),
        sample_counts("zone", "capacity_type", "reason"),
        sample_counts("zone"),
        sample_counts(),
        sample_counts("category"),
    )


def type_metrics(types: Iterable[InstanceType], closed: Iterable[ClosedOffering]) -> Iterator[MetricFamily]:
    """Yield the metrics of instance types, and of the offerings that the cloud refused lately."""
    cores: list[tuple[Series, float]] = []
    memory: list[tuple[Series, float]] = []
    prices: list[tuple[Series, float]] = []
    for one in types:
        own = series({"instance_type": one.name})
        cores.append((own, one.vcpu))
        memory.append((own, one.memory_mib << 20))
        prices += [(extend(own, {"capacity_type": kind}), price) for kind, price in one.prices]
    for name, values, about in (
        ("instance_type_cpu_cores", cores, "CPUs of an instance type."),
        ("instance_type_memory_bytes", memory, "Memory of an instance type, by its data sheet."),
        (
            "instance_type_offering_price_estimate",
            prices,
            "Dollars an hour of an instance type; spot has the price of its dearest zone.",
        ),
    ):
        yield MetricFamily(Metric(_PREFIX + name, MetricType.GAUGE, about), values)
    about = "0 for an offering that the cloud refused in the last three minutes; others have no series."
    refused = [
        (series({"instance_type": machine, "capacity_type": kind, "zone": zone}), 0)
        for kind, machine, zone in sorted(closed)
    ]
    yield MetricFamily(Metric(f"{_PREFIX}instance_type_offering_available", MetricType.GAUGE, about), refused)


def _zone_of(provider_id: str) -> str:
    """Return the zone of an instance by its provider id, aws:///zone/id; empty for another form."""
    parts = provider_id.split("/")
    return parts[3] if len(parts) > 4 else ""

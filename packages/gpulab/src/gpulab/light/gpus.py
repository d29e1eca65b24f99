"""`GPUSource` over a profile, without any library: what a light node's operands see.

The inventory is the very one that the library gives for the same profile and seed; a test holds the two together.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from gpuplane.api.gpunode import Link
from gpuplane.hardware import (
    GPUFacts,
    GPUTopology,
    HealthEvent,
    Mig,
    MigMode,
    MigProfile,
    Process,
    Sample,
    matrix,
)
from gpuplane.hardware.health import recovered_event, xid_event
from gpuplane.hardware.topology import cpu_list, link
from kubekit.errors import Terminal
from simgpu.profile import GpuProfile, cpu_words, gpu_serial, gpu_uuid, lanes, level
from simgpu.state import cuda_version


class SimulatedGPUs:
    """The GPUs of a light node. `fail` and `recover` change their health and notify iterators of `events`."""

    def __init__(
        self,
        profile: GpuProfile,
        seed: str,
        driver_version: str = "570.133.20",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._profile = profile
        self._driver_version = driver_version
        self._cuda_version = cuda_version(driver_version)
        self._clock = clock
        self._since = clock()
        self._gpus = tuple(_gpu(profile, seed, index) for index in range(profile.count))
        self._health: dict[str, str] = {}
        self._last_xid: dict[str, int] = {}
        self._listeners: list[asyncio.Queue[HealthEvent]] = []

    def driver_version(self) -> str:
        return self._driver_version

    def cuda_version(self) -> tuple[int, int]:
        return self._cuda_version

    def inventory(self) -> tuple[GPUFacts, ...]:
        return self._gpus

    def topology(self) -> GPUTopology:
        return matrix(self._gpus)

    def mig(self, uuid: str) -> Mig:
        mode = self._gpu(uuid).mig
        return Mig(
            mode=mode,
            pending=mode,
            profiles=tuple(
                MigProfile(
                    id=spec.id,
                    name=spec.name,
                    slices=spec.slices,
                    memory_mib=spec.memory_mib,
                    capacity=spec.capacity,
                    free=0,
                    placements=tuple((place, spec.memory_slices) for place in spec.placements),
                )
                for spec in sorted(self._profile.model.mig, key=lambda spec: spec.number)
            ),
        )

    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._sample(gpu) for gpu in self._gpus)

    def processes(self, uuid: str) -> tuple[Process, ...]:
        self._gpu(uuid)
        return ()

    def health(self) -> dict[str, str]:
        return dict(self._health)

    async def events(self) -> AsyncIterator[HealthEvent]:
        queue: asyncio.Queue[HealthEvent] = asyncio.Queue()
        self._listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)

    def close(self) -> None:
        self._listeners.clear()

    def fail(self, index: int, xid: int = 79) -> None:
        """An XID on a GPU; a critical one makes it unhealthy until `recover`."""
        event = xid_event(self._gpus[index].uuid, xid)
        self._last_xid[event.uuid] = xid
        if event.critical:
            self._health[event.uuid] = event.reason
        self._tell(event)

    def recover(self, index: int) -> None:
        uuid = self._gpus[index].uuid
        self._health.pop(uuid, None)
        self._tell(recovered_event(uuid))

    def _tell(self, event: HealthEvent) -> None:
        for queue in self._listeners:
            queue.put_nowait(event)

    def _gpu(self, uuid: str) -> GPUFacts:
        for gpu in self._gpus:
            if gpu.uuid == uuid:
                return gpu
        raise Terminal(f"no GPU {uuid} on this node", where="simulated GPUs")

    def _sample(self, gpu: GPUFacts) -> Sample:
        last_xid = self._last_xid.get(gpu.uuid, 0)
        if self._health.get(gpu.uuid, "") == xid_event(gpu.uuid, 79).reason:
            return Sample(uuid=gpu.uuid, lost=True, last_xid=last_xid)
        model = self._profile.model
        reserved = model.reserved_mib << 20
        linked = model.nvlinks if self._profile.nvswitch else 0
        return Sample(
            uuid=gpu.uuid,
            gpu_percent=0,
            memory_percent=0,
            encoder_percent=0,
            decoder_percent=0,
            sm_clock_mhz=model.idle_clock,
            memory_clock_mhz=model.memory_clock,
            temperature_celsius=model.temperature_idle,
            memory_temperature_celsius=model.memory_temperature or None,
            power_watts=float(model.power_idle),
            power_limit_watts=float(model.power_limit),
            energy_millijoules=int(model.power_idle * 1000 * (self._clock() - self._since))
            if model.energy_counter
            else None,
            memory_total_bytes=model.memory_bytes,
            memory_free_bytes=model.memory_bytes - reserved,
            memory_used_bytes=0,
            memory_reserved_bytes=reserved,
            pcie_replays=0,
            pcie_tx_bytes_per_second=0,
            pcie_rx_bytes_per_second=0,
            nvlink_bytes=0 if linked else None,
            remapped_rows_correctable=0 if model.row_remapping else None,
            remapped_rows_uncorrectable=0 if model.row_remapping else None,
            row_remap_failure=False if model.row_remapping else None,
            ecc_uncorrected_volatile=0 if model.ecc else None,
            ecc_corrected_volatile=0 if model.ecc else None,
            ecc_uncorrected_aggregate=0 if model.ecc else None,
            ecc_corrected_aggregate=0 if model.ecc else None,
            last_xid=last_xid,
            vgpu_license=0,
        )


@functools.cache
def _models(profile: GpuProfile) -> tuple[GPUFacts, ...]:
    """The GPUs of a machine without what makes each machine's differ; thousands of light nodes share them."""
    return tuple(_model(profile, index) for index in range(profile.count))


def _gpu(profile: GpuProfile, seed: str, index: int) -> GPUFacts:
    return msgspec.structs.replace(
        _models(profile)[index], uuid=gpu_uuid(profile, seed, index), serial=gpu_serial(profile, seed, index)
    )


def _model(profile: GpuProfile, index: int) -> GPUFacts:
    model, place = profile.model, profile.places[index]
    return GPUFacts(
        index=index,
        minor=index,
        uuid="",
        model=model.name,
        memory_bytes=model.memory_bytes,
        pci=f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.0",
        compute=model.compute,
        pci_device=model.pci_device,
        pci_subsystem=model.pci_subsystem,
        numa=place.numa,
        cpus=cpu_list(cpu_words(profile, index)),
        mig=MigMode.DISABLED if model.mig else MigMode.UNSUPPORTED,
        links=_links(profile, index),
        ecc=model.ecc,
    )


def _links(profile: GpuProfile, index: int) -> tuple[Link, ...]:
    return tuple(
        link(
            other,
            level(profile, index, other),
            profile.model.nvlinks if profile.nvswitch else lanes(profile, index, other),
        )
        for other in range(profile.count)
        if other != index
    )

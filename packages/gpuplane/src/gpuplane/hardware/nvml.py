"""`GPUSource` on NVML. One instance holds one reference to the library's initialization; `close` gives it back.

Invariants:

- Facts that never change (UUID, PCI address, links) are read once, when the source is opened; a GPU that is lost later
  keeps its place in the inventory. MIG devices do change and are read again.
- The source's own event set exists only to know the last XID of each GPU; NVML has no other way to tell it.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from ctypes import byref
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from gpuplane.api.gpunode import Link
from gpuplane.hardware import health, mig, topology
from gpuplane.hardware.binding import GpuLost, ask, fields, need
from gpuplane.hardware.facts import GPUFacts, GPUTopology, HealthEvent, Mig, MigMode, Process, Sample
from gpuplane.hardware.gpm import GpmReader, open_reader
from gpuplane.hardware.library import load_library
from gpuplane.hardware.readings import read_sample
from gpuplane.hardware.watch import EventWatcher, event_set, wait_once
from kubekit.errors import KubekitError, Terminal

_CPU_WORDS = 64  # 4,096 CPUs
_RECENT_SECONDS = 1.0


class NvmlGPUs:
    """The GPUs that NVML shows to this process, in NVML's order."""

    def __init__(self, driver_root: Path) -> None:
        load_library(driver_root)
        need(pynvml.nvmlInit)
        self._closed = False
        self._watchers: list[EventWatcher] = []
        self._last_xid: dict[str, int] = {}
        try:
            self._handles, self._gpus = _scan()
            self._events = event_set(self._handles)
            self._gpm = {uuid: _gpm_reader(handle) for uuid, handle in self._handles.items()}
        except BaseException:
            pynvml.nvmlShutdown()
            raise

    def driver_version(self) -> str:
        return str(need(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> tuple[int, int]:
        number = need(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return number // 1000, number % 1000 // 10

    def inventory(self) -> tuple[GPUFacts, ...]:
        return tuple(self._with_mig(gpu) for gpu in self._gpus)

    def topology(self) -> GPUTopology:
        return topology.matrix(self._gpus)

    def mig(self, uuid: str) -> Mig:
        return mig.read(self._handle(uuid))

    def samples(self) -> tuple[Sample, ...]:
        self._drain()
        return tuple(self._sample(gpu.uuid) for gpu in self._gpus)

    def processes(self, uuid: str) -> tuple[Process, ...]:
        handle = self._handle(uuid)
        found = ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or []
        drawing = ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle) or []
        work = _work(handle) if found or drawing else {}
        draws = {item.pid for item in drawing}
        both = {item.pid for item in found} & draws
        found += [item for item in drawing if item.pid not in both]
        return tuple(_process(item, work, draws) for item in found)

    def health(self) -> dict[str, str]:
        found = {gpu.uuid: self._health(gpu.uuid) for gpu in self._gpus}
        return {uuid: reason for uuid, reason in found.items() if reason}

    def events(self) -> AsyncIterator[HealthEvent]:
        watcher = EventWatcher(self._handles)
        self._watchers.append(watcher)
        return watcher.stream()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for watcher in self._watchers:
                watcher.stop()
            for reader in self._gpm.values():
                if reader is not None:
                    reader.close()
            pynvml.nvmlEventSetFree(self._events)
            pynvml.nvmlShutdown()

    def _handle(self, uuid: str) -> Any:
        try:
            return self._handles[uuid]
        except KeyError:
            raise Terminal(f"no GPU {uuid} on this node", where="NVML") from None

    def _with_mig(self, gpu: GPUFacts) -> GPUFacts:
        try:
            mode, _ = mig.modes(self._handles[gpu.uuid])
            if mode is not MigMode.ENABLED and gpu.mig is mode:
                return gpu
            devices = mig.devices(self._handles[gpu.uuid])
        except GpuLost:
            return gpu
        return msgspec.structs.replace(gpu, mig=mode, mig_devices=devices)

    def _drain(self) -> None:
        while True:
            try:
                event = wait_once(self._events, self._handles, 0)
            except GpuLost:
                return
            if event is None:
                return
            if event.xid:
                self._last_xid[event.uuid] = event.xid

    def _sample(self, uuid: str) -> Sample:
        last_xid = self._last_xid.get(uuid, 0)
        try:
            sample = read_sample(uuid, self._handles[uuid])
            reader = self._gpm[uuid]
            active = reader.read() if reader is not None else {}
            return msgspec.structs.replace(sample, last_xid=last_xid, **active)
        except GpuLost:
            return Sample(uuid=uuid, lost=True, last_xid=last_xid)

    def _health(self, uuid: str) -> str:
        handle = self._handles[uuid]
        try:
            need(pynvml.nvmlDeviceGetPciInfo, handle)
            errors = ask(
                pynvml.nvmlDeviceGetTotalEccErrors,
                handle,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC,
            )
            remapped = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
            [recovery] = fields(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        except GpuLost:
            return health.verdict(lost=True, uncorrected_errors=None, row_remap_failure=None, recovery=None)
        return health.verdict(
            lost=False,
            uncorrected_errors=errors,
            row_remap_failure=bool(remapped[3]) if remapped else None,
            recovery=recovery,
        )


def _scan() -> tuple[dict[str, Any], tuple[GPUFacts, ...]]:
    handles: dict[str, Any] = {}
    gpus: list[GPUFacts] = []
    for index in range(need(pynvml.nvmlDeviceGetCount)):
        try:
            handle = need(pynvml.nvmlDeviceGetHandleByIndex, index)
            gpu = _read_gpu(index, handle)
        except GpuLost:
            # Lost before we came: not even its UUID can be had, so there is nothing to list it under.
            continue
        handles[gpu.uuid] = handle
        gpus.append(gpu)
    return handles, tuple(msgspec.structs.replace(gpu, links=_links(gpu, gpus, handles)) for gpu in gpus)


def _gpm_reader(handle: Any) -> GpmReader | None:
    try:
        return open_reader(handle)
    except GpuLost:
        return None


def _read_gpu(index: int, handle: Any) -> GPUFacts:
    pci = need(pynvml.nvmlDeviceGetPciInfo, handle)
    mode, _ = mig.modes(handle)
    ecc = ask(pynvml.nvmlDeviceGetEccMode, handle)
    cpus = ask(pynvml.nvmlDeviceGetCpuAffinity, handle, _CPU_WORDS)
    bus = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    return GPUFacts(
        index=index,
        minor=need(pynvml.nvmlDeviceGetMinorNumber, handle),
        uuid=need(pynvml.nvmlDeviceGetUUID, handle),
        model=need(pynvml.nvmlDeviceGetName, handle),
        memory_bytes=_memory_bytes(handle),
        pci=bus,
        compute=tuple(need(pynvml.nvmlDeviceGetCudaComputeCapability, handle)),
        pci_device=pci.pciDeviceId,
        pci_subsystem=pci.pciSubSystemId,
        serial=ask(pynvml.nvmlDeviceGetSerial, handle) or "",
        numa=_numa(handle, bus),
        cpus=topology.cpu_list(list(cpus)) if cpus else "",
        mig=mode,
        mig_devices=mig.devices(handle) if mode is MigMode.ENABLED else (),
        ecc=bool(ecc and ecc[0]),
        fabric=_fabric(handle),
    )


def _memory_bytes(handle: Any) -> int:
    """The GPU's memory; the machine's where the GPU has none of its own (GB10, Jetson), of which NVML says nothing."""
    info = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return int(info.total) if info is not None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _fabric(handle: Any) -> str:
    """`<cluster UUID>.<clique>` of the fabric that the GPU has joined, "" for none."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    if ask(pynvml.nvmlDeviceGetGpuFabricInfo, handle, byref(info)) is None:
        return ""
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    joined = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == pynvml.NVML_SUCCESS
    return f"{cluster}.{info.cliqueId}" if joined and cluster.int else ""


def _numa(handle: Any, bus: str) -> int:
    """NVML's NUMA node of the GPU's PCI slot; drivers before 550 do not tell, the kernel does."""
    node = ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
    if node is not None and node[0]:
        return int(node[0]).bit_length() - 1
    path = Path(os.sep, "sys/bus/pci/devices", bus, "numa_node")
    return int(path.read_text()) if path.is_file() else -1


def _links(gpu: GPUFacts, gpus: list[GPUFacts], handles: dict[str, Any]) -> tuple[Link, ...]:
    lanes = _lanes(handles[gpu.uuid])
    found = []
    for other in gpus:
        if other.uuid == gpu.uuid:
            continue
        level = ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[gpu.uuid], handles[other.uuid])
        to_other = lanes.get(other.pci, 0) + lanes.get("switch", 0)
        found.append(topology.link(other.index, pynvml.NVML_TOPOLOGY_SYSTEM if level is None else level, to_other))
    return tuple(found)


def _lanes(handle: Any) -> dict[str, int]:
    """Active NVLinks by what is at their other end: a PCI address, or "switch" that leads to every GPU."""
    lanes: dict[str, int] = {}
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = ask(pynvml.nvmlDeviceGetNvLinkState, handle, number)
        if state is None:
            break
        if state != pynvml.NVML_FEATURE_ENABLED:
            continue
        kind = ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        remote = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            end = "switch"
        elif remote is None:
            continue
        else:
            end = f"{remote.domain:04x}:{remote.bus:02x}:{remote.device:02x}.0"
        lanes[end] = lanes.get(end, 0) + 1
    return lanes


def _work(handle: Any) -> dict[int, tuple[int, int]]:
    """By pid, percent of multiprocessors and of encoder or decoder: the mean of the samples of the last second.

    NVML has no samples of processes that were idle.
    """
    since = int((time.time() - _RECENT_SECONDS) * 1e6)
    try:
        samples = ask(pynvml.nvmlDeviceGetProcessUtilization, handle, since) or []
    except KubekitError:
        return {}
    found: dict[int, list[tuple[int, int]]] = {}
    for sample in samples:
        found.setdefault(sample.pid, []).append((sample.smUtil, max(sample.encUtil, sample.decUtil)))
    return {
        pid: (sum(sm for sm, _ in percent) // len(percent), sum(video for _, video in percent) // len(percent))
        for pid, percent in found.items()
    }


def _process(item: Any, work: Mapping[int, tuple[int, int]], draws: Collection[int]) -> Process:
    none = 0xFFFFFFFF
    gpu, video = work.get(item.pid, (None, None))
    return Process(
        pid=item.pid,
        memory_bytes=item.usedGpuMemory,
        gpu_percent=gpu,
        video_percent=video,
        draws=item.pid in draws,
        name=ask(pynvml.nvmlSystemGetProcessName, item.pid) or "",
        gpu_instance=None if item.gpuInstanceId == none else item.gpuInstanceId,
        compute_instance=None if item.computeInstanceId == none else item.computeInstanceId,
    )

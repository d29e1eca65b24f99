"""MIG as NVML tells it: mode, the table of profiles with what still fits, the devices there are."""

from __future__ import annotations

from ctypes import byref, c_uint
from typing import Any

import pynvml

from gpuplane.hardware.binding import ask, memory
from gpuplane.hardware.facts import Mig, MigDevice, MigMode, MigProfile, MigSample

_PROFILE_NUMBERS = 0x12  # NVML numbers its profiles 0 to 17 and offers each model a few of them


def modes(handle: Any) -> tuple[MigMode, MigMode]:
    """Current and pending mode."""
    found = ask(pynvml.nvmlDeviceGetMigMode, handle)
    if found is None:
        return MigMode.UNSUPPORTED, MigMode.UNSUPPORTED
    current, pending = (MigMode.ENABLED if mode else MigMode.DISABLED for mode in found)
    return current, pending


def read(handle: Any) -> Mig:
    current, pending = modes(handle)
    if current is MigMode.UNSUPPORTED:
        return Mig(mode=current, pending=pending)
    profiles = [_profile(handle, number, current) for number in range(_PROFILE_NUMBERS)]
    return Mig(
        mode=current,
        pending=pending,
        profiles=tuple(profile for profile in profiles if profile is not None),
        devices=devices(handle) if current is MigMode.ENABLED else (),
    )


def devices(handle: Any) -> tuple[MigDevice, ...]:
    """The MIG devices of a GPU, in index order; empty when MIG is off."""
    found = []
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if device is not None:
            found.append(_device(index, device))
    return tuple(found)


def _device(index: int, handle: Any) -> MigDevice:
    attributes = ask(pynvml.nvmlDeviceGetAttributes_v2, handle)
    total, _, _, _ = memory(handle)
    name = str(ask(pynvml.nvmlDeviceGetName, handle) or "")
    return MigDevice(
        index=index,
        uuid=str(ask(pynvml.nvmlDeviceGetUUID, handle) or ""),
        # NVML has no call for it: the name is the GPU's, " MIG " and the profile.
        profile=name.rpartition(" MIG ")[2],
        gpu_instance=int(ask(pynvml.nvmlDeviceGetGpuInstanceId, handle) or 0),
        compute_instance=int(ask(pynvml.nvmlDeviceGetComputeInstanceId, handle) or 0),
        memory_bytes=total or 0,
        **(_attributes(attributes) if attributes else {"slices": 0}),
    )


def _attributes(found: Any) -> dict[str, int]:
    return {
        "slices": found.computeInstanceSliceCount,
        "memory_mib": found.memorySizeMB,
        "gpu_slices": found.gpuInstanceSliceCount,
        "multiprocessors": found.multiprocessorCount,
        "copy_engines": found.sharedCopyEngineCount,
        "decoders": found.sharedDecoderCount,
        "encoders": found.sharedEncoderCount,
        "jpeg_engines": found.sharedJpegCount,
        "ofa_engines": found.sharedOfaCount,
    }


def samples(handle: Any) -> tuple[MigSample, ...]:
    """The memory of each GPU instance, from the first of its devices; empty when MIG is off or unknown."""
    found: dict[int, MigSample] = {}
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if device is None:
            continue
        number = int(ask(pynvml.nvmlDeviceGetGpuInstanceId, device) or 0)
        if number not in found:
            total, free, used, reserved = memory(device)
            found[number] = MigSample(
                gpu_instance=number,
                memory_total_bytes=total,
                memory_free_bytes=free,
                memory_used_bytes=used,
                memory_reserved_bytes=reserved,
            )
    return tuple(found.values())


def _profile(handle: Any, number: int, mode: MigMode) -> MigProfile | None:
    info = ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
    if info is None:
        return None
    free = ask(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, info.id) if mode is MigMode.ENABLED else 0
    return MigProfile(
        id=info.id,
        name=str(info.name).removeprefix("MIG "),
        slices=info.sliceCount,
        memory_mib=info.memorySizeMB,
        capacity=info.instanceCount,
        free=free or 0,
        placements=_placements(handle, info.id),
    )


def _placements(handle: Any, profile: int) -> tuple[tuple[int, int], ...]:
    count = c_uint(0)
    if ask(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile, None, byref(count)) is None:
        return ()
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile, byref(found), byref(count))
    return tuple((place.start, place.size) for place in found[: count.value])

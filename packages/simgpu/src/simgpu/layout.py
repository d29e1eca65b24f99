"""The state file as native/simgpu/state.h lays it out; a test compares the sizes that the library reports.

Field names are those of the C structures.
"""

from __future__ import annotations

from ctypes import Structure, c_char, c_int32, c_uint8, c_uint32, c_uint64
from typing import Final

MAGIC: Final = 0x0055504740494D53
LAYOUT: Final = 6
GPUS: Final = 16
SLOTS: Final = 256
MIG_PROFILES: Final = 12
MIG_DEVICES: Final = 7
EVENTS: Final = 256
LIMITS: Final = 64
CGROUPS: Final = 8
BUCKETS: Final = 256
SLOT_BUCKETS: Final = 64
LATENCIES: Final = 8
NO_INSTANCE: Final = 0xFFFFFFFF
# Bytes of the file that locks are taken on.
LOCK_EVENTS: Final = 0x40000000
LOCK_USERS: Final = 0x40001000
LOCK_SLOTS: Final = 0x40002000


def _words(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class MigProfileLayout(Structure):
    _fields_ = (
        ("memory_mib", c_uint64),
        *_words(c_uint32, "number id slices memory_slices capacity multiprocessors placement_count copy_engines"),
        ("placements", c_uint8 * 8),
        ("name", c_char * 24),
    )


class MigDeviceLayout(Structure):
    _fields_ = (
        *_words(c_uint32, "used gpu_instance compute_instance profile start reserved"),
        ("uuid", c_char * 48),
    )


class GpuLayout(Structure):
    _fields_ = (
        *_words(c_uint64, "memory_bytes reserved_bytes context_bytes"),
        ("cpus", c_uint64 * 16),
        *_words(c_uint32, "minor pci_domain pci_bus pci_device pci_device_id pci_subsystem_id"),
        ("numa", c_int32),
        *_words(
            c_uint32,
            "compute_major compute_minor architecture brand multiprocessors cores threads_per_multiprocessor "
            "shared_per_multiprocessor shared_per_block_optin sm_clock_mhz memory_clock_mhz idle_clock_mhz bus_width "
            "l2_bytes bandwidth_mbps pcie_mbps power_limit_mw power_min_mw power_idle_mw temperature_idle "
            "temperature_busy temperature_slowdown temperature_shutdown memory_temperature pcie_generation pcie_width "
            "ecc_supported ecc_enabled remap_supported energy_supported mig_supported mig_profile_count nvlinks "
            "nvlink_version nvlink_switch module_id mig_enabled persistence compute_mode lost wrong_results "
            "recovery_action last_xid remapped_correctable remapped_uncorrectable remap_pending remap_failure "
            "load_gpu_percent load_memory_percent load_encoder_percent load_decoder_percent load_pid "
            "unified_memory latency_count load_draws",
        ),
        ("allocation_us", c_uint32 * LATENCIES),
        *_words(
            c_uint64,
            "load_memory_bytes load_since load_busy_ns ecc_corrected_volatile ecc_uncorrected_volatile "
            "ecc_corrected_aggregate ecc_uncorrected_aggregate pcie_replays nvlink_bytes pcie_tx_bytes pcie_rx_bytes "
            "loaded_ns timeline copy_timeline busy_ns memory_busy_ns long_start long_end",
        ),
        ("buckets", c_uint64 * BUCKETS),
        ("memory_buckets", c_uint64 * BUCKETS),
        ("level", c_uint8 * GPUS),
        ("lanes", c_uint8 * GPUS),
        ("uuid", c_char * 48),
        ("name", c_char * 96),
        ("serial", c_char * 32),
        ("vbios", c_char * 32),
        ("part", c_char * 32),
        ("mig_profiles", MigProfileLayout * MIG_PROFILES),
        ("mig_devices", MigDeviceLayout * MIG_DEVICES),
    )


class SlotLayout(Structure):
    _fields_ = (
        ("pid", c_uint64),
        ("mps", c_uint64),
        ("cgroups", c_uint64 * CGROUPS),
        ("memory", c_uint64 * GPUS),
        ("tail", c_uint64 * GPUS),
        ("gpu_instance", c_uint32 * GPUS),
        ("contexts", c_uint32 * GPUS),
        ("long_start", c_uint64 * GPUS),
        ("long_end", c_uint64 * GPUS),
        ("buckets", c_uint64 * SLOT_BUCKETS * GPUS),
    )


class EventLayout(Structure):
    _fields_ = (
        *_words(c_uint64, "number type data time_ns"),
        *_words(c_uint32, "gpu gpu_instance compute_instance padding"),
    )


class Limit(Structure):
    _fields_ = (
        ("cgroup", c_uint64),
        ("soft", c_uint64 * GPUS),
        ("hard", c_uint64 * GPUS),
        ("path", c_char * 248),
    )


class StateLayout(Structure):
    _fields_ = (
        ("magic", c_uint64),
        *_words(c_uint32, "layout gpu_count cuda_version event_futex"),
        *_words(c_uint64, "event_last size"),
        ("driver_version", c_char * 32),
        ("nvml_version", c_char * 32),
        ("gpus", GpuLayout * GPUS),
        ("events", EventLayout * EVENTS),
        ("slots", SlotLayout * SLOTS),
        ("limits", Limit * LIMITS),
    )

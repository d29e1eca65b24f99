"""Recognises virtual GPUs among PCI devices, from their configuration space.

A hypervisor marks its virtual GPUs with a vendor-specific capability that begins with "VF" and carries records; record
0 holds the version and branch of the host's driver, ten bytes each. Format: PCI Local Bus 3.0, section 6.7; the records
as GPU feature discovery reads them.
"""

from __future__ import annotations

import msgspec

_STATUS, _HAS_CAPABILITIES, _FIRST = 0x06, 0x10, 0x34
_VENDOR_SPECIFIC = 0x09
_MARK = b"VF"


class VirtualGPU(msgspec.Struct, frozen=True):
    """The hypervisor's driver: its version, "550.54", and branch, "r550_00"; empty when it does not say."""

    host_driver: str = ""
    host_branch: str = ""


def read_vgpu(config: bytes) -> VirtualGPU | None:
    """Read the vGPU record of a device's configuration space (256 bytes or more); None for hardware, or when it is cut
    short.
    """
    if len(config) < 256 or not config[_STATUS] & _HAS_CAPABILITIES:
        return None
    seen: set[int] = set()
    position = config[_FIRST]
    while position and position not in seen and position + 2 < len(config) and config[position] != 0xFF:
        seen.add(position)
        if config[position] == _VENDOR_SPECIFIC:
            capability = config[position : position + config[position + 2]]
            if capability[3:5] == _MARK:
                return _records(capability)
            return None
        position = config[position + 1]
    return None


def _records(capability: bytes) -> VirtualGPU:
    position = 5
    while position + 1 < len(capability):
        kind, length = capability[position], capability[position + 1]
        if kind == 0:
            data = capability[position + 2 : position + 22]
            return VirtualGPU(_text(data[:10]), _text(data[10:20]))
        if not length:
            break
        position += length
    return VirtualGPU()


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("ascii", errors="replace")

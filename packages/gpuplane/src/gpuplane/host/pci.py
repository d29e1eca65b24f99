"""The NVIDIA GPUs on a host's PCI bus, whether a driver answers for them or not."""

from __future__ import annotations

from typing import Final

from gpuplane.host.files import Host

PCI_DEVICES: Final = "sys/bus/pci/devices"
_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")
_DRIVER: Final = "nvidia"


def gpu_addresses(host: Host) -> tuple[str, ...]:
    """Return the PCI addresses of the GPUs that the NVIDIA driver has, or that no driver has.

    A GPU that another driver has, as vfio-pci for virtual machines, is not the NVIDIA driver's to answer for.
    """
    found = []
    for address in host.list(PCI_DEVICES):
        device = host.read_files(f"{PCI_DEVICES}/{address}", ("vendor", "class"))
        if device.get("vendor") != _NVIDIA or device.get("class", "")[:6] not in _DISPLAY:
            continue
        driver = host.readlink(f"{PCI_DEVICES}/{address}/driver")
        if driver is None or driver.rpartition("/")[2] == _DRIVER:
            found.append(address)
    return tuple(found)

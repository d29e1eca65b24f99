"""PCI and USB devices, network interfaces and disks."""

from __future__ import annotations

from gpuplane.discovery.features import Attributes, Features
from gpuplane.discovery.sources.reading import names, values
from gpuplane.host import Host

_PCI = "sys/bus/pci/devices"
_USB = "sys/bus/usb/devices"
_NETWORK = "sys/class/net"
_BLOCK = "sys/block"
_PCI_FILES = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device", "sriov_totalvfs")
_USB_FILES = {"bDeviceClass": "class", "idVendor": "vendor", "idProduct": "device", "serial": "serial"}


def discover(host: Host) -> Features:
    device, virtual = _network(host)
    return Features(
        instances={
            "pci.device": _pci(host),
            "usb.device": _usb(host),
            "network.device": device,
            "network.virtual": virtual,
            "storage.block": tuple(
                {"name": name, **values(host, f"{_BLOCK}/{name}/queue", ("dax", "rotational", "nr_zones", "zoned"))}
                for name in names(host, _BLOCK)
            ),
        }
    )


def _pci(host: Host) -> tuple[Attributes, ...]:
    """Devices with a class and a vendor; `class` is four hex digits, class and subclass ("0302")."""
    found = []
    for address in names(host, _PCI):
        seen = {name: value.removeprefix("0x") for name, value in values(host, f"{_PCI}/{address}", _PCI_FILES).items()}
        if "class" not in seen or "vendor" not in seen:
            continue
        seen["class"] = seen["class"][:4]
        for path in ("iommu_group/type", "iommu/intel-iommu/version"):
            directory, _, name = path.rpartition("/")
            if value := values(host, f"{_PCI}/{address}/{directory}", (name,)).get(name):
                seen[path] = value
        found.append(seen)
    return tuple(found)


def _usb(host: Host) -> tuple[Attributes, ...]:
    """Devices by class; one whose class is 00 says it at its interfaces instead, and counts once for each of them."""
    found = []
    for name in names(host, _USB):
        seen = values(host, f"{_USB}/{name}", tuple(_USB_FILES))
        if "idProduct" not in seen:
            continue
        device = {_USB_FILES[key]: value for key, value in seen.items() if value}
        if device.get("class") != "00":
            found.append(device)
            continue
        for part in names(host, f"{_USB}/{name}"):
            inside = values(host, f"{_USB}/{name}/{part}", ("bInterfaceClass",)).get("bInterfaceClass")
            if inside:
                found.append({**device, "class": inside})
    return tuple(found)


def _network(host: Host) -> tuple[tuple[Attributes, ...], tuple[Attributes, ...]]:
    """Interfaces of hardware, and the others."""
    physical, virtual = [], []
    for name in names(host, _NETWORK):
        if name == "bonding_masters":
            continue
        base = f"{_NETWORK}/{name}"
        seen = {"name": name, **values(host, base, ("operstate", "speed", "mtu"))}
        if host.exists(f"{base}/device"):
            physical.append({**seen, **values(host, f"{base}/device", ("sriov_numvfs", "sriov_totalvfs"))})
        else:
            virtual.append(seen)
    return tuple(physical), tuple(virtual)


def dmi(host: Host, wanted: tuple[str, ...]) -> dict[str, str]:
    """Read the world-readable entries of the firmware's table."""
    found = values(host, "sys/devices/virtual/dmi/id", wanted) or values(host, "sys/class/dmi/id", wanted)
    return {name: value for name, value in found.items() if value}

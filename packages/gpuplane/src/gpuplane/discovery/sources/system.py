"""The operating system's name and version, the firmware's table, the Node's name."""

from __future__ import annotations

import re

from gpuplane.discovery.features import Attributes, Features
from gpuplane.discovery.sources.devices import dmi
from gpuplane.host import Host, read_os_release

_DMI = (
    *("bios_date", "bios_vendor", "bios_version", "board_asset_tag", "board_name", "board_vendor", "board_version"),
    *("chassis_asset_tag", "chassis_type", "chassis_vendor", "chassis_version", "product_family", "product_name"),
    *("product_sku", "product_version", "sys_vendor"),
)


def discover(host: Host, node_name: str) -> Features:
    attributes: dict[str, Attributes] = {}
    if release := read_os_release(host):
        attributes["system.osrelease"] = release | _parts(release.get("VERSION_ID", ""))
    if table := dmi(host, _DMI):
        attributes["system.dmiid"] = table
    if node_name:
        attributes["system.name"] = {"nodename": node_name}
    return Features(attributes=attributes)


def _parts(version: str) -> dict[str, str]:
    """`VERSION_ID.major` and `.minor` of a version that begins with numbers."""
    parts = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\..*)?", version)
    pairs = zip(("major", "minor"), parts.groups(), strict=True) if parts else ()
    return {f"VERSION_ID.{name}": value for name, value in pairs if value is not None}

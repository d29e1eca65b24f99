"""Links in `/dev/char` to the driver's device nodes.

runc asks systemd to allow a device by its path in `/dev/char`. The kernel's driver makes no links there, so a
`systemctl daemon-reload` takes the GPUs away from running containers ("Failed to initialize NVML"). With the links it
does not.

Nodes below `/dev/nvidia-caps` come and go with MIG devices; their numbers are known before, so their links are made
before. A link without its node does no harm.

The links are listed in a file before they are made. The driver's uninstallation removes those on the list.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from typing import Final

from gpuplane import names
from gpuplane.host import Host

CAPS: Final = "dev/nvidia-caps"
_FOLDERS: Final = ("dev", CAPS)
_MINORS: Final = ("proc/driver/nvidia-caps/mig-minors", "proc/driver/nvidia-caps/sys-minors")
_DEVICES: Final = "proc/devices"


def links(nodes: Iterable[tuple[str, int, int]]) -> dict[str, str]:
    """Link -> target, for device nodes given as (path below the root, major, minor): `dev/char/195:0` ->
    `../nvidia0`."""
    return {f"dev/char/{major}:{minor}": "../" + path.removeprefix("dev/") for path, major, minor in nodes}


def make_links(host: Host) -> int:
    """Make the links that are missing or wrong; how many those were. Raises HostError."""
    missing = {link: target for link, target in wanted_links(host).items() if host.readlink(link) != target}
    # NB: listed first: a validator that is killed among the links must leave none that nothing removes.
    _list_links(host, missing)
    for link, target in missing.items():
        host.symlink(link, target, durable=False)
    # And again: a driver that was replaced meanwhile removed the list, with the links that were there.
    _list_links(host, missing)
    return len(missing)


def _list_links(host: Host, made: Iterable[str]) -> None:
    listed = set((host.read_text(names.CHAR_LINKS) or "").split())
    if not listed.issuperset(made):
        text = "".join(f"{link}\n" for link in sorted(listed.union(made)))
        host.write_atomic(names.CHAR_LINKS, text.encode(), durable=False)


def wanted_links(host: Host) -> dict[str, str]:
    """Link -> target, of all nodes that there are or may be."""
    return links([*_possible_caps(host), *_nodes(host)])


def _nodes(host: Host) -> list[tuple[str, int, int]]:
    found = []
    for folder in _FOLDERS:
        for name in host.list(folder):
            if name.startswith("nvidia"):
                path = f"{folder}/{name}"
                status = host.stat(path)
                if status is not None and stat.S_ISCHR(status.st_mode):
                    found.append((path, os.major(status.st_rdev), os.minor(status.st_rdev)))
    return found


def _possible_caps(host: Host) -> list[tuple[str, int, int]]:
    """The capability nodes that the driver has numbers for: lines as `gpu0/gi1/access 12`."""
    major = re.search(r"^\s*(\d+) nvidia-caps$", host.read_text(_DEVICES) or "", flags=re.M)
    if major is None:
        return []
    text = "\n".join(host.read_text(path) or "" for path in _MINORS)
    minors = re.findall(r"^\S+ (\d+)$", text, flags=re.M)
    return [(f"{CAPS}/nvidia-cap{minor}", int(major[1]), int(minor)) for minor in minors]

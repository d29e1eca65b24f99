"""Links in `/dev/char` to the driver's device nodes.

runc asks systemd to allow a device by its path in `/dev/char`. The kernel's driver makes no links there, so a
`systemctl daemon-reload` takes the GPUs away from running containers ("Failed to initialize NVML"). With the links it
does not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from gpuplane.host import Host

_FOLDERS = ("dev", "dev/nvidia-caps")


def links(nodes: Iterable[tuple[str, int, int]]) -> dict[str, str]:
    """Link -> target, for device nodes given as (path below the root, major, minor): `dev/char/195:0` ->
    `../nvidia0`."""
    return {f"dev/char/{major}:{minor}": "../" + path.removeprefix("dev/") for path, major, minor in nodes}


def make_links(host: Host) -> int:
    """Make the links that are missing; how many those were. Raises HostError.

    The simulated driver's nodes are files; they need no links and get none.
    """
    found = []
    for folder in _FOLDERS:
        for name in host.list(folder):
            if name.startswith("nvidia"):
                path = f"{folder}/{name}"
                status = host.stat(path)
                if status is not None and stat.S_ISCHR(status.st_mode):
                    found.append((path, os.major(status.st_rdev), os.minor(status.st_rdev)))
    return sum(host.symlink(link, target, durable=False) for link, target in links(found).items())

"""Device nodes of the machine as the plugin sees them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gpuplane.device_plugin.allocation.response import CONTROLS, NodeFiles
from gpuplane.host import Host

MINORS: Final = "proc/driver/nvidia-caps/mig-minors"
_CAPABILITY: Final = re.compile(r"^(gpu\d+/gi\d+(?:/ci\d+)?/access) (\d+)$", re.M)


def read_node_files(host_root: Path, dev_root: str) -> NodeFiles:
    """Read the current content.

    Args:
        dev_root: where /dev with GPUs lies on the host: "/", or the root of a driver in a container.
    """
    host = Host(host_root)
    return NodeFiles(
        controls=tuple(name for name in CONTROLS if host.exists(f"{dev_root}/dev/{name}")),
        caps={path: int(minor) for path, minor in _CAPABILITY.findall(host.read_text(MINORS) or "")},
    )

"""Reads a host's distribution from os-release(5), and finds the folder of its libraries."""

from __future__ import annotations

import platform
import re

from gpuplane.host.files import Host

# Where drivers' libraries are found, relative to a root, in the order in which they are looked for.
LIBRARY_DIRS = (
    f"usr/lib/{platform.machine()}-linux-gnu",
    "usr/lib64",
    f"lib/{platform.machine()}-linux-gnu",
    "lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
)

# Where a host's own driver may have a root of its own: "" is the host itself, then GKE's on Container-Optimized OS, and
# that of Talos's system extensions.
OWN_DRIVER_ROOTS = ("", "home/kubernetes/bin/nvidia", "usr/local/glibc")


def read_os_release(host: Host) -> dict[str, str]:
    """The assignments of os-release, without quotes; empty when there is none."""
    text = host.read_text("etc/os-release") or host.read_text("usr/lib/os-release") or ""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and value and re.fullmatch(r"\w+", key):
            found[key] = value.strip("\"'")
    return found

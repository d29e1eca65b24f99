"""Reads a host's distribution from os-release(5), and finds the folder of its libraries."""

from __future__ import annotations

import platform
import re

from gpuplane.host.files import Host

# Distributions, by ID or ID_LIKE, that keep 64-bit libraries in /usr/lib64; the others name the architecture.
_LIB64 = frozenset(
    ("rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn", "sles", "suse", "opensuse", "opensuse-leap")
)

# Where drivers' libraries are found, relative to a root, in the order in which they are looked for.
LIBRARY_DIRS = (
    f"usr/lib/{platform.machine()}-linux-gnu",
    "usr/lib64",
    f"lib/{platform.machine()}-linux-gnu",
    "lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
)


def read_os_release(host: Host) -> dict[str, str]:
    """The assignments of os-release, without quotes; empty when there is none."""
    text = host.read_text("etc/os-release") or host.read_text("usr/lib/os-release") or ""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and value and re.fullmatch(r"\w+", key):
            found[key] = value.strip("\"'")
    return found


def library_dir(os_release: dict[str, str]) -> str:
    """Return the folder of 64-bit libraries on this distribution, for example `usr/lib/x86_64-linux-gnu`."""
    names = {os_release.get("ID", ""), *os_release.get("ID_LIKE", "").split()}
    return "usr/lib64" if names & _LIB64 else f"usr/lib/{platform.machine()}-linux-gnu"

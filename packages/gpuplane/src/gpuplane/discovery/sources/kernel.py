"""The kernel: version, configuration, modules, SELinux, KVM."""

from __future__ import annotations

import gzip
import re
import zlib
from functools import lru_cache
from typing import Final

from gpuplane.discovery.features import Attributes, Features
from gpuplane.discovery.sources.reading import boolean, text
from gpuplane.host import Host, HostError

_RELEASE: Final = "proc/sys/kernel/osrelease"


def discover(host: Host, before: Features | None) -> Features:
    release = text(host, _RELEASE) or ""
    version = version_of(release)
    flags = {}
    attributes: dict[str, Attributes] = {
        "kernel.selinux": {"enabled": boolean((text(host, "sys/fs/selinux/enforce") or "").startswith("1"))},
        "kernel.kvm": {"enabled": boolean(host.exists("sys/devices/virtual/misc/kvm"))},
    }
    if version:
        attributes["kernel.version"] = version
    known = before is not None and before.attributes.get("kernel.version", {}) == version
    config = before.attributes.get("kernel.config", {}) if known and before is not None else _config(host, release)
    if config:
        attributes["kernel.config"] = config
    loaded = text(host, "proc/modules")
    if loaded is not None:
        modules = frozenset(line.split()[0] for line in loaded.splitlines() if line.strip())
        flags["kernel.loadedmodule"] = modules
        builtin = text(host, f"lib/modules/{release}/modules.builtin") or ""
        flags["kernel.enabledmodule"] = modules | _builtin(builtin)
    return Features(flags=flags, attributes=attributes)


def version_of(release: str) -> dict[str, str]:
    """`full` as a label may have it, and the numbers that it begins with; nothing for an empty release."""
    full = re.sub(r"[^-A-Za-z0-9_.]", "_", release).strip("-_.")
    parts = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-.*)?", full)
    found = {"full": full} if full else {}
    if parts:
        pairs = zip(("major", "minor", "revision"), parts.groups(), strict=True)
        found |= {name: value for name, value in pairs if value is not None}
    return found


@lru_cache(maxsize=4)
def _builtin(listed: str) -> frozenset[str]:
    files = (line.strip().rpartition("/")[2] for line in listed.splitlines())
    return frozenset(name.removesuffix(".ko") for name in files if name.endswith(".ko"))


def _config(host: Host, release: str) -> Attributes:
    """Every option that is set, without quotes, from the first place that has the configuration."""
    places = (
        "proc/config.gz",
        f"usr/src/linux-{release}/.config",
        f"usr/src/linux-rt-{release}/.config",
        "usr/src/linux/.config",
        f"usr/lib/modules/{release}/config",
        f"usr/lib/ostree-boot/config-{release}",
        f"usr/lib/kernel/config-{release}",
        f"usr/src/linux-headers-{release}/.config",
        f"lib/modules/{release}/build/.config",
        f"usr/src/linux-rt-headers-{release}/.config",
        f"boot/config-{release}",
    )
    for place in places:
        try:
            data = host.read(place)
        except HostError:
            continue
        if data is not None:
            return _options(data)
    return {}


# Thousands of light nodes have the same few kernels.
@lru_cache(maxsize=4)
def _options(data: bytes) -> Attributes:
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return {}
    found = {}
    for name, value in re.findall(rb"^CONFIG_(\w+)=(.*)$", data, re.MULTILINE):
        found[name.decode()] = value.decode(errors="replace").strip().strip('"')
    return found

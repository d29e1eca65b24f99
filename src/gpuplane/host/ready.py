"""The files in `run/nvidia/validations` by which a host's programs know how far the host is.

`driver-ready` is an env file that shell scripts and other projects source. Nothing of gpuplane waits for these files
(stages do that); they are written for those who do, and the toolkit reads where the driver's root is.
"""

from __future__ import annotations

import msgspec

from gpuplane import names
from gpuplane.host.files import Host


class DriverReady(msgspec.Struct, frozen=True):
    """What `driver-ready` says: whether the host had the driver by itself, and where its files lie.

    `root` is as the host sees it, `container_root` the same as an operand's container sees it.
    """

    host_driver: bool
    root: str = "/"
    container_root: str = "/host"

    def encode(self) -> bytes:
        return (
            f"IS_HOST_DRIVER={str(self.host_driver).lower()}\n"
            f"NVIDIA_DRIVER_ROOT={self.root}\n"
            f"DRIVER_ROOT_CTR_PATH={self.container_root}\n"
        ).encode()


def read_driver_ready(host: Host) -> DriverReady | None:
    """What the host's `driver-ready` says, or the `host-driver-ready` of older releases; None without either."""
    text = host.read_text(names.DRIVER_READY)
    if text is None:
        return DriverReady(host_driver=True) if host.exists(names.HOST_DRIVER_READY) else None
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return DriverReady(
        host_driver=values.get("IS_HOST_DRIVER", "").strip().lower() == "true",
        root=values.get("NVIDIA_DRIVER_ROOT", "").strip() or "/",
        container_root=values.get("DRIVER_ROOT_CTR_PATH", "").strip() or "/host",
    )


def mark_ready(host: Host, path: str, content: bytes = b"") -> bool:
    """Write a ready file; False when it says so already. Not flushed: no boot keeps `run/`."""
    return host.write_atomic(path, content, durable=False)


def unmark_ready(host: Host, path: str) -> None:
    """Delete a ready file, and the directories made for it if they are empty."""
    host.remove(path, durable=False)
    host.clear_leftover(path)
    directory = path
    while "/" in (directory := directory.rpartition("/")[0]):
        if not host.remove_dir(directory) and host.exists(directory):
            return  # somebody else's file is in it

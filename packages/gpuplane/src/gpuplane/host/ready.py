"""The files in `run/nvidia/validations` by which a host's programs know how far the host is.

`driver-ready` is an env file that shell scripts and other projects source; NVIDIA's own images of device plugin,
toolkit and MIG manager begin so. Nothing of gpuplane waits for these files (stages do that); they are written for those
who do, and toolkit and validator read where the driver's root is.
"""

from __future__ import annotations

import msgspec

from gpuplane import names
from gpuplane.host.files import Host


class DriverReady(msgspec.Struct, frozen=True):
    """The content of `driver-ready`: whether the host had the driver by itself, and where its files lie.

    `root` is where the driver's files lie as the host sees it, `dev_root` where its device nodes do. The two others are
    the same as containers see it that follow this contract: the host at `/host`, a driver's own root at `/driver-root`.
    """

    host_driver: bool
    root: str = "/"
    dev_root: str = "/"

    @property
    def container_root(self) -> str:
        return _in_container(self.root)

    @property
    def container_dev_root(self) -> str:
        return _in_container(self.dev_root)

    def encode(self) -> bytes:
        return (
            f"IS_HOST_DRIVER={str(self.host_driver).lower()}\n"
            f"NVIDIA_DRIVER_ROOT={self.root}\n"
            f"DRIVER_ROOT_CTR_PATH={self.container_root}\n"
            f"NVIDIA_DEV_ROOT={self.dev_root}\n"
            f"DEV_ROOT_CTR_PATH={self.container_dev_root}\n"
        ).encode()


def _in_container(root: str) -> str:
    return "/host" if root == "/" else "/driver-root"


def read_driver_ready(host: Host) -> DriverReady | None:
    """Read the host's `driver-ready`, or the `host-driver-ready` of older releases; None without either."""
    text = host.read_text(names.DRIVER_READY)
    if text is None:
        return DriverReady(host_driver=True) if host.exists(names.HOST_DRIVER_READY) else None
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return DriverReady(
        host_driver=values.get("IS_HOST_DRIVER", "").strip().lower() == "true",
        root=values.get("NVIDIA_DRIVER_ROOT", "").strip() or "/",
        dev_root=values.get("NVIDIA_DEV_ROOT", "").strip() or "/",
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
            return  # it contains a foreign file

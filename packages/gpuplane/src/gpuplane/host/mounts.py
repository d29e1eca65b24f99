"""A path of the host in a container: one type for all code that adds mounts to containers."""

from __future__ import annotations

import msgspec


class HostMount(msgspec.Struct, frozen=True):
    """A bind mount of a file or folder of the host."""

    host_path: str
    container_path: str
    read_only: bool = True

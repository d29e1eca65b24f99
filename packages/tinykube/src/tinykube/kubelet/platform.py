"""The platform of a kubelet: its machine, and the settings of the machine's container runtimes.

The kubelet itself knows no hardware. Its caller describes the machine and passes the parts of the hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from tinykube.images import Images
from tinykube.kubelet.containers import Hardware


class MachineFacts(Protocol):
    """The facts of a machine that a Node reports."""

    @property
    def name(self) -> str: ...
    @property
    def cpus(self) -> int: ...
    @property
    def memory_kib(self) -> int: ...
    @property
    def instance_type(self) -> str:
        """As a cloud names the machine; empty for none."""

    @property
    def go_arch(self) -> str:
        """The processor as Kubernetes spells it, such as amd64."""

    @property
    def kernel(self) -> str: ...
    @property
    def os_image(self) -> str: ...
    @property
    def runtime(self) -> str:
        """containerd, docker or cri-o."""

    @property
    def runtime_version(self) -> str: ...


HandlerDevices = Callable[[str, Mapping[str, str]], Sequence[str]]
"""Maps a runtime handler's binary and a container's environment to the CDI devices that the handler adds."""


def no_devices(binary: str, env: Mapping[str, str]) -> Sequence[str]:
    """Return no devices: handlers such as runc add none."""
    return ()


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with everything on it that is not Kubernetes.

    Args:
        images: the images that its runtime can pull.
        handler_devices: the CDI devices that its runtime handlers add by themselves.
        hardware: how containers reach its hardware.
    """

    machine: MachineFacts
    images: Images
    handler_devices: HandlerDevices = no_devices
    hardware: Hardware = Hardware()

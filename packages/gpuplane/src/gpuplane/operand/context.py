"""The world as one operand sees it: everything that touches hardware, kubelet or time comes in through here.

`gpuplane run COMPONENT` builds a pod's context. A test, or a program that runs the operands of thousands of nodes,
passes its own: other GPUs, another kubelet, another host. An operand never asks where it runs.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gpuplane.host import Host

if TYPE_CHECKING:
    from gpuplane.hardware import GPUSource
    from kubekit.kube import Client


class VectorAdd(Protocol):
    """Runs the validation workload on one GPU (by UUID); returns its output, raises Terminal when it fails."""

    async def __call__(self, uuid: str) -> str: ...


class PluginRegistrar(Protocol):
    """The kubelet's side of the device plugin protocol: where a plugin offers its resource.

    `serve` returns when the kubelet went away (its socket was deleted); the caller offers again.
    """

    async def serve(self, resource: str, plugin: Any) -> None: ...


class OperandContext(msgspec.Struct, kw_only=True, frozen=True):
    """The resources that an operand's `run(context)` may use.

    `client` speaks as the operand's own service account. `host_root` is the node's file system as the operand sees it
    (`/` on the host itself, `/host` in a pod), `open_host` makes what reads, changes and watches the files below a
    directory and runs its programs. `cdi_specification` is the file that a container without privilege has its
    devices from. `pod_path` gives the place of an absolute path of the operand's own container.
    `open_gpus` loads NVML from the driver's root and raises Retryable while there is none. `kubelet` and `vector_add`
    are the real ones when None. `now` gives RFC 3339 UTC with microseconds.
    """

    node_name: str
    namespace: str
    client: Client
    now: Callable[[], str]
    host_root: Path = Path("/")
    kubelet_dir: Path = Path("/var/lib/kubelet")
    config: Path | None = None
    cdi_specification: Path | None = None
    port: int | None = None
    address: str = ""  # where to listen; the pod's IP, "" for all
    pod_name: str = ""
    image: str = ""
    open_gpus: Callable[[], GPUSource]
    kubelet: PluginRegistrar | None = None
    vector_add: VectorAdd | None = None
    open_host: Callable[[Path], Host] = Host
    pod_path: Callable[[str], Path] = Path
    sleep: Callable[[float], Awaitable[None]]
    environment: Mapping[str, str] | None = None  # of the container; None: this process's

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment of the operand's container."""
        return os.environ if self.environment is None else self.environment

    @property
    def host(self) -> Host:
        """The node: its files and its programs."""
        return self.open_host(self.host_root)

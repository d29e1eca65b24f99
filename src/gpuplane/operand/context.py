"""The world as one operand sees it: everything that touches hardware, kubelet or time comes in through here.

A pod on a real or simulated node gets the real things (`gpuplane run COMPONENT` builds them). A light node, of which
thousands share one process, gets the same production operand with a simulated GPU source, a kubelet without a socket
and a vectorAdd that answers from the hardware profile.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from gpuplane.hardware import GPUSource
    from gpuplane.host import Runner
    from gpuplane.kube import Client


class VectorAdd(Protocol):
    """Runs the validation workload on one GPU (by UUID); returns its output, raises Terminal when it fails."""

    async def __call__(self, uuid: str) -> str: ...


class Kubelet(Protocol):
    """The kubelet's side of the device plugin protocol: where a plugin offers its resource.

    `serve` returns when the kubelet went away (its socket was deleted); the caller offers again.
    """

    async def serve(self, resource: str, plugin: Any) -> None: ...


class OperandContext(msgspec.Struct, kw_only=True, frozen=True):
    """What an operand's `run(context)` may use.

    `client` speaks as the operand's own service account. `host_root` is the node's file system as the operand sees it
    (`/` on the host itself, `/host` in a pod). `open_gpus` loads NVML from the driver's root and raises Retryable while
    there is none. `now` gives RFC 3339 UTC with microseconds.
    """

    node_name: str
    namespace: str
    client: Client
    now: Callable[[], str]
    host_root: Path = Path("/")
    kubelet_dir: Path = Path("/var/lib/kubelet")
    config: Path | None = None
    port: int | None = None
    address: str = ""  # where to listen; the pod's IP, "" for all
    pod_name: str = ""
    image: str = ""
    open_gpus: Callable[[], GPUSource]
    kubelet: Kubelet | None = None
    vector_add: VectorAdd | None = None
    runner: Runner | None = None  # runs the host's programs; None: as real processes
    sleep: Callable[[float], Awaitable[None]]
    environment: Mapping[str, str] | None = None  # the container's own; None: this process's

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment that the operand goes by. Light nodes share a process, whose own is no pod's."""
        return os.environ if self.environment is None else self.environment

    @property
    def in_process(self) -> bool:
        """Whether this is a light node: its kubelet or its GPUs' program are objects in this process.

        Such a node has no network, no programs and no images of its own, so an operand opens no port on it, starts no
        process and makes no pod there.
        """
        return self.kubelet is not None or self.vector_add is not None

"""One node as its pod workers and servers see it: its places, its runtime, its devices, and who to tell."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kubekit.kube import Client
from tinykube.images import Images
from tinykube.kubelet.allocations import Allocations
from tinykube.kubelet.clock import KubeletClock
from tinykube.kubelet.containers import ContainerRecord, Launcher
from tinykube.kubelet.events import Events
from tinykube.kubelet.hostports import HostPorts
from tinykube.kubelet.objects import Objects
from tinykube.kubelet.pod import KubeletPod, SpecContainer
from tinykube.kubelet.rejected import PodRejected
from tinykube.kubelet.resolver import RESOLVER_FILE
from tinykube.kubelet.resources import pod_requests
from tinykube.kubelet.servicenames import ServiceNames
from tinykube.kubelet.sysctls import forbidden_sysctl

if TYPE_CHECKING:
    from tinykube.kubelet.claims import ClaimManager
    from tinykube.kubelet.devices import DeviceManager
    from tinykube.kubelet.runtimes import ContainerRuntime


class ClusterAccess(msgspec.Struct, frozen=True):
    """The address of the API server for containers, and its certificate authority (empty for plain HTTP)."""

    host: str
    port: int
    ca: bytes = b""
    scheme: str = "https"


def _network(root: Path) -> str:
    """Return the first three numbers of the addresses of a node and its pods: others than those of other nodes."""
    digest = hashlib.sha256(str(root).encode()).digest()
    return f"127.{64 + digest[0] % 64}.{digest[1]}"


class KubeletMachine:
    """The things that all pods of one node share."""

    def __init__(
        self,
        *,
        node_name: str,
        directory: Path,
        client: Client,
        cluster: ClusterAccess,
        launcher: Launcher,
        images: Images,
        runtime: ContainerRuntime,
        devices: DeviceManager,
        claims: ClaimManager,
        events: Events,
        clock: KubeletClock,
    ) -> None:
        self.node_name = node_name
        self.root = directory / "root"
        self.client = client
        self.objects = Objects(client)
        self.services = ServiceNames(client)
        self.cluster = cluster
        self.launcher = launcher
        self.images = images
        self.runtime = runtime
        self.devices = devices
        self.claims = claims
        self.events = events
        self.clock = clock
        self._network = _network(self.root)
        self.host_ip = f"{self._network}.1"
        self.host_ports = HostPorts()
        self.allocations = Allocations()
        self.allocatable: dict[str, str] = {}
        self._ips: dict[str, str] = {}
        self._pulled: set[str] = set()
        self._admission = asyncio.Lock()

    @property
    def runtime_name(self) -> str:
        return self.runtime.name

    @property
    def resize_problem(self) -> str:
        """Return why pods cannot be resized on this machine, "" where they can."""
        why = "; ".join(text for text in self.launcher.groups.why.values() if text)
        return f"In-place resize of pods is not possible on this node: {why}" if why else ""

    @property
    def hosts(self) -> str:
        """Return the node's /etc/hosts."""
        try:
            return (self.root / "etc/hosts").read_text(errors="replace")
        except OSError:  # a pod may have removed it
            return "127.0.0.1\tlocalhost\n"

    def make_hosts(self) -> None:
        """Make the node's /etc/hosts where it has none: pods may mount it."""
        place = self.root / "etc/hosts"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"127.0.0.1\tlocalhost\n{self.host_ip}\t{self.node_name}\n")

    @property
    def resolver(self) -> str:
        """Return the node's /etc/resolv.conf, or this machine's where the node has none."""
        for place in (self.root / "etc/resolv.conf", RESOLVER_FILE):
            try:
                return place.read_text(errors="replace")
            except OSError:
                continue
        return ""

    def now(self) -> str:
        return datetime.fromtimestamp(self.clock.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def pulls(self, container: SpecContainer) -> bool:
        """Return whether a kubelet would pull the image now: the first time, and always with that policy."""
        present = container.image in self._pulled
        self._pulled.add(container.image)
        return container.image_pull_policy == "Always" or not (present or container.image_pull_policy == "Never")

    # -- places ----------------------------------------------------------------------------------------------------

    def pod_dir(self, uid: str) -> Path:
        return self.root / "var/lib/kubelet/pods" / uid

    def pod_logs(self, pod: KubeletPod) -> Path:
        meta = pod.metadata
        return self.root / "var/log/pods" / f"{meta.namespace}_{meta.name}_{meta.uid}"

    def log_path(self, pod: KubeletPod, container: str, attempt: int) -> Path:
        return self.pod_logs(pod) / container / f"{attempt}.log"

    def pod_ip(self, uid: str) -> str:
        """An address of this machine's loopback network, one for each pod: there is no other network here.

        A program that listens on every address, or on its own pod's, is reached there. Nodes of other clusters on this
        machine have other addresses.
        """
        if uid not in self._ips:
            used = set(self._ips.values())
            free = (address for n in range(2, 255) if (address := f"{self._network}.{n}") not in used)
            self._ips[uid] = next(free, "127.0.0.1")
        return self._ips[uid]

    def keep_ip(self, pod: KubeletPod) -> None:
        """A pod that ran under an earlier kubelet keeps the address it may be listening on."""
        if pod.status.pod_ip and pod.status.pod_ip not in self._ips.values():
            self._ips[pod.metadata.uid] = pod.status.pod_ip

    # -- pods ------------------------------------------------------------------------------------------------------

    async def admit(self, pod: KubeletPod, begins: Callable[[], None]) -> None:
        """Gives a pod its CPU, memory, host ports and devices, one pod at a time; calls `begins` when its turn comes.

        Raises PodRejected.
        """
        async with self._admission:
            begins()
            if problem := forbidden_sysctl(pod):
                raise PodRejected("SysctlForbidden", problem)
            self.allocations.take(pod.metadata.uid, pod_requests(pod))
            try:
                self.host_ports.take(pod)
                await self.devices.allocate(pod)
            except PodRejected:
                self.allocations.release(pod.metadata.uid)
                raise

    def forget(self, pod: KubeletPod) -> None:
        self.services.forget(pod.metadata.uid)
        self._ips.pop(pod.metadata.uid, None)
        self.host_ports.release(pod.metadata.uid)
        self.allocations.release(pod.metadata.uid)
        self.devices.release(pod.metadata.uid)
        self.runtime.removed(pod.metadata.uid)

    # -- containers ------------------------------------------------------------------------------------------------

    def started_at(self, record: ContainerRecord) -> float:
        """When a container started, in seconds since the epoch."""
        text = record.started or record.created
        return datetime.fromisoformat(text).timestamp() if text else self.clock.time()

    async def run_inside(self, record: ContainerRecord, command: tuple[str, ...]) -> tuple[int, str]:
        """Runs a command in a container; its exit code and all it wrote."""
        process = await asyncio.create_subprocess_exec(
            *self.launcher.exec_command(record, command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        return process.returncode or 0, output.decode(errors="replace")

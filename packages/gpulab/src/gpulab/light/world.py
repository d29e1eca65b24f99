"""The hardware, kubelet and host of a light node, as objects in this process.

Invariant: an operand cannot tell them from the real ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from gpulab.light.gpus import SimulatedGPUs
from gpuplane.host import Command, Completed, Host, Runner
from kubekit.errors import Retryable, Terminal
from tinykube.kubelet.devices import ListedDevice, choose
from tinykube.kubelet.devices.ledger import ContainerDevices, DeviceHolding, DeviceLedger, candidates

log = logging.getLogger("gpulab.light-nodes")

PASSED = """\
[Vector addition of 50000 elements]
Copy input data from the host memory to the CUDA device
CUDA kernel launch with 196 blocks of 256 threads
Copy output data from the CUDA device to the host memory
Test PASSED
Done
"""


_NODES: Final = "dev/nvidia"
_CONTROL_NODES: Final = {"ctl": 255, "-uvm": 250, "-uvm-tools": 251}  # with their minor numbers, as of simhost
_MAJOR: Final = 195


class LightRoot(Host):
    """The files of a light node. Only its operands change them, and they end with this process."""

    def __init__(self, root: Path, runner: Runner) -> None:
        super().__init__(root, runner, flush=False)

    def stat(self, path: str, *, follow: bool = True) -> os.stat_result | None:
        """As `Host.stat`; the driver's nodes, which only root can make, are character devices."""
        found = super().stat(path, follow=follow)
        if found is None or not path.startswith(_NODES) or not stat.S_ISREG(found.st_mode):
            return found
        name = path.removeprefix(_NODES)
        minor = int(name) if name.isdigit() else _CONTROL_NODES[name]
        mode = found.st_mode ^ stat.S_IFREG | stat.S_IFCHR
        return os.stat_result((mode, *found[1:]), {"st_rdev": os.makedev(_MAJOR, minor)})

    async def watch(self, *paths: str) -> AsyncIterator[None]:  # NB: thousands of nodes share the kernel's few watches
        yield
        await asyncio.Event().wait()


class LightHost:
    """Runs the host's programs: those that operands call are a few changes to the root."""

    def __init__(self, root: Path, driver: str, gpus: int) -> None:
        self.root = root
        self._driver = driver
        self._nodes = tuple(f"{root}/{_NODES}{name}" for name in (*range(gpus), *_CONTROL_NODES)) if gpus else ()
        listed = root / "proc/modules"
        self._modules = {line.split()[0] for line in listed.read_text().splitlines()} if listed.exists() else set()

    async def run(self, command: Command) -> Completed:
        program, *words = command.argv
        names = [word.replace("-", "_") for word in words if not word.startswith("-")]
        if Path(program).name == "modprobe" and "-r" not in words:
            for name in names:
                self.load(name)
        elif Path(program).name in ("rmmod", "modprobe"):
            for name in names:
                self._unload(name)
        elif Path(program).name not in ("systemctl", "ldconfig"):
            return Completed(command, 127, stderr=f"{program}: not found on a light node")
        return Completed(command, 0)

    def load(self, module: str) -> None:
        if module in self._modules:
            return
        self._modules.add(module)
        if module == "nvidia":
            home = self.root / "sys/module/nvidia"
            home.mkdir(parents=True)
            (home / "version").write_text(f"{self._driver}\n")
            (home / "refcnt").write_text("0\n")
            for node in self._nodes:
                os.close(os.open(node, os.O_CREAT | os.O_CLOEXEC, 0o666))
        self._list()

    def _unload(self, module: str) -> None:
        if module not in self._modules:
            return
        self._modules.remove(module)
        if module == "nvidia":
            shutil.rmtree(self.root / "sys/module/nvidia")
            for node in self._nodes:
                Path(node).unlink(missing_ok=True)
        self._list()

    def _list(self) -> None:
        (self.root / "proc/modules").write_text(
            "".join(f"{name} 16384 0 - Live 0x0\n" for name in sorted(self._modules))
        )

    @property
    def loaded(self) -> bool:
        return "nvidia" in self._modules


class LightHardware:
    """The GPUs of one node. `broken` holds UUIDs whose vectorAdd fails."""

    def __init__(self, gpus: SimulatedGPUs | None, host: LightHost) -> None:
        self.gpus = gpus
        self.broken: set[str] = set()
        self._host = host

    def open(self) -> SimulatedGPUs:
        """As `hardware.open_gpus`. Raises Retryable without a loaded driver."""
        if self.gpus is None or not self._host.loaded:
            raise Retryable("NVML does not answer: the driver is not loaded", cure="modprobe nvidia")
        return self.gpus

    async def vector_add(self, uuid: str) -> str:
        """The validation workload on one GPU; its output. Raises Terminal."""
        known = {gpu.uuid for gpu in self.open().inventory()}
        if uuid not in known:
            raise Terminal(f"no GPU {uuid}", where="cuDeviceGetUuid")
        if uuid in self.broken:
            raise Terminal("Result verification failed at element 0", where=f"GPU {uuid}", cure="replace the GPU")
        return PASSED


class LightKubelet:
    """The device manager of a light node: what `device_plugin.ResourcePlugin` is offered to."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.devices: dict[str, dict[str, ListedDevice]] = {}
        self._ledger = DeviceLedger()
        self._plugins: dict[str, Any] = {}
        self._awaiting: list[tuple[str, str, str, int, frozenset[str]]] = []
        self._changed = changed

    async def serve(self, resource: str, plugin: Any) -> None:
        """Until the plugin is cancelled; then its devices are unhealthy."""
        self._plugins[resource] = plugin
        try:
            async for devices in plugin.watch():
                found = {device.id: ListedDevice(device.healthy, tuple(device.numa)) for device in devices}
                if found != self.devices.get(resource):
                    self.devices[resource] = found
                    self._settle(resource)
                    self._changed()
        finally:
            if self._plugins.get(resource) is plugin:
                del self._plugins[resource]
                self.devices[resource] = {
                    i: ListedDevice(False, d.numa) for i, d in self.devices.get(resource, {}).items()
                }
                self._changed()

    def _settle(self, resource: str) -> None:
        """Give pods that ran before this process their devices again, before other pods get some."""
        waiting = [one for one in self._awaiting if one[2] == resource]
        self._awaiting = [one for one in self._awaiting if one[2] != resource]
        for pod_uid, container, _, wanted, passing in waiting:
            problem = self.allocate(pod_uid, container, resource, wanted, passing)
            if problem:
                log.warning("pod %s goes on without %s: %s", pod_uid, resource, problem)

    def amounts(self) -> dict[str, tuple[int, int]]:
        return {r: (len(known), sum(d.healthy for d in known.values())) for r, known in self.devices.items()}

    def allocate(
        self, pod_uid: str, container: str, resource: str, wanted: int, passing: frozenset[str] = frozenset()
    ) -> str:
        """Allocate devices to a container; return why not, or "". `passing` are the pod's init containers that end."""
        if wanted <= 0:
            return ""
        if resource not in self.devices:
            self._awaiting.append((pod_uid, container, resource, wanted, passing))
            return ""
        known = self.devices[resource]
        choice = candidates(
            known, self._ledger.in_use(resource), self._ledger.reusable(pod_uid, resource, passing), wanted
        )
        plugin = self._plugins.get(resource)
        if choice is None or plugin is None:
            free = sum(d.healthy for i, d in known.items() if i not in self._ledger.in_use(resource))
            return (
                f"Allocate failed due to requested number of devices unavailable for {resource}. "
                f"Requested: {wanted}, Available: {free}, which is unexpected"
            )
        try:
            ids = choose(choice, plugin.preferred(choice.available, choice.must, wanted), wanted)
            plugin.allocate(ids)
        except Terminal as error:
            return f"Allocate failed due to {error}, which is unexpected"
        self._ledger.hold(
            DeviceHolding(pod_uid=pod_uid, container=container, resource=resource, ids=ids, given=ContainerDevices())
        )
        return ""

    def release(self, pod_uid: str) -> None:
        self._ledger.release(pod_uid)
        self._awaiting = [one for one in self._awaiting if one[0] != pod_uid]

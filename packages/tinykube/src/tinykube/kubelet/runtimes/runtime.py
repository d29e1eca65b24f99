"""One node's container runtime: what it adds to a container that the kubelet asks it to create.

Invariants: its configuration is read at the start and on a reload (SIGHUP, systemctl); both leave running containers
alone. With an invalid configuration it is down: nothing new starts, its socket is closed, the service manager restarts
it again and again, and the Node's condition reports it. docker alone goes on as it was after a reload of a bad
configuration, and keeps what a good one does not mention.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from kubekit.errors import Terminal
from kubekit.protocol import nri_pb2 as pb
from tinykube.kubelet.containers import BindMount, ContainerSpec
from tinykube.kubelet.devices.ledger import ContainerDevices
from tinykube.kubelet.platform import HandlerDevices, no_devices
from tinykube.kubelet.runtimes import cdi
from tinykube.kubelet.runtimes.config import RuntimeConfig, RuntimeDown, read_config
from tinykube.kubelet.runtimes.endpoint import RuntimeEndpoint
from tinykube.kubelet.runtimes.nri import Nri, Refused, variables
from tinykube.kubelet.volumes import inside_root

log = logging.getLogger("tinykube.kubelet")

SOCKETS: Final = {
    "containerd": "/run/containerd/containerd.sock",
    "docker": "/run/docker.sock",
    "cri-o": "/run/crio/crio.sock",
}
_RESTART_SECONDS: Final = 5.0  # RestartSec= of containerd's service


def _library_folder() -> str:
    """Return the folder of this machine's libc, which the loader searches by itself."""
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line)
    return next((str(Path(path).parent.resolve()) for path in mapped if Path(path).name == "libc.so.6"), "")


_LIBRARIES: Final = _library_folder()


class CreateFailed(Terminal):
    """The runtime refuses to create the container; the pod waits with CreateContainerError."""


class ContainerRuntime:
    """`kind` is containerd, docker or cri-o; `handler_devices` is described in `platform.py`."""

    def __init__(self, root: Path, kind: str, version: str, handler_devices: HandlerDevices = no_devices) -> None:
        self.root = root
        self.kind = kind
        self.version = version
        self._handler_devices = handler_devices
        self.down: str = ""  # why it does not run, "" when it does
        self.config: RuntimeConfig | None = None
        self.endpoint = RuntimeEndpoint(inside_root(root, SOCKETS[kind]), kind, version, self._info)
        self.restarted: Callable[[], None] = lambda: None  # called after each start by the service manager
        self.nri: Nri | None = None  # while it runs, where it is configured
        self._again: asyncio.TimerHandle | None = None
        self._served = False
        self.reload()

    def serve(self) -> None:
        """Listen on the socket, as long as the runtime runs; in an event loop."""
        self._served = True
        self.reload()

    def close(self) -> None:
        """The machine is switched off."""
        self._served = False
        self.endpoint.close()
        self._close_nri()
        if self._again is not None:
            self._again.cancel()

    @property
    def name(self) -> str:
        """As in containerID and containerRuntimeVersion."""
        return self.kind

    def reload(self) -> None:
        """Read the configuration again: docker as it is, the others as after a restart."""
        if self._served and self.kind != "docker":
            self.endpoint.close()
            self._close_nri()
        try:
            self.config = read_config(self.root, self.kind, self.version, self.config)
            self.down = ""
            log.info("%s reads its configuration: default runtime %s, CDI %s", self.kind, self.config.default,
                     "on" if self.config.cdi else "off")  # fmt: skip
            if self._served:
                self.endpoint.open()
                self._open_nri(self.config)
        except RuntimeDown as error:
            if self.kind == "docker" and self.config is not None:
                log.error("docker goes on as it was: %s", error)
                return
            self.config = None
            self.down = str(error)
            if self._served:
                if self._again is not None:
                    self._again.cancel()
                self._again = asyncio.get_running_loop().call_later(_RESTART_SECONDS, self._restart)
            log.error("%s does not start: %s", self.kind, error)

    def _open_nri(self, config: RuntimeConfig) -> None:
        if config.nri:
            known = self.nri
            self.nri = Nri(inside_root(self.root, config.nri), self.kind, self.version, known)
            self.nri.open()

    def _close_nri(self) -> None:
        if self.nri is not None:
            self.nri.close()

    def _restart(self) -> None:
        """Restart an ended service, as the service manager does."""
        if self.down:
            self.reload()
            self.restarted()

    def _info(self) -> dict[str, object]:
        config = self.config or RuntimeConfig(handlers={}, default="", cdi=False)
        known = {name: {"path": handler.binary} for name, handler in config.handlers.items()}
        return {"Runtimes": known, "DefaultRuntime": config.default}

    async def adjust(
        self, pod: pb.PodSandbox, container: pb.Container, given: ContainerDevices
    ) -> pb.ContainerAdjustment | None:
        """Return the NRI plugins' adjustments of a container; they see it with the kubelet's devices. Raises
        CreateFailed."""
        if self.nri is None:
            return None
        env = [entry for entry in container.env if entry.partition("=")[0] not in given.envs]
        del container.env[:]
        container.env.extend([*env, *(f"{key}={value}" for key, value in given.envs.items())])
        container.annotations.update(given.annotations)
        try:
            return await self.nri.create(pod, container)
        except Refused as error:
            raise CreateFailed(error.what) from error

    def create(
        self,
        spec: ContainerSpec,
        given: ContainerDevices,
        handler: str = "",
        adjustment: pb.ContainerAdjustment | None = None,
    ) -> ContainerSpec:
        """`spec` with what devices, CDI, NRI plugins and the runtime `handler` (of a RuntimeClass) add. Raises
        CreateFailed."""
        config = self.config
        if config is None:
            raise CreateFailed(f"container runtime is down: {self.down}")
        name = handler or config.default
        chosen = config.handlers.get(name)
        if chosen is None:
            raise CreateFailed(f'failed to get sandbox runtime: no runtime for "{name}" is configured')
        if chosen.binary.startswith("/") and not inside_root(self.root, chosen.binary).exists():
            raise CreateFailed(
                f'failed to create task: exec: "{chosen.binary}": stat {chosen.binary}: no such file or directory'
            )
        env = spec.env | given.envs
        mounts = [
            *spec.mounts,
            *(BindMount(self._real(m.host_path), m.container_path, m.read_only) for m in given.mounts),
        ]
        devices = [*spec.devices, *(BindMount(self._real(d.host_path), d.container_path) for d in given.devices)]
        spec = msgspec.structs.replace(spec, env=env, mounts=tuple(mounts), devices=tuple(devices))
        names = [*given.cdi, *cdi.annotated_names(given.annotations)] if config.cdi else []
        if adjustment is not None:
            spec = self._adjusted(spec, adjustment)
            env = spec.env
            names += [device.name for device in adjustment.CDI_devices]
        names += self._handler_devices(chosen.binary, env)
        if not names:
            return spec
        try:
            return self._inject(spec, cdi.resolve(names, cdi.read_specs(self.root, config.cdi_dirs)))
        except cdi.CDIFailed as error:
            raise CreateFailed(error.what) from error

    def removed(self, pod_uid: str) -> None:
        """A pod's containers are gone."""
        if self.nri is not None:
            self.nri.forget(pod_uid)

    def _adjusted(self, spec: ContainerSpec, adjustment: pb.ContainerAdjustment) -> ContainerSpec:
        """With variables, mounts and devices of plugins, which replace what there is."""
        env = variables(spec.env, adjustment)
        mounts = {mount.target: mount for mount in spec.mounts}
        for one in adjustment.mounts:
            mounts[one.destination] = BindMount(self._real(one.source), one.destination, "ro" in one.options)
        devices = {device.target: device for device in spec.devices}
        for device in adjustment.linux.devices:
            devices[device.path] = BindMount(self._real(device.path), device.path)
        return msgspec.structs.replace(spec, env=env, mounts=tuple(mounts.values()), devices=tuple(devices.values()))

    def _real(self, path: str) -> str:
        place = inside_root(self.root, path)
        if not place.exists():
            raise CreateFailed(f"failed to stat {path}: no such file or directory")
        return str(place)

    def _inject(self, spec: ContainerSpec, edits: cdi.Edits) -> ContainerSpec:
        env = dict(spec.env)
        for entry in edits.env:
            key, _, value = entry.partition("=")
            env[key] = value
        devices = {d.target: d for d in spec.devices}
        for node in edits.device_nodes:
            devices[node.path] = BindMount(self._real(node.host_path or node.path), node.path)
        mounts = {m.target: m for m in spec.mounts}
        for mount in edits.mounts:
            mounts[mount.container_path] = BindMount(
                self._real(mount.host_path), mount.container_path, "ro" in mount.options
            )
        links = list(spec.links)
        folders: list[str] = []
        for hook in edits.hooks:
            if not inside_root(self.root, hook.path).exists():
                raise CreateFailed(
                    f"error running {hook.hook_name} hook: fork/exec {hook.path}: no such file or directory"
                )
            _, new, more = cdi.hook_words(hook)
            links += new
            folders += more
        # NB: for the loader's cache, which update-ldcache renews: a library path does the same without 40 ms. Without
        # the folder of this machine's own libraries, which would come before those that a program brings with itself.
        folders = [folder for folder in folders if folder != _LIBRARIES]
        if folders:
            given = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
            env["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys([*folders, *given]))
        return msgspec.structs.replace(
            spec, env=env, devices=tuple(devices.values()), mounts=tuple(mounts.values()), links=tuple(links)
        )

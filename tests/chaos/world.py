"""The cluster of a chaos run: two simulated machines with gpuplane, and the ways in which its parts fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageName
from kubekit.api.core import ConfigMap, Node
from kubekit.errors import KubekitError
from kubekit.kube import Client
from tests.chaos.api_faults import ApiFaults
from tests.chaos.distribution import CHAOS
from tests.chaos.process import API, CLOCK, CONTROL
from tests.support.realkube.files import Files, files
from tests.support.until import until
from tinykube import cluster
from tinykube.cluster import ClusterHandle, ClusterSpec, MachineSpec
from tinykube.kubelet.containers.records import ContainerRecord, is_running

WHOLE, SHARED = "whole", "shared"
MACHINE, GPUS_WHOLE, MODEL = "l4-ubuntu24", 2, "L4"
TENANTS: Final = ("ml", "small")
QUOTAS: Final = {"small": 0.5}
PROCESSES: Final = ("cluster", "supervisor", f"kubelet-{WHOLE}", f"kubelet-{SHARED}")
# Paths that may stay on a node: logs, the kubelet's own state, and the simulated hardware.
KEPT: Final = ("var/log/", "var/lib/kubelet/", "var/lib/simgpu/state", "dev/nvidiactl")
BACK_SECONDS: Final = 60.0
_FILLER: Final = "filler"
_CHUNK: Final = bytes(1 << 20)


class Victim(NamedTuple):
    """A process that may be killed or stopped."""

    name: str
    pid: int


class World:
    """A running cluster. `gpus` is GPU -> MiB of the node with shares; `disk` tells whether the disk may be filled."""

    def __init__(self, base: Path, *, disk: bool) -> None:
        self.base = base
        self.disk = disk
        self.control = base / "control"
        self.gpus: dict[str, int] = {}
        self._handle: ClusterHandle | None = None
        self._bare: dict[str, tuple[Files, Any]] = {}

    @property
    def handle(self) -> ClusterHandle:
        assert self._handle is not None, "started"
        return self._handle

    def root(self, node: str) -> Path:
        return self.handle.directory / "nodes" / node / "root"

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the cluster, and install gpuplane on it."""
        self.control.mkdir()
        os.environ[CONTROL] = str(self.control)
        nodes = tuple(MachineSpec(name=name, machine=MACHINE) for name in (WHOLE, SHARED))
        spec = ClusterSpec(name="chaos", nodes=nodes, persist=True)
        self._handle = await cluster.up(CHAOS, spec, base=self.base)
        async with Client.connect(self.handle.kubeconfig) as client:
            await until(lambda: _all_there(client), poll=0.2, ignored=KubekitError)
            for name in (WHOLE, SHARED):
                labels = {names.QUOTA_MODEL_LABEL: MODEL}
                if name == SHARED:
                    labels[names.SHARE_LABEL] = "enable"
                await client.patch(Node, name, {"metadata": {"labels": labels}})
                self._bare[name] = (files(self.root(name), KEPT), await self._marks(client, name))
            for namespace in TENANTS:
                await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            quota = json.dumps({name: {"quota": {MODEL: limit}} for name, limit in QUOTAS.items()})
            meta = {"name": names.QUOTA_CONFIGMAP, "namespace": names.QUOTA_NAMESPACE}
            await client.create({**_of(ConfigMap), "metadata": meta, "data": {names.QUOTA_KEY: quota}})
            await self.gpuplane("install", "-q", "--pod-scheduler")
            await until(lambda: self.all_ready(client), poll=0.5, seconds=120.0, ignored=KubekitError)
            [shared] = [node for node in await client.list(GPUNode) if node.metadata.name == SHARED]
            self.gpus = {gpu.uuid: gpu.memory_mib for gpu in shared.status.gpus}

    async def all_ready(self, client: Client) -> bool:
        """Return whether both nodes are ready, with their GPUs offered. Raises KubekitError."""
        found = await client.list(GPUNode)
        stages = [node.status.stages.get(StageName.READY.value) for node in found]
        ready = len(found) == len(self._bare) and all(stage is not None and stage.state.holds for stage in stages)
        offers = {node.metadata.name: node.status.allocatable for node in await client.list(Node)}
        whole = int(offers[WHOLE].get(names.GPU_RESOURCE, 0))
        return ready and whole == GPUS_WHOLE and int(offers[SHARED].get(names.VCUDA_CORE, 0)) > 0

    async def uninstall(self, client: Client) -> list[str]:
        """Uninstall, and return how the nodes differ from before the installation."""
        await self.gpuplane("uninstall", "-q")
        wrong = []
        for name, (before, marks) in self._bare.items():
            now = files(self.root(name), KEPT)
            paths = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
            wrong += [f"{name}: /{path} was {before.get(path)}, is {now.get(path)}" for path in paths]
            if (left := await self._marks(client, name)) != marks:
                wrong.append(f"{name}: labels and taints were {marks}, are {left}")
        return wrong

    async def stop(self) -> None:
        self.heal()
        if self._handle is not None:
            with contextlib.suppress(KubekitError):
                await cluster.down(CHAOS, self._handle.name, base=self.base)

    def copy_logs(self, target: Path) -> None:
        """Copy the logs of the cluster's processes and of its pods."""
        directory = self.handle.directory
        for log in directory.rglob("*.log"):
            place = target / log.relative_to(directory)
            place.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copyfile(log, place)

    async def gpuplane(self, *arguments: str) -> None:
        """Run a command. Raises AssertionError with its output if it fails."""
        command = (sys.executable, "-m", "gpuplane", *arguments, "--kubeconfig", str(self.handle.kubeconfig))
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()

    async def _marks(self, client: Client, name: str) -> Any:
        node = await client.get(Node, name)
        return dict(node.metadata.labels), sorted((taint.key, taint.effect) for taint in node.spec.taints)

    # -- faults ------------------------------------------------------------------------------------------------------

    def victims(self) -> list[Victim]:
        """Return the cluster's own processes that run, and the containers of gpuplane."""
        found = [Victim(name, pid) for name in PROCESSES if (pid := self.pid(name))]
        for path in sorted(self.handle.directory.glob("nodes/*/containers/*/record.json")):
            with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                record = msgspec.json.decode(path.read_bytes(), type=ContainerRecord)
                if record.namespace == names.OPERATOR_NAMESPACE and record.pid and is_running(record):
                    found.append(Victim(record.pod, record.pid))
        return found

    def pid(self, process: str) -> int:
        """Return the process id of one of the cluster's own processes; 0 while there is none."""
        try:
            return int(json.loads((self.handle.directory / "run" / f"{process}.json").read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return 0

    async def kill(self, victim: Victim) -> None:
        """kill -9; returns once another process runs in its place. The kubelet starts containers again later."""
        send(victim, signal.SIGKILL)
        if victim.name in PROCESSES:
            again = f"{victim.name} started again"
            await until(lambda: self.pid(victim.name) not in (0, victim.pid), seconds=BACK_SECONDS, what=again)

    def set_api(self, faults: ApiFaults) -> None:
        """Give the API server these faults; the administrator is spared."""
        tokens = json.loads((self.handle.directory / "tokens.json").read_text())
        spared = msgspec.structs.replace(faults, spared=tokens["admin"])
        fresh = self.control / ".api"
        fresh.write_bytes(msgspec.json.encode(spared))
        fresh.rename(self.control / API)

    def set_clock(self, seconds: float) -> None:
        """Move the wall clock of control plane and kubelets."""
        (self.control / CLOCK).write_text(str(seconds))

    def fill(self) -> None:
        """Fill the disk of the whole cluster: objects, nodes, containers."""
        with (self.base / _FILLER).open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(_CHUNK):
                pass

    def heal(self) -> None:
        """End all faults but those of processes."""
        for path in (self.base / _FILLER, self.control / API, self.control / CLOCK):
            path.unlink(missing_ok=True)


def send(victim: Victim, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, number)


def make_base(disk: bool) -> Path:
    """Return a new directory with a short path, since sockets are below it; its disk is small where `disk`."""
    base = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    if disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g,mode=755", "chaos", str(base)], check=True)
    return base


async def _all_there(client: Client) -> bool:
    nodes = await client.list(Node)
    return len(nodes) == len((WHOLE, SHARED)) and all(
        any(c.type == "Ready" and c.status == "True" for c in node.status.conditions) for node in nodes
    )


def _of(kind: Any) -> dict[str, str]:
    return {"apiVersion": kind.RESOURCE.api_version, "kind": kind.RESOURCE.kind}

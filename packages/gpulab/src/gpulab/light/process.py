"""Containers of gpuplane's image that are no node operand (the operator): real processes, also on a light node.

There are few of them, and each is a program of its own that would take its time from all nodes in this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpulab.images import IMAGES
from gpulab.light.operands import request_token
from kubekit.kube import Client
from tinykube.kubelet.containers import ContainerRecord, ContainerSpec, Isolation, Launcher, Records
from tinykube.kubelet.containers.launcher import kill_all
from tinykube.kubelet.containers.records import signal_container
from tinykube.kubelet.env import Sources, arguments, cluster_env, environment
from tinykube.kubelet.machine import ClusterAccess
from tinykube.kubelet.pod import KubeletPod, SpecContainer

if TYPE_CHECKING:
    from gpulab.light.nodes import LightNode

_TERM_SECONDS = 2.0


class Processes:
    """The processes of all light nodes. Processes that an earlier run left are ended first."""

    def __init__(self, directory: Path, client: Client, cluster: ClusterAccess) -> None:
        self._client = client
        self._cluster = cluster
        self._directory = directory
        kill_all(directory / ".containers")
        self._launcher = Launcher(directory, Records(directory / ".containers"), Isolation.NONE)

    def address(self, uid: str) -> str:
        """The address of a pod with processes: its own, so that its ports do not collide with others."""
        digest = hashlib.sha256(f"{self._directory}/{uid}".encode()).digest()
        return f"127.{64 + digest[0] % 64}.{digest[1]}.{2 + digest[2] % 253}"

    async def run(self, node: LightNode, pod: KubeletPod, container: SpecContainer, attempt: int, now: str) -> int:
        """Runs a container to its end; its exit code. Cancelled, it ends the process. Raises StartFailed, ApiError."""
        sources = Sources(pod_ip=self.address(pod.metadata.uid))
        env = environment(pod, container, sources, cluster_env(self._cluster.host, self._cluster.port))
        env["KUBECONFIG"] = str(await self._kubeconfig(pod))
        command, args = arguments(container, env)
        record = ContainerRecord(
            id=uuid.uuid4().hex,
            pod_uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            pod=pod.metadata.name,
            name=container.name,
            attempt=attempt,
            image=container.image,
            log=str(log_path(node.root, pod, container.name, attempt)),
            created=now,
        )
        image = IMAGES.find(container.image)
        spec = ContainerSpec(argv=image.command_line(command, args), env=env, programs=image.programs)
        record = await self._launcher.start(record, spec, now)
        try:
            return (await self._launcher.wait(record)).code
        except asyncio.CancelledError:
            signal_container(record, signal.SIGTERM)
            ended = asyncio.ensure_future(self._launcher.wait(record))
            await asyncio.wait([ended], timeout=_TERM_SECONDS)
            signal_container(record, signal.SIGKILL)
            raise
        finally:
            self._launcher.records.remove(record.id)

    async def _kubeconfig(self, pod: KubeletPod) -> Path:
        token = await request_token(self._client, pod)
        server = {"server": f"{self._cluster.scheme}://{self._cluster.host}:{self._cluster.port}"}
        home = self._directory / ".containers"
        home.mkdir(exist_ok=True)
        if self._cluster.ca:
            (home / "ca.crt").write_bytes(self._cluster.ca)
            server["certificate-authority"] = str(home / "ca.crt")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "in", "cluster": server}],
            "users": [{"name": "in", "user": {"token": token}}],
            "contexts": [
                {"name": "in", "context": {"cluster": "in", "user": "in", "namespace": pod.metadata.namespace}}
            ],
            "current-context": "in",
        }
        path = self._directory / f".kubeconfig-{pod.metadata.uid}"
        path.touch(0o600)
        path.write_bytes(msgspec.json.encode(config))
        return path


def log_path(root: Path, pod: KubeletPod, container: str, attempt: int) -> Path:
    meta = pod.metadata
    return root / "var/log/pods" / f"{meta.namespace}_{meta.name}_{meta.uid}" / container / f"{attempt}.log"

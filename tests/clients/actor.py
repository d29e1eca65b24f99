"""Plays the kubelet of one node: pods that are bound run, those that go are gone, logs and exec answer.

Real nodes have their own tests; here clients are tested, and what they need is that pods behave.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuplane.simulator.apiserver.failure import ApiFailure
from gpuplane.simulator.apiserver.registry import Registry
from gpuplane.simulator.kubelet.server import Backend, LogFile, Server

NODE = "node-1"
TOKEN = "the-kubelet-token"
LOG = "2026-01-01T00:00:00.000000000Z stdout F first line\n2026-01-01T00:00:01.000000000Z stdout F second line\n"


class Actor:
    """A node; `run` until cancelled."""

    def __init__(self, registry: Registry, log: Path) -> None:
        self._registry = registry
        self._pods: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._log = log
        log.write_text(LOG)

    async def run(self) -> None:
        backend = Backend(
            log_file=lambda *_: LogFile(self._log, lambda: False),
            exec_command=lambda _ns, _pod, _container, command, _tty: list(command),
            pods=lambda: b'{"kind":"PodList","apiVersion":"v1","items":[]}',
            now=time.time,
        )
        server = Server(backend, TOKEN)
        port = await server.start()
        try:
            await self._serve(port)
        finally:
            await server.stop()

    async def _serve(self, port: int) -> None:
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NODE}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is ready"}],
            "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
            "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
            "nodeInfo": {
                **dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), ""),
                "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.0.0",
                "kernelVersion": "6.1.0",
                "kubeletVersion": "v1.33.0",
                "operatingSystem": "linux",
                "osImage": "Debian",
            },
        }
        self._registry.subscribe("pods", self._changed)
        await self._registry.create(
            "nodes", None, {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}, "status": status}
        )
        alive = asyncio.create_task(self._stay_alive())
        try:
            await self._play()
        finally:
            alive.cancel()

    async def _stay_alive(self) -> None:
        """Renews the node's lease, or it is soon taken for lost."""
        while True:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": NODE},
                "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": now},
            }
            await self._registry.patch("leases", "kube-node-lease", NODE, lease, "apply", manager="kubelet")
            await asyncio.sleep(10)

    async def _play(self) -> None:
        while True:
            namespace, name = await self._pods.get()
            try:
                await self._handle(namespace, name)
            except ApiFailure as problem:
                if problem.status not in (404, 409):  # somebody else was quicker
                    raise

    def _changed(self, event: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        if event != "DELETED" and (obj.get("spec") or {}).get("nodeName") == NODE:
            self._pods.put_nowait((obj["metadata"]["namespace"], obj["metadata"]["name"]))

    async def _handle(self, namespace: str, name: str) -> None:
        pod = self._registry.get("pods", namespace, name)
        if pod is None:
            return
        if "deletionTimestamp" in pod["metadata"]:
            await self._registry.delete("pods", namespace, name, grace=0)
            return
        if pod["status"].get("phase") != "Pending":
            return
        once = pod["spec"].get("restartPolicy") != "Always" and "done" in pod["spec"]["containers"][0]["image"]
        now = self._registry.now()
        ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}}
        state = ended if once else {"running": {"startedAt": now}}
        ready = "False" if once else "True"
        status = {
            "phase": "Succeeded" if once else "Running",
            "podIP": "127.0.0.1",
            "startTime": now,
            "conditions": [{"type": kind, "status": ready} for kind in ("Ready", "ContainersReady", "Initialized")],
            "containerStatuses": [
                {
                    "name": c["name"],
                    "image": c["image"],
                    "imageID": "",
                    "ready": not once,
                    "restartCount": 0,
                    "state": state,
                }
                for c in pod["spec"]["containers"]
            ],
        }
        await self._registry.patch("pods", namespace, name, {"status": status}, "merge", subresource="status")

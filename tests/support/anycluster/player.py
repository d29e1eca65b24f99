"""Plays nodes through the API alone: they are ready, pods that are bound run, those that go are gone.

It plays every node whose label PLAYED has its mark; it plays no machine, so a container is what its image says: `done`
ends well, `fail` ends with exit code 1, anything else runs. With `kubelet`, logs and exec answer (embedded cluster
only: a real API server wants a kubelet's certificate).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kubekit.kube import Client
from kubekit.kube.errors import ApiError, Conflict, Gone, NotFound, Unreachable
from tests.support.anycluster.embedded import KUBELET_SECRET
from tinykube.kubelet.server import KubeletBackend, KubeletServer, LogFile
from tinykube.kubelet.tokens import kubelet_token

PLAYED: Final = "conformance.gpuplane.dev/played"
LOG: Final = "2026-01-01T00:00:00.000000000Z stdout F first line\n2026-01-01T00:00:01.000000000Z stdout F second line\n"
_RENEW_S: Final = 10.0
_CAPACITY: Final = {"cpu": "8", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"}
_STATUS: Final = "application/strategic-merge-patch+json"
Object = dict[str, Any]


class Player:
    """`run` until cancelled; `ready` is set when it watches. `mark` is the value of PLAYED on the nodes it plays."""

    def __init__(self, kubeconfig: Path, mark: str, kubelet_log: Path | None = None) -> None:
        self._mark = mark
        self.ready = threading.Event()
        self._kubeconfig = kubeconfig
        self._log = kubelet_log
        self._nodes: dict[str, Object] = {}
        self._kubelet_port = 0
        self._tokens: set[str] = set()  # of the kubelets of all nodes so far

    async def run(self) -> None:
        async with (
            Client.connect(self._kubeconfig, user_agent="player") as client,
            contextlib.AsyncExitStack() as stack,
        ):
            self._client = client
            if self._log is not None:
                self._log.write_text(LOG)
                server = KubeletServer(self._backend(self._log), self._tokens)
                self._kubelet_port = await server.start()
                stack.push_async_callback(server.stop)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(
                    self._follow("/api/v1/nodes", {"labelSelector": f"{PLAYED}={self._mark}"}, self._node)
                )
                tasks.create_task(self._follow("/api/v1/pods", {}, self._pod))
                tasks.create_task(self._stay_alive())

    @staticmethod
    def _backend(log: Path) -> KubeletBackend:
        return KubeletBackend(
            log_file=lambda *_: LogFile(log, lambda: False),
            exec_command=lambda _ns, _pod, _container, command, _tty: list(command),
            forward_host=lambda _ns, _pod: lambda: "127.0.0.1",
            pods=lambda: b'{"kind":"PodList","apiVersion":"v1","items":[]}',
            now=time.time,
        )

    async def _follow(self, path: str, query: dict[str, str], handle: Any) -> None:
        """Every object there is and every change, until cancelled."""
        while True:
            with contextlib.suppress(Gone, Unreachable):
                whole = json.loads(await self._client.request("GET", path, query))
                for item in whole["items"]:
                    await self._try(handle, "ADDED", item)
                self.ready.set()
                watch = {**query, "watch": "true", "resourceVersion": whole["metadata"]["resourceVersion"]}
                rest = b""
                async with contextlib.aclosing(self._client.stream(path, watch)) as pieces:
                    async for piece in pieces:
                        *lines, rest = (rest + piece).split(b"\n")
                        for line in lines:
                            event = json.loads(line)
                            if event["type"] == "ERROR":
                                break
                            await self._try(handle, event["type"], event["object"])

    async def _try(self, handle: Any, event: str, obj: Object) -> None:
        with contextlib.suppress(NotFound, Conflict):  # another client was quicker
            await handle(event, obj)

    # -- nodes -----------------------------------------------------------------------------------------------------
    async def _node(self, event: str, node: Object) -> None:
        name = node["metadata"]["name"]
        if event == "DELETED":
            self._nodes.pop(name, None)
            return
        known = self._nodes.get(name)
        self._nodes[name] = node
        self._tokens.add(kubelet_token(KUBELET_SECRET, name))
        if known is not None and known["metadata"]["uid"] == node["metadata"]["uid"]:
            return
        await self._lease(name)
        await self._write(f"/api/v1/nodes/{name}/status", {"status": self._node_status(name, node)})
        pods = json.loads(await self._client.request("GET", "/api/v1/pods", {"fieldSelector": f"spec.nodeName={name}"}))
        for pod in pods["items"]:
            await self._try(self._pod, "ADDED", pod)

    def _node_status(self, name: str, node: Object) -> Object:
        capacity = {**_CAPACITY, **((node.get("status") or {}).get("capacity") or {})}
        now = _now()
        return {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet_port}},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "is ready",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
            "capacity": capacity,
            "allocatable": capacity,
            "nodeInfo": {
                **dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), ""),
                "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.0.0",
                "kernelVersion": "6.1.0",
                "kubeletVersion": "v1.34.0",
                "operatingSystem": "linux",
                "osImage": "Debian",
            },
        }

    async def _stay_alive(self) -> None:
        """Renews the nodes' leases, or they are soon taken for lost."""
        while True:
            await asyncio.sleep(_RENEW_S)
            for name in list(self._nodes):
                await self._lease(name)

    async def _lease(self, name: str) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()},
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        with contextlib.suppress(ApiError):  # the next one
            await self._client.request(
                "PATCH", path, {"fieldManager": "kubelet", "force": "true"}, lease, "application/apply-patch+yaml"
            )

    # -- pods ------------------------------------------------------------------------------------------------------
    async def _pod(self, event: str, pod: Object) -> None:
        if event == "DELETED" or (pod.get("spec") or {}).get("nodeName") not in self._nodes:
            return
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        if "deletionTimestamp" in pod["metadata"]:
            gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
            await self._client.request("DELETE", path, None, gone)
        elif pod["status"].get("phase") == "Pending" and not pod["status"].get("containerStatuses"):
            await self._write(f"{path}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": _status(pod)})

    async def _write(self, path: str, patch: Object) -> None:
        await self._client.request("PATCH", path, None, patch, _STATUS)


def _status(pod: Object) -> Object:
    image = pod["spec"]["containers"][0]["image"]
    once = pod["spec"].get("restartPolicy") != "Always" and image in ("done", "fail")
    now = _now()
    code = 1 if image == "fail" else 0
    reason = "Error" if code else "Completed"
    ended = {"terminated": {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}}
    ready = "False" if once else "True"
    return {
        "phase": ("Failed" if code else "Succeeded") if once else "Running",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "startTime": now,
        "conditions": [
            {"type": kind, "status": ready, "lastTransitionTime": now}
            for kind in ("Ready", "ContainersReady", "Initialized")
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": not once,
                "restartCount": 0,
                "state": ended if once else {"running": {"startedAt": now}},
            }
            for container in pod["spec"]["containers"]
        ],
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextlib.contextmanager
def playing(kubeconfig: Path, mark: str, kubelet_log: Path | None = None) -> Iterator[Player]:
    """A player in a thread of its own."""
    player = Player(kubeconfig, mark, kubelet_log)
    loop = asyncio.new_event_loop()
    task = loop.create_task(player.run())
    problems: list[BaseException] = []

    def main() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        except BaseException as problem:
            problems.append(problem)
            raise
        finally:
            loop.close()

    thread = threading.Thread(target=main, name="player")
    thread.start()
    try:
        assert player.ready.wait(20), f"the player does not watch: {problems}"
        yield player
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(task.cancel)
        thread.join(20)

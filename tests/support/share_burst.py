"""A burst of share pods on a cluster whose scheduler calls the extender, for its test and its benchmark.

Nodes have no kubelet: what is measured and checked ends with the bind. The extender is a process of its own, under its
own account.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.requests import uses_gpus
from gpuplane.cli.install_objects import apply
from gpuplane.operator.installation import installation
from gpuplane.sharing import Ledger, gpus_of, of_pod, violations
from kubekit.api.core import LeaseObject, Node, Pod, Secret
from kubekit.errors import KubekitError
from kubekit.kube import AlreadyExists, Client, Informer
from tests.support.extender_world import gpu_pod, http
from tests.support.until import until

MEMORY: Final = 15360
SHARES: Final = [(10, 4), (20, 8), (25, 15), (30, 20), (40, 20), (50, 30), (70, 30)]
_AT_ONCE: Final = 20
_RENEW_SECONDS: Final = 10.0
# Kinds that are left out: they run pods, or have webhooks that no server answers and the API server would call.
_NOT_RUN: Final = (
    *("Deployment", "PodDisruptionBudget", "ClusterPolicy"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# -- the cluster ---------------------------------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def extending(
    client: Client,
    kubeconfig: Path,
    port: int,
    *,
    pod_scheduler: bool = False,
    https: bool = False,
    pod: str = "",
    more: Sequence[str] = (),
) -> AsyncIterator[int]:
    """The extender's pid, running as a process with the account and the rights that the installation gives it.

    `pod_scheduler`: it also schedules the pods that name it. `https`: it answers callers with its certificate only.
    `pod`: it has the token and the name of this pod, which is made if it is not there. `more`: further flags.
    """
    for manifest in installation(pod_scheduler=pod_scheduler):
        if manifest["kind"] not in _NOT_RUN:
            await apply(client, manifest)
    config = await _account_config(client, kubeconfig, pod)
    flags = [f"--scheduler-name={names.SCHEDULER_NAME}"] if pod_scheduler else []
    flags += [*([] if https else ["--plain-http"]), *more]
    command = [sys.executable, "-m", "gpuplane", "run", "scheduler", "--port", str(port), "--kubeconfig", str(config)]
    environment = {**os.environ, **({"POD_NAME": pod} if pod else {})}
    process = await asyncio.create_subprocess_exec(*command, *flags, env=environment)
    try:
        await _ready(port, https)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _ready(port: int, https: bool) -> None:
    tls: ssl.SSLContext | None = None
    if https:  # as a probe: without a look at the certificate
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                if (await http(port, "GET", "/readyz", tls=tls)).status == 200:
                    return
            await asyncio.sleep(0.1)


async def write_certificates(client: Client, folder: Path) -> Path:
    """Write the files that kube-scheduler calls the extender with, as an administrator does; returns their folder."""
    secret = await client.get(Secret, names.EXTENDER_CLIENT_SECRET, names.OPERATOR_NAMESPACE)
    folder.mkdir(exist_ok=True)
    for name, content in secret.data.items():
        (folder / name).write_bytes(content)
    return folder


async def _account_config(client: Client, admins: Path, pod: str) -> Path:
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if pod:
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": await _pod_uid(client, pod)}
    path = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/serviceaccounts/gpuplane-scheduler/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token = json.loads(await client.request("POST", path, None, body))["status"]["token"]
    config = msgspec.yaml.decode(admins.read_bytes())
    config["users"][0]["user"] = {"token": token}
    file = admins.with_name(f"extender{pod}.kubeconfig")
    file.write_text(json.dumps(config))
    return file


async def _pod_uid(client: Client, name: str) -> str:
    """The uid of a replica's pod, which no kubelet runs."""
    spec = {"containers": [{"name": "c", "image": "app"}], "schedulerName": "nobody"}
    meta = {"name": name, "namespace": names.OPERATOR_NAMESPACE}
    pod = {"metadata": meta, "spec": {**spec, "serviceAccountName": names.EXTENDER_NAME}}
    with contextlib.suppress(AlreadyExists):
        await client.create(pod, resource=Pod.RESOURCE)
    return (await client.get(Pod, name, names.OPERATOR_NAMESPACE)).metadata.uid


async def add_nodes(client: Client, count: int, size: int) -> list[str]:
    """Nodes without a kubelet; a service account for pods, which the controller manager may not have made yet."""

    async def add(name: str) -> None:
        amounts = {
            "cpu": "64",
            "memory": "256Gi",
            "pods": "500",
            names.VCUDA_CORE: str(100 * size),
            names.VCUDA_MEMORY: str(MEMORY * size // 256),
        }
        await client.create({"metadata": {"name": name}}, resource=Node.RESOURCE)
        now = "2026-01-01T00:00:00Z"
        ready = {"type": "Ready", "status": "True", "reason": "Test", "lastTransitionTime": now}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        await client.patch(Node, name, {"status": status}, subresource="status")
        gpus = [
            {"index": index, "uuid": f"GPU-{name}-{index}", "model": "Tesla T4", "memoryMib": MEMORY}
            for index in range(size)
        ]
        await client.apply({"metadata": {"name": name}, "status": {"gpus": gpus}}, "test", resource=GPUNode.RESOURCE)

    made = [f"gpu-{index:02}" for index in range(count)]
    await asyncio.gather(*map(add, made))
    async with following(client, Node) as nodes:
        await nodes.until(lambda: sum(not node.spec.taints for node in nodes.items()) == count)
    account = {"metadata": {"name": "default"}}
    with contextlib.suppress(AlreadyExists):
        await client.request("POST", "/api/v1/namespaces/default/serviceaccounts", None, account)
    return made


@contextlib.asynccontextmanager
async def alive(client: Client, nodes: Iterable[str]) -> AsyncIterator[None]:
    """The nodes' leases, renewed, so that they are not taken for dead while the burst lasts."""

    async def renew() -> None:
        while True:
            now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
            for node in nodes:
                lease = {
                    "metadata": {"name": node, "namespace": "kube-node-lease"},
                    "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now},
                }
                with contextlib.suppress(KubekitError):
                    await client.apply(lease, "test", resource=LeaseObject.RESOURCE)
            await asyncio.sleep(_RENEW_SECONDS)

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Following:
    def __init__(self, informer: Informer[Any]) -> None:
        self.items = informer.items
        self._changed = asyncio.Event()
        informer.add_handler(lambda old, new: self._changed.set())

    async def until(self, holds: Callable[[], object]) -> None:
        await until(holds, changed=self._changed, seconds=None)


@contextlib.asynccontextmanager
async def following(client: Client, kind: type[Any]) -> AsyncIterator[Following]:
    informer = Informer(client, kind)
    found = Following(informer)
    informer.start()
    try:
        await informer.synced()
        yield found
    finally:
        await informer.stop()


# -- the burst -----------------------------------------------------------------------------------------------------
class Times(msgspec.Struct, frozen=True):
    """Seconds since the first pod was sent: until all were stored, and until each was bound, in order."""

    created: float
    bound: tuple[float, ...]


def mixed_shares(count: int, seed: int = 11, prefix: str = "p") -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [gpu_pod(f"{prefix}{index}", dice.choice(SHARES)) for index in range(count)]


async def together(count: int, do: Callable[[int], Any]) -> None:
    """`do(0)`, `do(1)`, ...: some of them at once."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> None:
        async with turns:
            await do(index)

    await asyncio.gather(*(one(index) for index in range(count)))


async def burst(client: Client, pods: list[dict[str, Any]]) -> Times:
    """Creates the pods and waits until all are bound. A scheduler's choice which comes first."""
    bound: dict[str, float] = {}
    everybody = asyncio.Event()
    wanted = {pod["metadata"]["name"] for pod in pods}
    informer = Informer(client, Pod)

    def changed(_: Pod | None, pod: Pod | None) -> None:
        if pod is not None and pod.spec.node_name and pod.metadata.name in wanted:
            bound.setdefault(pod.metadata.name, time.monotonic() - began)
            if len(bound) == len(wanted):
                everybody.set()

    began = time.monotonic()
    informer.add_handler(changed)
    informer.start()
    try:
        await informer.synced()
        began = time.monotonic()
        await together(len(pods), lambda index: client.create(pods[index], resource=Pod.RESOURCE))
        created = time.monotonic() - began
        await everybody.wait()
    finally:
        await informer.stop()
    return Times(created, tuple(sorted(bound.values())))


async def verdict(client: Client) -> list[str]:
    """The checker's, of a ledger made from nothing but what stands in the cluster; also a bound pod without a share."""
    ledger = Ledger()
    wrong = []
    for node in await client.list(GPUNode):
        ledger.set_node(node.metadata.name, gpus_of(node))
    for pod in await client.list(Pod):
        if pod.spec.node_name and uses_gpus(pod):
            assignment = of_pod(pod)
            if assignment is None:
                wrong.append(f"{pod.metadata.name} has no share")
            else:
                ledger.hold(pod.metadata.uid, pod.spec.node_name, assignment)
    return wrong + violations(ledger)

"""All light nodes of a process: registration, leases, pods, device amounts.

Writes: a Node, its lease and, when the devices change, the Node's status; one status for a pod that comes up. Leases
are renewed evenly over the interval, past the limit on requests: however busy the nodes are, they are alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpulab.light.gpus import SimulatedGPUs
from gpulab.light.operands import Accounts
from gpulab.light.pods import LightPod
from gpulab.light.process import Processes, log_path
from gpulab.light.root import RootTemplate
from gpulab.light.views import Hubs, ViewClient
from gpulab.light.world import LightHardware, LightHost, LightKubelet
from gpuplane.names import LIGHT_LABEL
from kubekit.api.core import LeaseObject, Node
from kubekit.errors import Retryable
from kubekit.kube import AlreadyExists, ApiEndpoint, ApiError, Client, Informer, NotFound
from kubekit.kube.config import load
from simgpu import profile
from simgpu.machines.machine import NodeMachine
from simgpu.machines.machine import machine as find_machine
from tinykube.kubelet.kubelet import read_cluster
from tinykube.kubelet.machine import ClusterAccess
from tinykube.kubelet.node import LEASE_NAMESPACE, LEASE_SECONDS, KubeletFacts, node_labels, node_status
from tinykube.kubelet.pod import KubeletPod
from tinykube.kubelet.portforward import FindHost
from tinykube.kubelet.requests import HttpProblem
from tinykube.kubelet.server import CallerCertificate, KubeletBackend, KubeletServer, LogFile
from tinykube.kubelet.tokens import kubelet_token

log = logging.getLogger("gpulab.light-nodes")

DEFAULT_MACHINE: Final = "t4-light"
_RENEWERS: Final = 32  # each waits for its answers: together they must keep pace on a busy loop, too
_STARTING: Final = 16  # pods that start at a time: the loop must stay quick for the leases
_AT_ONCE: Final = 32  # requests in flight
_WRITERS: Final = 8
_RETRY_SECONDS: Final = 1.0


class LightNode:
    """One node. Its pods are in LightNodes."""

    def __init__(self, name: str, machine: NodeMachine, root: Path, changed: Any) -> None:
        self.name = name
        self.machine = machine
        self.root = root
        self.port = 0
        self.alive = False  # registered, so its lease is renewed
        gpus = SimulatedGPUs(profile(machine.gpus), name, machine.driver) if machine.gpus else None
        self.host = LightHost(root, machine.driver, profile(machine.gpus).count if machine.gpus else 0)
        self.hardware = LightHardware(gpus, self.host)
        self.kubelet = LightKubelet(lambda: changed(self))

    def facts(self) -> KubeletFacts:
        return KubeletFacts(
            machine=self.machine, name=self.name, host_ip="127.0.0.1", port=self.port, devices=self.kubelet.amounts()
        )


class LightNodes:
    """`run` goes on until cancelled.

    Args:
        directory: holds a root for each node.
        machine: what every node is.
        prefix: nodes are called prefix + number from 0, padded to the width of the largest.
        secret: that of the tokens of kubelets, see `tinykube.kubelet.tokens`; "" asks for none.
    """

    def __init__(
        self,
        *,
        endpoint: ApiEndpoint,
        cluster: ClusterAccess,
        directory: Path,
        count: int,
        machine: NodeMachine,
        prefix: str = "light-",
        secret: str = "",
        renew_seconds: float = 15.0,
        caller: CallerCertificate | None = None,
    ) -> None:
        self._renew_seconds = renew_seconds
        limit = asyncio.Semaphore(_AT_ONCE)
        self.client = ViewClient(endpoint, user_agent="gpuplane-light-nodes")
        self.client.limit = limit
        self._watching = Client(endpoint, user_agent="gpuplane-light-nodes")
        self.client.hubs = Hubs(self._watching)
        # NB: tokens are asked for inside requests that count against the limit, so by a client that does not.
        self.accounts = Accounts(self._watching, self.client.hubs, limit, cluster.ca)
        self.processes = Processes(directory, self._watching, cluster)
        self.directory = directory
        width = len(str(max(count - 1, 0)))
        names = [f"{prefix}{number:0{width}d}" for number in range(count)]
        self._server = KubeletServer(
            KubeletBackend(
                log_file=self._log_file,
                exec_command=_no_exec,
                forward_host=self._forward_host,
                pods=lambda: b"{}",
                now=self.clock,
            ),
            {kubelet_token(secret, name) for name in names} if secret else "",
            caller,
        )
        self._port = 0
        self.nodes = {n: LightNode(n, machine, directory / n / "root", self._changed) for n in names}
        self.pods: dict[str, LightPod] = {}
        self.registered = asyncio.Event()
        self.starting = asyncio.Semaphore(_STARTING)
        self._alive: list[LightNode] = []
        self._machine = machine
        self._dirty: asyncio.Queue[LightNode] = asyncio.Queue()
        self._queued: set[str] = set()
        self._informer = Informer(self._watching, KubeletPod)
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def clock() -> float:
        return time.time()

    @staticmethod
    def now() -> str:
        return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def run(self) -> None:
        _raise_file_limit()
        self._port = await self._server.start()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._template = RootTemplate(self._machine, self.directory / ".template")
        try:
            async with asyncio.TaskGroup() as group:
                for shard in range(_RENEWERS):
                    group.create_task(self._renew(shard))
                for _ in range(_WRITERS):
                    group.create_task(self._write_statuses())
                await self._in_parallel(self._register)
                log.info("%d light nodes registered", len(self.nodes))
                self.registered.set()
                self.client.hubs.of(Node).informer.add_handler(self._on_node)
                self._informer.add_handler(self._on_pod)
                group.create_task(self._informer.run())
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.stop()
            await self.client.hubs.stop()
            await self.accounts.aclose()
            await self.client.aclose()
            await self._watching.aclose()

    async def _in_parallel(self, work: Any) -> None:
        nodes = iter(self.nodes.values())

        async def worker() -> None:
            for node in nodes:
                await _until_done(work, node)

        await asyncio.gather(*(worker() for _ in range(_WRITERS)))

    # -- nodes -----------------------------------------------------------------------------------------------------

    async def _register(self, node: LightNode) -> None:
        self._template.make(node.root)
        node.port = self._port
        if self._machine.preinstalled:
            node.host.load("nvidia")
        facts = node.facts()
        status = node_status(facts, self.now())
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.name, "labels": {**node_labels(facts), LIGHT_LABEL: "true"}},
            "status": status,
        }
        try:
            made = await self.client.create(body)
            if not made.get("status", {}).get("capacity"):  # a server that keeps status apart
                await self.client.patch(Node, node.name, {"status": status}, None, "strategic", "status")
        except AlreadyExists:
            # Of an earlier process: what its plugins offered is gone until ours offer it again.
            standing = await self.client.get(Node, node.name)
            gone = {r: "0" for r in standing.status.capacity if "/" in r and r not in facts.devices}
            status = node_status(facts, self.now(), standing.status.conditions)
            status = {**status, "capacity": status["capacity"] | gone, "allocatable": status["allocatable"] | gone}
            await self.client.patch(Node, node.name, {"status": status}, None, "strategic", "status")
        await self._renew_one(node)
        if not node.alive:
            node.alive = True
            self._alive.append(node)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        """Queue a node that is not Ready for a report: it was thought dead, or was deleted."""
        obj = new or old
        node = self.nodes.get(obj.metadata.name) if obj is not None else None
        if node is None:
            return
        ready = new is not None and any(c.type == "Ready" and c.status == "True" for c in new.status.conditions)
        if not ready:
            self._changed(node)

    def _changed(self, node: LightNode) -> None:
        if node.name not in self._queued:
            self._queued.add(node.name)
            self._dirty.put_nowait(node)

    async def _write_statuses(self) -> None:
        while True:
            node = await self._dirty.get()
            self._queued.discard(node.name)
            await _until_done(self._write_status, node)

    async def _write_status(self, node: LightNode) -> None:
        standing = self.client.hubs.of(Node).informer.get(node.name)
        status = node_status(node.facts(), self.now(), standing.status.conditions if standing is not None else ())
        body = {"status": {key: status[key] for key in ("capacity", "allocatable", "conditions")}}
        try:
            await self.client.patch(Node, node.name, body, None, "strategic", "status")
        except NotFound:
            await self._register(node)

    async def _renew(self, shard: int) -> None:
        """Every `_RENEWERS`th lease, round and round."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._renew_seconds
            mine = self._alive[shard::_RENEWERS]
            for number, node in enumerate(mine):
                await _until_done(self._renew_one, node)
                ahead = due - self._renew_seconds * (1 - (number + 1) / len(mine)) - loop.time()
                if ahead > 0:
                    await asyncio.sleep(ahead)
            if not mine:
                await asyncio.sleep(1.0)

    async def _renew_one(self, node: LightNode) -> None:
        spec = {
            "holderIdentity": node.name,
            "leaseDurationSeconds": max(LEASE_SECONDS, int(2.7 * self._renew_seconds)),
            "renewTime": self.now(),
        }
        if node.alive:
            with contextlib.suppress(NotFound):  # it was deleted: made again below
                await self._watching.patch(LeaseObject, node.name, {"spec": spec}, LEASE_NAMESPACE)
                return
        metadata = {"name": node.name, "namespace": LEASE_NAMESPACE}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        with contextlib.suppress(AlreadyExists):  # of an earlier process; the next renewal is not far
            await self._watching.create({**kind, "metadata": metadata, "spec": spec})

    # -- pods ------------------------------------------------------------------------------------------------------

    def _on_pod(self, old: KubeletPod | None, new: KubeletPod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        node = self.nodes.get(pod.spec.node_name)
        if node is None:
            return
        known = self.pods.get(pod.metadata.uid)
        if new is None:
            if known is not None:
                known.vanish()
        elif known is not None:
            known.update(new)
        elif not new.status.ended or new.metadata.deletion_timestamp is not None:
            self._begin(LightPod(self, node, new))

    def _begin(self, pod: LightPod) -> None:
        self.pods[pod.pod.metadata.uid] = pod
        task = asyncio.create_task(self._work(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, pod: LightPod) -> None:
        try:
            await pod.run()
        except Exception:
            log.exception("pod %s of %s failed", pod.pod.metadata.name, pod.node.name)
        finally:
            self.pods.pop(pod.pod.metadata.uid, None)

    def _log_file(self, namespace: str, name: str, container: str, previous: bool) -> LogFile:
        for pod in self.pods.values():
            meta = pod.pod.metadata
            state = pod.seen.get(container)
            if (meta.namespace, meta.name) == (namespace, name) and state is not None:
                attempt = state.attempt - 1 if previous else state.attempt
                path = log_path(pod.node.root, pod.pod, container, attempt)
                return LogFile(path, partial(_may_grow, pod, container, path))
        raise HttpProblem(404, f'pod "{name}" or its container "{container}" not found')

    def _forward_host(self, namespace: str, name: str) -> FindHost:
        metas = (pod.pod.metadata for pod in self.pods.values())
        uid = next((meta.uid for meta in metas if (meta.namespace, meta.name) == (namespace, name)), "")

        def host() -> str:
            if uid not in self.pods:
                raise HttpProblem(404, f'pod "{name}" not found')
            return self.pods[uid].address

        host()
        return host


def _may_grow(pod: LightPod, container: str, path: Path) -> bool:
    return pod.seen[container].running and path.exists()


def _no_exec(namespace: str, name: str, container: str, argv: tuple[str, ...], tty: bool) -> list[str]:
    raise HttpProblem(400, f"pod {name} is on a light node: there is no process to join")


async def _until_done(work: Any, node: LightNode) -> None:
    said = ""
    while True:
        try:
            await work(node)
            return
        except (ApiError, Retryable) as error:
            if str(error) != said:
                log.warning("%s: %s; trying again", node.name, error)
                said = str(error)
            await asyncio.sleep(_RETRY_SECONDS)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def run_light_nodes(
    *,
    count: int,
    directory: Path,
    kubeconfig: Path,
    machine: str = "",
    prefix: str = "light-",
    secret: str = "",
    renew_seconds: float = 15.0,
    caller: CallerCertificate | None = None,
) -> None:
    """`count` light nodes with their roots below `directory`, until cancelled. Raises InvalidInput for a machine
    unknown."""
    nodes = LightNodes(
        endpoint=load(kubeconfig, None),
        cluster=read_cluster(kubeconfig),
        secret=secret,
        directory=directory,
        count=count,
        machine=find_machine(machine or DEFAULT_MACHINE),
        prefix=prefix,
        renew_seconds=renew_seconds,
        caller=caller,
    )
    await nodes.run()

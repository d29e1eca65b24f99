"""The kubelet of one simulated node: wires node, pods, devices, runtime and HTTP endpoint together.

Invariants:

- Level-triggered: pods come from an informer, each has one worker; containers of an earlier kubelet are found by their
  records and go on under it. Records whose pod is gone are ended and removed.
- Killed (kill -9), it leaves its containers running. Asked to stop, it ends them first: the machine is switched off.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import signal
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kubekit.documents import LONGEST_SETTINGS, DocumentError, FileError, read_file
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Informer
from kubekit.protocol.sockets import DEVICE_PLUGIN_DIR, KUBELET_DIR
from kubekit.yaml_documents import load_yaml
from tinykube.kubelet.claims import ClaimManager
from tinykube.kubelet.clock import KubeletClock, RealClock
from tinykube.kubelet.containers import Isolation, Launcher, Records
from tinykube.kubelet.containers.launcher import kill_all
from tinykube.kubelet.containers.records import ContainerRecord, end_container, is_running, signal_container
from tinykube.kubelet.devices import DeviceManager
from tinykube.kubelet.devices.podresources import PodResourcesServer
from tinykube.kubelet.events import Events
from tinykube.kubelet.machine import ClusterAccess, KubeletMachine
from tinykube.kubelet.node import KubeletFacts, NodeReporter
from tinykube.kubelet.platform import Platform
from tinykube.kubelet.pod import KubeletPod, every_container
from tinykube.kubelet.portforward import FindHost
from tinykube.kubelet.requests import HttpProblem
from tinykube.kubelet.runtimes import ContainerRuntime
from tinykube.kubelet.server import CallerCertificate, KubeletBackend, KubeletServer, LogFile
from tinykube.kubelet.settings import KubeletSettings
from tinykube.kubelet.stats import NodeUsage, UsageMeter
from tinykube.kubelet.stats.node import file_system, measure_node, running_containers
from tinykube.kubelet.worker import PodWorker

log = logging.getLogger("tinykube.kubelet")

_POWER_OFF_SECONDS: Final = 2.0
_START_OVER_SECONDS: Final = 5.0


class Kubelet:
    """One node. `run` goes on until cancelled.

    Args:
        directory: the node's directory: `root/` is the machine's file system, `containers/` the kubelet's own.
        platform: the machine, its images and its runtime handlers.
        cluster: where containers find the API server.
        token: what the API server shows to ask for logs and exec; "" asks for none.
        port: of the HTTP endpoint; 0 takes a free one.
        settings: what the command line of a real kubelet sets.
        caller: the certificate of a real API server, which replaces the token.
        private: directories of the machine that no container sees, next to that of the node.
    """

    def __init__(
        self,
        *,
        node_name: str,
        directory: Path,
        platform: Platform,
        client: Client,
        cluster: ClusterAccess,
        token: str = "",
        port: int = 0,
        clock: KubeletClock | None = None,
        isolation: Isolation | None = None,
        settings: KubeletSettings | None = None,
        caller: CallerCertificate | None = None,
        private: Iterable[Path] = (),
    ) -> None:
        self._settings = settings or KubeletSettings()
        self.clock = clock or RealClock()
        self.machine_facts = facts = platform.machine
        root = directory / "root"
        self.runtime = ContainerRuntime(root, facts.runtime, facts.runtime_version, platform.handler_devices)
        self.runtime.restarted = self._runtime_changed
        self.devices = DeviceManager(
            root / KUBELET_DIR / DEVICE_PLUGIN_DIR, self.clock, lambda: self.reporter.changed()
        )
        self.reporter = NodeReporter(client, self._facts, self.clock)
        registered = self.reporter.registered
        self.claims = ClaimManager(root, root / KUBELET_DIR, node_name, client, self.clock, self._poke, registered)
        self.machine = KubeletMachine(
            node_name=node_name,
            directory=directory,
            client=client,
            cluster=cluster,
            launcher=Launcher(
                root, Records(directory / "containers"), isolation, platform.hardware, (directory, *private)
            ),
            images=platform.images,
            runtime=self.runtime,
            devices=self.devices,
            claims=self.claims,
            events=Events(client, node_name),
            clock=self.clock,
        )
        self._boot_id = _boot_id(self.machine.root)
        self._meter = UsageMeter(node_name, facts.memory_kib << 10, self.clock.time())
        self.workers: dict[str, PodWorker] = {}
        self.port = port
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = KubeletServer(
            KubeletBackend(
                log_file=self._log_file,
                exec_command=self._exec_command,
                forward_host=self._forward_host,
                pods=self._pods_json,
                now=self.clock.time,
                usage=self._usage,
            ),
            token,
            caller,
        )
        self._pods = Informer(client, KubeletPod, fields=f"spec.nodeName={node_name}")
        self._found: dict[str, list[ContainerRecord]] = {}

    async def run(self) -> None:
        """Until cancelled; then everything that ran on the node has ended."""
        mode = self.machine.launcher.mode
        log.info("kubelet of %s: %s, containers: %s", self.machine.node_name, self.machine_facts.name, mode)
        for controller, why in self.machine.launcher.groups.why.items():
            log.info("%s limits of containers: %s", controller, f"not enforced: {why}" if why else "enforced")
        resources = PodResourcesServer(
            self.devices, self.claims, lambda: [worker.pod for worker in self.workers.values() if worker.known]
        )
        self.machine.make_hosts()
        self.port = await self._server.start(self.machine.host_ip, self.port)
        await self.devices.start()
        self.claims.start()
        await resources.start(self.machine.root / KUBELET_DIR)
        self.runtime.serve()
        for record in self.machine.launcher.records.all():
            if not is_running(record) and self.machine.launcher.records.exit_of(record.id) is None:
                self.machine.launcher.end_leftovers(record)
            self._found.setdefault(record.pod_uid, []).append(record)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.reporter.run())
                await self.reporter.registered.wait()
                self._pods.add_handler(self._changed)
                self._pods.start()
                await self._pods.synced()
                self._clean_up()
                self.machine.allocations.begin()
        finally:
            await self._pods.stop()
            await self._power_off()
            self.machine.launcher.groups.close()
            self.runtime.close()
            await resources.stop()
            await self.claims.stop()
            await self.devices.stop()
            await self._server.stop()
            await self.machine.objects.stop()
            await self.machine.services.stop()
            await self.machine.events.aclose()

    async def synced(self) -> None:
        """Returns when the pods of the node are known and each has its worker."""
        await self._pods.synced()

    async def idle(self) -> None:
        """Returns when no pod is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- pods ------------------------------------------------------------------------------------------------------

    def _changed(self, old: KubeletPod | None, new: KubeletPod | None) -> None:
        if new is not None:
            uid = new.metadata.uid
            if old is not None and old.metadata.uid != uid:
                self._vanish(old.metadata.uid)
            worker = self.workers.get(uid)
            if worker is not None:
                worker.update(new)
            else:
                self._begin(new)
        elif old is not None:
            self._vanish(old.metadata.uid)

    def _begin(self, pod: KubeletPod) -> None:
        worker = PodWorker(self.machine, pod, self._found.pop(pod.metadata.uid, []))
        self.workers[pod.metadata.uid] = worker
        task = asyncio.create_task(self._work(worker), name=f"pod {worker.key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:
            # A mistake of ours on one pod must not lose it: look again from what is on disk.
            log.exception("the worker of %s failed; starting it over", worker.key)
            await self.clock.sleep(_START_OVER_SECONDS)
            uid = worker.pod.metadata.uid
            pod = self._pods.get(worker.key)
            if pod is not None and pod.metadata.uid == uid:
                self._found[uid] = [r for r in self.machine.launcher.records.all() if r.pod_uid == uid]
                self._begin(pod)
        finally:
            if self.workers.get(worker.pod.metadata.uid) is worker:
                del self.workers[worker.pod.metadata.uid]

    def _poke(self, pods: Collection[str]) -> None:
        for uid in pods:
            if (worker := self.workers.get(uid)) is not None:
                worker.poke()

    def _vanish(self, uid: str) -> None:
        worker = self.workers.get(uid)
        if worker is not None:
            worker.vanish()

    def _clean_up(self) -> None:
        """After the first list: what was found of pods that are gone meanwhile."""
        for records in self._found.values():
            for record in records:
                log.info("%s/%s: gone while the kubelet was down", record.namespace, record.pod)
                signal_container(record, signal.SIGKILL)
                self.machine.launcher.records.remove(record.id)
        self._found.clear()
        self.devices.keep_only(self.workers)
        self.claims.keep_only(self.workers.keys())

    async def _power_off(self) -> None:
        """Ends all containers: SIGTERM, and two seconds later SIGKILL."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        running = [record for record in self.machine.launcher.records.all() if is_running(record)]
        for record in running:
            end_container(record)
        ends = [asyncio.create_task(self.machine.launcher.wait(record)) for record in running]
        if ends:
            _, late = await asyncio.wait(ends, timeout=_POWER_OFF_SECONDS)
            if late:
                for record in running:
                    signal_container(record, signal.SIGKILL)
                await asyncio.wait(late, timeout=_POWER_OFF_SECONDS)

    # -- what others ask -------------------------------------------------------------------------------------------

    def reload_runtime(self) -> None:
        """SIGHUP: the runtime reads its configuration; running containers are left alone."""
        self.runtime.reload()
        self._runtime_changed()

    def _runtime_changed(self) -> None:
        self.reporter.changed()
        for worker in self.workers.values():
            worker.poke()

    def _facts(self) -> KubeletFacts:
        facts = KubeletFacts(
            machine=self.machine_facts,
            name=self.machine.node_name,
            host_ip=self.machine.host_ip,
            port=self.port,
            devices={**dict.fromkeys(self.devices.forgotten(), (0, 0)), **self.devices.amounts()},
            recreated=self.devices.recreated,
            runtime_down=self.runtime.down,
            boot_id=self._boot_id,
            settings=self._settings,
        )
        self.machine.allocatable = {"cpu": str(facts.machine.cpus), "memory": f"{facts.machine.memory_kib}Ki"}
        self.machine.allocations.set_capacity(self.machine.allocatable)
        return facts

    def _worker(self, namespace: str, name: str) -> PodWorker:
        for worker in self.workers.values():
            meta = worker.pod.metadata
            if meta.namespace == namespace and meta.name == name:
                return worker
        raise HttpProblem(404, f'pod "{name}" not found on node {self.machine.node_name}')

    def _log_file(self, namespace: str, name: str, container: str, previous: bool) -> LogFile:
        worker = self._worker(namespace, name)
        if not any(c.name == container for c in every_container(worker.pod)):
            raise HttpProblem(400, f"container {container} is not valid for pod {name}")
        state = worker.seen.get(container)
        if state is None or not state.id:
            why = state.waiting[0] if state is not None and state.waiting else "ContainerCreating"
            raise HttpProblem(400, f'container "{container}" in pod "{name}" is waiting to start: {why}')
        attempt = state.attempt - 1 if previous else state.attempt
        path = self.machine.log_path(worker.pod, container, attempt)
        if previous and not path.exists():
            raise HttpProblem(400, f'previous terminated container "{container}" in pod "{name}" not found')

        def running() -> bool:
            now = worker.seen.get(container)
            return not previous and now is not None and now.attempt == attempt and now.running

        return LogFile(path, running)

    def _exec_command(self, namespace: str, name: str, container: str, argv: tuple[str, ...], tty: bool) -> list[str]:
        worker = self._worker(namespace, name)
        state, record = worker.seen.get(container), worker.records.get(container)
        if state is None or record is None or not state.running:
            raise HttpProblem(400, f'container not found ("{container}")')
        return self.machine.launcher.exec_command(record, argv, tty=tty)

    def _forward_host(self, namespace: str, name: str) -> FindHost:
        uid = self._worker(namespace, name).pod.metadata.uid

        def host() -> str:
            worker = self.workers.get(uid)
            # NB: the address of a pod that has ended is soon another one's.
            if worker is None or not any(state.running for state in worker.seen.values()):
                raise HttpProblem(500, f'pod not found ("{name}_{namespace}")')
            return self.machine.pod_ip(uid)

        host()
        return host

    async def _usage(self) -> NodeUsage:
        running = running_containers(self.workers.values())
        measured, own = await asyncio.to_thread(measure_node, running)
        containers = [container for container, _ in running]
        usage = self._meter.usage(containers, measured, own, self.clock.time())
        return msgspec.structs.replace(usage, file_system=file_system(self.machine.root))

    def _pods_json(self) -> bytes:
        return msgspec.json.encode(
            {"kind": "PodList", "apiVersion": "v1", "items": [w.pod for w in self.workers.values()]}
        )


def read_cluster(kubeconfig: Path) -> ClusterAccess:
    """Return the API server of a kubeconfig's current context. Raises InvalidInput."""
    try:
        config = load_yaml(read_file(kubeconfig, limit=LONGEST_SETTINGS), limit=LONGEST_SETTINGS)
        contexts = {c["name"]: c["context"] for c in config["contexts"]}
        context = contexts.get(config.get("current-context"), next(iter(contexts.values())))
        cluster = {c["name"]: c["cluster"] for c in config["clusters"]}[context["cluster"]]
        url = urlsplit(cluster["server"])
        if "certificate-authority-data" in cluster:
            ca = base64.b64decode(cluster["certificate-authority-data"])
        elif "certificate-authority" in cluster:
            ca = read_file(kubeconfig.parent / cluster["certificate-authority"], limit=LONGEST_SETTINGS)
        else:
            ca = b""
        port = url.port or (443 if url.scheme == "https" else 80)
    except (FileError, DocumentError) as error:
        raise InvalidInput(f"no usable kubeconfig: {error.what}", where=error.where or str(kubeconfig)) from error
    except (AttributeError, KeyError, TypeError, StopIteration, ValueError) as error:
        raise InvalidInput(f"no usable kubeconfig: {error!r}", where=str(kubeconfig)) from error
    return ClusterAccess(url.hostname or "127.0.0.1", port, ca, url.scheme)


async def run(
    *,
    node_name: str,
    directory: Path,
    platform: Platform,
    kubeconfig: Path,
    token: str = "",
    port: int = 0,
    settings: KubeletSettings | None = None,
    caller: CallerCertificate | None = None,
    private: Iterable[Path] = (),
) -> None:
    """Run the node whose directory is `directory`, until cancelled.

    SIGHUP makes the container runtime read its configuration again.
    """
    client = Client.connect(kubeconfig, user_agent="kubelet")
    try:
        kubelet = Kubelet(
            node_name=node_name,
            directory=directory,
            platform=platform,
            client=client,
            cluster=read_cluster(kubeconfig),
            token=token,
            port=port,
            settings=settings,
            caller=caller,
            private=private,
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, kubelet.reload_runtime)
        await kubelet.run()
    finally:
        await client.aclose()


def stop_containers(directory: Path) -> int:
    """Kills what still runs of a node whose kubelet is gone; how many containers."""
    with contextlib.suppress(FileNotFoundError):
        return kill_all(directory / "containers")
    return 0


def _boot_id(root: Path) -> str:
    """Return the boot id of the machine; empty for a machine without one."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""

"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of this machine, for any user.

A cluster's directory:

    cluster.json       ports and pids
    pki/               certificates and kubeconfigs; pki/admin.kubeconfig is for people
    etcd/              the objects
    logs/<process>.log
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from gpulab.kubernetes import binaries, networks, pki
from kubekit.errors import NoAnswer, Terminal
from tinykube.aggregation.front_proxy import AUTHORITY, CLIENT_NAME
from tinykube.apiserver.addresses import DEFAULT_RANGE, ServiceRange
from tinykube.cluster import processes
from tinykube.cluster.directory import RunningProcess

HOST: Final = "127.0.0.1"
API_SERVER: Final = "kube-apiserver"
PARTS: Final = ("etcd", API_SERVER, "kube-controller-manager", "kube-scheduler")
SETS: Final = ("etcd", "kubernetes")
"""The sets of programs of a control plane."""
_PATIENCE_S: Final = 240.0
MOST_MACHINES: Final = 20
_POD_NETWORKS: Final = 244  # and those below, one for each machine
_DAY_S: Final = 86400.0
_POLL_S: Final = 0.05
_PORTS: Final = range(20000, 30240)
_PORTS_OF_NETWORK: Final = 40
Progress = Callable[[str], None]


class PlaneState(msgspec.Struct):
    """A cluster's ports and processes, as stored between commands; `network`: the third byte of machines' addresses."""

    ports: dict[str, int]
    network: int
    running: dict[str, RunningProcess] = {}


class ControlPlane:
    """One cluster's control plane.

    Args:
        fake_nodes: nodes without a kubelet live for a day, and the API server listens on loopback. Without them there
            is a machine, and the API server reaches webhooks in pods.
        scheduler_config: a KubeSchedulerConfiguration's path; its kubeconfig is filled in.
        features: feature gates of the API server to enable.
        apis: further versions for it to serve, as `scheduling.k8s.io/v1alpha2`.
        pki: the directory of certificates, and `logs` that of logs, if they lie elsewhere.
        port: of the API server; 0 takes a free one.
        grace_seconds: how long a node may be silent; 0 for a day with fake nodes, else for Kubernetes' own.
        tokens: a file of tokens, see `pki.write_tokens`.
        services: the range of the addresses of Services.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fake_nodes: bool = True,
        scheduler_config: Path | None = None,
        features: Sequence[str] = (),
        apis: Sequence[str] = (),
        pki: Path | None = None,
        logs: Path | None = None,
        port: int = 0,
        grace_seconds: float = 0.0,
        tokens: Path | None = None,
        services: ServiceRange = DEFAULT_RANGE,
    ) -> None:
        self.directory = directory
        self.pki = pki or directory / "pki"
        self.logs = logs or directory / "logs"
        self.grace_seconds = grace_seconds
        self.tokens = tokens
        self.services = services
        self.fake_nodes = fake_nodes
        self.scheduler_config = scheduler_config
        self.features = features
        self.apis = apis
        self._file = directory / "cluster.json"
        self.state = self._load()
        if port:
            self.state.ports[API_SERVER] = port

    # -- what others ask -------------------------------------------------------------------------------------------
    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.state.ports['kube-apiserver']}"

    @property
    def kubeconfig(self) -> Path:
        return self.pki / "admin.kubeconfig"

    @property
    def host_address(self) -> str:
        """This machine, as the cluster's machines see it."""
        return f"10.99.{self.state.network}.1"

    @property
    def bridge(self) -> str:
        """The interface of this machine in the network of the cluster's machines."""
        return bridge_of(self.state.network)

    def machine_address(self, number: int) -> str:
        """Return the address of one of the cluster's machines, which count from 0."""
        return f"10.99.{self.state.network}.{2 + number}"

    def pod_network(self, number: int) -> str:
        """Return the addresses of a machine's pods; clusters of one computer have different ones."""
        return f"10.{_POD_NETWORKS - number}.{self.state.network}.0/24"

    def pid(self, part: str) -> int:
        return self.state.running[part].pid

    @property
    def audit_log(self) -> Path:
        """The file with a JSON line (audit.k8s.io/v1 Event) for each answered request, without bodies."""
        return self.logs / "audit.log"

    def client_config(self, user: str, group: str = "") -> Path:
        """A kubeconfig for any user: the authority signs what the test asks for."""
        name = "user-" + user.replace(":", "-").replace("/", "-")
        pki.client(self.pki, name, user, group)
        return pki.kubeconfig(self.pki, name, self.url)

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self, progress: Progress = lambda _: None) -> None:
        """Starts what does not run, and returns when the API server is ready. Processes of an earlier run go on.

        Raises Unavailable when the programs cannot be built; Terminal with the log's last line when one ends.
        """
        for part in SETS:
            binaries.build(part, progress)
        self.write_files()
        for part in PARTS:
            self.start_part(part)
            if part == API_SERVER:
                progress("waiting for the API server")
                self._ready()

    def write_files(self) -> None:
        """Make the directories, and the certificates and kubeconfigs that are missing."""
        for path in (self.directory, self.logs):
            path.mkdir(parents=True, exist_ok=True)
        pki.ensure(self.pki, (self.host_address, self.services.api_server))
        for name in pki.CLIENTS:
            pki.kubeconfig(self.pki, name, self.url)

    def move_ports(self) -> None:
        """Choose other ports for processes that do not run and whose port is another program's by now."""
        if any(map(processes.alive, self.state.running.values())):
            return
        for name, port in self.state.ports.items():
            if name != API_SERVER and not _is_free(port):
                (self.state.ports[name],) = free_ports(1)
        self._save()

    def start_part(self, part: str) -> None:
        """Starts one process, unless it runs."""
        known = self.state.running.get(part)
        if known is not None and processes.alive(known):
            return
        program = binaries.directory("etcd" if part == "etcd" else "kubernetes") / part
        arguments = getattr(self, "_" + part.replace("-", "_"))()
        pid = spawn([str(program), *arguments], self.logs / f"{part}.log")
        self.state.running[part] = RunningProcess(pid, processes.started(pid) or 0, time.time())
        self._save()

    def kill(self, part: str) -> None:
        """kill -9; `start_part` starts it again."""
        running = self.state.running.pop(part)
        processes.signal_(running, signal.SIGKILL)
        _wait_gone(running)
        self._save()

    def stop(self, *, keep: bool = False) -> None:
        """Ends all processes, and deletes the directory unless `keep`."""
        for part in reversed(PARTS):
            if part in self.state.running:
                self.kill(part)
        if not keep:
            release_interfaces(self.bridge)
            shutil.rmtree(self.directory, ignore_errors=True)

    # -- flags -----------------------------------------------------------------------------------------------------
    def _etcd(self) -> list[str]:
        client, peer = (f"https://{HOST}:{self.state.ports[name]}" for name in ("etcd", "etcd-peer"))
        keys = self.pki / pki.ETCD
        return [
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            *(
                f"--{prefix}{flag}"
                for prefix in ("", "peer-")
                for flag in (
                    f"cert-file={keys / 'apiserver.crt'}",
                    f"key-file={keys / 'apiserver.key'}",
                    f"trusted-ca-file={keys / 'ca.crt'}",
                    "client-cert-auth",
                )
            ),
            "--enable-grpc-gateway=false",  # it would be a client without a certificate
            "--unsafe-no-fsync",  # a test's cluster need not survive this machine's power failure
            "--log-level=warn",
        ]

    def _kube_apiserver(self) -> list[str]:
        pki_dir = self.pki
        return [
            f"--etcd-servers=https://{HOST}:{self.state.ports['etcd']}",
            f"--etcd-cafile={pki_dir / pki.ETCD / 'ca.crt'}",
            f"--etcd-certfile={pki_dir / pki.ETCD / f'{pki.ETCD_CLIENT}.crt'}",
            f"--etcd-keyfile={pki_dir / pki.ETCD / f'{pki.ETCD_CLIENT}.key'}",
            f"--secure-port={self.state.ports['kube-apiserver']}",
            # A machine is in a network of its own.
            f"--bind-address={HOST if self.fake_nodes else '0.0.0.0'}",
            f"--advertise-address={self.host_address}",
            *(
                ("--endpoint-reconciler-type=none",)
                if self.fake_nodes
                # kube-proxy forwards to what the Service `kubernetes` has; the API server is outside of its network.
                else ("--endpoint-reconciler-type=lease", "--enable-aggregator-routing=true")
            ),
            f"--tls-cert-file={pki_dir / 'apiserver.crt'}",
            f"--tls-private-key-file={pki_dir / 'apiserver.key'}",
            f"--client-ca-file={pki_dir / 'ca.crt'}",
            f"--service-account-key-file={pki_dir / 'sa.pub'}",
            f"--service-account-signing-key-file={pki_dir / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={self.services.network}",
            f"--kubelet-client-certificate={pki_dir / 'kube-apiserver-kubelet-client.crt'}",
            f"--kubelet-client-key={pki_dir / 'kube-apiserver-kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki_dir / AUTHORITY}",
            f"--requestheader-allowed-names={CLIENT_NAME}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki_dir / CLIENT_NAME}.crt",
            f"--proxy-client-key-file={pki_dir / CLIENT_NAME}.key",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            *((f"--token-auth-file={self.tokens}",) if self.tokens is not None else ()),
            "--allow-privileged=true",
            f"--audit-policy-file={self._audit_policy()}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-maxsize=10000",  # MB; one file, however long the tests run
            "--profiling=false",
            *([f"--feature-gates={','.join(f'{name}=true' for name in self.features)}"] if self.features else []),
            *([f"--runtime-config={','.join(f'{name}=true' for name in self.apis)}"] if self.apis else []),
        ]

    def _audit_policy(self) -> Path:
        path = self.directory / "audit-policy.json"
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [
                {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
                {"level": "None", "users": ["system:apiserver"]},
                {"level": "Metadata"},
            ],
        }
        path.write_text(json.dumps(policy))
        return path

    def _kube_controller_manager(self) -> list[str]:
        arguments = [
            f"--kubeconfig={self.pki / 'kube-controller-manager.kubeconfig'}",
            f"--service-account-private-key-file={self.pki / 'sa.key'}",
            f"--root-ca-file={self.pki / 'ca.crt'}",
            "--use-service-account-credentials",
            "--kube-api-qps=500",  # its 20 a second are for other controllers' sake, and would be what is measured
            "--kube-api-burst=1000",
            "--leader-elect=false",
            f"--bind-address={HOST}",
            f"--secure-port={self.state.ports['kube-controller-manager']}",
            "--profiling=false",
        ]
        grace = self.grace_seconds or (_DAY_S if self.fake_nodes else 0)
        return [*arguments, *([f"--node-monitor-grace-period={grace:.0f}s"] if grace else [])]

    def _kube_scheduler(self) -> list[str]:
        arguments = [
            "--leader-elect=false",
            f"--bind-address={HOST}",
            f"--secure-port={self.state.ports['kube-scheduler']}",
            "--profiling=false",
        ]
        kubeconfig = self.pki / "kube-scheduler.kubeconfig"
        if self.scheduler_config is None:
            return [*arguments, f"--kubeconfig={kubeconfig}", "--kube-api-qps=500", "--kube-api-burst=1000"]
        config = msgspec.yaml.decode(self.scheduler_config.read_bytes())
        config["clientConnection"] = {**config.get("clientConnection", {}), "kubeconfig": str(kubeconfig)}
        config["leaderElection"] = {"leaderElect": False}
        path = self.directory / "kube-scheduler.yaml"
        path.write_text(json.dumps(config))
        return [*arguments, f"--config={path}"]

    # -- inside ----------------------------------------------------------------------------------------------------
    def _load(self) -> PlaneState:
        if self._file.exists():
            return msgspec.json.decode(self._file.read_bytes(), type=PlaneState)
        parts = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "registry")
        names = ("etcd", "etcd-peer", *parts)
        network = networks.take(self.directory)
        # Clusters that begin at the same moment would otherwise find the same ports free.
        first = _PORTS.start + network * _PORTS_OF_NETWORK
        ports = free_ports(len(names), range(first, first + _PORTS_OF_NETWORK))
        return PlaneState(dict(zip(names, ports, strict=True)), network)

    def _save(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(self.state))
        new.replace(self._file)

    def _ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self.answers():
            if time.monotonic() > deadline:
                what = f"the API server was not ready after {_PATIENCE_S:.0f} s"
                raise NoAnswer(what, where=str(self.logs / f"{API_SERVER}.log"))
            time.sleep(_POLL_S)

    def answers(self) -> bool:
        """Return whether the API server is ready, asked once. Raises Terminal when it or etcd has ended."""
        for part in ("etcd", API_SERVER):
            if not processes.alive(self.state.running[part]):
                raise Terminal(f"{part} ended: {self.last_line(part)}", where=str(self.logs / f"{part}.log"))
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", context=context, timeout=5) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except (urllib.error.URLError, OSError):
            return False

    def last_line(self, part: str) -> str:
        path = self.logs / f"{part}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return lines[-1] if lines else "it wrote nothing"


def bridge_of(network: int) -> str:
    """Return the interface of this machine in the network of a cluster's machines."""
    return f"gpuplane{network}"


def release_interfaces(bridge: str) -> None:
    """Remove a cluster's bridge, and the interfaces of its machines that are left."""
    for name in [path.name for path in Path("/sys/class/net").glob(f"{bridge}*")]:
        if name.partition("-")[0] == bridge:
            subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)


def spawn(arguments: list[str], log: Path, stdin: int | None = None) -> int:
    """Starts a program in a session of its own, which outlives us; its pid. It writes to the end of `log`."""
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0) if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(arguments[0], arguments, os.environ, file_actions=actions, setsid=True)


def _wait_gone(running: RunningProcess) -> None:
    while processes.alive(running):
        time.sleep(_POLL_S)
    processes.reap(running.pid)


def free_ports(count: int, among: range = _PORTS) -> list[int]:
    """NB: below those that the kernel gives to clients: a process that is killed must find its port free again."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(among)
        found += [port] if port not in found and _is_free(port) else []
    return found


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server((HOST, port)):
        return True
    return False

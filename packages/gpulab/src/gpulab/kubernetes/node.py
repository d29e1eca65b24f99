"""A machine of a real cluster: containerd, kubelet and kube-proxy in namespaces of their own, over simulated hardware.

The machine's directory:

    root/    the simulated machine (simgpu.machines), and every file that was written since: what an installation leaves
             can be seen here
    containerd/  kubelet/    their data
    init.json  init.log      process 1, see `init`

Needs root, mount and network namespaces, and the programs in NEEDED; says so in one line otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpulab.kubernetes import binaries, configuration, init, pki
from gpulab.kubernetes.control_plane import ControlPlane, spawn
from gpulab.kubernetes.unavailable import Unavailable
from gpulab.watching import node_is_ready, watching
from kubekit.api.core import Node
from kubekit.errors import NoAnswer
from kubekit.kube import Client
from simgpu.machines import build_node, machine
from simgpu.machines.configs import NVIDIA_RUNTIMES
from tinykube.cluster import processes
from tinykube.cluster.directory import RunningProcess

_UNIFIED: Final = Path("/sys/fs/cgroup/unified")  # runc makes the cgroups of containers there too
MACHINE: Final = "l4-ubuntu24"
MACHINE_SETS: Final = ("containerd", "kube-proxy")
"""The sets of programs of a machine, besides those of the control plane, which have its kubelet."""
# Stand-ins of simulated machines, which would hide the real programs here.
STAND_INS: Final = (
    *("usr/bin/runc", "usr/bin/containerd", "usr/bin/crun", "usr/bin/conmon", "usr/bin/uname"),
    *(f"usr/bin/{name}" for name in NVIDIA_RUNTIMES),
)
# The kubelet starts these of the machine itself, and operands those of the simulated machine (see init.MACHINE).
SIMULATED_PROGRAMS: Final = {
    "usr/bin": ("mkdir", "rm", "mv", "install", "env", "sh", "kill", "mount", "umount"),
    "usr/sbin": ("chroot",),
}
NEEDED: Final = {
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "pivot_root": "util-linux",
    "mount": "mount",
}


def lacking() -> str:
    """Why this machine cannot run a kubelet; empty when it can."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    packages = {package for program, package in NEEDED.items() if shutil.which(program) is None}
    if not Path(configuration.CNI_DIR, "bridge").exists():
        packages.add("containernetworking-plugins")
    if packages:
        return f"apt-get install {' '.join(sorted(packages))}"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, check=False)
    return f"namespaces are refused: {probe.stderr.decode().strip()}" if probe.returncode else ""


def unseen(place: Path) -> str:
    """Why machines cannot see a directory of this one; empty when they can.

    They have its root's file system and none that is mounted on it, with a /run and a /tmp of their own (`init`).
    """
    found = place.resolve()
    own = found.parts[1:2] in (("run",), ("tmp",))
    if not own and found.stat().st_dev == Path("/").stat().st_dev:
        return ""
    return f"use a gpuplane on the file system of /, outside /run and /tmp: machines do not see {found}"


class KubernetesNode:
    """A machine of `plane`. `start` returns at once; the Node becomes Ready in seconds, once its images are imported.

    Args:
        hardware: a name of the simulator's machines.
        number: which of the cluster's machines it is, from 0, of `machines`.
        directory: its files; below the cluster's if None.
    """

    def __init__(
        self,
        plane: ControlPlane,
        name: str = "node-1",
        hardware: str = MACHINE,
        *,
        number: int = 0,
        machines: int = 1,
        directory: Path | None = None,
    ) -> None:
        self.plane = plane
        self.name = name
        self.hardware = hardware
        self.directory = directory or plane.directory / "machines" / name
        self.address = plane.machine_address(number)
        self.pod_network = plane.pod_network(number)
        self.interface = f"{plane.bridge}-{number}"
        self.cgroup = f"{cgroup_prefix(plane.state.network)}{name}"
        self._neighbours = {
            plane.pod_network(other): plane.machine_address(other) for other in range(machines) if other != number
        }
        self._pid_file = self.directory / "init.pid"

    @property
    def host_root(self) -> str:
        """The value for ClusterPolicy's hostPaths.rootFS: the machine with its simulated /proc and /sys."""
        return f"/{init.MACHINE}"

    @property
    def registry(self) -> str:
        """The address at which the machine's containerd asks for every image."""
        return f"{self.plane.host_address}:{self.plane.state.ports['registry']}"

    @property
    def root(self) -> Path:
        """The machine's own files: all that differ from those of this machine."""
        return self.directory / "root"

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Makes the machine and starts it. Raises Unavailable where this machine cannot have one."""
        why = lacking()
        if why:
            raise Unavailable("no machine with a kubelet here", where=self.name, cure=why)
        if processes.alive(self.running()):
            return
        programs = [binaries.build(name, progress) for name in ("containerd", "kubernetes", "kube-proxy")]
        hardware = machine(self.hardware)
        build_node(self.directory, self.name, hardware)
        self._set_programs_apart()
        self._write_files()
        config = {
            "name": self.name,
            "directory": str(self.directory),
            "programs": [str(place) for place in programs],
            "address": self.address,
            "interface": "eth0",
            "gateway": self.plane.host_address,
            "services_network": self.plane.services.network,
            "neighbours": self._neighbours,
            "cpus": hardware.cpus,
            "boot_id": str(uuid.uuid4()),
            "cgroups": [str(place) for place in _cgroups(self.cgroup)],
            "services": configuration.services(self.name, self.address),
        }
        (self.directory / "init.json").write_text(json.dumps(config, indent=2))
        self._start_init()

    def _set_programs_apart(self) -> None:
        """Leave containerd and kubelet the real ones of the programs that the simulated machine ships, too."""
        for folder, names_in in SIMULATED_PROGRAMS.items():
            apart = self.directory / init.PROGRAMS / folder
            apart.mkdir(parents=True, exist_ok=True)
            for name in names_in:
                if (self.root / folder / name).exists():
                    (self.root / folder / name).rename(apart / name)

    def stop(self) -> None:
        """As pulling the plug: every process of the machine is gone, its files stay."""
        running = self.running()
        if running.pid:
            processes.signal_(running, signal.SIGKILL)
            while processes.alive(running):
                time.sleep(0.02)
            processes.reap()
        self._pid_file.unlink(missing_ok=True)
        subprocess.run(["ip", "link", "delete", self.interface], capture_output=True, check=False)
        remove_cgroups(self.cgroup)

    def reboot(self) -> None:
        self.stop()
        self.start()

    def pid(self, service: str) -> int:
        """Of `containerd` or `kubelet`, as this machine sees it; 0 while it does not run."""
        init = self.running().pid
        for child in Path(f"/proc/{init}/task/{init}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                if Path(f"/proc/{child}/comm").read_text().strip() == service:
                    return int(child)
        return 0

    def kill(self, service: str) -> None:
        """kill -9 of containerd or the kubelet; returns when another one runs in its place."""
        before = self.pid(service)
        os.kill(before, signal.SIGKILL)
        while self.pid(service) in (0, before):
            time.sleep(0.02)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command on the machine, as its root."""
        environment = {**os.environ, "PATH": f"{init.PROGRAM_PATH}:/usr/sbin:/usr/bin:/sbin:/bin"}
        return subprocess.run([*self.enter(), *arguments], capture_output=True, text=True, check=check, env=environment)

    def enter(self) -> tuple[str, ...]:
        """Return the beginning of a command that runs in the machine's namespaces."""
        namespaces = ("--mount", "--pid", "--net", "--uts", "--ipc", "--root", "--wd=/")
        return ("nsenter", f"--target={self.running().pid}", *namespaces)

    def reach(self, address: str) -> None:
        """Have this computer's processes reach a Service's address through the machine, as another node would."""
        subprocess.run(["ip", "route", "replace", f"{address}/32", "via", self.address], check=True)

    def import_image(self, archive: Path) -> None:
        """An image from an OCI or docker archive, for the kubelet."""
        place = self.directory / "kubelet" / "image.tar"
        shutil.copyfile(archive, place)
        try:
            self.run("ctr", "-n", "k8s.io", "images", "import", "--local", "/var/lib/kubelet/image.tar")
        finally:
            place.unlink()

    def running(self) -> RunningProcess:
        """Return the machine's process 1, which may have ended; pid 0 before its first start."""
        try:
            pid, started = map(int, self._pid_file.read_text().split())
        except FileNotFoundError:
            return RunningProcess(0, -1)
        return RunningProcess(pid, started)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _start_init(self) -> None:
        """Process 1 waits at its standard input until it has a network."""
        read, write = os.pipe()
        log = self.directory / "init.log"
        module = str(Path(__file__).with_name("init.py"))
        command = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child"]
        parent = spawn(
            [
                shutil.which("unshare") or "",
                *command[1:],
                sys.executable,
                "-I",
                module,
                str(self.directory / "init.json"),
            ],
            log,
            stdin=read,
        )
        os.close(read)
        pid = _only_child(parent)
        self._pid_file.write_text(f"{pid} {processes.started(pid)}")
        _make_bridge(self.plane.bridge, f"{self.plane.host_address}/24")
        for arguments in (
            ("link", "add", self.interface, "type", "veth", "peer", "name", "eth0", "netns", str(pid)),
            ("link", "set", self.interface, "master", self.plane.bridge, "up"),
            ("route", "replace", self.pod_network, "via", self.address, "dev", self.plane.bridge),
        ):
            subprocess.run(["ip", *arguments], check=True, capture_output=True)
        os.write(write, b"go\n")
        os.close(write)

    def _write_files(self) -> None:
        for name in STAND_INS:
            (self.root / name).unlink(missing_ok=True)
        kubelet, proxy = f"node-{self.name}", f"kube-proxy-{self.name}"
        pki.client(self.plane.pki, kubelet, f"system:node:{self.name}", "system:nodes")
        pki.client(self.plane.pki, proxy, "system:kube-proxy")
        api = f"https://{self.plane.host_address}:{self.plane.state.ports['kube-apiserver']}"
        files = configuration.files(self.name, self.address, self.cgroup, self.pod_network, self.registry) | {
            "etc/kubernetes/kubelet.conf": pki.kubeconfig(self.plane.pki, kubelet, api).read_text(),
            "etc/kubernetes/kube-proxy.conf": pki.kubeconfig(self.plane.pki, proxy, api).read_text(),
            "etc/kubernetes/ca.crt": (self.plane.pki / "ca.crt").read_text(),
        }
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).unlink(missing_ok=True)
            (self.root / name).write_text(text)


def wait_ready(node: KubernetesNode, patience_s: float = 240.0) -> None:
    """Returns when the API server has seen the machine Ready. Raises NoAnswer with the kubelet's last line."""

    async def ready() -> None:
        async with (
            asyncio.timeout(patience_s),
            Client.connect(node.plane.kubeconfig) as client,
            watching(client, Node, fields=f"metadata.name={node.name}") as nodes,
        ):
            await nodes.until(lambda: any(map(node_is_ready, nodes.items())))

    try:
        asyncio.run(ready())
    except TimeoutError as late:
        log = node.root / "var/log/kubelet.log"
        last = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else ["it has no log"]
        raise NoAnswer(f"{node.name} is not Ready: {last[0]}", where=str(log)) from late


def _make_bridge(name: str, address: str) -> None:
    """Make the interface by which this machine reaches those of a cluster; other machines may do so at this moment."""
    for arguments in (
        ("link", "add", name, "type", "bridge"),
        ("address", "replace", address, "dev", name),
        ("link", "set", name, "up"),
    ):
        subprocess.run(["ip", *arguments], check=arguments[:2] != ("link", "add"), capture_output=True)


def _only_child(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    while not (found := children.read_text().split()):
        time.sleep(0.01)
    return int(found[0])


def _cgroups(name: str) -> list[Path]:
    """The machine's own cgroup: one directory, or with cgroup v1 one for each controller."""
    base = Path("/sys/fs/cgroup")
    if (base / "cgroup.controllers").exists():
        return [base / name]
    return [place / name for place in base.iterdir() if (place / "cgroup.procs").exists() and place.name != "unified"]


def cgroup_prefix(network: int) -> str:
    """Return the beginning of the names of a cluster's cgroups."""
    return f"gpuplane-{network}-"


def cgroups_of(network: int) -> set[str]:
    """Return the names of the cgroups of a cluster's machines that there are."""
    places = (path for top in (*_cgroups(""), _UNIFIED) for path in top.glob(f"{cgroup_prefix(network)}*"))
    return {path.name for path in places}


def remove_cgroups(name: str) -> None:
    """Remove a machine's cgroups; those of its pods lie below."""
    for top in (*_cgroups(name), _UNIFIED / name):
        for directory, _, _ in os.walk(top, topdown=False):
            for _ in range(50):
                try:
                    os.rmdir(directory)  # noqa: PTH106 - os.walk gives strings
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)  # its last process is just going

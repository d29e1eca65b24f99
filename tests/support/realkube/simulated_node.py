"""A simulated machine on the real control plane: gpuplane's own kubelet, as any user, without root and containerd.

Pods are processes there that run under the tokens of their own accounts, on a machine with simulated GPUs. A real
kubelet is tested with `node`; here, tests are about API server, controllers and scheduler with our components.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from gpulab.distribution import GPUPLANE
from gpulab.kubernetes.control_plane import ControlPlane, spawn
from tinykube.cluster import processes
from tinykube.cluster.directory import ClusterDirectory, RunningProcess, write
from tinykube.cluster.spec import ClusterSpec, MachineSpec
from tinykube.cluster.supervisor import kubelet_process
from tinykube.kubelet import stop_containers
from tinykube.kubelet.tokens import kubelet_token

GROUP = "system:nodes"


class SimulatedNode:
    """One machine. `machine` is a name of the simulator's machines, such as `t4-ubuntu18`."""

    def __init__(self, plane: ControlPlane, name: str, machine: str) -> None:
        self.name = name
        self._plane = plane
        self._directory = ClusterDirectory(GPUPLANE, name, plane.directory / "simulated")
        self._directory.create(ClusterSpec(name=name, nodes=(MachineSpec(name=name, machine=machine),)))
        # The supervisor of a cluster writes it; there is none here, and the real API server does not ask this kubelet.
        token = kubelet_token(self._directory.kubelet_secret(), name)
        write(self._directory.token_of(kubelet_process(name)), token.encode(), 0o600)
        self._running: RunningProcess | None = None

    @property
    def root(self) -> Path:
        return self._directory.nodes / self.name / "root"

    @property
    def log(self) -> Path:
        return self._directory.log_of("kubelet")

    def start(self) -> None:
        user = f"system:node:{self.name}"
        arguments = [sys.executable, "-m", "gpuplane", "run", "kubelet", "--node-name", self.name]
        arguments += ["--kubeconfig", str(self._plane.client_config(user, GROUP))]
        arguments += ["--config", str(self._directory.spec_file)]
        pid = spawn(arguments, self.log)
        self._running = RunningProcess(pid, processes.started(pid) or 0)

    def stop(self) -> None:
        """Ends the kubelet and every container; the machine's files stay."""
        if self._running is not None:
            processes.signal_(self._running, signal.SIGKILL)
            processes.reap(self._running.pid)
            self._running = None
        stop_containers(self._directory.nodes / self.name)

"""A user's directory of clusters, with a real cluster of `gpuplane up --kubernetes` in it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gpulab.kubernetes.control_plane import PlaneState
from gpulab.kubernetes.process import FOLDER
from tests.support import find_kubectl
from tinykube.cluster import processes
from tinykube.cluster.directory import RunningProcess

NAME: Final = "real"
COMMAND_S: Final = 400.0
T = TypeVar("T")


class UserHome:
    """A user's directory of clusters, with the cluster `NAME`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster = path / "clusters" / NAME
        self.environment = os.environ | {"GPUPLANE_HOME": str(path), "KUBECONFIG": str(path / f"{NAME}.kubeconfig")}

    def up(self, *words: str) -> str:
        return self.gpuplane("up", "--kubernetes", "1.36", "--name", NAME, "--detach", *words)

    def gpuplane(self, *words: str, code: int = 0) -> str:
        return self._run(sys.executable, "-m", "gpuplane", *words, code=code)

    def kubectl(self, *words: str, sent: str = "", code: int | None = 0) -> str:
        return self._run(str(find_kubectl.find()), *words, sent=sent, code=code)

    @contextlib.contextmanager
    def kubectl_lines(self, *words: str, **variables: str) -> Iterator[Iterator[str]]:
        """Run kubectl until the block ends; what it writes, line by line."""
        with subprocess.Popen(
            (str(find_kubectl.find()), *words),
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as running:
            assert running.stdout is not None
            try:
                yield iter(running.stdout)
            finally:
                running.terminate()

    def ready(self) -> set[str]:
        """Return the nodes that are Ready; none while the API server is away."""
        lines = self.kubectl("get", "nodes", "--no-headers", code=None).splitlines()
        return {line.split()[0] for line in lines if " Ready " in line}

    def parts(self) -> dict[str, RunningProcess]:
        return self._read(self.cluster / FOLDER / "cluster.json", PlaneState).running

    def process(self, name: str) -> RunningProcess:
        return self._read(self.cluster / "run" / f"{name}.json", RunningProcess)

    def left(self) -> set[int]:
        return processes.family_of_directory(self.cluster)

    def _read(self, path: Path, kind: type[T]) -> T:
        return msgspec.json.decode(path.read_bytes(), type=kind)

    def _run(self, *arguments: str, sent: str = "", code: int | None) -> str:
        done = subprocess.run(
            arguments,
            env=self.environment,
            input=sent or None,
            stdin=None if sent else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert code in (None, done.returncode), f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


def kill(*running: RunningProcess) -> None:
    for one in running:
        processes.signal_(one, signal.SIGKILL)

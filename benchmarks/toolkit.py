"""Measures `gpuplane toolkit configure` on a machine with 8 GPUs, by each runtime, the whole command.

    python benchmarks/toolkit.py

Machines in a temporary directory with the simulated driver. First the files alone (--no-restart), then with a runtime
that ends on SIGHUP and is back in milliseconds, as no real one is: what is measured is our part. A runtime that is
signalled although nothing changed ends the benchmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from figures import show
from gpuplane.toolkit.places import MICROK8S, PLAIN, RuntimeName, RuntimePaths
from simgpu import NATIVE, PROFILES, create_state
from tinykube.kubelet.runtimes.endpoint import RuntimeEndpoint

LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROFILE, DRIVER = PROFILES["8x-h100"], "570.133.20"
ROUNDS = 5
GOAL_MS = 300.0
PEER = "nvidia-ctk: the files; the restart is left to people"
CRI = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "pause:3.9"\n'
K3S = "var/lib/rancher/k3s/agent/etc/containerd"
# The name of a figure -> the runtime, and its files.
MACHINES: dict[str, tuple[str, dict[str, str]]] = {
    "containerd 1": ("containerd", {"etc/containerd/config.toml": "[plugins.cri]\nsandbox_image = 'p'\n"}),
    "containerd 2": ("containerd", {"etc/containerd/config.toml": CRI}),
    "containerd 3": ("containerd", {"etc/containerd/config.toml": "version = 3\n"}),
    "docker": ("docker", {"etc/docker/daemon.json": '{"debug": true}\n'}),
    "cri-o": ("cri-o", {"etc/crio/crio.conf": "[crio.runtime]\n"}),
    "k3s": ("containerd", {f"{K3S}/config.toml": CRI}),
    "k0s": ("containerd", {"etc/k0s/containerd.toml": "# k0s_managed=true\n", "run/k0s/containerd-cri.toml": CRI}),
    "microk8s": ("containerd", {MICROK8S.config: CRI}),
}
TOLD = ("containerd 2", "docker")  # cri-o is restarted by systemctl, which these machines have no services for


def machine(root: Path, files: dict[str, str]) -> None:
    """A root with the simulated driver loaded and a runtime's files."""
    for directory in ("dev", LIBRARIES, "usr/bin", "run"):
        (root / directory).mkdir(parents=True)
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        shutil.copy(NATIVE / name, root / LIBRARIES / name)
    create_state(root / "dev/nvidiactl", PROFILE, DRIVER, "bench")
    for index in range(PROFILE.count):
        (root / f"dev/nvidia{index}").write_text(f"195 {index}\n")
        (root / f"dev/nvidia{index}").chmod(0o1644)  # see gpulab.device_files
    shutil.copy(NATIVE / "simhost", root / "usr/bin/systemctl")
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


class Took(NamedTuple):
    """Milliseconds of one command, and of the processors' time in it, which a busy machine does not change."""

    whole: float
    cpu: float


def timed(root: Path, action: str, *more: str) -> Took:
    """One command; its failure ends the benchmark."""
    program = (sys.executable, "-m", "gpulab.device_files", "gpuplane")
    words = [*program, "toolkit", action, "--host-root", str(root), *more]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    whole, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(whole * 1000, cpu * 1000)


def report(what: str, took: list[Took], peer: str = "") -> None:
    show(what, statistics.median(one.whole for one in took), "ms", goal=GOAL_MS, peer=peer)
    show("  fastest", min(one.whole for one in took), "ms")
    show("  of that the processors'", statistics.median(one.cpu for one in took), "ms")


def files_alone(base: Path, name: str, runtime: str, files: dict[str, str]) -> None:
    first, again = [], []
    for number in range(ROUNDS):
        root = base / f"{name} {number}"
        machine(root, files)
        words = ("configure", "--runtime", runtime, "--no-restart")
        first.append(timed(root, *words))
        again.append(timed(root, *words))
        shutil.rmtree(root)
    report(f"configure, {name}", first, PEER if name == "docker" else "")
    report("  again, nothing to do", again)


def manage(path: Path, place: RuntimePaths, count: Path) -> None:
    """A service manager: the runtime is started again as soon as it ends. Never returns."""

    async def serve() -> None:
        endpoint = RuntimeEndpoint(path, place.name, "27.5.1" if place.runtime is RuntimeName.DOCKER else "1.7.28")
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, told.set)
        endpoint.open()
        while True:
            await told.wait()
            told.clear()
            with count.open("a") as file:
                file.write("told\n")
            if place.runtime is not RuntimeName.DOCKER:
                return

    while True:
        child = os.fork()
        if child == 0:
            asyncio.run(serve())
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


@contextlib.contextmanager
def running(root: Path, place: RuntimePaths) -> Iterator[Path]:
    """Run the runtime of a machine; the file has a line for each signal."""
    count = root.with_name(f"{root.name} told")
    count.touch()
    manager = os.fork()
    if manager == 0:
        os.setpgid(0, 0)
        manage(root / place.socket, place, count)
    while not (root / place.socket).exists():
        time.sleep(0.01)
    try:
        yield count
    finally:
        os.killpg(manager, signal.SIGKILL)
        os.waitpid(manager, 0)


def with_a_runtime(base: Path, name: str, runtime: str, files: dict[str, str]) -> None:
    first, again = [], []
    for number in range(ROUNDS):
        root = base / f"{name} told {number}"
        machine(root, files)
        with running(root, PLAIN[RuntimeName(runtime)]) as count:
            first.append(timed(root, "configure", "--runtime", runtime))
            told = count.read_text().count("told")
            assert told == 1, f"{name} was told {told} times"
            again.append(timed(root, "configure", "--runtime", runtime))
            assert count.read_text().count("told") == told, f"{name} was told, and nothing had changed"
        shutil.rmtree(root)
    report(f"configure, {name}, told and well again", first)
    report("  again, nothing restarted", again)


def main() -> None:
    # As installed: with bytecode, which the first command writes where it may.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no runtime stays behind
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        machine(base / "first", {})
        timed(base / "first", "configure", "--runtime", "docker", "--no-restart")
        for name, (runtime, files) in MACHINES.items():
            files_alone(base, name, runtime, files)
        for name in TOLD:
            with_a_runtime(base, name, *MACHINES[name])


if __name__ == "__main__":
    main()

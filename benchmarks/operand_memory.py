"""Measures the resident memory of each operand of a node: an embedded cluster with 8 GPUs, everything ready.

    python benchmarks/operand_memory.py

Resident is all pages that a process uses; proportional counts pages that it shares with others in part, and is what
another operand costs a node. The pages of the simulated driver's state count as the exporter's and the device plugin's.
All is compiled before, as in the image: a Python that compiles while it imports keeps 4 MB of what it needed for that.
"""

from __future__ import annotations

import compileall
import importlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml

from figures import show
from gpuplane.cli.components import OPERANDS

GPUPLANE = [sys.executable, "-m", "gpuplane"]
PACKAGES = ("gpuplane", "kubekit", "google.protobuf", "h2", "hpack", "httptools", "hyperframe", "msgspec", "yaml")
GOAL_MB = 45.0  # megabytes of 1,000,000 bytes, which is 43 MiB
SCRAPES = 10


def compile_all() -> None:
    for package in PACKAGES:
        for folder in importlib.import_module(package).__path__:
            compileall.compile_dir(folder, quiet=1)


def operands(port: str) -> Iterator[tuple[str, Path]]:
    """(operand, its folder in /proc) of the containers of the cluster whose API server has that port."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            ours = f"KUBERNETES_SERVICE_PORT={port}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and b"run" in words:
            name = words[words.index(b"run") + 1].decode()
            if name in OPERANDS:
                yield name, folder


def held(folder: Path) -> tuple[float, float]:
    """Resident and proportional memory in MB."""
    words = (folder / "smaps_rollup").read_text().split()
    resident, proportional = (int(words[words.index(key) + 1]) * 1024 / 1e6 for key in ("Rss:", "Pss:"))
    return resident, proportional


def scrape(kubeconfig: str) -> None:
    """As Prometheus does: only then the exporter has asked the kubelet, and has made its largest text."""
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    question = ["kubectl", "get", "pods", "-A", "-l", "app=nvidia-dcgm-exporter", "-o", "json"]
    pods = json.loads(subprocess.run(question, env=environment, check=True, capture_output=True).stdout)
    address = pods["items"][0]["status"]["podIP"]
    for _ in range(SCRAPES):
        with urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=10) as answer:
            assert b"DCGM_FI_DEV_GPU_UTIL" in answer.read()


def main() -> None:
    compile_all()
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as directory:
        os.environ["GPUPLANE_HOME"] = directory
        up = [*GPUPLANE, "up", "--name", "bench", "--detach", "-q", "-o", "json", "--node", "big=h100-ubuntu22"]
        kubeconfig = json.loads(subprocess.run(up, check=True, capture_output=True).stdout)["kubeconfig"]
        try:
            install = [*GPUPLANE, "install", "--wait", "--timeout", "90s", "-q", "--kubeconfig", kubeconfig]
            subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
            scrape(kubeconfig)
            server = yaml.safe_load(Path(kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
            found = dict(sorted(operands(server.rpartition(":")[2])))
            for name, folder in found.items():
                resident, proportional = held(folder)
                show(f"{name}, resident", resident, "MB", goal=GOAL_MB)
                show("  proportional", proportional, "MB")
            missing = set(OPERANDS) - set(found)
            if missing:
                print(f"not running: {', '.join(sorted(missing))}", flush=True)
        finally:
            subprocess.run([*GPUPLANE, "down", "bench", "-q"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

"""The clusters that benchmarks of whole schedulers run on: the one of `gpuplane up`, and real Kubernetes.

Real is etcd, kube-apiserver, kube-controller-manager and kube-scheduler, built by `make test-kubernetes`; where they
are not, it is skipped. Both have the extender in their scheduler's configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from gpulab.clusters import down, up  # noqa: E402
from gpulab.kubernetes.binaries import SETS, directory  # noqa: E402
from gpulab.kubernetes.control_plane import ControlPlane  # noqa: E402
from gpulab.kubernetes.unavailable import Unavailable  # noqa: E402
from gpuplane import names  # noqa: E402
from gpuplane.scheduler.configuration import kube_configuration  # noqa: E402
from kubekit.kube import Client  # noqa: E402
from tests.support.share_burst import free_port  # noqa: E402
from tinykube.cluster import ClusterSpec  # noqa: E402

NAME = "benchmark"
GPUS = 8
EMBEDDED, REAL = "embedded", "real"

Measure = Callable[[str, Client, Path, int], Awaitable[bool]]
"""Kind of cluster, its client, the kubeconfig, the port on which its scheduler expects the extender -> all is well."""


def cluster_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the kinds of clusters."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="embedded|real", help="by default both")
    return parser


def run_on(kinds: list[str], measure: Measure) -> int:
    """Measure on a new cluster of each kind, by default all; return the exit status."""
    well = True
    for kind in kinds or CLUSTERS:
        try:
            well &= asyncio.run(_run(kind, measure))
        except Unavailable as why:
            print(f"\n{kind}: skipped: {why}")
    return 0 if well else 1


async def _run(kind: str, measure: Measure) -> bool:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as scratch:
        async with (
            CLUSTERS[kind](Path(scratch), port) as kubeconfig,
            Client.connect(kubeconfig, user_agent="benchmark") as client,
        ):
            return await measure(kind, client, kubeconfig, port)


def given_to_ours(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the pods to the pod scheduler."""
    for pod in pods:
        pod["spec"]["schedulerName"] = names.SCHEDULER_NAME
    return pods


def _scheduler_config(directory: Path, port: int) -> Path:
    """As printed for users, but for kube-scheduler's own limit of 50 calls a second: that would be what is measured."""
    config = kube_configuration(f"http://127.0.0.1:{port}")
    config["clientConnection"] = {"qps": 5000, "burst": 5000}
    file = directory / "scheduler.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@contextlib.asynccontextmanager
async def _embedded(scratch: Path, port: int) -> AsyncIterator[Path]:
    os.environ["GPUPLANE_HOME"] = str(scratch)
    handle = await up(ClusterSpec(name=NAME, scheduler_config=str(_scheduler_config(scratch, port))), timeout=60)
    try:
        yield handle.kubeconfig
    finally:
        await down(NAME)


@contextlib.asynccontextmanager
async def _real(scratch: Path, port: int) -> AsyncIterator[Path]:
    missing = [name for name in ("etcd", "kubernetes") if not directory(name).is_dir()]
    if missing:
        raise Unavailable(f"{', '.join(SETS[name].version_of for name in missing)} is not built: make test-kubernetes")
    plane = ControlPlane(scratch / "plane", scheduler_config=_scheduler_config(scratch, port))
    plane.start()
    try:
        yield plane.kubeconfig
    finally:
        plane.stop()


CLUSTERS = {EMBEDDED: _embedded, REAL: _real}

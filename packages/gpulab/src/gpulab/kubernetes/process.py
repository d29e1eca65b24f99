"""The control plane of a real cluster as one process of it: `gpuplane run cluster` where the specification names a
release of Kubernetes.

It starts etcd, API server, controller manager and scheduler again when they end. They survive this process if it is
killed, and the next one follows them by what `PlaneState` has on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from gpulab.kubernetes import pki
from gpulab.kubernetes.control_plane import API_SERVER, PARTS, ControlPlane
from gpulab.kubernetes.metrics import MetricsServer
from gpulab.kubernetes.mirror import ObjectMirror
from gpulab.kubernetes.services import SimulatedServices
from kubekit.kube import Client
from tinykube.apiserver.addresses import DEFAULT_RANGE
from tinykube.cluster import processes
from tinykube.cluster.directory import ClusterDirectory, ServerEndpoint, write
from tinykube.cluster.supervisor import keep_supervised, next_backoff
from tinykube.controlplane import service_range
from tinykube.proxy import ClientNodes

FOLDER: Final = "kubernetes"
"""Of a cluster's directory: etcd's objects, the ports, the processes."""
_POLL_S: Final = 0.05
_log = logging.getLogger("gpulab.kubernetes")


def plane_of(directory: ClusterDirectory) -> ControlPlane:
    """Return the control plane of a cluster that `gpuplane up --kubernetes` made."""
    spec, known = directory.spec(), directory.endpoint()
    return ControlPlane(
        directory.path / FOLDER,
        scheduler_config=Path(spec.scheduler_config) if spec.scheduler_config else None,
        pki=directory.pki,
        logs=directory.logs,
        # A restarted server must be where its clients look for it; only the first start may choose.
        port=known.port if known is not None else spec.port,
        grace_seconds=spec.grace_seconds,
        fake_nodes=not spec.containerd,
        tokens=directory.pki / pki.TOKENS,
        services=DEFAULT_RANGE if spec.containerd else service_range(directory),
    )


async def run_control_plane(directory: ClusterDirectory) -> None:
    """Serve until cancelled. Raises Terminal with the last line of the process that does not start."""
    plane = plane_of(directory)
    try:
        pki.write_tokens(directory.pki, directory.tokens())
        plane.move_ports()
        plane.write_files()
        for part in PARTS:
            plane.start_part(part)
            if part == API_SERVER:
                while not await asyncio.to_thread(plane.answers):  # noqa: ASYNC110 - another process answers
                    await asyncio.sleep(_POLL_S)
        async with _served(directory, plane) as services:
            endpoint = ServerEndpoint(plane.url, plane.state.ports[API_SERVER])
            write(directory.endpoint_file, msgspec.json.encode(endpoint))
            _log.info("cluster %s serves on %s", directory.name, plane.url)
            async with asyncio.TaskGroup() as group:
                group.create_task(keep_supervised(directory), name="supervision")
                for part in PARTS:
                    group.create_task(_keep(plane, part), name=part)
                if services is not None:
                    group.create_task(services.run(), name="services")
    finally:
        plane.stop(keep=True)


@contextlib.asynccontextmanager
async def _served(directory: ClusterDirectory, plane: ControlPlane) -> AsyncIterator[SimulatedServices | None]:
    """Serve measured use, and the Services of simulated machines: real ones have kube-proxy, hence None."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.connect(plane.kubeconfig))
        mirror = ObjectMirror(client)
        await mirror.start()
        stack.push_async_callback(mirror.stop)
        metrics = MetricsServer(client, mirror.registry, plane.pki)
        stack.push_async_callback(metrics.close)
        await metrics.open()
        if plane.fake_nodes:
            port, nodes = plane.state.ports[API_SERVER], ClientNodes(directory.nodes)
            services = SimulatedServices(client, mirror.registry, plane.services, port, nodes.find)
            stack.push_async_callback(services.close)
            await services.open()
            yield services
        else:
            yield None


async def _keep(plane: ControlPlane, part: str) -> None:
    """Start a process again whenever it has ended."""
    backoff = 0.0
    while True:
        running = plane.state.running[part]
        await processes.ended(running)
        ran_s = time.time() - running.since
        backoff = next_backoff(backoff, ran_s)
        _log.warning("%s (pid %d) ended after %.1f s; starting it again", part, running.pid, ran_s)
        await asyncio.sleep(backoff)
        plane.start_part(part)

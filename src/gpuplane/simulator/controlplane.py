"""`gpuplane run cluster`: the embedded cluster's API server, controllers and scheduler, in one process.

Everything else of a cluster (kubelets, light nodes, operands) speaks to it over HTTPS; the controllers and the
scheduler use the registry directly. All it needs to know stands in the cluster's directory, so that it can be killed
and started again at any moment; with `persist` it then loses nothing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from argparse import Namespace
from pathlib import Path
from typing import Final

import msgspec

from gpuplane.errors import Usage
from gpuplane.simulator.apiserver import Registry, certificates
from gpuplane.simulator.apiserver.extensions import Extensions, furnish, install
from gpuplane.simulator.apiserver.http import HttpServer, bind
from gpuplane.simulator.apiserver.identity import ADMIN, node_user
from gpuplane.simulator.apiserver.journal import SQLiteJournal
from gpuplane.simulator.apiserver.rest import Rest
from gpuplane.simulator.cluster.directory import ClusterDirectory, Endpoint, Tokens, write
from gpuplane.simulator.cluster.spec import ClusterSpec
from gpuplane.simulator.cluster.supervisor import keep_supervised
from gpuplane.simulator.controllers import Controllers
from gpuplane.simulator.scheduler import Scheduler, SchedulerConfig, load

HOST: Final = "127.0.0.1"
_log = logging.getLogger("gpuplane.cluster")


async def run(options: Namespace) -> None:
    """Serve until cancelled. `options.config` is the cluster's `cluster.json`.

    Raises Usage without it, Terminal when the port is taken or the data cannot be read.
    """
    if options.config is None:
        raise Usage("which cluster?", where="gpuplane run cluster", cure="--config DIRECTORY/cluster.json")
    directory = ClusterDirectory.of_config(options.config)
    plane = ControlPlane(directory, directory.spec())
    await plane.run()


class ControlPlane:
    """One control plane on one directory."""

    def __init__(self, directory: ClusterDirectory, spec: ClusterSpec) -> None:
        self._directory = directory
        self._spec = spec
        self._tokens = directory.ensure_tokens(spec)
        self.registry = Registry()
        self._journal: SQLiteJournal | None = None

    async def run(self) -> None:
        directory, spec = self._directory, self._spec
        known = directory.endpoint()
        # A restarted server must be where its clients look for it; only the first start may choose.
        socket = bind(HOST, known.port if known is not None else spec.port)
        if spec.persist:
            self._journal = SQLiteJournal(directory.data / "objects.sqlite")
            self.registry.restore(self._journal, list(self._journal.load()), self._journal.version())
        certs = certificates.ensure(directory.pki)
        extensions = install(self.registry, signing_key=bytes.fromhex(self._tokens.signing_key))
        admit(extensions, self._tokens)
        await furnish(self.registry)
        config = load(Path(spec.scheduler_config)) if spec.scheduler_config else SchedulerConfig()
        controllers = Controllers(self.registry, ca=certs.authority.read_text())
        scheduler = Scheduler(self.registry, config)
        server = HttpServer(Rest(self.registry), socket, certs)
        await server.start()
        endpoint = Endpoint(f"https://{HOST}:{server.port}", server.port)
        write(directory.endpoint_file, msgspec.json.encode(endpoint))
        _log.info("cluster %s serves on %s", spec.name, endpoint.server)
        # What was loaded and imported stays; the garbage collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 50, 100)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(controllers.run(), name="controllers")
                group.create_task(scheduler.run(), name="scheduler")
                group.create_task(keep_supervised(directory), name="supervision")
        finally:
            await server.stop()
            extensions.close()
            if self._journal is not None:
                self._journal.close()


def admit(extensions: Extensions, tokens: Tokens) -> None:
    """Lets the cluster's own people and machines in."""
    identity = extensions.identity
    identity.add(tokens.admin, ADMIN)
    for name, token in tokens.nodes.items():
        identity.add(token, node_user(name))
    # One process is kubelet and operands of thousands of nodes, and acts as each of them.
    identity.add(tokens.light_nodes, ADMIN)

"""The control plane: the embedded cluster's API server, controllers and scheduler, in one process.

Everything else of a cluster (kubelets, light nodes, operands) speaks to it over HTTPS; the controllers and the
scheduler use the registry directly. All it needs to know stands in the cluster's directory, so that it can be killed
and started again at any moment; with `persist` it then loses nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import Final

import msgspec

from tinykube.aggregation import Aggregator, FrontProxy
from tinykube.apiserver.addresses import ServiceRange
from tinykube.apiserver.extensions import Extensions
from tinykube.apiserver.hooks import User
from tinykube.apiserver.identity import ADMIN, node_user
from tinykube.apiserver.server import ApiServer
from tinykube.cluster.directory import ClusterDirectory, ServerEndpoint, Tokens, write
from tinykube.cluster.spec import ClusterSpec
from tinykube.cluster.supervisor import keep_supervised
from tinykube.controllers import Controllers
from tinykube.distribution import Distribution
from tinykube.dns import ClusterDNS
from tinykube.metrics import MetricsService
from tinykube.proxy import ClientNodes, ServiceProxy
from tinykube.scheduler import Scheduler, SchedulerConfig, load, parse

HOST: Final = "127.0.0.1"
_log = logging.getLogger("tinykube.cluster")


class EmbeddedControlPlane:
    """One control plane on one directory."""

    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory
        self._spec = directory.spec()
        self._tokens = directory.tokens()

    async def run(self) -> None:
        """Serve until cancelled. Raises Terminal when the port is taken or the data cannot be read."""
        directory, spec = self._directory, self._spec
        config = _scheduler_config(spec, directory.distribution)
        known = directory.endpoint()
        server = await ApiServer.start(
            directory.pki,
            host=HOST,
            # A restarted server must be where its clients look for it; only the first start may choose.
            port=known.port if known is not None else spec.port,
            data=directory.data if spec.persist else None,
            service_range=service_range(directory),
        )
        # NB: nothing is awaited until all accounts are added, so that no early request is refused.
        admit(server.extensions, self._tokens, NodeTokens(directory))
        metrics = MetricsService(server.registry, server.extensions.streams.resource_metrics)
        extensions, proxy = server.extensions, FrontProxy(directory.pki)
        aggregator = Aggregator(server.registry, proxy, extensions.page, extensions.resolve)
        controllers = Controllers(
            server.registry, ca=server.authority.read_text(), node_grace_s=self._spec.grace_seconds
        )
        scheduler = Scheduler(server.registry, config, directory.distribution.scheduler_mounts)
        clients = ClientNodes(directory.nodes)
        dns = ClusterDNS(server.registry, service_range(directory).dns_server)
        await metrics.furnish()
        await proxy.publish(server.registry, server.authority.read_bytes())
        await dns.open()  # before the first kubelet asks for Services, and learns how names are found
        write(directory.endpoint_file, msgspec.json.encode(ServerEndpoint(server.url, server.port)))
        _log.info("cluster %s serves on %s", spec.name, server.url)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(controllers.run(), name="controllers")
                group.create_task(scheduler.run(), name="scheduler")
                group.create_task(ServiceProxy(server.registry, clients.find).run(), name="service proxy")
                group.create_task(dns.run(), name="dns")
                group.create_task(aggregator.run(), name="aggregation")
                group.create_task(keep_supervised(directory), name="supervision")
        finally:
            await dns.close()
            await server.stop()


def service_range(directory: ClusterDirectory) -> ServiceRange:
    """Return addresses of this machine's loopback network for Services, other ones than other clusters have.

    An ordinary user may listen on them. Pods have the lower half of that network.
    """
    digest = hashlib.sha256(str(directory.path).encode()).digest()
    network = f"127.{128 + digest[0] % 128}.{digest[1] & 0xF0}.0/20"
    return ServiceRange(network, first_node_port=30000 + int.from_bytes(digest[2:4]) % 2000)


def _scheduler_config(spec: ClusterSpec, distribution: Distribution) -> SchedulerConfig:
    if spec.scheduler_config:
        return load(Path(spec.scheduler_config))
    return parse(distribution.scheduler_config()) if distribution.scheduler_config else SchedulerConfig()


class NodeTokens:
    """The tokens of nodes, which join and leave while the API server runs."""

    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory
        self._users: dict[str, User] = {}
        self._seen = (0, 0)

    def find(self, token: str) -> User | None:
        """Return the node that a token stands for at this moment; None for an unknown token."""
        file = self._directory.tokens_file.stat()
        if (file.st_ino, file.st_mtime_ns) != self._seen:
            self._users = {known: node_user(name) for name, known in self._directory.tokens().nodes.items()}
            self._seen = (file.st_ino, file.st_mtime_ns)
        return self._users.get(token)


def admit(extensions: Extensions, tokens: Tokens, nodes: NodeTokens) -> None:
    """Lets the cluster's own people and machines in, and the API server into the kubelets."""
    extensions.streams.kubelet_secret = tokens.kubelet_secret
    identity = extensions.identity
    identity.add(tokens.admin, ADMIN)
    for token in tokens.components.values():
        identity.add(token, ADMIN)
    identity.find = nodes.find
    # One process is kubelet and operands of thousands of nodes, and acts as each of them.
    identity.add(tokens.light_nodes, ADMIN)

"""Removes the results of discovery's master: NodeFeature objects, and on the Nodes the results of rules.

The master itself is gone by then, so the operator settles its books. Labels of features stay, they are facts of the
machine: another node feature discovery takes over without a moment in which no node has a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from gpuplane import names
from gpuplane.api.nodefeature import NodeFeature
from gpuplane.api.nodefeature_node import WantedFeatures, patches
from kubekit.api.core import Deployment, Node
from kubekit.kube import Client, Conflict, NotFound

log = logging.getLogger("gpuplane.operator")
WORKER: Final = "node-feature-discovery"
MASTER: Final = "node-feature-discovery-master"
COMPONENTS: Final = (WORKER, MASTER)
_MANAGER: Final = names.FIELD_MANAGER_PREFIX + "operator"
_OURS: Final = "app.kubernetes.io/part-of=gpuplane"


class DiscoveryRemains:
    """Takes away what is left; asks the server no more once it is known that there is nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopped = False
        self._published = True

    def started(self) -> None:
        """Discovery runs: there may be something again."""
        self._stopped, self._published = False, True

    async def stop(self) -> None:
        """Delete the master's Deployment."""
        if self._stopped:
            return
        try:
            await self._client.delete(Deployment, MASTER, names.OPERATOR_NAMESPACE, propagation="Background")
            log.info("removed object=Deployment/%s", MASTER)
        except NotFound:
            log.debug("already deleted object=Deployment/%s", MASTER)
        self._stopped = True

    async def clear(self, nodes: Iterable[Node]) -> None:
        """Take back what was published and what rules made. Only when no pod of discovery runs any more."""
        if self._published:
            await self._clear_published()
            self._published = False
        for node in nodes:
            change = patches(node, WantedFeatures())
            try:
                # The status first: the books on the Node say what is ours until it is gone.
                if change.status:
                    await self._patch(node, change.status, "status")
                    continue  # the Node without it comes by the watch
                if change.node:
                    await self._patch(node, change.node, None)
            except (Conflict, NotFound) as error:
                log.debug("results of rules not removed node=%s: %s", node.metadata.name, error)

    def left(self, nodes: Iterable[Node]) -> bool:
        """Return whether a Node still has something that rules made."""
        return any(change.node or change.status for change in (patches(node, WantedFeatures()) for node in nodes))

    async def _patch(self, node: Node, body: dict[str, object], subresource: str | None) -> None:
        await self._client.patch(Node, node.metadata.name, body, subresource=subresource, manager=_MANAGER)
        log.info("results of rules removed node=%s", node.metadata.name)

    async def _clear_published(self) -> None:
        try:
            found = await self._client.list(NodeFeature, names.OPERATOR_NAMESPACE, labels=_OURS)
        except NotFound:
            return  # the kind is not served
        for one in found:
            try:
                await self._client.delete(NodeFeature, one.metadata.name, names.OPERATOR_NAMESPACE)
            except NotFound:
                log.debug("already deleted object=NodeFeature/%s", one.metadata.name)

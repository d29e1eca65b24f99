"""Writes to claims and their nodes; a claim whose own write the watch has not shown yet is `behind`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.nodeclaim import NodeClaim
from kubekit.api.core import Node
from kubekit.api.meta import Condition, to_dict
from kubekit.kube import Client, Conflict, NotFound

log = logging.getLogger("gpuplane.autoscaler")
MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"


class LifecycleWriter:
    """The writer of claims that are on their way. `deleted` counts claims by (reason, pool), for metrics."""

    def __init__(self, client: Client) -> None:
        self.deleted: dict[tuple[str, str], int] = {}
        self._client = client
        self._written: dict[str, str] = {}  # uid of a claim -> the version that our last write made

    def behind(self, claim: NodeClaim) -> bool:
        """Return whether the watch still shows a claim from before our last write."""
        written = self._written.get(claim.metadata.uid, "")
        seen = claim.metadata.resource_version
        if not written or not (written.isdigit() and seen.isdigit()):
            return False
        return int(seen) < int(written)

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a claim that is gone."""
        self._written.pop(uid, None)

    async def set_status(
        self, claim: NodeClaim, fields: Mapping[str, Any], conditions: Sequence[Condition]
    ) -> NodeClaim:
        """Write the conditions and some fields of the status. Raises Conflict if the claim changed meanwhile."""
        status = {**fields, "conditions": to_dict(conditions)}
        return await self._patch(claim, {"status": status}, "status")

    async def set_metadata(
        self, claim: NodeClaim, labels: Mapping[str, str], annotations: Mapping[str, str]
    ) -> NodeClaim:
        """Add labels and annotations to a claim. Raises Conflict if the claim changed meanwhile."""
        return await self._patch(claim, {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}}, None)

    async def _patch(self, claim: NodeClaim, patch: Mapping[str, Any], subresource: str | None) -> NodeClaim:
        meta = {**patch.get("metadata", {}), "resourceVersion": claim.metadata.resource_version}
        body = {**patch, "metadata": {**meta, "uid": claim.metadata.uid}}
        name = claim.metadata.name
        written = await self._client.patch(NodeClaim, name, body, subresource=subresource, manager=MANAGER)
        self._written[claim.metadata.uid] = written.metadata.resource_version
        return written

    async def patch_node(self, node: Node, patch: Mapping[str, Any]) -> None:
        """Patch a node, unless it changed meanwhile; raises Conflict then."""
        meta = {**patch.get("metadata", {}), "resourceVersion": node.metadata.resource_version}
        await self._client.patch(Node, node.metadata.name, {**patch, "metadata": meta}, manager=MANAGER)

    async def delete(self, claim: NodeClaim, reason: str) -> None:
        """Delete a claim; its end begins. Another claim of the same name is left alone."""
        try:
            await self._client.delete(NodeClaim, claim.metadata.name, uid=claim.metadata.uid)
        except (NotFound, Conflict) as error:
            log.debug("claim is gone already claim=%s: %s", claim.metadata.name, error)
            return
        key = (reason, claim.metadata.labels.get(karpenter.POOL_LABEL, ""))
        self.deleted[key] = self.deleted.get(key, 0) + 1
        log.info("deleted claim=%s reason=%s", claim.metadata.name, reason)

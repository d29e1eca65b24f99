"""This node's NodeFeature object: what the cluster's rules ask of it, and nothing while there are no rules.

The object is owned by the Node, so it goes with it. In addition to the features it lists what the rules asked for when
it was made; the master waits for an object that covers the current rules.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuplane import names
from gpuplane.api.nodefeature import NODE_NAME_LABEL, NodeFeature, NodeFeatureRule, NodeFeatureSpec
from gpuplane.discovery.features import Features, narrowed, needs, to_api
from kubekit.api.core import Node
from kubekit.api.meta import to_dict
from kubekit.kube import Client, NotFound

log = logging.getLogger("gpuplane.discovery")

MANAGER: Final = names.FIELD_MANAGER_PREFIX + "discovery"
PART_OF: Final = {"app.kubernetes.io/part-of": "gpuplane"}


def wanted_object(node: Node, features: Features, rules: Iterable[NodeFeatureRule]) -> dict[str, Any] | None:
    """The object to apply, None when there shall be none. Pure."""
    objects = list(rules)
    if not objects:
        return None
    asked = needs(rule for one in objects for rule in one.spec.rules)
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    return {
        "apiVersion": NodeFeature.RESOURCE.api_version,
        "kind": NodeFeature.RESOURCE.kind,
        "metadata": {
            "name": node.metadata.name,
            "labels": {NODE_NAME_LABEL: node.metadata.name, **PART_OF},
            "annotations": {names.FEATURES_FOR_ANNOTATION: ",".join(sorted(asked))},
            "ownerReferences": [owner],
        },
        "spec": to_dict(NodeFeatureSpec(features=to_api(narrowed(features, asked)))),
    }


def asked_for(annotations: Mapping[str, str]) -> frozenset[str] | None:
    """Return the features that an object of gpuplane covers; None for an object of another writer."""
    text = annotations.get(names.FEATURES_FOR_ANNOTATION)
    return None if text is None else frozenset(filter(None, text.split(",")))


class Publisher:
    """Keeps the object as it shall be; one write for a change, none for none."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._none = False  # whether it is known that there is none

    async def keep(self, name: str, wanted: dict[str, Any] | None) -> None:
        """Apply `wanted` as the NodeFeature of node `name`, or take away what is there."""
        if wanted is None and self._none:
            return
        try:
            there = await self._client.get(NodeFeature, name, self._namespace)
        except NotFound:
            there = None
        if wanted is None:
            if there is not None and asked_for(there.metadata.annotations) is not None:
                await self._delete(name)
            self._none = True
            return
        self._none = False
        if there is None or _differs(there, wanted):
            await self._client.apply(wanted, MANAGER, namespace=self._namespace, resource=NodeFeature.RESOURCE)
            log.info("features published node=%s", name)

    async def _delete(self, name: str) -> None:
        try:
            await self._client.delete(NodeFeature, name, self._namespace)
            log.info("features removed, no rules left node=%s", name)
        except NotFound:
            log.debug("NodeFeature already deleted node=%s", name)


def _differs(there: NodeFeature, wanted: Mapping[str, Any]) -> bool:
    meta = wanted["metadata"]
    asked = names.FEATURES_FOR_ANNOTATION
    return (
        to_dict(there.spec) != wanted["spec"]
        or any(there.metadata.labels.get(name) != value for name, value in meta["labels"].items())
        or there.metadata.annotations.get(asked) != meta["annotations"][asked]
        or [owner.uid for owner in there.metadata.owner_references] != [o["uid"] for o in meta["ownerReferences"]]
    )

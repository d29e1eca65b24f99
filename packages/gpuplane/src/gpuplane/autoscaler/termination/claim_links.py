"""The links between claims and their nodes. They name each other by the cloud's id of the instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gpuplane.api.nodeclaim import NodeClaim
from kubekit.api.core import Node, Pod
from kubekit.kube import SharedInformers

BY_NODE: Final = "node"  # index of pods
BY_PROVIDER_ID: Final = "provider-id"  # index of claims and of nodes


def index_objects(informers: SharedInformers) -> None:
    """Add the indexes that `node_of_claim` and `claims_of_node` read, and pods by their node."""
    informers.of(NodeClaim).add_index(BY_PROVIDER_ID, provider_ids)
    informers.of(Node).add_index(BY_PROVIDER_ID, provider_ids)
    informers.of(Pod).add_index(BY_NODE, lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ())


def provider_ids(obj: NodeClaim | Node) -> Iterable[str]:
    """Return the cloud's id that an object names; none for an object without it."""
    found = obj.status.provider_id if isinstance(obj, NodeClaim) else obj.spec.provider_id
    return (found,) if found else ()


def node_of_claim(nodes: Callable[[str, str], list[Node]], claim: NodeClaim) -> Node | None:
    """Return the node of a claim; `nodes` is the `by_index` of nodes."""
    if not claim.status.provider_id:
        return None
    return next(iter(nodes(BY_PROVIDER_ID, claim.status.provider_id)), None)


def claims_of_node(claims: Callable[[str, str], list[NodeClaim]], node: Node) -> list[NodeClaim]:
    """Return the claims of a node, which is one at most; `claims` is the `by_index` of claims."""
    return claims(BY_PROVIDER_ID, node.spec.provider_id) if node.spec.provider_id else []

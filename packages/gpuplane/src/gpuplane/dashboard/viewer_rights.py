"""Rights of a viewer of the cluster's dashboard, as the API server decides on them. Pure data.

The dashboard reads the cluster with an account of its own. A page may show a viewer no more than the API server would
show to the viewer's own token: `hiding` leaves out the rest.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.karpenter import NodePool, Provisioner
from gpuplane.api.nodeclaim import NodeClaim
from kubekit.kube.reviews import ResourceAccess

LIST_PODS: Final = ResourceAccess("list", "pods")
OF_CLUSTER: Final[dict[str, tuple[ResourceAccess, ...]]] = {
    "pods": (LIST_PODS,),
    "nodes": (
        ResourceAccess("list", "nodes"),
        ResourceAccess("list", GPUNode.RESOURCE.plural, GPUNode.RESOURCE.group),
    ),
    "policies": (ResourceAccess("list", ClusterPolicy.RESOURCE.plural, ClusterPolicy.RESOURCE.group),),
    "pools": tuple(
        ResourceAccess("list", kind.RESOURCE.plural, kind.RESOURCE.group) for kind in (NodePool, Provisioner, NodeClaim)
    ),
    "events": (ResourceAccess("list", "events"),),
}
"""Field of ViewerRights -> what the API server has to allow in the whole cluster."""
OF_CLUSTER_AT_ONCE: Final = tuple(access for every in OF_CLUSTER.values() for access in every)


class ViewerRights(msgspec.Struct, frozen=True):
    """The parts of the cluster that a viewer may list: each field a kind in the whole cluster, and `namespaces` those
    whose pods the viewer may list, empty where `pods` is True.
    """

    pods: bool = False
    nodes: bool = False
    policies: bool = False
    pools: bool = False
    events: bool = False
    namespaces: frozenset[str] = frozenset()

    def sees(self, namespace: str) -> bool:
        """Return whether the viewer may list the pods of a namespace."""
        return self.pods or namespace in self.namespaces

    @property
    def sees_all(self) -> bool:
        """Return whether nothing of the cluster is hidden from the viewer."""
        return self.pods and self.nodes and self.policies and self.pools and self.events


ALL: Final = ViewerRights(pods=True, nodes=True, policies=True, pools=True, events=True)

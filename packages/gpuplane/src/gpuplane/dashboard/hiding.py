"""Leaves out of an overview what a viewer of the cluster's dashboard may not list. Pure.

The names are taken out of the facts, before a page is made of them: a page that some module will add later cannot
contain a name that is not there. What GPUs are held, and how busy they are, stays: other tenants' pods are counted.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane.api.gpunode import GPU
from gpuplane.cli.holders import PodHolder
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.viewer_rights import ViewerRights

HIDDEN: Final = ""  # the name of a pod that the viewer may not list


_NO_NAMES: Final = ViewerRights(nodes=True)
_NOTHING: Final = ViewerRights()


class NamelessNodes:
    """The nodes of one overview without the name of any pod: the same objects for all viewers without a pod there."""

    def __init__(self, seen: Overview) -> None:
        self.spaces = [frozenset(space_of(one.pod) for one in node.held_by) for node in seen.nodes]
        self.with_names = [_node(node, at, _NO_NAMES) for at, node in enumerate(seen.nodes, 1)]
        self.with_numbers = [_node(node, at, _NOTHING) for at, node in enumerate(seen.nodes, 1)]


def without_hidden(seen: Overview, rights: ViewerRights, nameless: NamelessNodes | None = None) -> Overview:
    """Return the overview as the viewer may have it. Nodes keep their order.

    Args:
        nameless: those of the same overview, for several viewers.
    """
    if rights.pods and rights.nodes:
        nodes = seen.nodes
    elif rights.pods:
        nodes = tuple(_node(node, at, rights) for at, node in enumerate(seen.nodes, 1))
    else:
        nameless = nameless or NamelessNodes(seen)
        common = nameless.with_names if rights.nodes else nameless.with_numbers
        nodes = tuple(
            _node(node, at, rights) if spaces & rights.namespaces else common[at - 1]
            for at, (node, spaces) in enumerate(zip(seen.nodes, nameless.spaces, strict=True), 1)
        )
    return msgspec.structs.replace(
        seen,
        nodes=nodes,
        waiting_pods=tuple(one for one in seen.waiting_pods if rights.sees(space_of(one.pod))),
        bypass=seen.bypass if rights.pods and rights.events else None,
        paused=seen.paused if rights.policies else None,
        refused=seen.refused if rights.policies else None,
        unattended=seen.unattended and rights.policies,
        pools=seen.pools if rights.pools else (),
        queues=seen.queues if rights.nodes else (),
    )


def use_without_hidden(use: MeasuredUse, rights: ViewerRights) -> MeasuredUse:
    """Return what is measured, without the pods that the viewer may not list."""
    if rights.pods:
        return use
    gpus = {
        uuid: msgspec.structs.replace(
            one, pods={pod: own for pod, own in one.pods.items() if rights.sees(space_of(pod))}
        )
        for uuid, one in use.gpus.items()
    }
    # Their source is a Service of another namespace, and the reason why they are missing can name it.
    why = "nothing measures them now" if use.why else ""
    return msgspec.structs.replace(use, gpus=gpus, why=why, source="", silent=())


def spaces_of(seen: Overview) -> set[str]:
    """Return the namespaces of all pods that hold or wait for GPUs."""
    found = {space_of(holder.pod) for node in seen.nodes for holder in node.held_by}
    return found | {space_of(one.pod) for one in seen.waiting_pods}


def space_of(pod: str) -> str:
    """Return the namespace of namespace/name."""
    return pod.partition("/")[0]


def _node(node: NodeView, number: int, rights: ViewerRights) -> NodeView:
    holders = node.held_by if rights.pods else tuple(_holder(one, rights) for one in node.held_by)
    if rights.nodes:
        return node if rights.pods else msgspec.structs.replace(node, held_by=holders)
    # A viewer learns the node of a pod from the pod itself. The state of a node is in the Node and its GPUNode.
    own = any(one.pod for one in holders)
    return NodeView(
        name=node.name if own else f"node {number}",
        stage="ready",
        ready=True,
        since="",
        waits_for="",
        os="",
        kernel="",
        runtime="",
        driver="",
        stages={},
        took={},
        gpus=tuple(_gpu(gpu) for gpu in node.gpus),
        sick={},
        advertised=node.advertised,
        held_by=holders,
        units=node.units,
    )


def _gpu(gpu: GPU) -> GPU:
    """Return the number, the model and the memory of a GPU; its use is found by the UUID."""
    return GPU(index=gpu.index, uuid=gpu.uuid, model=gpu.model, memory_mib=gpu.memory_mib)


def _holder(one: PodHolder, rights: ViewerRights) -> PodHolder:
    return one if rights.sees(space_of(one.pod)) else msgspec.structs.replace(one, pod=HIDDEN, shown=False)

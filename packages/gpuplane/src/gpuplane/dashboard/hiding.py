"""Leaves out of an overview what a viewer of the cluster's dashboard may not list. Pure.

The names are taken out of the facts, before a page is made of them: a page that some module will add later cannot
contain a name that is not there. What GPUs are held, and how busy they are, stays: other tenants' pods are counted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from gpuplane.api.gpunode import GPU
from gpuplane.cli.holders import PodHolder
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.viewer_rights import ViewerRights

HIDDEN: Final = ""  # the name of a pod that the viewer may not list


class NamelessNode(NamedTuple):
    """One node without the name of any pod: as viewers of nodes have it, and as all others do."""

    node: NodeView
    number: int
    with_name: NodeView
    with_number: NodeView


class NamelessNodes:
    """The nodes of one overview without the name of any pod: the same objects for all viewers without a pod there.

    Args:
        before: those of an earlier overview; a node that is the same object in both is not made again.
    """

    def __init__(self, seen: Overview, before: NamelessNodes | None = None) -> None:
        # An entry has its node, so that no other one gets its id meanwhile.
        known = {id(one.node): one for one in before.nodes} if before is not None else {}
        self.nodes: list[NamelessNode] = [
            _nameless(node, number, known.get(id(node))) for number, node in enumerate(seen.nodes, 1)
        ]
        self.with_names = [one.with_name for one in self.nodes]
        self.with_numbers = [one.with_number for one in self.nodes]
        self.of_space: dict[str, list[int]] = {}
        """Namespace -> places of the nodes with pods of it."""
        for at, node in enumerate(seen.nodes):
            for space in {space_of(one.pod) for one in node.held_by}:
                self.of_space.setdefault(space, []).append(at)


def _nameless(node: NodeView, number: int, before: NamelessNode | None) -> NamelessNode:
    if before is not None and before.number == number:
        return before
    holders = tuple(msgspec.structs.replace(one, pod=HIDDEN, shown=False) for one in node.held_by)
    with_name = msgspec.structs.replace(node, held_by=holders)
    return NamelessNode(node, number, with_name, _stateless(node, number, holders))


class OwnNodes:
    """The nodes with pods that viewers with certain rights may list, as these viewers may have the nodes.

    It remembers them: a node that is the same object in the next overview is not made again.
    """

    def __init__(self, rights: ViewerRights) -> None:
        self._rights = rights
        self._known: dict[int, tuple[NamelessNode, NodeView]] = {}

    def of(self, nameless: NamelessNodes) -> dict[int, NodeView]:
        """Return the nodes by their places in the overview."""
        rights = self._rights
        places = (
            range(len(nameless.nodes))
            if rights.pods
            else sorted({at for space in rights.namespaces for at in nameless.of_space.get(space, ())})
        )
        before, self._known = self._known, {}
        found = {}
        for at in places:
            one = nameless.nodes[at]
            known = before.get(id(one))
            if known is None:
                holders = tuple(
                    holder if rights.sees(space_of(holder.pod)) else hidden
                    for holder, hidden in zip(one.node.held_by, one.with_name.held_by, strict=True)
                )
                known = one, _own(one, holders, rights)
            self._known[id(one)] = known
            found[at] = known[1]
        return found


def without_hidden(
    seen: Overview, rights: ViewerRights, nameless: NamelessNodes | None = None, own: OwnNodes | None = None
) -> Overview:
    """Return the overview as the viewer may have it. Nodes keep their order.

    Args:
        nameless: those of the same overview, for several viewers.
        own: those of viewers with these rights, for several overviews.
    """
    if rights.pods and rights.nodes:
        nodes = seen.nodes
    else:
        nameless = nameless or NamelessNodes(seen)
        visible = list(nameless.with_names if rights.nodes else nameless.with_numbers)
        for at, node in (own or OwnNodes(rights)).of(nameless).items():
            visible[at] = node
        nodes = tuple(visible)
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


def _own(one: NamelessNode, holders: tuple[PodHolder, ...], rights: ViewerRights) -> NodeView:
    if rights.nodes:
        return msgspec.structs.replace(one.node, held_by=holders)
    # A viewer learns the node of a pod from the pod itself.
    named = any(holder.pod for holder in holders)
    name = one.node.name if named else one.with_number.name
    return msgspec.structs.replace(one.with_number, name=name, held_by=holders)


def _stateless(node: NodeView, number: int, holders: tuple[PodHolder, ...]) -> NodeView:
    """Return a node without its state, which is in the Node and its GPUNode, and with a number for its name."""
    return NodeView(
        name=f"node {number}",
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

"""The record of all holders of GPUs, in all dialects, from pods' assignments and from reservations in flight.

Invariants:

- Never stored and never listed: each call changes what one node has, at a cost that does not grow with the cluster.
  An empty ledger that gets the same pods and nodes, in whatever order, equals one after a life of changes.
- The pods' annotations are the truth and always counted, also if they exceed a GPU (`violations` reports that);
  reservations are ours and are refused when they do not fit.
- A pod is held once, under the key its owner chooses; use its UID, since names come back. A pod's own word
  (`hold`) ends its reservation.
- A pod on a node, or on a GPU, that is still unknown is stored, and counts as soon as the node is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gpuplane.sharing.assignment import Assignment
from gpuplane.sharing.node import LedgerGPU, NodeState, usable
from gpuplane.sharing.request import WHOLE
from kubekit.errors import Retryable

_JOURNAL: Final = 65_536


class Holding(msgspec.Struct, frozen=True):
    """The part of one GPU that one pod holds. `reserved`: not bound yet."""

    pod: str
    core: int
    memory_mib: int
    reserved: bool


class _Hold(msgspec.Struct):
    node: str
    assignment: Assignment
    reserved: bool
    cpu_milli: int
    host_memory_mib: int
    counted: tuple[tuple[int, int, int], ...] = ()  # (position of the GPU, core, MiB), as it was added


class _Node(msgspec.Struct):
    known: bool = False
    gpus: tuple[LedgerGPU, ...] = ()
    usable: tuple[int, ...] = ()
    by_count: bool = False
    core: list[int] = []  # held of each GPU
    memory: list[int] = []
    cpu_milli: int | None = None  # capacity for pods, None: not told
    host_memory_mib: int | None = None
    cpu_held: int = 0
    host_memory_held: int = 0
    pods: dict[str, None] = {}
    state: NodeState | None = None  # made when asked for, dropped at a change


class Ledger:
    """Nodes, their GPUs, and the pods and reservations that hold them."""

    def __init__(self, scale: int = WHOLE) -> None:
        self.scale = scale  # what the core of one GPU counts
        self._nodes: dict[str, _Node] = {}
        self._pods: dict[str, _Hold] = {}
        self._journal: list[str] = []
        self._dropped = 0  # entries of the journal that are gone

    # -- nodes -------------------------------------------------------------------------------------------------------

    def set_node(
        self,
        name: str,
        gpus: Iterable[LedgerGPU],
        *,
        cpu_milli: int | None = None,
        host_memory_mib: int | None = None,
        by_count: bool = False,
    ) -> None:
        """Set the GPUs of the node; if they changed, the holdings of its pods are counted again."""
        node = self._nodes.setdefault(name, _Node())
        listed = tuple(gpus)
        before = (node.known, node.gpus, node.cpu_milli, node.host_memory_mib, node.by_count)
        if before == (True, listed, cpu_milli, host_memory_mib, by_count):
            return
        node.known, node.gpus, node.cpu_milli, node.host_memory_mib = True, listed, cpu_milli, host_memory_mib
        node.by_count = by_count
        node.usable = usable(listed)
        node.core, node.memory = [0] * len(listed), [0] * len(listed)
        for pod in node.pods:
            self._count(node, self._pods[pod])
        self._changed(name, node)

    def drop_node(self, name: str) -> None:
        """Remove the node. Its pods stay until they are released, since the node may come back."""
        node = self._nodes.get(name)
        if node is None:
            return
        node.known, node.gpus, node.core, node.memory = False, (), [], []
        for pod in node.pods:
            self._pods[pod].counted = ()
        self._changed(name, node)
        self._forget(name, node)

    def node(self, name: str) -> NodeState | None:
        """Return the node's current state; None for an unknown node. The same object until something changes."""
        node = self._nodes.get(name)
        if node is None or not node.known:
            return None
        if node.state is None:
            node.state = _state(name, node, self.scale)
        return node.state

    def nodes(self) -> Iterator[NodeState]:
        """Yield all known nodes, in any order."""
        for name in self._nodes:
            state = self.node(name)
            if state is not None:
                yield state

    # -- pods --------------------------------------------------------------------------------------------------------

    def hold(
        self, pod: str, node: str, assignment: Assignment, *, cpu_milli: int = 0, host_memory_mib: int = 0
    ) -> None:
        """Count the assignment in the pod's annotation; it replaces what the pod held or had reserved."""
        self._put(pod, _Hold(node, assignment, False, cpu_milli, host_memory_mib))

    def release(self, pod: str) -> None:
        """Free what a pod held that is gone or has ended."""
        hold = self._pods.pop(pod, None)
        if hold is None:
            return
        node = self._nodes[hold.node]
        for position, core, memory in hold.counted:
            node.core[position] -= core
            node.memory[position] -= memory
        node.cpu_held -= hold.cpu_milli
        node.host_memory_held -= hold.host_memory_mib
        del node.pods[pod]
        self._changed(hold.node, node)
        self._forget(hold.node, node)

    def reserve(
        self, pod: str, node: str, assignment: Assignment, *, cpu_milli: int = 0, host_memory_mib: int = 0
    ) -> None:
        """Hold this for a pod that is about to be bound; then `commit` or `rollback`.

        Without GPUs it fits any node, also an unknown one. Raises Retryable, and changes nothing, when it does not fit,
        or when the pod holds something already.
        """
        if pod in self._pods:
            raise Retryable("holds GPUs already", where=pod, cure="read the pod; it may be bound")
        state = self.node(node)
        held = assignment.held()
        if state is None and held:
            raise Retryable("is unknown, or has no GPUs", where=node)
        position = {gpu.uuid: index for index, gpu in enumerate(state.gpus)} if state is not None else {}
        for (uuid, _), (core, memory) in held.items():
            assert state is not None
            at = position.get(uuid, -1)
            if at < 0 or state.gpus[at].fault or core > state.core[at] or memory > state.memory[at]:
                raise Retryable(f"GPU {uuid} no longer has {core}% core and {memory} MiB", where=node, cure="try again")
        self._put(pod, _Hold(node, assignment, True, cpu_milli, host_memory_mib))

    def commit(self, pod: str) -> None:
        """Turn the reservation into a holding, since the Binding was accepted."""
        hold = self._pods.get(pod)
        if hold is not None:
            hold.reserved = False

    def rollback(self, pod: str) -> None:
        """Free the reservation, since the Binding was refused; a pod that holds by its annotation keeps its GPUs."""
        hold = self._pods.get(pod)
        if hold is not None and hold.reserved:
            self.release(pod)

    def holding(self, pod: str) -> tuple[str, Assignment] | None:
        """Return the node of a pod and what it holds there."""
        hold = self._pods.get(pod)
        return None if hold is None else (hold.node, hold.assignment)

    def holders(self, node: str, uuid: str) -> tuple[Holding, ...]:
        """Return the pods that hold a part of a GPU, in the order in which they arrived."""
        known = self._nodes.get(node)
        if known is None:
            return ()
        return tuple(
            Holding(pod, core, memory, self._pods[pod].reserved)
            for pod in known.pods
            for position, core, memory in self._pods[pod].counted
            if known.gpus[position].uuid == uuid
        )

    def pods(self) -> Iterator[tuple[str, str, Assignment, bool]]:
        """Yield (pod, node, assignment, reserved) of all pods that hold GPUs."""
        for pod, hold in self._pods.items():
            yield pod, hold.node, hold.assignment, hold.reserved

    # -- followers -----------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Return the number of changes so far."""
        return self._dropped + len(self._journal)

    def changed_since(self, revision: int) -> list[str] | None:
        """Return the nodes that changed after `revision`, with repetitions; None when `revision` is too old."""
        if revision < self._dropped:
            return None
        return self._journal[revision - self._dropped :]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _put(self, pod: str, hold: _Hold) -> None:
        before = self._pods.get(pod)
        if before is not None:
            same = (before.node, before.assignment, before.cpu_milli, before.host_memory_mib)
            if same == (hold.node, hold.assignment, hold.cpu_milli, hold.host_memory_mib):
                before.reserved = hold.reserved
                return
            self.release(pod)
        node = self._nodes.setdefault(hold.node, _Node())
        self._pods[pod] = hold
        node.pods[pod] = None
        node.cpu_held += hold.cpu_milli
        node.host_memory_held += hold.host_memory_mib
        self._count(node, hold)
        self._changed(hold.node, node)

    def _count(self, node: _Node, hold: _Hold) -> None:
        """Add the hold to the node's GPUs; parts on GPUs that the node does not have are not counted."""
        by_uuid = {gpu.uuid: position for position, gpu in enumerate(node.gpus)}
        by_index = {gpu.index: position for position, gpu in enumerate(node.gpus)}
        counted = []
        for (uuid, index), (core, memory) in hold.assignment.held().items():
            position = by_uuid.get(uuid) if uuid else by_index.get(index)
            if position is not None:
                memory = _memory(node.gpus[position], core, memory, self.scale)
                counted.append((position, core, memory))
                node.core[position] += core
                node.memory[position] += memory
        hold.counted = tuple(counted)

    def _changed(self, name: str, node: _Node) -> None:
        node.state = None
        self._journal.append(name)
        if len(self._journal) > _JOURNAL:
            half = _JOURNAL // 2
            del self._journal[:half]
            self._dropped += half

    def _forget(self, name: str, node: _Node) -> None:
        if not node.known and not node.pods:
            del self._nodes[name]


def _memory(gpu: LedgerGPU, core: int, memory_mib: int, scale: int) -> int:
    """Return the MiB held of a GPU, also if the annotation (gpu-admission's) does not have the GPU's memory.

    A whole GPU comes with all of its memory, a share that names none with the part that goes with its core.
    """
    if core >= scale:
        return max(memory_mib, gpu.memory_mib)
    return memory_mib or gpu.memory_mib * core // scale


def _state(name: str, node: _Node, scale: int) -> NodeState:
    cpu, memory = node.cpu_milli, node.host_memory_mib
    return NodeState(
        name,
        node.gpus,
        tuple([max(0, scale - held) for held in node.core]),
        tuple([max(0, gpu.memory_mib - held) for gpu, held in zip(node.gpus, node.memory, strict=True)]),
        scale,
        None if cpu is None else max(0, cpu - node.cpu_held),
        None if memory is None else max(0, memory - node.host_memory_held),
        node.usable,
        node.by_count,
    )


def violations(ledger: Ledger) -> list[str]:
    """Find violated invariants: a GPU held beyond its core or memory, a pod without its share.

    For tests and for a watch over a live ledger: it counts from the assignments alone, not from the ledger's sums.
    """
    wrong: list[str] = []
    states = {state.name: state for state in ledger.nodes()}
    sums: dict[str, list[tuple[int, int]]] = {name: [(0, 0)] * len(state.gpus) for name, state in states.items()}
    for pod, name, assignment, _ in ledger.pods():
        state = states.get(name)
        if state is None:
            continue  # counts when the node is back
        for (uuid, index), (core, memory) in assignment.held().items():
            found = [at for at, gpu in enumerate(state.gpus) if (gpu.uuid == uuid if uuid else gpu.index == index)]
            if not found:
                wrong.append(f"{pod} holds {core}% of GPU {uuid or index}, which {name} does not have")
                continue
            held = sums[name][found[0]]
            sums[name][found[0]] = held[0] + core, held[1] + _memory(state.gpus[found[0]], core, memory, ledger.scale)
    for name, state in states.items():
        for gpu, (core, memory), free, left in zip(state.gpus, sums[name], state.core, state.memory, strict=True):
            at = f"{name}/{gpu.index}"
            if core > ledger.scale:
                wrong.append(f"{at} is held to {core}% core")
            if memory > gpu.memory_mib:
                wrong.append(f"{at} is held to {memory} of {gpu.memory_mib} MiB")
            if (free, left) != (max(0, ledger.scale - core), max(0, gpu.memory_mib - memory)):
                wrong.append(f"{at} shows {free}% and {left} MiB free, and its pods leave {ledger.scale - core}%")
    return wrong

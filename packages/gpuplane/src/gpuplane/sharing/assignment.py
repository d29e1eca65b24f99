"""The annotation that the Binding writes once: which GPUs a pod's containers hold, and how much of each.

Invariants:

- The annotation is the truth about a share; ledger, device plugin and reports read it and nothing else.
- `of_pod` believes an annotation only as far as the pod's own request goes: one that gives more, that names containers
  that ask nothing, or that was copied from a pod on another node, is refused.
- Containers stand in the order in which they start; `init` names those that end before the main ones begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.sharing.request import WHOLE, Ask, Request, request_of
from kubekit.api.core import Pod
from kubekit.api.pod_requests import phases
from kubekit.documents import LONGEST_VALUE, DocumentError, decode_json
from kubekit.errors import InvalidInput

_CURE: Final = "delete the pod; it is placed again"


class Part(msgspec.Struct, frozen=True):
    """The part of one GPU that one container holds: `core` percent (100: all of it) and MiB of memory.

    `uuid` is empty and `memory_mib` 0 where only gpu-admission's annotations say so: they know the index alone.
    """

    uuid: str
    index: int
    core: int
    memory_mib: int


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of each container by its name."""

    containers: dict[str, tuple[Part, ...]]
    init: tuple[str, ...] = ()
    node: str = ""

    def phases(self) -> Iterator[tuple[Part, ...]]:
        """Return the parts that are held at the same time, as `Request.phases`."""
        held = [(parts, name not in self.init) for name, parts in self.containers.items()]
        for phase in phases((), held):
            yield tuple(chain.from_iterable(phase))

    def uuids(self) -> tuple[str, ...]:
        """Return the UUIDs of its GPUs."""
        return tuple(dict.fromkeys(part.uuid for parts in self.containers.values() for part in parts))

    def held(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (UUID, index) of each GPU -> the most (core, MiB) that the pod holds of it at any time."""
        most: dict[tuple[str, int], tuple[int, int]] = {}
        for phase in self.phases() if self.init else [tuple(p for parts in self.containers.values() for p in parts)]:
            now: dict[tuple[str, int], tuple[int, int]] = {}
            for part in phase:
                core, memory = now.get((part.uuid, part.index), (0, 0))
                now[part.uuid, part.index] = core + part.core, memory + part.memory_mib
            for gpu, (core, memory) in now.items():
                before = most.get(gpu, (0, 0))
                most[gpu] = max(before[0], core), max(before[1], memory)
        return most


def to_annotations(
    assignment: Assignment, request: Request, node: str, now_ns: int, *, bound: bool = True
) -> dict[str, str]:
    """Return the annotations of the Binding: ours, and gpu-admission's for its readers.

    `bound` is False where they are written before the Binding: the pod may still go to another node.

    The latter number main containers only, as gpu-admission does; init containers stand in ours alone.
    """
    full = msgspec.structs.replace(assignment, node=node)
    said = {
        names.ASSIGNMENT_ANNOTATION: msgspec.json.encode(full).decode(),
        names.PREDICATE_NODE_ANNOTATION: node,
        names.PREDICATE_TIME_ANNOTATION: str(now_ns),
        names.GPU_ASSIGNED_ANNOTATION: names.ASSIGNED if bound else names.NOT_YET_ASSIGNED,
    }
    for ask in request.asks:
        if not ask.init:
            parts = assignment.containers[ask.container]
            said[f"{names.PREDICATE_INDEX_PREFIX}{ask.position}"] = ",".join(str(part.index) for part in parts)
    return said


def of_pod(pod: Pod, request: Request | None = None) -> Assignment | None:
    """Read the assignment from the pod's annotations; None for a pod that requests no GPU or has none yet.

    `request` is the pod's, where it has been read already. Raises InvalidInput for an annotation that is broken or says
    more than the pod asks.
    """
    said = pod.metadata.annotations
    ours, node = said.get(names.ASSIGNMENT_ANNOTATION), said.get(names.PREDICATE_NODE_ANNOTATION)
    if ours is None and node is None:
        return None
    if request is None:
        request = request_of(pod)
    where = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
    if ours is None:
        return _of_gpu_admission(said, request, node or "", pod.spec.node_name, where) if request else None
    try:
        assignment = decode_json(ours, Assignment, limit=LONGEST_VALUE)
    except DocumentError as error:
        raise InvalidInput(f"{names.ASSIGNMENT_ANNOTATION} is broken: {error}", where=where, cure=_CURE) from error
    wrong = _why_not(assignment, request, pod.spec.node_name)
    if wrong:
        raise InvalidInput(f"{names.ASSIGNMENT_ANNOTATION} {wrong}", where=where, cure=_CURE)
    return assignment


def _why_not(assignment: Assignment, request: Request, bound_to: str) -> str:
    """Return why the assignment does not satisfy the request; empty when it does."""
    if bound_to and assignment.node != bound_to:
        return f"is for {assignment.node or 'no node'}, and the pod is on {bound_to}"
    if list(assignment.containers) != [ask.container for ask in request.asks]:
        return "does not name the containers that ask for GPUs"
    if assignment.init != tuple(ask.container for ask in request.asks if not ask.lasts):
        return "does not name the init containers that ask for GPUs"
    for ask in request.asks:
        if wrong := _why_not_parts(assignment.containers[ask.container], ask):
            return f"gives container {ask.container} {wrong}"
    return ""


def _why_not_parts(parts: tuple[Part, ...], ask: Ask) -> str:
    if len({part.uuid for part in parts}) != len(parts) or len({part.index for part in parts}) != len(parts):
        return "the same GPU twice"
    if any(not part.uuid or part.index < 0 or part.memory_mib < 0 for part in parts):
        return "a GPU that cannot be"
    if ask.core < WHOLE:
        if len(parts) != 1 or parts[0].core != ask.core:
            return f"another share than the {ask.core}% it asks"
        if ask.memory_mib and parts[0].memory_mib != ask.memory_mib:
            return f"other memory than the {ask.memory_mib} MiB it asks"
    elif len(parts) != ask.gpus or any(part.core != WHOLE for part in parts):
        return f"other than the {ask.gpus} whole GPUs it asks"
    return ""


def _of_gpu_admission(said: Mapping[str, str], request: Request, node: str, bound_to: str, where: str) -> Assignment:
    """Parse `tencent.com/predicate-*` of pods that were placed before gpuplane was installed."""
    wrong = f"is for {node}, and the pod is on {bound_to}" if bound_to and node != bound_to else ""
    containers: dict[str, tuple[Part, ...]] = {}
    for ask in () if wrong else request.asks:
        name = f"{names.PREDICATE_INDEX_PREFIX}{ask.position}"
        if ask.init:
            wrong = f"does not name init container {ask.container}"
            break
        indices = said.get(name, "").split(",")
        if not all(index.isascii() and index.isdigit() and len(index) < 5 for index in indices):
            wrong = f"{name} is no list of GPUs"
            break
        each = min(ask.core, WHOLE)
        containers[ask.container] = tuple(Part("", int(index), each, ask.memory_mib) for index in indices)
        if len(indices) != max(ask.gpus, 1) or len(set(indices)) != len(indices):
            wrong = f"{name} names {len(indices)} GPUs for {ask.core}% core"
            break
    if wrong:
        raise InvalidInput(f"{names.PREDICATE_NODE_ANNOTATION} {wrong}", where=where, cure=_CURE)
    return Assignment(containers, node=node)

"""Compare the allocation that a node reports for a pod (GPUNode's `held`) with the pod's annotation. Pure.

They differ only if another writer changed the annotation: the device plugin obeys the annotation of the Binding. A pod
that was bound without the extender has no annotation; only the node reports its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuplane import names
from gpuplane.sharing import WHOLE, Assignment, LedgerGPU, Part

Given = tuple[tuple[str, int], ...]
"""(UUID, percent of core), by UUID."""
DIFFERS: Final = "AssignmentDiffers"
BYPASSED: Final = names.EXTENDER_NOT_ASKED
NOT_ASKED: Final = (
    "kube-scheduler bound this pod without asking gpuplane's extender, so perhaps no GPU of the node has room for it; "
    "`gpuplane run scheduler --print-config kube` prints the configuration that makes kube-scheduler ask"
)
_BY_THE_NODE: Final = "as the node gave"  # no name of a container


def by_pod(held: Mapping[str, Mapping[str, int]]) -> dict[str, Given]:
    """Return GPUNode's `held`, which is by UUID, by the pod's uid."""
    found: dict[str, Given] = {}
    for uuid in sorted(held):
        for uid, core in held[uuid].items():
            found[uid] = (*found.get(uid, ()), (uuid, core))
    return found


def agrees(assignment: Assignment, given: Given, gpus: Iterable[LedgerGPU]) -> bool:
    """Return whether the assignment allows these devices. Less will do: containers come one after the other."""
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    said: dict[int, int] = {}
    for (uuid, index), (core, _) in assignment.held().items():
        at = index_of.get(uuid, -1) if uuid else index
        said[at] = said.get(at, 0) + core
    return all(core <= said.get(index_of[uuid], 0) for uuid, core in given if uuid in index_of)


def as_given(given: Given, said: Assignment | None, gpus: Iterable[LedgerGPU]) -> Assignment:
    """Return the allocation as an assignment; memory is the annotation's where the pod has a part of one GPU."""
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    asked = sum(memory for _, memory in said.held().values()) if said is not None and len(said.held()) == 1 else 0
    memory = asked if len(given) == 1 else 0
    parts = tuple(Part(uuid, index_of[uuid], min(core, WHOLE), memory) for uuid, core in given if uuid in index_of)
    return Assignment({_BY_THE_NODE: parts})


def difference(assignment: Assignment, given: Given, gpus: Iterable[LedgerGPU]) -> str:
    """Format the difference for the event: `its annotation says GPU 0, the node gave GPU 1`."""
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    says = sorted(index_of.get(uuid, index) if uuid else index for uuid, index in assignment.held())
    got = sorted(index_of[uuid] for uuid, _ in given if uuid in index_of)
    return f"its annotation says GPU {_listed(says)}, the node gave GPU {_listed(got)}; the GPU of the node counts"


def _listed(indices: list[int]) -> str:
    return ", ".join(map(str, indices)) or "none"

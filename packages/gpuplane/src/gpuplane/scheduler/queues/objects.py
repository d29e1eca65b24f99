"""GPUQueues as the tree reads them, and the status that the scheduler writes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuplane.api.durations import duration
from gpuplane.api.gpuqueue import GPUQueue, GPUQueueStatus, QueueAmounts
from gpuplane.scheduler.queues.history import Average
from gpuplane.scheduler.queues.kueue import KueueQueues
from gpuplane.scheduler.queues.tree import Bounds, FairQueue, QueueFinding, QueueMember, QueueTree
from kubekit.api.quantity import Quantity, parse_quantity
from kubekit.errors import InvalidInput

_MIB: Final = 1 << 20
_SCALES: Final = (1000, 1, 100, 1)
"""Of what a user writes, to get the unit of Amounts; GPU memory is written in bytes and counted in MiB."""


def fair_queue_of(queue: GPUQueue) -> FairQueue:
    """Return the queue that the object declares. Raises InvalidInput for an invalid quantity."""
    spec = queue.spec
    return FairQueue(
        name=queue.metadata.name,
        parent=spec.parent,
        weight=float(spec.weight),
        guaranteed=bounds_of(spec.guaranteed),
        limit=bounds_of(spec.limit),
        members=tuple(QueueMember(namespace) for namespace in spec.namespaces),
        half_life_s=duration(spec.half_life) if spec.half_life else None,
    )


def tree_of(queues: Iterable[GPUQueue], kueue: KueueQueues) -> tuple[QueueTree, list[QueueFinding]]:
    """Return the tree that all objects declare, and what of them counts otherwise than it is written."""
    declared: dict[str, FairQueue] = {}
    findings: list[QueueFinding] = []
    own = list(queues)
    for queue in own:
        try:
            declared[queue.metadata.name] = fair_queue_of(queue)
        except InvalidInput as error:
            findings.append(QueueFinding(queue.metadata.name, f"it does not count: {error}"))
    known = {queue.metadata.name for queue in own}
    for queue_of_kueue in kueue.queues:
        if queue_of_kueue.name in known:
            findings.append(QueueFinding(queue_of_kueue.name, "it counts, and not Kueue's queue of the same name"))
        else:
            declared[queue_of_kueue.name] = queue_of_kueue
    tree = QueueTree(declared.values())
    return tree, [*findings, *kueue.findings, *tree.findings]


def bounds_of(amounts: QueueAmounts) -> Bounds:
    """Return the amounts in the units of the tree."""
    written = (amounts.cpu, amounts.memory, amounts.gpus, amounts.gpu_memory)
    cpu, memory, gpus, gpu_memory = (_amount(value, at) for at, value in enumerate(written))
    return cpu, memory, gpus, gpu_memory


def _amount(value: Quantity | None, at: int) -> int | None:
    if value is None or value == "":
        return None
    amount = parse_quantity(value) * _SCALES[at]
    return int(amount // _MIB) if at == len(_SCALES) - 1 else int(amount)


def written(amounts: tuple[float, ...]) -> QueueAmounts:
    """Return amounts as users write them."""
    cpu, memory, gpus, gpu_memory = amounts
    return QueueAmounts(
        cpu=f"{cpu / 1000:.4g}",
        memory=f"{round(memory / _MIB)}Mi",
        gpus=f"{gpus / 100:.4g}",
        gpu_memory=f"{round(gpu_memory)}Mi",
    )


def average_of(status: GPUQueueStatus) -> Average | None:
    """Return what the status says the queue held over time; None where it says nothing."""
    bounds = bounds_of(status.average)
    if None in bounds:
        return None
    cpu, memory, gpus, gpu_memory = (float(bound or 0) for bound in bounds)
    return cpu, memory, gpus, gpu_memory

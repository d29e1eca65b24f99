"""GPUQueue (`gpuplane.dev/v1alpha1`, cluster-scoped): a queue of the pod scheduler with a fair share of the cluster.

Queues form a tree. The API server cannot check what objects say of each other, such as a parent that does not exist:
`gpuplane.scheduler.queues.tree` decides how such a tree counts, and the scheduler writes the findings into the status.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from gpuplane.api.marks import FieldRule, shaped
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.api.quantity import Quantity

_NAME: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_DURATION: Final = r"^(\d+(\.\d+)?(ms|s|m|h))+$"


class QueueAmounts(Struct):
    """Amounts of the cluster.

    Fields:
    cpu: CPU, such as 64 or 500m
    memory: memory besides that of GPUs, such as 256Gi
    gpus: GPUs; 0.5 is half of one
    gpu_memory: memory of GPUs, such as 80Gi; a whole GPU comes with all of its memory
    """

    cpu: Quantity | None = None
    memory: Quantity | None = None
    gpus: Quantity | None = None
    gpu_memory: Quantity | None = None


class GPUQueueSpec(Struct):
    """A place in the tree of queues.

    Fields:
    parent: name of the queue above it; empty for a queue at the top
    weight: its part among the queues with the same parent, compared with theirs
    guaranteed: what its pods get back from queues that borrow it; a resource that is not named is not guaranteed
    limit: the most that its pods hold together; a resource that is not named is not limited
    namespaces: namespaces whose pods it has; only queues without queues below them have pods
    half_life: time after which what was held counts half, such as 24h; empty takes the parent's, and at the top only
      the present counts
    """

    parent: Annotated[str, shaped(maxLength=253)] = ""
    weight: Annotated[int, shaped(minimum=1, maximum=1000)] = 1
    guaranteed: QueueAmounts = QueueAmounts()
    limit: QueueAmounts = QueueAmounts()
    namespaces: Annotated[tuple[Annotated[str, shaped(maxLength=63, pattern=_NAME)], ...], shaped(maxItems=1024)] = ()
    half_life: Annotated[str, shaped(pattern=rf"^$|{_DURATION}")] = ""


class GPUQueueStatus(Struct):
    """The state of the queue, with the queues below it. The pod scheduler writes it.

    Fields:
    held: what its pods hold
    borrowed: what they hold beyond the guarantee
    share: the largest part of the cluster that they hold among the four resources, in percent
    waiting: number of its pods that wait
    average: what its pods held over time, by the half-life
    observed: when the scheduler wrote this
    message: what is wrong with the queue, and how it counts nevertheless
    """

    held: QueueAmounts = QueueAmounts()
    borrowed: QueueAmounts = QueueAmounts()
    share: str = ""
    waiting: int = 0
    average: QueueAmounts = QueueAmounts()
    observed: str = ""
    message: str = ""


class GPUQueue(Struct):
    """A queue of pods with a guaranteed and a fair share of the cluster, for pods of the pod scheduler.

    Fields:
    spec: its place in the tree, and its amounts
    status: what it holds
    """

    RESOURCE: ClassVar[Resource] = Resource("gpuplane.dev", "v1alpha1", "gpuqueues", "GPUQueue", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: GPUQueueSpec = GPUQueueSpec()
    status: GPUQueueStatus = GPUQueueStatus()

    RULES: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            rule="!has(self.spec) || !has(self.spec.parent) || self.spec.parent != self.metadata.name",
            holds=lambda queue: (
                not (queue.get("spec") or {}).get("parent")
                or (queue.get("spec") or {}).get("parent") != (queue.get("metadata") or {}).get("name")
            ),
            message="a queue is not its own parent",
            code="GP128",
            at="spec.parent",
            cure="name another queue, or leave parent out",
        ),
    )

"""The queue of a pod and its share, as the pod scheduler last wrote them into its GPUQueue."""

from __future__ import annotations

from collections.abc import Sequence

from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.scheduler.queues.objects import fair_queue_of
from gpuplane.scheduler.queues.tree import QueueTree
from kubekit.errors import InvalidInput


def queue_text(queues: Sequence[GPUQueue], namespace: str) -> str:
    """Return the queue of a namespace's pods with what it holds; empty without one."""
    declared = []
    for queue in queues:
        try:
            declared.append(fair_queue_of(queue))
        except InvalidInput:
            continue  # the scheduler leaves it out too
    name = QueueTree(declared).of(namespace)
    status = next((queue.status for queue in queues if queue.metadata.name == name), None)
    if status is None:
        return ""
    if not status.observed:
        return name
    borrowed = status.borrowed.gpus or "0"
    return f"{name} (holds {status.held.gpus or '0'} GPUs, {borrowed} borrowed, share {status.share})"

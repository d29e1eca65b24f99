"""Room that is reserved for a pod while others leave a node for it, in the cache and next to the ledger. Without
I/O."""

from __future__ import annotations

import msgspec

from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.queues.fair import PROMISED_PRIORITY, FairQueues
from gpuplane.sharing import Request
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import PodInfo


def keep_room(
    info: PodInfo,
    pod: ScheduledPod | None,
    node: str,
    *,
    cache: SchedulerCache,
    filtering: Filtering,
    fair: FairQueues,
    request: Request | None = None,
) -> None:
    """Keep room on the node.

    Args:
        pod: the pod as it waits; None if its GPUs are unknown.
        request: what to keep, such as a part of a certain GPU; None for what the pod requests.
    """
    # NB: with queues, a pod of another queue must not take the room for its higher priority, or it would be evicted
    # again for the pod that the room was made for.
    priority = max(info.priority, PROMISED_PRIORITY) if fair else info.priority
    if pod is not None:
        spec = msgspec.structs.replace(pod.spec, priority=priority)
        kept = msgspec.structs.replace(pod, spec=spec, request=pod.request if request is None else request)
        filtering.nominations.put(kept, node)
    cache.nominate(msgspec.structs.replace(info, nominated=node, priority=priority), node)


def as_promised(pod: ScheduledPod, info: PodInfo, fair: FairQueues) -> ScheduledPod:
    """Return a pod with reserved room as the filters have to see it.

    With queues, it does not wait for the room of others.
    """
    if not fair:
        return pod
    priority = max(info.priority, PROMISED_PRIORITY + 1)
    spec = msgspec.structs.replace(pod.spec, priority=priority)
    return msgspec.structs.replace(pod, spec=spec, info=msgspec.structs.replace(info, priority=priority))

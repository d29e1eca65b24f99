"""Requeues pods that wait: kube-scheduler tries a refused pod again only after an event in the cluster.

kube-scheduler receives the end of a pod no later than the extender, and may ask again too early. Other changes it never
receives: a released reservation, a GPU that recovered, a quota that was raised. So when GPUs become free that a waiting
pod fits, the extender annotates the node, which is an event for kube-scheduler.

Invariants: a node is annotated only if a waiting pod fits it now; at most one write a second in the long run, since one
write requeues all pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from gpuplane import names
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.feasibility import FITS
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.transforms import CachedPod
from kubekit.api.core import Node
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Client, Clock, TokenBucket

log = logging.getLogger("gpuplane.scheduler")
GATHER_SECONDS: Final = 0.1  # several shares that become free together are one touch
PER_SECOND, AT_ONCE = 1.0, 3.0
_MOST_WAITING: Final = 10_000
_MOST_TRIED: Final = 50  # different requests tried on a node


class Requeuer:
    def __init__(self, client: Client, cluster: Cluster, clock: Clock) -> None:
        self.touched = 0
        self._client = client
        self._cluster = cluster
        self._clock = clock
        self._bucket = TokenBucket(PER_SECOND, AT_ONCE, clock.now)
        self._waiting: OrderedDict[str, CachedPod] = OrderedDict()
        self._freed: dict[str, None] = {}  # nodes, in the order in which something became free there
        self._something = asyncio.Event()
        cluster.on_pod.append(self._seen)
        cluster.on_freed.append(self.freed)

    def __len__(self) -> int:
        """Return how many refused pods wait."""
        return len(self._waiting)

    def refused(self, pod: CachedPod) -> None:
        self._waiting[pod.metadata.uid] = pod
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    def placed(self, uid: str) -> None:
        self._waiting.pop(uid, None)

    def freed(self, node: str, namespace: str) -> None:
        """Note that GPUs of the node became free, or that the node became usable."""
        if self._waiting:
            self._freed[node] = None
            self._something.set()

    def everywhere(self) -> None:
        """Note that refused pods may fit any node, since quotas changed."""
        for state in self._cluster.ledger.nodes():
            self.freed(state.name, "")

    def _seen(self, uid: str, pod: CachedPod | None) -> None:
        if pod is None or pod.spec.node_name:
            self._waiting.pop(uid, None)

    async def run(self, filtering: Filtering) -> None:
        """Touch nodes as they become worth it, until cancelled."""
        while True:
            await self._something.wait()
            await self._clock.sleep(GATHER_SECONDS + self._bucket.reserve())
            self._something.clear()
            nodes, self._freed = self._freed, {}
            node = next((node for node in nodes if self._fits_somebody(filtering, node)), None)
            if node is not None and not await self._touch(node):
                self._freed = {node: None, **self._freed}
                self._something.set()

    def _fits_somebody(self, filtering: Filtering, node: str) -> bool:
        """Return whether a waiting pod may go to the node now."""
        if self._cluster.unusable(node):
            return False
        tried = set()
        for pod in list(self._waiting.values()):
            key = (pod.metadata.namespace, pod.request)
            if key in tried:
                continue
            tried.add(key)
            try:
                if not filtering.check(pod)(node).reason and filtering.answers(pod.request).lacking(node) is FITS:
                    return True
            except Retryable:
                return False  # quotas are unknown
            if len(tried) >= _MOST_TRIED:
                return True  # too many to try: kube-scheduler will see
        return False

    async def _touch(self, node: str) -> bool:
        """Return whether kube-scheduler has something to hear of."""
        patch = {"metadata": {"annotations": {names.SHARE_FREED_ANNOTATION: self._clock.wall()}}}
        try:
            await self._client.patch(Node, node, patch)
        except Retryable as error:
            log.info("node not annotated node=%s: %s", node, error)
            return False
        except KubekitError as error:
            log.warning("waiting pods not requeued: %s", error)
            return True
        self.touched += 1
        return True

"""The controller of marks: stamps, conditions and ages of claims, one key for each claim. `marks` decides.

It also deletes the claims that have expired: expiration is no disruption that budgets limit.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable

from gpuplane.api import nodeclaim
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.disruption.marks import ClaimMarks, decide_marks
from gpuplane.autoscaler.disruption.observe import is_workload, last_pod_event, marked_claim, pool_of
from gpuplane.autoscaler.disruption.pod_events import WRITE_SECONDS, PodEvents
from gpuplane.autoscaler.disruption.supply import NodeSupply
from gpuplane.autoscaler.termination.claim_conditions import MANAGER, set_conditions
from gpuplane.autoscaler.termination.claim_links import BY_NODE, claims_of_node, index_objects, node_of_claim
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, Clock, Conflict, Controller, EventRecorder, NotFound, SharedInformers, Source

log = logging.getLogger("gpuplane.autoscaler")
LOOK_SECONDS = 300.0  # the longest wait: times of day are read again, since the clock may have jumped


class MarksController:
    """Writes marks. `drift` maps claims to the reason of their drift; `expired` counts claims by pool.

    Args:
        changed: called after a mark of some claim has changed.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        supply: NodeSupply,
        recorder: EventRecorder,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self.drift: dict[str, str] = {}
        self.expired: dict[str, int] = {}
        self._client = client
        self._supply = supply
        self._recorder = recorder
        self._clock = clock
        self._changed = changed
        self._events = PodEvents()
        self._claims = informers.of(NodeClaim)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        index_objects(informers)
        self.controller = Controller(
            "marks",
            [self._claims, Source(self._nodes, self._claims_of_node), Source(self._pods, self._claims_of_pod)],
            self.reconcile,
            workers=8,
            clock=clock,
        )

    def look_again(self) -> None:
        """Decide about every claim again: pools have changed."""
        for claim in self._claims.items():
            self.controller.enqueue(claim.metadata.name)

    async def reconcile(self, name: str) -> float | None:
        """Write the marks of one claim; returns the seconds after which to look again."""
        claim = self._claims.get(name)
        if claim is None or claim.metadata.deletion_timestamp:
            self._events.forget(name)
            return None
        if not self._supply.is_synced():
            return 1.0
        now = unix_time(self._clock.wall()) or 0.0
        node = node_of_claim(self._nodes.by_index, claim)
        pods = self._pods.by_index(BY_NODE, node.metadata.name) if node is not None else []
        workloads = [pod for pod in pods if is_workload(pod)]
        written = last_pod_event(claim)
        event = self._events.last(name, workloads, written, now)
        pool = self._supply.pools().get(pool_of(claim))
        seen = marked_claim(
            claim,
            node,
            pods,
            pool,
            nominated=node is not None and self._supply.is_nominated(node.metadata.name),
            last_event=event,
            drift=self.drift.get(name, ""),
        )
        marks = decide_marks(seen, pool.disruption if pool is not None else None, now)
        if marks.expired:
            await self._expire(claim)
            return None
        late = event is not None and (written is None or event >= written + WRITE_SECONDS)
        await self._write(claim, node, marks, event if late else None)
        return min(marks.again, LOOK_SECONDS) if marks.again is not None else None

    async def _write(self, claim: NodeClaim, node: Node | None, marks: ClaimMarks, event: float | None) -> None:
        if node is not None and marks.stamp is not None:
            stamp = _seconds(self._clock.wall()) if marks.stamp else None
            patch = {"metadata": {"annotations": {nodeclaim.EMPTINESS_ANNOTATION: stamp}}}
            try:
                await self._client.patch(Node, node.metadata.name, patch, manager=MANAGER)
            except NotFound:
                return
            log.info("%s node=%s", "stamped empty" if stamp else "stamp of emptiness removed", node.metadata.name)
            self._changed()
        more = {"lastPodEventTime": _rfc3339(event)} if event is not None else {}
        if await set_conditions(self._client, claim, marks.conditions, self._clock.wall(), more):
            self._changed()

    async def _expire(self, claim: NodeClaim) -> None:
        try:
            await self._client.delete(NodeClaim, claim.metadata.name, uid=claim.metadata.uid)
        except (NotFound, Conflict):
            return
        self.expired[pool_of(claim)] = self.expired.get(pool_of(claim), 0) + 1
        self._recorder.event(claim, "Normal", "Disrupted", "Expired: the node has reached its greatest age")
        log.info("expired nodeclaim=%s", claim.metadata.name)

    def _claims_of_node(self, node: Node) -> Iterable[str]:
        return [claim.metadata.name for claim in claims_of_node(self._claims.by_index, node)]

    def _claims_of_pod(self, pod: Pod) -> Iterable[str]:
        node = self._nodes.get(pod.spec.node_name) if pod.spec.node_name else None
        return self._claims_of_node(node) if node is not None else ()


def _seconds(wall: str) -> str:
    """Return the time as Kubernetes writes it, in whole seconds."""
    return f"{wall[:19]}Z"


def _rfc3339(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""The controller that buys nodes: pods that wait, gathered in batches, become claims.

One key for the cluster, since a decision prices all pods together. `gpuplane.autoscaler.purchase` decides,
`gpuplane.autoscaler.creation` writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from gpuplane.autoscaler.cloud import CloudView
from gpuplane.autoscaler.creation import ClaimWriter, pods_of
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.observed import PodView
from gpuplane.autoscaler.options import PoolOptions
from gpuplane.autoscaler.pod_times import PodTimes
from gpuplane.autoscaler.purchase import NodePurchase, decide_purchase
from gpuplane.autoscaler.repeated_events import RepeatedEvents
from gpuplane.autoscaler.snapshot import ClusterSnapshot, take_snapshot
from gpuplane.autoscaler.watch import ClusterWatch
from gpuplane.autoscaler.why_waiting import why_no_types
from kubekit.api.core import Pod
from kubekit.kube import Clock, Controller, EventRecorder, Source

log = logging.getLogger("gpuplane.autoscaler")
KEY: Final = "cluster"
AGAIN_SECONDS: Final = 10.0  # while pods wait
NO_TYPES_SECONDS: Final = 900.0  # until a pool without types is reported again
_UNSEEN_SECONDS: Final = 0.2
_IN_THREAD: Final = 100  # pods from which a decision would keep the lease from being renewed


class Batch:
    """Gathers pods that begin to wait: closed `idle` seconds after the last of them, `longest` after the first."""

    def __init__(self, clock: Clock, idle: float, longest: float) -> None:
        self._clock = clock
        self._idle = idle
        self._longest = longest
        self._last = self._closed = float("-inf")

    def trigger(self) -> None:
        """Note that a pod has begun to wait."""
        self._last = self._clock.now()

    async def closed(self) -> None:
        """Return when the batch that is open now is complete, at least `idle` seconds after the one before."""
        opened = self._clock.now()
        while True:
            now = self._clock.now()
            left = min(max(self._last, self._closed) + self._idle, opened + self._longest) - now
            if left <= 0:
                self._closed = now
                return
            await self._clock.sleep(left)


class ProvisioningController:
    """Buys nodes. `last` is the last decision, for metrics and events.

    `ignored` counts the pods that it could not decide about, `began` is since when the decision under way takes
    (monotonic seconds), None for none.
    """

    def __init__(
        self,
        watch: ClusterWatch,
        cloud: CloudView,
        writer: ClaimWriter,
        recorder: EventRecorder,
        clock: Clock,
        *,
        idle: float = 1.0,
        longest: float = 10.0,
        figures: LifeFigures | None = None,
    ) -> None:
        self.ignored = 0
        self.began: float | None = None
        self.times = PodTimes(clock)
        watch.pods.add_handler(self.times.see)
        self._figures = figures or LifeFigures()
        self.last = NodePurchase((), {})
        self.decided_seconds = 0.0
        self._watch = watch
        self._cloud = cloud
        self._writer = writer
        self._recorder = recorder
        self._clock = clock
        self._batch = Batch(clock, idle, longest)
        self._of_pools = RepeatedEvents(recorder, clock, NO_TYPES_SECONDS)
        self._said: dict[str, str] = {}  # pod -> what its last event said
        everything = _always(KEY)
        others = [one for one in watch.informers if one not in (watch.pods, watch.nodes)]
        self.controller = Controller(
            "provisioning",
            [
                Source(watch.pods, self._of_pod),
                Source(watch.nodes, everything),
                *(Source(one, everything) for one in others),
            ],
            self.reconcile,
            clock=clock,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, key: str) -> float | None:
        """Buy for the pods that wait; returns the seconds after which to look again."""
        if not self._watch.waiting() and not self._may_displace():
            self._said.clear()
            self.ignored = 0
            self.last = NodePurchase((), {})
            return None
        await self._batch.closed()
        if self._writer.unseen():
            return _UNSEEN_SECONDS
        facts = self._watch.facts()
        cloud = await self._cloud.facts(facts.pools, facts.classes, self._watch.learned())
        # NB: the cloud may have taken its time; the cluster is read after it, so that nothing is decided on old facts.
        snapshot = take_snapshot(self._watch.facts(), cloud)
        if not snapshot.asks:
            return None
        self._report_pools(snapshot.offers, cloud.troubles)
        self.ignored = sum(1 for ask in snapshot.asks if ask.trouble)
        self.began = started = self._clock.now()
        try:
            decision = await self._decide(snapshot)
        finally:
            self.began = None
        self.decided_seconds = self._clock.now() - started
        self._figures.decisions.observe(self.decided_seconds, controller="provisioner")
        self.times.decide(ask.key for ask in snapshot.asks)
        made = await self._writer.create_all(decision.nodes, snapshot)
        self.last = decision
        self._report(snapshot, decision, dict(pods_of(made)))
        return AGAIN_SECONDS

    async def _decide(self, snapshot: ClusterSnapshot) -> NodePurchase:
        if len(snapshot.asks) < _IN_THREAD:
            return decide_purchase(snapshot.asks, snapshot.offers, snapshot.nodes)
        return await asyncio.to_thread(decide_purchase, snapshot.asks, snapshot.offers, snapshot.nodes)

    def _report(self, snapshot: ClusterSnapshot, decision: NodePurchase, made: dict[str, str]) -> None:
        """Report to each pod what was decided; equal reports of one pod are one event."""
        kept: dict[str, str] = {}
        lacks = {pod: f" (gives up {'; '.join(words)})" for pod, words in decision.given_up.items()}
        for pod, node in decision.placed.items():
            self._writer.nominations.nominate(node)
            kept[pod] = f"waits for the node {node}{lacks.get(pod, '')}"
            if pod not in snapshot.displaced:
                self._event(pod, "Normal", "Nominated", kept[pod])
        for pod, claim in made.items():
            kept[pod] = f"waits for the node of the claim {claim}{lacks.get(pod, '')}"
            self._event(pod, "Normal", "Nominated", kept[pod])
        for bought in decision.nodes:
            pool = bought.option.pool.name
            why = self._writer.refusals.get(pool)
            for pod in bought.pods if why else ():
                if pod not in made:
                    kept[pod] = f"no node is bought: {pool}: {why}"
                    self._event(pod, "Warning", "FailedScheduling", kept[pod])
        for pod, reasons in decision.waiting.items():
            kept[pod] = "no node is bought: " + "; ".join(reasons)
            self._event(pod, "Warning", "FailedScheduling", kept[pod])
        self._said = kept

    def _report_pools(self, offers: Iterable[PoolOptions], troubles: Collection[str]) -> None:
        """Report to each pool that no type is left for it; one whose class has a trouble says so itself."""
        for found in offers:
            why = "" if found.pool.name in troubles else why_no_types(found)
            pool = self._watch.pool_object(found.pool.name) if why else None
            if pool is not None:
                self._of_pools.report(pool, "Warning", "NoCompatibleInstanceTypes", why)

    def _event(self, pod: str, level: Any, reason: str, message: str) -> None:
        if self._said.get(pod) == message:
            return
        found = self._watch.pods.get(pod)
        if found is not None:
            self._recorder.event(found, level, reason, message)

    def _may_displace(self) -> bool:
        """Return whether some node goes whose pods may need another one."""
        return any(claim.metadata.deletion_timestamp for claim in self._watch.claims.items()) or any(
            node.metadata.deletion_timestamp for node in self._watch.nodes.items()
        )

    def _of_pod(self, pod: Pod) -> Iterable[str]:
        if isinstance(pod, PodView) and pod.waits:
            self._batch.trigger()
            return (KEY,)
        return ()


def _always(key: str) -> Callable[[Any], Iterable[str]]:
    return lambda obj: (key,)

"""Interruptions: the cloud says that it takes an instance back, so its node is drained while there is time.

A notice is acknowledged after it has been acted upon, so a notice that a restart cut off comes again. Everything that
follows from a notice may happen twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.nodeclaim import TERMINATION_ANNOTATION, NodeClaim
from gpuplane.autoscaler.disruption.supply import NodeSupply
from gpuplane.autoscaler.providers.provider import HEALTH, IMPAIRED, CloudProvider, Interruption
from gpuplane.autoscaler.termination.claim_links import BY_PROVIDER_ID, index_objects
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock, Conflict, EventRecorder, NotFound, SharedInformers

log = logging.getLogger("gpuplane.autoscaler")
RETRY_SECONDS: Final = 5.0
_MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"


class InterruptionAnswer(msgspec.Struct, frozen=True):
    """The consequences of a notice: drain the node, buy no more of its offering for minutes, or only an event.

    With `at_once` the drain waits for no pod and no PodDisruptionBudget: the machine does not work.
    """

    drains: bool
    closes: bool
    event: str
    message: str
    at_once: bool = False


ANSWERS: Final = {
    "spot-interruption": InterruptionAnswer(
        True, True, "SpotInterrupted", "the cloud takes the spot instance back within two minutes"
    ),
    HEALTH: InterruptionAnswer(True, False, "MaintenanceScheduled", "the cloud has scheduled an end of the instance"),
    IMPAIRED: InterruptionAnswer(
        True, False, "InstanceImpaired", "the instance fails the cloud's own status checks", at_once=True
    ),
    "state-change": InterruptionAnswer(True, False, "InstanceStopping", "the instance stops, or has stopped"),
    "rebalance": InterruptionAnswer(
        False, False, "SpotRebalanceRecommendation", "the cloud expects to take the spot instance back"
    ),
}
"""Kind of a notice -> what follows. A kind that is not listed has no consequence."""


class InterruptionHandler:
    """Acts upon notices. `received` counts them by kind, for metrics."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        supply: NodeSupply,
        provider: CloudProvider,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self.received: dict[str, int] = {}
        self._client = client
        self._supply = supply
        self._provider = provider
        self._recorder = recorder
        self._clock = clock
        self._claims = informers.of(NodeClaim)
        index_objects(informers)

    async def run(self) -> None:
        """Work until cancelled, also where no queue is configured."""
        self._claims.start()
        await self._claims.synced()
        while True:
            try:
                async with contextlib.aclosing(self._provider.interruptions()) as notices:
                    async for notice in notices:
                        await self._act_on(notice)
                await asyncio.Event().wait()  # nothing will ever come
            except KubekitError as error:
                log.warning("notices not read, retrying: %s", error)
                await self._clock.sleep(RETRY_SECONDS)

    async def _act_on(self, notice: Interruption) -> None:
        """Drain the node of a notice. A notice whose handling fails is not acknowledged, so it comes again."""
        self.received[notice.kind] = self.received.get(notice.kind, 0) + 1
        answer = ANSWERS.get(notice.kind)
        try:
            for claim in self._claims.by_index(BY_PROVIDER_ID, notice.provider_id) if answer is not None else ():
                assert answer is not None
                await self._answer(claim, answer)
            await self._provider.acknowledge(notice)
        except KubekitError as error:
            log.warning("notice not handled kind=%s instance=%s: %s", notice.kind, notice.provider_id, error)

    async def _answer(self, claim: NodeClaim, answer: InterruptionAnswer) -> None:
        name, labels = claim.metadata.name, claim.metadata.labels
        self._recorder.event(claim, "Warning", answer.event, answer.message)
        if answer.closes:
            self._supply.close_offering(
                labels.get(karpenter.TYPE_LABEL, ""),
                labels.get(karpenter.ZONE_LABEL, ""),
                labels.get(karpenter.CAPACITY_TYPE_LABEL, ""),
            )
        if not answer.drains or claim.metadata.deletion_timestamp:
            return
        try:
            if answer.at_once:
                deadline = {TERMINATION_ANNOTATION: f"{self._clock.wall()[:19]}Z"}
                await self._client.patch(NodeClaim, name, {"metadata": {"annotations": deadline}}, manager=_MANAGER)
            await self._client.delete(NodeClaim, name, uid=claim.metadata.uid)
        except (NotFound, Conflict) as error:
            log.debug("already gone nodeclaim=%s: %s", name, error)
            return
        log.info("interrupted nodeclaim=%s event=%s", name, answer.event)

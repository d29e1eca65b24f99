"""Judges NodeOverlays and writes the verdicts into their conditions. An overlay counts once it was found sound."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.nodeclaim import READY
from gpuplane.api.nodeoverlay import NodeOverlay
from gpuplane.autoscaler.cloud import CloudView
from gpuplane.autoscaler.nodeclaims import with_condition
from gpuplane.autoscaler.overlays import VALID, OverlayVerdict, judge_overlays
from gpuplane.autoscaler.snapshot import make_offers
from gpuplane.autoscaler.watch import ClusterWatch
from kubekit.api.meta import Condition, to_dict
from kubekit.kube import Client, Clock, Controller, Informer, NotFound, Source

log = logging.getLogger("gpuplane.autoscaler")
KEY: Final = "overlays"
LOOK_SECONDS: Final = 300.0  # between two looks at the cloud's types, which conflicts depend on
_MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"


class OverlayStatusController:
    """Reconciles the status of all NodeOverlays; one key, since each is judged next to all others."""

    def __init__(
        self, client: Client, watch: ClusterWatch, overlays: Informer[NodeOverlay], cloud: CloudView, clock: Clock
    ) -> None:
        self._client = client
        self._watch = watch
        self._overlays = overlays
        self._cloud = cloud
        self._clock = clock
        others = (watch.provisioners, watch.node_pools, watch.templates, watch.node_classes)
        self.controller = Controller(
            KEY, [Source(one, _always()) for one in (overlays, *others)], self.reconcile, clock=clock
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, key: str) -> float | None:
        """Write the conditions that have changed; returns the seconds until the next look."""
        overlays = [one for one in self._overlays.items() if not one.metadata.deletion_timestamp]
        if not overlays:
            return None
        facts = msgspec.structs.replace(self._watch.facts(), pods=(), nodes=(), overlays=())
        cloud = await self._cloud.facts(facts.pools, facts.classes, self._watch.learned())
        verdicts = judge_overlays(overlays, make_offers(facts, cloud, {}))
        for overlay in overlays:
            verdict = verdicts[overlay.metadata.name]
            conditions = overlay_conditions(overlay, verdict, self._clock.wall())
            if conditions == overlay.status.conditions:
                continue
            status: dict[str, Any] = {"status": {"conditions": to_dict(conditions)}}
            try:
                await self._client.patch(
                    NodeOverlay, overlay.metadata.name, status, subresource="status", manager=_MANAGER
                )
            except NotFound:
                continue
            log.info("judged overlay=%s: %s", overlay.metadata.name, verdict.message or "it counts")
        return LOOK_SECONDS


def overlay_conditions(overlay: NodeOverlay, verdict: OverlayVerdict, now: str) -> tuple[Condition, ...]:
    """Return an overlay's conditions: valid, and Ready, which is the same here."""
    conditions: tuple[Condition, ...] = overlay.status.conditions
    for name in (VALID, READY):
        state = ("False", verdict.reason, verdict.message) if verdict.reason else ("True", name, "")
        conditions = with_condition(conditions, name, *state, now, overlay.metadata.generation)
    return conditions


def _always() -> Callable[[Any], Iterable[str]]:
    return lambda changed: (KEY,)

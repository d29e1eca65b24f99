"""Reads pods to find the results of their Bindings, and removes annotations that no longer reserve GPUs.

Invariant: annotations are removed only from the version of the pod that was read, so later annotations stay.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from gpuplane import names
from gpuplane.scheduler.reservation import Reservation, ReservationEvent, ReservationState
from gpuplane.scheduler.transforms import CachedPod
from kubekit.api.core import Pod
from kubekit.errors import KubekitError, NoAnswer, Retryable
from kubekit.kube import Client, NotFound

log = logging.getLogger("gpuplane.scheduler")
READ_SECONDS: Final = 4.0
_PREDICATE_PREFIX: Final = "tencent.com/predicate-"


class Settlement:
    """
    Args:
        client: a client that writes only while this replica leads.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, name: str, namespace: str) -> Pod:
        """Read a pod. Raises KubekitError, NoAnswer after READ_SECONDS."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await self._client.get(Pod, name, namespace)
        except TimeoutError:
            raise NoAnswer("the API server did not answer in time", where=f"{namespace}/{name}") from None

    async def look(self, reservation: Reservation) -> ReservationEvent | None:
        """Read the pod and return what it means for the reservation; None when the pod cannot be read now.

        A reservation that is ANNOTATED has reached its time limit: the annotations of an unbound pod are removed.
        """
        meta = reservation.pod.metadata
        try:
            pod = await self.read(meta.name, meta.namespace)
        except NotFound:
            return reservation.event_of_read(None)
        except KubekitError as error:
            log.warning("result of the binding unknown pod=%s: %s", reservation.pod.shown, error)
            return None
        event = reservation.event_of_read(pod)
        if event is ReservationEvent.READ_UNBOUND and reservation.state is ReservationState.ANNOTATED:
            return ReservationEvent.WITHDRAWN if await self._remove_annotations(pod) else None
        return event

    async def withdraw(self, pod: CachedPod) -> None:
        """Remove the annotations of a pod that fits no node any more. Raises Retryable when that fails now."""
        now = await self.read(pod.metadata.name, pod.metadata.namespace)
        if now.metadata.uid != pod.metadata.uid or now.spec.node_name:
            return
        if names.ASSIGNMENT_ANNOTATION in now.metadata.annotations and not await self._remove_annotations(now):
            raise Retryable("its annotations cannot be removed now", where=pod.shown)

    async def _remove_annotations(self, pod: Pod) -> bool:
        """Return whether the pod, if it still is as it was read, is without an assignment now."""
        metadata: dict[str, Any] = {
            "resourceVersion": pod.metadata.resource_version,
            "annotations": dict.fromkeys(name for name in pod.metadata.annotations if _promises(name)),
        }
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._client.patch(Pod, pod.metadata.name, {"metadata": metadata}, pod.metadata.namespace)
        except NotFound:
            return True
        except (KubekitError, TimeoutError) as error:
            log.warning("annotations not removed yet pod=%s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
            return False
        return True


def _promises(annotation: str) -> bool:
    ours = (names.ASSIGNMENT_ANNOTATION, names.GPU_ASSIGNED_ANNOTATION)
    return annotation in ours or annotation.startswith(_PREDICATE_PREFIX)

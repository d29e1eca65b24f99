"""`/scheduler/predicates`: filter-only mode, for schedulers that were pointed at gpu-admission and bind by themselves.

As with gpu-admission the best node is chosen, by its order; the pod is annotated with its GPUs; the answer has only
that node. Unlike with gpu-admission no pod remains stuck or holds GPUs that it does not have. The annotated pod has a
reservation, which ends with the bind, with the pod's next filter, or after a minute; then the annotations are removed.
Annotations of an unbound pod do not count otherwise.

After a restart the reservations of annotated, unbound pods are made again, once, since their scheduler may still bind
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gpuplane import names
from gpuplane.scheduler import wire
from gpuplane.scheduler.binding import POST_SECONDS, Binder
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.filtering import Filtering, Sorted
from gpuplane.scheduler.reservation import Reservation, ReservationEvent, ReservationState
from gpuplane.scheduler.reservations import Reservations
from gpuplane.scheduler.settlement import Settlement
from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import request_of, to_annotations
from gpuplane.sharing.placement import node_order
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput, KubekitError, NoAnswer, Retryable
from kubekit.kube import Client, Conflict

log = logging.getLogger("gpuplane.scheduler")
_ANOTHER: Final = "the pod is assigned to another node"


class Annotator:
    """
    Args:
        filtering: one whose policy is gpu-admission's.
    """

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        filtering: Filtering,
        binder: Binder,
        *,
        reservations: Reservations,
        settlement: Settlement,
        now_ns: Callable[[], int],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._filtering = filtering
        self._binder = binder
        self._reservations = reservations
        self._settlement = settlement
        self._now_ns = now_ns
        self._annotated: set[str] = set()  # uids of pods whose annotations say that they are not assigned yet
        self._saying: set[asyncio.Task[None]] = set()
        cluster.on_pod.append(self._pod_changed)

    async def predicates(self, args: wire.FilterArgs) -> bytes:
        """Answer with ExtenderFilterResult and the node that is reserved for the pod. Raises KubekitError."""
        try:
            wanted = bool(request_of(args.pod))
        except InvalidInput as error:
            text = "; ".join(error.findings) or error.what
            return wire.filter_result(args, [], {}, dict.fromkeys(args.names, text))
        if not wanted:
            return wire.filter_result(args, args.names, {}, {})
        before = self._reservations.get(args.pod.metadata.uid)
        if before is not None and before.state is ReservationState.ANNOTATED:
            self._reservations.apply(before, ReservationEvent.RETRIED)
        pod = self._filtering.pod_of(args.pod)
        found = self._filtering.sort(pod, args.names)
        reservation = self._reserve(pod, found)
        if reservation is None:
            if pod.assignment is not None or before is not None:
                await self._settlement.withdraw(pod)
            self._filtering.told(pod, placed=False)
            return wire.filter_result(args, [], found.failed, found.unresolvable)
        if reservation.annotations:
            await self._annotate(reservation)
        self._filtering.told(pod, placed=True)
        others = dict.fromkeys((name for name in found.kept if name != reservation.node), _ANOTHER)
        return wire.filter_result(args, [reservation.node], found.failed | others, found.unresolvable)

    def _reserve(self, pod: CachedPod, found: Sorted) -> Reservation | None:
        """Reserve the first node, in gpu-admission's order, that takes the pod; the nodes before it become failed."""
        states = [state for state in map(self._cluster.ledger.node, found.kept) if state is not None]
        for state in sorted(states, key=node_order):
            try:
                return self._binder.reserve(pod, state.name, self._filtering, ReservationEvent.PROMISED)
            except Retryable as error:
                found.kept.remove(state.name)
                found.failed[state.name] = error.what
        return None

    async def _annotate(self, reservation: Reservation) -> None:
        self._annotated.add(reservation.uid)
        try:
            async with asyncio.timeout(POST_SECONDS):
                await self._write(reservation)
        except TimeoutError:
            raise NoAnswer("the API server did not answer in time", where=reservation.pod.shown) from None
        except KubekitError as error:
            if not isinstance(error, Retryable):
                self._reservations.apply(reservation, ReservationEvent.REFUSED)
            raise  # annotations that may have been written are removed at the time limit of the reservation

    async def _write(self, reservation: Reservation) -> None:
        meta = reservation.pod.metadata
        # NB: with its version, so that an earlier write that was given up cannot arrive after this one.
        metadata = {"uid": meta.uid, "annotations": reservation.annotations}
        try:
            patch = {"metadata": {**metadata, "resourceVersion": meta.resource_version}}
            await self._client.patch(Pod, meta.name, patch, meta.namespace)
        except Conflict:
            now = await self._client.get(Pod, meta.name, meta.namespace)
            if now.spec.node_name or now.metadata.uid != meta.uid:
                raise
            patch = {"metadata": {**metadata, "resourceVersion": now.metadata.resource_version}}
            await self._client.patch(Pod, meta.name, patch, meta.namespace)

    def _pod_changed(self, uid: str, pod: CachedPod | None) -> None:
        """Say of an annotated pod that its GPUs are assigned, once its scheduler has bound it."""
        if uid not in self._annotated or (pod is not None and not pod.spec.node_name):
            return
        self._annotated.discard(uid)
        if pod is not None and pod.assignment is not None:
            task = asyncio.create_task(self._say_assigned(pod))
            self._saying.add(task)
            task.add_done_callback(self._saying.discard)

    async def _say_assigned(self, pod: CachedPod) -> None:
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid, "annotations": {names.GPU_ASSIGNED_ANNOTATION: names.ASSIGNED}}}
        try:
            await self._client.patch(Pod, meta.name, patch, meta.namespace)
        except KubekitError as error:
            log.info("assigned annotation not written pod=%s: %s", pod.shown, error)

    def adopt(self) -> None:
        """Reserve again what pods had reserved before a restart; called once, when the cluster is known."""
        for uid, pod in list(self._cluster.by_uid.items()):
            if pod.spec.node_name or pod.assignment is None or self._reservations.get(uid) is not None:
                continue
            assignment = pod.assignment
            annotations = to_annotations(assignment, pod.request, assignment.node, self._now_ns(), bound=False)
            try:
                promised = Reservation(pod, assignment.node, assignment, annotations)
                self._reservations.begin(promised, ReservationEvent.PROMISED)
                self._annotated.add(uid)
            except KubekitError as error:
                log.info("reservation not restored pod=%s node=%s: %s", pod.shown, assignment.node, error)

"""`bind`: reserve, then one Binding whose annotations are the assignment. Nothing else is written.

Invariants:

- Node, pod, quota and GPUs are checked, and the reservation made, without waiting in between: of two pods that want the
  last share, or the last of a quota, only the first gets it.
- A refusal releases the reservation. Without an answer the pod is read. If the result is still unknown, the reservation
  stays `in doubt` (see `gpuplane.scheduler.reservation`), since the Binding may still be carried out.
- `bind` returns within POST_SECONDS + settlement.READ_SECONDS, which is less than kube-scheduler waits.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from gpuplane.scheduler import wire
from gpuplane.scheduler.cluster import NO_GPUS, Cluster
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.reservation import Reservation, ReservationEvent, ReservationState
from gpuplane.scheduler.reservations import Reservations
from gpuplane.scheduler.settlement import Settlement
from gpuplane.scheduler.transforms import CachedPod, transform_pod
from gpuplane.sharing import Assignment, to_annotations
from gpuplane.sharing.placement import Placement, Refusal
from kubekit.api.core import ObjectReference, Pod
from kubekit.errors import InvalidInput, KubekitError, NoAnswer, Retryable, Terminal
from kubekit.kube import (
    Client,
    Clock,
    Conflict,
    EventRecorder,
    ServerError,
    TokenBucket,
    Unreachable,
)

POST_SECONDS: Final = 5.0
EVENTS_PER_SECOND, EVENTS_AT_ONCE = 5.0, 100.0  # events are hints: the annotation has the record
_ANNOTATIONS_BYTES: Final = 256 << 10  # the API server's own limit, which it does not check in a Binding
_KEY: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Binder:
    """
    Args:
        client: a client that writes only while this replica leads.
        now_ns: the wall clock, for gpu-admission's annotation.
    """

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        reservations: Reservations,
        settlement: Settlement,
        *,
        recorder: EventRecorder,
        clock: Clock,
        now_ns: Callable[[], int],
    ) -> None:
        self.bound = self.refused = self.doubted = 0
        self._client = client
        self._cluster = cluster
        self._reservations = reservations
        self._settlement = settlement
        self._recorder = recorder
        self._events = TokenBucket(EVENTS_PER_SECOND, EVENTS_AT_ONCE, clock.now)
        self._now_ns = now_ns

    async def bind(self, args: wire.BindArgs, filtering: Filtering) -> None:
        """Bind the pod. Raises KubekitError when it is not bound, or when the result is unknown."""
        try:
            pod = await self._pod(args, filtering)
            reservation = await self._earlier(pod, args.node)
            if pod.spec.node_name or (reservation is not None and reservation.state is ReservationState.BOUND):
                return  # kube-scheduler asks again, since the first answer did not arrive
            if reservation is None:
                reservation = self.reserve(pod, args.node, filtering, ReservationEvent.BIND)
            else:
                self._reservations.apply(reservation, ReservationEvent.BIND)
            await self.post(reservation)
        except KubekitError:
            self.refused += 1
            raise
        self.bound += 1
        self.report(reservation)

    async def _pod(self, args: wire.BindArgs, filtering: Filtering) -> CachedPod:
        """Return the pod, from memory if it is there. Raises KubekitError when it cannot be bound."""
        where = f"{args.namespace}/{args.name}"
        pod = self._cluster.by_uid.get(args.uid) or filtering.asked(args.uid)
        if pod is None:
            pod = transform_pod(await self._settlement.read(args.name, args.namespace))
        if pod is None:
            raise Terminal("requests no GPU, or has ended", where=where, cure="manage GPU resources only")
        meta = pod.metadata
        if (meta.uid, meta.name, meta.namespace) != (args.uid, args.name, args.namespace):
            raise Terminal(f"is another pod than the one with uid {args.uid}", where=where)
        if meta.deletion_timestamp:
            raise Terminal("is being deleted", where=where)
        if pod.spec.node_name and pod.spec.node_name != args.node:
            raise Terminal(f"is on {pod.spec.node_name} already", where=where)
        return pod

    async def _earlier(self, pod: CachedPod, node: str) -> Reservation | None:
        """Return the pod's reservation for the same node, if its Binding was accepted or may be sent again.

        Raises Retryable while an earlier Binding of the pod may still be carried out.
        """
        reservation = self._reservations.get(pod.metadata.uid)
        if reservation is None or reservation.state is ReservationState.TENTATIVE:
            return None  # NB: the tentative one stays until node and quota are checked
        again = (ReservationState.DOUBT, ReservationState.BOUND)
        if reservation.node == node and reservation.state in again:
            return reservation
        if reservation.state is ReservationState.ANNOTATED:
            self._reservations.apply(reservation, ReservationEvent.RETRIED)
            return None
        if reservation.state is ReservationState.DOUBT:
            await self._reservations.settle(reservation, overdue=False)
            if self._reservations.get(reservation.uid) is not reservation:
                return None
        raise Retryable(f"its binding to {reservation.node} is not settled yet", where=pod.shown)

    def reserve(
        self,
        pod: CachedPod,
        node: str,
        filtering: Filtering,
        event: ReservationEvent,
        marks: Mapping[str, str] = MappingProxyType({}),
    ) -> Reservation:
        """Decide the GPUs and reserve them, for a BIND or what was PROMISED. Raises KubekitError; never waits.

        Of a pod without GPUs, CPU and memory are reserved. `marks` are further annotations of its Binding.
        """
        if not pod.request:
            reservation = Reservation(pod, node, NO_GPUS, dict(marks))
            self._reservations.begin(reservation, event)
            return reservation
        if why := self._cluster.unusable(node):
            raise Retryable(why, where=node)
        if why := filtering.check(pod)(node).reason or filtering.refused_by_nominated(pod, node):
            raise Retryable(why, where=pod.shown)
        self._reservations.retry(pod.metadata.uid)
        answers = filtering.answers(pod.request)
        decided = answers.place(node)
        if isinstance(decided, Refusal):
            self._reservations.yield_node(node)
            decided = answers.place(node)
        if not isinstance(decided, Placement):
            raise Retryable(decided.reason, where=node, cure="kube-scheduler tries again by itself")
        assignment = decided.assignment
        bound = event is ReservationEvent.BIND
        annotations = {}
        if assignment.containers:  # else the kubelet chooses among replicas or MIG devices
            annotations = to_annotations(assignment, pod.request, node, self._now_ns(), bound=bound)
        annotations |= marks
        validate(annotations)
        reservation = Reservation(pod, node, assignment, annotations)
        self._reservations.begin(reservation, event)
        return reservation

    def report(self, reservation: Reservation) -> None:
        """Record the event `Placed` of a bound pod, unless there are too many."""
        if reservation.assignment.containers and self._events.take():
            meta = reservation.pod.metadata
            about = ObjectReference(
                kind="Pod", api_version="v1", namespace=meta.namespace, name=meta.name, uid=meta.uid
            )
            self._recorder.event(about, "Normal", "Placed", placed(reservation.assignment, reservation.node))

    async def post(self, reservation: Reservation) -> None:
        """Send the Binding. Raises KubekitError when the pod is not bound, or when the result is unknown."""
        try:
            event, error = await self._sent(reservation)
        except asyncio.CancelledError:
            self._reservations.apply(reservation, ReservationEvent.UNANSWERED)
            raise
        self._reservations.apply(reservation, event)
        if error is not None:
            raise error

    async def _sent(self, reservation: Reservation) -> tuple[ReservationEvent, KubekitError | None]:
        """Send the Binding; return what follows for the reservation, and the error for kube-scheduler."""
        first = reservation.state is ReservationState.POSTING
        meta = reservation.pod.metadata
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "annotations": reservation.annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": reservation.node},
        }
        path = Pod.RESOURCE.path(meta.namespace, meta.name, "binding")
        try:
            async with asyncio.timeout(POST_SECONDS):
                # The server's own time-out: what it has not done by then it does not do later.
                await self._client.request("POST", path, {"timeout": f"{POST_SECONDS:.0f}s"}, binding)
        except TimeoutError:
            text = f"the API server did not answer in {POST_SECONDS:g} s"
            return await self._after_read(reservation, NoAnswer(text, where=reservation.pod.shown))
        except Unreachable as error:
            if first and not error.sent:
                return ReservationEvent.REFUSED, error
            return await self._after_read(reservation, error)
        except (ServerError, Conflict) as error:
            return await self._after_read(reservation, error)
        except KubekitError as error:
            return ReservationEvent.REFUSED, error
        return ReservationEvent.ACCEPTED, None

    async def _after_read(
        self, reservation: Reservation, error: KubekitError
    ) -> tuple[ReservationEvent, KubekitError | None]:
        """Read the pod, where the answer to its Binding does not tell whether it is bound."""
        self.doubted += 1
        event = await self._settlement.look(reservation)
        if event is ReservationEvent.READ_BOUND:
            return event, None
        if event is ReservationEvent.READ_UNBOUND and isinstance(error, Conflict):
            event = ReservationEvent.REFUSED  # a conflict is an answer: this Binding was not carried out
        return event or ReservationEvent.UNANSWERED, error


def validate(annotations: dict[str, str]) -> None:
    """Raise InvalidInput for annotations that the API server accepts in a Binding, and that break the pod."""
    wrong = [key for key in annotations if _KEY.fullmatch(key) is None]
    size = sum(len(key) + len(value.encode()) for key, value in annotations.items())
    if wrong or size > _ANNOTATIONS_BYTES:
        raise InvalidInput(
            f"its assignment cannot be written down: {', '.join(wrong) or f'{size} bytes'}",
            cure="fewer containers with GPUs in one pod",
        )


def placed(assignment: Assignment, node: str) -> str:
    """Format the assignment of a pod in one line: `30% core + 5 GiB of GPU 0 on gpu-t-01`."""
    parts = [
        f"GPU {index}" if core >= 100 else f"{core}% core + {memory / 1024:.3g} GiB of GPU {index}"
        for (_, index), (core, memory) in assignment.held().items()
    ]
    return f"{', '.join(parts)} on {node}"

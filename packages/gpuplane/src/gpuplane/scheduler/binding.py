"""`bind`: reserve, then one Binding whose annotations are the assignment. Nothing else is written.

Invariants:

- Node, pod, quota and room are checked, and the reservation made, without waiting in between: of two pods that want the
  last share, or the last of a quota, one gets it.
- A refusal takes the reservation back. If the answer is unknown, the pod is read; where that does not help either,
  the reservation stays until it does (see `gpuplane.scheduler.inflight`), since the Binding may yet come true.
- There is an answer within POST_SECONDS + READ_SECONDS, which is less than kube-scheduler waits.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final

from gpuplane import names
from gpuplane.scheduler import wire
from gpuplane.scheduler.claims import Claims
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.inflight import Flight, Flights, State
from gpuplane.scheduler.transforms import KeptPod, keep_pod
from gpuplane.sharing import Assignment, to_annotations
from gpuplane.sharing.placement import Placement, Refusal
from kubekit.api.core import ObjectReference, Pod
from kubekit.errors import InvalidInput, KubekitError, NoAnswer, Retryable, Terminal
from kubekit.kube import (
    ApiError,
    Client,
    Clock,
    Conflict,
    EventRecorder,
    NotFound,
    ServerError,
    TokenBucket,
    Unreachable,
)

log = logging.getLogger("gpuplane.scheduler")
POST_SECONDS: Final = 5.0
READ_SECONDS: Final = 4.0
EVENTS_PER_SECOND, EVENTS_AT_ONCE = 5.0, 100.0  # events are hints: the annotation has the record
_PREDICATE_PREFIX: Final = "tencent.com/predicate-"
_ANNOTATIONS_BYTES: Final = 256 << 10  # the API server's own limit, which it does not check in a Binding
_KEY: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Binder:
    """
    Args:
        client: one that writes only while we lead.
        now_ns: the wall clock, for gpu-admission's annotation.
    """

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        claims: Claims,
        *,
        recorder: EventRecorder,
        clock: Clock,
        now_ns: Callable[[], int],
    ) -> None:
        self.flights = Flights(cluster, clock, self.settle)
        self.bound = self.refused = self.doubted = 0
        self._client = client
        self._cluster = cluster
        self._claims = claims
        self._recorder = recorder
        self._events = TokenBucket(EVENTS_PER_SECOND, EVENTS_AT_ONCE, clock.now)
        self._now_ns = now_ns

    async def bind(self, args: wire.BindArgs, filtering: Filtering) -> None:
        """Return when the pod is bound. Raises KubekitError when it is not, or when the result is unknown."""
        try:
            pod = await self._pod(args, filtering)
            flight = await self._under_way(pod, args.node)
            if pod.spec.node_name or (flight is not None and flight.state is State.BOUND):
                return  # asked again, since our answer did not arrive
            if flight is None:
                flight = self.reserve(pod, args.node, filtering)
            await self._post(flight)
        except KubekitError:
            self.refused += 1
            raise
        self.bound += 1
        if self._events.take():
            about = ObjectReference(
                kind="Pod", api_version="v1", namespace=args.namespace, name=args.name, uid=args.uid
            )
            self._recorder.event(about, "Normal", "Placed", placed(flight.assignment, args.node))

    async def _pod(self, args: wire.BindArgs, filtering: Filtering) -> KeptPod:
        """The pod, from memory if it is there. Raises KubekitError when it cannot be bound."""
        where = f"{args.namespace}/{args.name}"
        pod = self._cluster.by_uid.get(args.uid) or filtering.asked(args.uid)
        if pod is None:
            pod = keep_pod(await self._read(args.name, args.namespace))
        if pod is None:
            raise Terminal("asks no GPU, or has ended", where=where, cure="manage GPU resources only")
        meta = pod.metadata
        if (meta.uid, meta.name, meta.namespace) != (args.uid, args.name, args.namespace):
            raise Terminal(f"is another pod than the one with uid {args.uid}", where=where)
        if meta.deletion_timestamp:
            raise Terminal("is being deleted", where=where)
        if pod.spec.node_name and pod.spec.node_name != args.node:
            raise Terminal(f"is on {pod.spec.node_name} already", where=where)
        return pod

    async def _under_way(self, pod: KeptPod, node: str) -> Flight | None:
        """An earlier Binding of the same pod to the same node that has come true or may: the latter is sent again.

        Raises Retryable for one to another node, until it is known what became of it.
        """
        flight = self.flights.get(pod.metadata.uid)
        if flight is None or (flight.node == node and flight.state in (State.DOUBT, State.BOUND)):
            return flight
        if flight.state is State.ANNOTATED:
            self.flights.fall(flight)
            return None
        if flight.state is State.DOUBT:
            await self.settle(flight)
            if self.flights.get(flight.uid) is not flight:
                return None
        raise Retryable(f"its binding to {flight.node} is not settled yet", where=pod.shown)

    def reserve(self, pod: KeptPod, node: str, filtering: Filtering, state: State = State.POSTING) -> Flight:
        """Decides which GPUs, and holds them for the pod. Raises KubekitError; never waits."""
        if why := self._cluster.unusable(node):
            raise Retryable(why, where=node)
        if why := filtering.check(pod)(node).reason:
            raise Retryable(why, where=pod.shown)
        self._claims.drop(pod.metadata.uid)
        answers = filtering.answers(pod.request)
        decided = answers.place(node)
        if isinstance(decided, Refusal):
            self._claims.drop_on(node)  # they yield to what is certain
            decided = answers.place(node)
        if not isinstance(decided, Placement):
            raise Retryable(decided.reason, where=node, cure="kube-scheduler tries again by itself")
        assignment = decided.assignment
        annotations = to_annotations(assignment, pod.request, node, self._now_ns())
        validate(annotations)
        flight = Flight(pod, node, assignment, annotations, state)
        self.flights.begin(flight)
        return flight

    async def _post(self, flight: Flight) -> None:
        meta = flight.pod.metadata
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "annotations": flight.annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": flight.node},
        }
        path = Pod.RESOURCE.path(meta.namespace, meta.name, "binding")
        again = flight.state is State.DOUBT
        self.flights.turn(flight, State.POSTING)
        try:
            async with asyncio.timeout(POST_SECONDS):
                # The server's own time-out: what it has not done by then it does not do later.
                await self._client.request("POST", path, {"timeout": f"{POST_SECONDS:.0f}s"}, binding)
        except (ServerError, Unreachable, TimeoutError, Conflict) as error:
            unsent = isinstance(error, Unreachable) and not error.sent
            if unsent and not again:
                self.flights.fall(flight)
                raise
            if not await self._came_true(flight, known=isinstance(error, Conflict) and not again):
                raise _refused(error, flight) from error
        except KubekitError:
            # NB: the server has refused, or nothing was sent; an earlier try may have come true all the same.
            if again:
                self.flights.turn(flight, State.DOUBT)
            else:
                self.flights.fall(flight)
            raise
        except asyncio.CancelledError:
            self.flights.turn(flight, State.DOUBT)
            raise
        else:
            self.flights.turn(flight, State.BOUND)

    async def _came_true(self, flight: Flight, *, known: bool) -> bool:
        """Return whether the pod is bound as we wanted. `known`: the server has refused, so it cannot come true
        later.
        """
        self.doubted += 1
        try:
            pod = await self._read(flight.pod.metadata.name, flight.pod.metadata.namespace)
        except NotFound:
            self.flights.fall(flight, gone=True)
            return False
        except KubekitError:
            self.flights.turn(flight, State.DOUBT)
            return False
        if self._is_ours(pod, flight):
            self.flights.turn(flight, State.BOUND)
            return True
        if known or pod.spec.node_name or pod.metadata.uid != flight.uid:
            self.flights.fall(flight, gone=pod.metadata.uid != flight.uid)
        else:
            self.flights.turn(flight, State.DOUBT)
        return False

    async def settle(self, flight: Flight) -> bool:
        """Find the result of a flight whose time is over; return False when it is still unknown."""
        try:
            pod = await self._read(flight.pod.metadata.name, flight.pod.metadata.namespace)
        except NotFound:
            self.flights.fall(flight, gone=True)
            return True
        except KubekitError as error:
            log.warning("result of the binding unknown pod=%s: %s", flight.pod.shown, error)
            return False
        if self._is_ours(pod, flight):
            # Bound, and no watch has shown it yet: what it holds is held until one does.
            self.flights.turn(flight, State.BOUND)
            return True
        promised = flight.state is State.ANNOTATED and pod.metadata.uid == flight.uid and not pod.spec.node_name
        if promised and not await self._annotations_off(pod):
            return False
        self.flights.fall(flight, gone=pod.metadata.uid != flight.uid)
        return True

    async def take_back(self, pod: KeptPod) -> None:
        """Takes the promise off a pod that finds no node any more. Raises Retryable when that cannot be done now."""
        now = await self._read(pod.metadata.name, pod.metadata.namespace)
        if now.metadata.uid != pod.metadata.uid or now.spec.node_name:
            return
        if names.ASSIGNMENT_ANNOTATION in now.metadata.annotations and not await self._annotations_off(now):
            raise Retryable("its annotations cannot be removed now", where=pod.shown)

    async def _annotations_off(self, pod: Pod) -> bool:
        """Takes back what was promised to a pod that was not bound in time, if it still is as it was read."""
        promised = [name for name in pod.metadata.annotations if _promises(name)]
        metadata: dict[str, Any] = {
            "resourceVersion": pod.metadata.resource_version,
            "annotations": dict.fromkeys(promised),
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

    def _is_ours(self, pod: Pod, flight: Flight) -> bool:
        said = pod.metadata.annotations
        ours = all(said.get(name) == value for name, value in flight.annotations.items())
        return ours and pod.metadata.uid == flight.uid and pod.spec.node_name == flight.node

    async def _read(self, name: str, namespace: str) -> Pod:
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await self._client.get(Pod, name, namespace)
        except TimeoutError:
            raise NoAnswer("the API server did not answer in time", where=f"{namespace}/{name}") from None


def _promises(annotation: str) -> bool:
    ours = (names.ASSIGNMENT_ANNOTATION, names.GPU_ASSIGNED_ANNOTATION)
    return annotation in ours or annotation.startswith(_PREDICATE_PREFIX)


def _refused(error: Exception, flight: Flight) -> KubekitError:
    if isinstance(error, ApiError):
        return error
    return NoAnswer(f"the API server did not answer in {POST_SECONDS:g} s", where=flight.pod.shown)


def validate(annotations: dict[str, str]) -> None:
    """The API server takes anything in a Binding, and the pod is broken then. Raises InvalidInput."""
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

"""The state machine of a pod's reservation: from the node that filter prefers until a watch delivers the pod bound.

Pure: a table of states and events, and what a read of the pod means for a reservation. `reservations` applies events to
the ledger and the timers, `binding` and `settlement` send and read.

Invariants:

- A pod has at most one reservation.
- Each way from a state to another stands in `TRANSITIONS` with its reason; any other raises ValueError.
- A state that may not last has a time limit in `LIMIT_SECONDS`; a tentative reservation has its own, and states in
  which an answer is on its way end with the answer. So no reservation stays for a pod that does not have the GPUs.
- The Binding of a reservation `in doubt` may still be carried out, so its GPUs stay reserved until the result is known.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import Assignment
from kubekit.api.core import Pod


class ReservationState(StrEnum):
    """The states of a reservation. NB: a member of StrEnum has the hash of its text, one of Enum computes its own."""

    ABSENT = "absent"  # the beginning: the pod has no reservation
    TENTATIVE = "tentative"  # filter prefers the node; nothing was sent
    POSTING = "posting"  # a Binding was sent, and its answer has not arrived
    REPOSTING = "reposting"  # the Binding of a reservation in doubt was sent again
    DOUBT = "doubt"  # a Binding was sent, and its result is unknown
    BOUND = "bound"  # the Binding was accepted, and no watch has delivered the pod yet
    ANNOTATED = "annotated"  # filter-only mode: the pod has its annotations, and another scheduler binds it
    # The ends:
    DELIVERED = "delivered"  # a watch delivered the pod bound or deleted: the cluster counts what it holds
    RELEASED = "released"  # the GPUs are free again
    DELETED = "deleted"  # a read found no such pod, whatever watches still deliver

    @property
    def ended(self) -> bool:
        """Return whether the reservation holds nothing any more."""
        return self in (ReservationState.DELIVERED, ReservationState.RELEASED, ReservationState.DELETED)

    @property
    def answer_pending(self) -> bool:
        """Return whether the answer to a Binding is on its way."""
        return self in (ReservationState.POSTING, ReservationState.REPOSTING)

    @property
    def unsettled(self) -> bool:
        """Return whether a Binding was sent that may still be carried out."""
        return self.answer_pending or self is ReservationState.DOUBT


class ReservationEvent(StrEnum):
    """An answer, a read, a watch or a request that moves a reservation to its next state."""

    PREFERRED = "filter or prioritize chose the node for its pod"
    BIND = "kube-scheduler asks to bind its pod to its node"
    PROMISED = "/predicates answers with the node"
    RETRIED = "filter, bind or /predicates decides again for its pod"
    YIELDED = "the GPUs are needed for another pod"
    EXPIRED = "no bind arrived in time"
    ACCEPTED = "the API server accepted the Binding"
    REFUSED = "the API server refused the write, or the request never left"
    UNANSWERED = "there is no answer, and the pod cannot be read"
    READ_BOUND = "a read shows the pod bound with these annotations"
    READ_UNBOUND = "a read shows the pod unbound"
    READ_ELSEWHERE = "a read shows the pod bound to another node or with other annotations"
    READ_DELETED = "a read finds no such pod"
    WITHDRAWN = "the annotations were removed from the unbound pod"
    WATCHED = "a watch delivers the pod bound or deleted"


class Transition(NamedTuple):
    """The next state, and why it is this one."""

    to: ReservationState
    reason: str


S, E = ReservationState, ReservationEvent

TRANSITIONS: Final[dict[tuple[ReservationState, ReservationEvent], Transition]] = {
    (S.ABSENT, E.PREFERRED): Transition(S.TENTATIVE, "its bind most likely follows: the next pod gets other GPUs"),
    (S.ABSENT, E.BIND): Transition(S.POSTING, "node, quota and GPUs were checked: the Binding is sent"),
    (S.ABSENT, E.PROMISED): Transition(S.ANNOTATED, "its scheduler binds it next, by these annotations"),
    (S.TENTATIVE, E.RETRIED): Transition(S.RELEASED, "the new decision is made without the earlier preference"),
    (S.TENTATIVE, E.YIELDED): Transition(S.RELEASED, "a tentative reservation refuses no pod"),
    (S.TENTATIVE, E.EXPIRED): Transition(S.RELEASED, "kube-scheduler chose another node, or gave the pod up"),
    (S.TENTATIVE, E.WATCHED): Transition(S.DELIVERED, "another scheduler bound the pod, or the pod was deleted"),
    (S.POSTING, E.ACCEPTED): Transition(S.BOUND, "the pod holds its GPUs from now on"),
    (S.POSTING, E.REFUSED): Transition(S.RELEASED, "the Binding was not carried out and never will be"),
    (S.POSTING, E.UNANSWERED): Transition(S.DOUBT, "the Binding may have been carried out"),
    (S.POSTING, E.READ_BOUND): Transition(S.BOUND, "the Binding was carried out, and its answer was lost"),
    (S.POSTING, E.READ_UNBOUND): Transition(S.DOUBT, "the Binding may still be on its way"),
    (S.POSTING, E.READ_ELSEWHERE): Transition(S.RELEASED, "another scheduler was faster"),
    (S.POSTING, E.READ_DELETED): Transition(S.DELETED, "the Binding names a pod that does not exist any more"),
    (S.POSTING, E.WATCHED): Transition(S.DELIVERED, "the watch was faster than the answer"),
    (S.REPOSTING, E.ACCEPTED): Transition(S.BOUND, "the earlier Binding was not carried out, this one was"),
    (S.REPOSTING, E.REFUSED): Transition(S.DOUBT, "the refusal says nothing of the earlier Binding"),
    (S.REPOSTING, E.UNANSWERED): Transition(S.DOUBT, "either Binding may have been carried out"),
    (S.REPOSTING, E.READ_BOUND): Transition(S.BOUND, "one of the two Bindings was carried out"),
    (S.REPOSTING, E.READ_UNBOUND): Transition(S.DOUBT, "either Binding may still be on its way"),
    (S.REPOSTING, E.READ_ELSEWHERE): Transition(S.RELEASED, "another scheduler was faster"),
    (S.REPOSTING, E.READ_DELETED): Transition(S.DELETED, "both Bindings name a pod that does not exist any more"),
    (S.REPOSTING, E.WATCHED): Transition(S.DELIVERED, "the watch was faster than the answer"),
    (S.DOUBT, E.BIND): Transition(S.REPOSTING, "the same Binding again: it cannot be carried out twice"),
    (S.DOUBT, E.READ_BOUND): Transition(S.BOUND, "the Binding was carried out"),
    # NB: only a read after the time limit counts; the API server gives a Binding up at the time-out that it names.
    (S.DOUBT, E.READ_UNBOUND): Transition(S.RELEASED, "the API server has given the Binding up"),
    (S.DOUBT, E.READ_ELSEWHERE): Transition(S.RELEASED, "another scheduler was faster"),
    (S.DOUBT, E.READ_DELETED): Transition(S.DELETED, "the Binding names a pod that does not exist any more"),
    (S.DOUBT, E.WATCHED): Transition(S.DELIVERED, "the watch tells the result"),
    (S.BOUND, E.READ_BOUND): Transition(S.BOUND, "no watch has delivered the pod yet: wait for it again"),
    (S.BOUND, E.READ_UNBOUND): Transition(S.RELEASED, "the API server lost the Binding that it had accepted"),
    (S.BOUND, E.READ_ELSEWHERE): Transition(S.RELEASED, "the reservation does not say what the pod holds"),
    (S.BOUND, E.READ_DELETED): Transition(S.DELETED, "the pod was deleted before a watch delivered it bound"),
    (S.BOUND, E.WATCHED): Transition(S.DELIVERED, "the annotation of the pod counts from now on"),
    (S.ANNOTATED, E.RETRIED): Transition(S.RELEASED, "the new decision replaces the earlier promise"),
    (S.ANNOTATED, E.REFUSED): Transition(S.RELEASED, "the pod did not get the annotations"),
    (S.ANNOTATED, E.READ_BOUND): Transition(S.BOUND, "its scheduler bound it by these annotations"),
    (S.ANNOTATED, E.WITHDRAWN): Transition(S.RELEASED, "its scheduler did not bind it in time"),
    (S.ANNOTATED, E.READ_ELSEWHERE): Transition(S.RELEASED, "its scheduler bound it otherwise"),
    (S.ANNOTATED, E.READ_DELETED): Transition(S.DELETED, "the pod was deleted before its scheduler bound it"),
    (S.ANNOTATED, E.WATCHED): Transition(S.DELIVERED, "its scheduler bound it, or the pod was deleted"),
}

TENTATIVE_SECONDS: Final = 10.0
LIMIT_SECONDS: Final = {S.DOUBT: 15.0, S.BOUND: 30.0, S.ANNOTATED: 60.0}
"""The time after which the pod of a reservation is read. That of DOUBT is longer than the time-out of a Binding."""


def transition(state: ReservationState, event: ReservationEvent) -> Transition:
    """Return what `event` makes of a reservation in `state`. Raises ValueError for one that is not in the table."""
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise ValueError(f"a reservation that is {state.value} cannot take this event: {event.value}")
    return found


class Reservation(msgspec.Struct):
    """GPUs of a node for one pod. `pod` is as it was before, `annotations` are what the pod gets (none: tentative)."""

    pod: CachedPod
    node: str
    assignment: Assignment
    annotations: dict[str, str] = {}
    state: ReservationState = ReservationState.ABSENT
    moves: int = 0  # transitions so far: tells whether it moved on while a read was under way
    deadline: float = 0.0  # of a tentative one, by the monotonic clock

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    def apply(self, event: ReservationEvent) -> None:
        """Move to the next state. Raises ValueError, with nothing changed, when the table has no such way."""
        self.state = transition(self.state, event).to
        self.moves += 1

    def event_of_read(self, pod: Pod | None) -> ReservationEvent:
        """Return what the pod, as it was read, means for this reservation; None is a pod that was not found."""
        if pod is None or pod.metadata.uid != self.uid:
            return E.READ_DELETED
        if not pod.spec.node_name:
            return E.READ_UNBOUND
        found = pod.metadata.annotations
        ours = pod.spec.node_name == self.node and all(
            found.get(name) == value for name, value in self.annotations.items()
        )
        return E.READ_BOUND if ours else E.READ_ELSEWHERE

"""The state machine of reservations: each edge of its table with its effects, and what is not in the table."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.reservation import (
    LIMIT_SECONDS,
    TENTATIVE_SECONDS,
    TRANSITIONS,
    Reservation,
    ReservationEvent,
    ReservationState,
    transition,
)
from gpuplane.scheduler.reservations import RETRY_SECONDS, Reservations
from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import Ask, Assignment, LedgerGPU, Part, Request, violations
from kubekit.api.core import Pod, PodSpec
from kubekit.api.meta import ObjectMeta
from kubekit.kube.clock import Clock
from tests.support.fake_api import FakeApi, FakeClient
from tests.support.virtual_time import VirtualClock

S, E = ReservationState, ReservationEvent
NODE, CORE, MEMORY = "n1", 60, 1024
POD = CachedPod(metadata=ObjectMeta(name="a", namespace="team", uid="uid-a"), request=Request((Ask("c", core=CORE),)))
SHARE = Assignment({"c": (Part("GPU-0", 0, CORE, MEMORY),)}, node=NODE)
FIRST = {E.PREFERRED, E.BIND, E.PROMISED}
EDGES = sorted(TRANSITIONS, key=lambda edge: (edge[0].value, edge[1].value))


class Table:
    """One node with one GPU, whose T4 a quota counts, and the reservations on it; `found` is what reads find."""

    def __init__(self) -> None:
        client: Any = FakeClient(FakeApi())
        self.clock = VirtualClock()
        self.cluster = Cluster(client, clock=self.clock)
        self.cluster.ledger.set_node(NODE, [LedgerGPU(index=0, uuid="GPU-0", model="T4", memory_mib=16384)])
        self.found: list[ReservationEvent | None] = []
        self.reads = 0
        self.during_read: Callable[[], None] = lambda: None
        clock: Clock = self.clock
        self.reservations = Reservations(self.cluster, clock, self._read)

    async def _read(self, reservation: Reservation) -> ReservationEvent | None:
        self.reads += 1
        self.during_read()
        return self.found.pop(0)

    def apply(self, event: ReservationEvent) -> Reservation:
        """Apply an event as the parts of the extender do; the first one begins the reservation."""
        known = self.reservations.get(POD.metadata.uid)
        if event is E.PREFERRED:
            self.reservations.prefer(POD, NODE, SHARE)
        elif event in FIRST and known is None:
            self.reservations.begin(Reservation(POD, NODE, SHARE, {"key": "value"}), event)
        else:
            assert known is not None
            if event is E.WATCHED:  # the cluster has counted the pod before it says so
                self.cluster.release(known.uid)
            self.reservations.apply(known, event)
            return known
        begun = self.reservations.get(POD.metadata.uid)
        assert begun is not None
        return begun

    @property
    def free(self) -> int:
        state = self.cluster.ledger.node(NODE)
        assert state is not None
        return state.core[0]

    def check(self, state: ReservationState) -> None:
        """Check the amounts that the ledger and the quotas count for a reservation in this state."""
        held = state is not S.ABSENT and not state.ended
        assert self.free == (100 - CORE if held else 100)
        assert violations(self.cluster.ledger) == []
        reserved = [flag for _, _, _, flag in self.cluster.ledger.pods()]
        assert reserved == ([state is not S.BOUND] if held else [])
        counted = held and state is not S.TENTATIVE
        assert sum(self.cluster.usage.sums().values()) == (CORE if counted else 0)
        assert len(self.reservations) == held
        assert self.reservations.count(*S) == held and self.reservations.count(state) == held
        assert self.reservations.tentative_nodes() == ([NODE] if state is S.TENTATIVE else [])
        assert self.reservations.node_of_unsettled("uid-a") == (NODE if state.unsettled else None)


def path_to(wanted: ReservationState) -> list[ReservationEvent]:
    """The shortest history that ends in a state."""
    ways: deque[tuple[ReservationState, list[ReservationEvent]]] = deque([(S.ABSENT, [])])
    seen = {S.ABSENT}
    while ways:
        state, path = ways.popleft()
        if state is wanted:
            return path
        for (start, event), (to, _) in TRANSITIONS.items():
            if start is state and to not in seen:
                seen.add(to)
                ways.append((to, [*path, event]))
    raise AssertionError(f"no history ends in {wanted}")


@pytest.mark.parametrize(("start", "event"), EDGES, ids=lambda part: part.name.lower())
async def test_an_edge(start: ReservationState, event: ReservationEvent) -> None:
    table = Table()
    for before in path_to(start):
        table.apply(before)
    table.check(start)
    reservation = table.apply(event)
    assert reservation.state is TRANSITIONS[start, event].to
    table.check(reservation.state)
    await table.reservations.aclose(0)


@pytest.mark.parametrize("state", S, ids=lambda state: state.name.lower())
def test_what_is_not_in_the_table_raises_and_changes_nothing(state: ReservationState) -> None:
    for event in E:
        if (state, event) in TRANSITIONS:
            continue
        reservation = Reservation(POD, NODE, SHARE, state=state)
        with pytest.raises(ValueError, match=state.value):
            reservation.apply(event)
        assert (reservation.state, reservation.moves) == (state, 0)


def test_each_state_can_be_reached_and_comes_to_an_end() -> None:
    for state in S:
        path_to(state)
        ways = [event for start, event in TRANSITIONS if start is state]
        assert bool(ways) != state.ended
        if not state.ended and state is not S.ABSENT:
            assert transition(state, E.WATCHED).to is S.DELIVERED, "a watch ends every reservation"
    lasting = set(S) - set(LIMIT_SECONDS) - {S.ABSENT, S.TENTATIVE}
    assert all(state.ended or state.answer_pending for state in lasting), "no state lasts without a time limit"


def test_each_edge_has_a_reason() -> None:
    assert all(reason for _, reason in TRANSITIONS.values())
    assert {event for _, event in TRANSITIONS} == set(E), "no event without an edge"


@given(st.lists(st.sampled_from(E), max_size=30))
def test_random_histories_of_one_pod(events: list[ReservationEvent]) -> None:
    async def live() -> None:
        table, state = Table(), S.ABSENT
        for event in events:
            known = table.reservations.get("uid-a")
            if known is None:
                state = S.ABSENT
            if (state, event) in TRANSITIONS:
                state = table.apply(event).state
            elif known is not None and event not in FIRST:
                with pytest.raises(ValueError, match=state.value):
                    table.reservations.apply(known, event)
            table.check(state)
        await table.reservations.aclose(0)

    asyncio.run(live())


# -- time --------------------------------------------------------------------------------------------------------------


async def brought_to(state: ReservationState) -> tuple[Table, Reservation]:
    table = Table()
    for event in path_to(state):
        table.apply(event)
    reservation = table.reservations.get("uid-a")
    assert reservation is not None
    return table, reservation


@pytest.mark.parametrize("state", LIMIT_SECONDS, ids=lambda state: state.name.lower())
async def test_at_its_time_limit_the_pod_is_read_until_that_succeeds(state: ReservationState) -> None:
    table, reservation = await brought_to(state)
    table.found = [None, E.READ_DELETED]
    await table.clock.advance(LIMIT_SECONDS[state] - 0.1)
    assert table.reads == 0
    await table.clock.advance(0.2)
    assert (table.reads, reservation.state) == (1, state)
    await table.clock.advance(RETRY_SECONDS)
    assert (table.reads, reservation.state) == (2, S.DELETED)
    await table.clock.advance(1000)
    assert table.reads == 2
    table.check(S.DELETED)


async def test_a_tentative_reservation_expires() -> None:
    table, _ = await brought_to(S.TENTATIVE)
    await table.clock.advance(TENTATIVE_SECONDS - 0.1)
    table.reservations.expire()
    table.check(S.TENTATIVE)
    with table.reservations.tentative_aside():
        assert table.free == 100
    await table.clock.advance(0.2)
    table.reservations.expire()
    table.check(S.RELEASED)


async def test_a_read_from_before_the_binding_was_sent_again_releases_nothing() -> None:
    table, reservation = await brought_to(S.DOUBT)
    table.found = [E.READ_UNBOUND]
    table.during_read = lambda: table.reservations.apply(reservation, E.BIND)
    await table.clock.advance(LIMIT_SECONDS[S.DOUBT])
    assert (table.reads, reservation.state) == (1, S.REPOSTING)
    table.check(S.REPOSTING)
    table.reservations.apply(reservation, E.ACCEPTED)
    table.check(S.BOUND)
    await table.reservations.aclose(0)


async def test_before_its_time_limit_an_unbound_pod_keeps_a_doubtful_reservation() -> None:
    table, reservation = await brought_to(S.DOUBT)
    table.found = [E.READ_UNBOUND, None, E.READ_UNBOUND]
    for _ in range(2):
        await table.reservations.settle(reservation, overdue=False)
        table.check(S.DOUBT)
    await table.clock.advance(LIMIT_SECONDS[S.DOUBT])
    table.check(S.RELEASED)


async def test_what_comes_late_changes_nothing() -> None:
    table, reservation = await brought_to(S.POSTING)
    table.apply(E.WATCHED)
    table.reservations.apply(reservation, E.ACCEPTED)
    assert reservation.state is S.DELIVERED
    table.check(S.DELIVERED)


async def test_a_pod_with_a_certain_reservation_gets_no_tentative_one() -> None:
    table, _ = await brought_to(S.DOUBT)
    table.reservations.prefer(POD, NODE, Assignment({"c": (Part("GPU-0", 0, 10, 1024),)}))
    table.check(S.DOUBT)
    await table.reservations.aclose(0)


# -- reads -------------------------------------------------------------------------------------------------------------


def read(*, uid: str = "uid-a", node: str = NODE, annotations: dict[str, str] | None = None) -> Pod:
    written = {"key": "value", "other": "x"} if annotations is None else annotations
    return Pod(metadata=ObjectMeta(name="a", uid=uid, annotations=written), spec=PodSpec(node_name=node))


@pytest.mark.parametrize(
    ("pod", "event"),
    [
        (None, E.READ_DELETED),
        (read(uid="uid-b"), E.READ_DELETED),
        (read(node=""), E.READ_UNBOUND),
        (read(), E.READ_BOUND),
        (read(node="n2"), E.READ_ELSEWHERE),
        (read(annotations={"key": "another"}), E.READ_ELSEWHERE),
    ],
)
def test_what_a_read_means(pod: Pod | None, event: ReservationEvent) -> None:
    assert Reservation(POD, NODE, SHARE, {"key": "value"}).event_of_read(pod) is event

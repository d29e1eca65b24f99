"""What the agent decides, as tables: what it saw, what it writes, whom it calls an escape."""

from __future__ import annotations

import pytest

from gpuplane.limits.decide import Correction, EnforcementPlan, EscapeState, Freed, decide
from gpuplane.limits.facts import LimitBackend, Observation, OnGpu, Share
from tests.support.limits_examples import A, B, on_gpu, share, slot

MIB = 1 << 20


def see(
    *shares: Share, processes: tuple[OnGpu, ...] = (), state: EscapeState | None = None
) -> tuple[EscapeState, EnforcementPlan]:
    return decide(state or EscapeState(), Observation(at_ns=1, shares=shares, processes=processes))


def corrections(*shares: Share, processes: tuple[OnGpu, ...]) -> list[tuple[str, int, int]]:
    _, plan = see(*shares, processes=processes)
    return [(c.share, c.slot, c.bytes) for c in plan.corrections]


@pytest.mark.parametrize(
    ("held", "other", "nvml", "written"),
    [
        pytest.param(1000, 0, 1300, 300, id="the context is what NVML sees above the allocations"),
        pytest.param(1000, 300, 1300, None, id="known already"),
        pytest.param(1000, 300, 1250, 250, id="less than before"),
        pytest.param(1000, 300, 900, 0, id="never below nothing"),
        pytest.param(1000, 0, None, None, id="the driver does not say"),
        pytest.param(0, 0, 500, 500, id="a context and nothing else"),
    ],
)
def test_what_a_process_holds_besides(held: int, other: int, nvml: int | None, written: int | None) -> None:
    found = corrections(share("a", slot(7, held=held, other=other, number=3)), processes=(on_gpu(7, nvml),))
    assert found == ([] if written is None else [("a", 3, written)])


def test_nothing_is_compared_that_moved_while_nvml_was_asked() -> None:
    moving = share("a", slot(7, held=1000), unsteady=frozenset({0}))
    assert corrections(moving, processes=(on_gpu(7, 9000),)) == []


def test_a_process_is_found_by_how_it_knows_itself() -> None:
    books = share("a", slot(14, namespace=4026532, held=100))
    assert corrections(books, processes=(on_gpu(812, 150, inner=14, namespace=4026532),)) == [("a", 0, 50)]
    _, plan = see(books, processes=(on_gpu(812, 150, inner=14, namespace=99),), state=told_once(812))
    assert not plan.corrections and plan.escapes
    # without the right to see its namespace, pid and start have to do
    assert corrections(books, processes=(on_gpu(812, 150, inner=14, namespace=None),)) == [("a", 0, 50)]


def test_two_first_processes_of_one_moment_are_told_apart_by_their_share() -> None:
    first, second = share("a", slot(1, held=100)), share("b", slot(1, held=200))
    found = corrections(first, second, processes=(on_gpu(50, 300, inner=1, of="b"), on_gpu(51, 110, inner=1, of="a")))
    assert sorted(found) == [("a", 0, 10), ("b", 0, 100)]


def told_once(*pids: int, uuid: str = A) -> EscapeState:
    return EscapeState(suspects=frozenset((uuid, pid, 100) for pid in pids))


@pytest.mark.parametrize(
    ("process", "escapes"),
    [
        pytest.param(on_gpu(8, 500), True, id="in nobody's books"),
        pytest.param(on_gpu(8, 500, of="a"), True, id="started in a share, not in its books"),
        pytest.param(on_gpu(7, 500), False, id="in the books"),
        pytest.param(on_gpu(8, 500, uuid=B), False, id="on a GPU that nobody shares"),
        pytest.param(on_gpu(8, 500, of="mps"), False, id="of a share that MPS enforces"),
    ],
)
def test_who_is_outside_every_limit(process: OnGpu, escapes: bool) -> None:
    shares = (share("a", slot(7)), share("mps", backend=LimitBackend.MPS))
    state, plan = see(*shares, processes=(process,))
    assert plan.escapes == (), "a process has its context a moment before it is in the books"
    state, plan = see(*shares, processes=(process,), state=state)
    assert bool(plan.escapes) is bool(plan.fresh) is escapes
    _, plan = see(*shares, processes=(process,), state=state)
    assert bool(plan.escapes) is escapes and not plan.fresh, "told once"


def test_an_escape_that_ended_is_forgotten_and_another_with_its_id_is_told_again() -> None:
    process = on_gpu(8, 500)
    state, _ = see(share("a"), processes=(process,), state=told_once(8))
    state, plan = see(share("a"), state=state)
    assert plan.escapes == ()
    state, _ = see(share("a"), processes=(process,), state=state)
    _, plan = see(share("a"), processes=(process,), state=state)
    assert [escape.pid for escape in plan.fresh] == [8]


def test_slots_of_a_namespace_that_is_gone_are_freed() -> None:
    dead, alive = slot(1, number=0, namespace=5), slot(2, number=1, namespace=6)
    _, plan = see(share("a", dead, alive, deserted=frozenset({0})))
    assert plan.freed == (Freed("a", 0, dead.owner),)


def test_what_a_context_costs_is_the_least_that_any_process_holds_besides() -> None:
    twice = (slot(1, held=10, other=300 * MIB), slot(2, number=1, other=250 * MIB))
    tiny = slot(5, number=3, held=70 * MIB, other=MIB)  # by its own word
    shares = (share("a", *twice, slot(4, number=2), tiny), share("b", slot(3), uuid=B))
    seen = ((1, 300 * MIB + 10), (2, 250 * MIB), (4, 70 * MIB), (5, 71 * MIB))
    processes = (*(on_gpu(pid, memory) for pid, memory in seen), on_gpu(3, 0, uuid=B))
    _, plan = see(*shares, processes=processes)
    assert plan.contexts == {A: 250 * MIB}


def test_corrections_are_ordered_so_that_two_agents_write_alike() -> None:
    shares = (share("b", slot(2, held=1)), share("a", slot(1, held=1)))
    _, plan = see(*shares, processes=(on_gpu(2, 5), on_gpu(1, 5)))
    assert plan.corrections == (Correction("a", 0, 0, 4), Correction("b", 0, 0, 4))

"""Decisions of the agent, as tables: its observations, the values that it writes, the processes that escape."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.limits.breach import EscapeKind
from gpuplane.limits.decide import Correction, EnforcementPlan, EscapeState, Freed, decide
from gpuplane.limits.facts import LimitBackend, Observation, OnGpu, Share, Totals
from tests.support.limits_examples import GIB, A, B, on_gpu, share, slot

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
    _, plan = see(books, processes=(on_gpu(812, 150, inner=14, namespace=99),))
    assert not plan.corrections and plan.escapes
    # without the right to see its namespace, pid and start have to do
    assert corrections(books, processes=(on_gpu(812, 150, inner=14, namespace=None),)) == [("a", 0, 50)]


def test_two_first_processes_of_one_moment_are_told_apart_by_their_share() -> None:
    first, second = share("a", slot(1, held=100)), share("b", slot(1, held=200))
    found = corrections(first, second, processes=(on_gpu(50, 300, inner=1, of="b"), on_gpu(51, 110, inner=1, of="a")))
    assert sorted(found) == [("a", 0, 10), ("b", 0, 100)]


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
    assert bool(plan.escapes) is bool(plan.fresh) is escapes
    _, plan = see(*shares, processes=(process,), state=state)
    assert bool(plan.escapes) is escapes and not plan.fresh, "told once"


def test_an_escape_that_ended_is_forgotten_and_another_with_its_id_is_told_again() -> None:
    process = on_gpu(8, 500)
    state, _ = see(share("a"), processes=(process,))
    state, plan = see(share("a"), state=state)
    assert plan.escapes == ()
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


def test_a_process_that_ended_while_nvml_was_asked_is_no_escape() -> None:
    process = on_gpu(8, 500)
    seen = Observation(at_ns=1, shares=(share("a"),), processes=(process,), left=frozenset({process.owner}))
    assert decide(EscapeState(), seen)[1].escapes == ()


@pytest.mark.parametrize(
    ("memory", "reported"),
    [
        pytest.param((5 * GIB, 100 * MIB), False, id="contexts are counted late"),
        pytest.param((5 * GIB, 600 * MIB), True, id="more than contexts take"),
        pytest.param((9 * GIB, None), True, id="one of them is not known"),
    ],
)
def test_a_share_that_holds_more_than_its_limit_is_reported_at_once(
    memory: tuple[int, int | None], reported: bool
) -> None:
    books = share("a", slot(1, held=GIB), slot(2, number=1, held=GIB), memory=5 * GIB)
    _, plan = see(books, processes=(on_gpu(1, memory[0]), on_gpu(2, memory[1])))
    assert [(e.pid, e.share, e.kind) for e in plan.fresh] == ([(1, "a", EscapeKind.MEMORY)] if reported else [])


@pytest.mark.parametrize(
    ("percent", "booked", "looks"),
    [
        pytest.param(32, 30, 0, id="as the books say"),
        pytest.param(95, 92, 0, id="one long kernel, which is in the books"),
        pytest.param(38, 0, 0, id="within the limit, and other calls of the driver"),
        pytest.param(48, 30, 2, id="a little more, twice"),
        pytest.param(100, 30, 1, id="all of the GPU"),
        pytest.param(None, 30, 0, id="the driver does not say"),
    ],
)
def test_a_share_that_works_longer_than_its_books_say_is_reported(percent: int | None, booked: int, looks: int) -> None:
    state, found = EscapeState(), []
    for second in range(4):
        gpu_ns = int(second * booked * 1e7)
        books = share("a", slot(1), slot(2, number=1), core=30, totals=Totals(gpu_ns=gpu_ns))
        process = msgspec.structs.replace(on_gpu(1, 100), gpu_percent=percent)
        at_ns = 1_000_000_000 * second
        state, plan = decide(state, Observation(at_ns=at_ns, shares=(books,), processes=(process, on_gpu(2, 900))))
        found.append([(e.pid, e.kind) for e in plan.fresh])
    expected = [[(1, EscapeKind.TIME)] if second == looks and looks else [] for second in range(4)]
    assert found == expected


def test_shares_without_a_hard_limit_may_work_as_long_as_they_like() -> None:
    state, process = EscapeState(), msgspec.structs.replace(on_gpu(1, 100), gpu_percent=100)
    for second in range(4):
        seen = Observation(at_ns=10**9 * second, shares=(share("a", slot(1), core=0),), processes=(process,))
        state, plan = decide(state, seen)
        assert plan.escapes == ()

"""Prices of free parts: the linear program's optimum, checked against what must be so of any optimum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.sharing.placement.prices import UNITS, RequestKind, solve, worth


def test_what_is_not_crowded_costs_nothing() -> None:
    assert set(worth({"T4": 10}, {RequestKind(100): 3.0})["T4"]) == {0.0}


def test_a_crowded_gpu_is_worth_what_the_marginal_pod_would_use() -> None:
    table = worth({"T4": 10}, {RequestKind(80): 20.0})["T4"]
    assert table[79] == 0.0
    assert table[80] == table[100] == 80.0


def test_a_scarce_filler_is_not_worth_keeping_a_gap_for() -> None:
    """Of 20 and 80, which fill a GPU together, the 20s run out: so one more gap of 20 is worth nothing."""
    table = worth({"T4": 10}, {RequestKind(80): 20.0, RequestKind(20): 2.0})["T4"]
    assert table[20] == 0.0
    table = worth({"T4": 10}, {RequestKind(80): 5.0, RequestKind(20): 200.0})["T4"]
    assert table[20] == 20.0


def test_gpus_that_are_asked_for_by_name_cost_more() -> None:
    demand = {RequestKind(100, frozenset({"H100"})): 20.0, RequestKind(100): 5.0}
    tables = worth({"H100": 10, "T4": 10}, demand)
    assert tables["H100"][100] == 100.0
    assert tables["T4"][100] == 0.0


kinds = st.builds(
    RequestKind, st.integers(1, UNITS), st.sampled_from([frozenset[str](), frozenset({"a"}), frozenset({"a", "b"})])
)


@given(st.dictionaries(kinds, st.floats(0.1, 100), max_size=8), st.integers(1, 50), st.integers(0, 50))
def test_prices_are_those_of_an_optimum(demand: dict[RequestKind, float], a: int, b: int) -> None:
    steps = sum(1 for _ in solve({"a": a, "b": b}, demand))
    assert steps < 400
    tables = worth({"a": a, "b": b}, demand)
    for table in tables.values():
        assert len(table) == UNITS + 1
        assert list(table) == sorted(table)
        assert table[0] == 0.0
        assert table[UNITS] <= UNITS + 1e-3
    priced = sum(tables[name][UNITS] * much for name, much in (("a", a), ("b", b)) if much)
    asked = 0.0
    for kind, count in demand.items():
        prices = [tables[name][kind.units] for name in tables if kind.fits(name)]
        if prices:
            priced += count * max(0.0, kind.units - min(prices))
            asked += count * kind.units
    # Of all prices, those of an optimum sum up to the least: to no more than all GPUs, and than all that is asked for.
    assert priced <= UNITS * (a + b) + 0.5
    assert priced <= asked + 0.5
    # And no way to serve the demand gains more than that.
    for kind, count in demand.items():
        for model, gpus in (("a", a), ("b", b)):
            if gpus and kind.fits(model):
                assert min(count, gpus * (UNITS // kind.units)) * kind.units <= priced + 0.5

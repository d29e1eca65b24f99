"""The algebra of node requirements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api.karpenter import PoolRequirement
from gpuplane.autoscaler.requirements import (
    ValueCondition,
    admits_labels,
    condition_of,
    first_conflict,
    lacking_values,
    merge_requirements,
    pool_conditions,
)
from kubekit.scheduling.selectors import Requirement

VALUES = ("a", "b", "c", "0", "1", "5", "9", "09", "-1", "1.5", "")
WORDS = st.lists(st.sampled_from(VALUES[:8]), min_size=1, max_size=4)
NUMBERS = st.integers(0, 10).map(lambda number: [str(number)])
REQUIREMENTS = st.one_of(
    st.tuples(st.sampled_from(["In", "NotIn"]), WORDS),
    st.tuples(st.sampled_from(["Gt", "Lt", "Gte", "Lte"]), NUMBERS),
    st.tuples(st.sampled_from(["Exists", "DoesNotExist"]), st.just([])),
)
CONDITIONS = REQUIREMENTS.map(lambda both: condition_of(*both))
LABEL = st.one_of(st.none(), st.sampled_from(VALUES))


def same(one: ValueCondition, other: ValueCondition) -> bool:
    return all(one.admits(value) == other.admits(value) for value in (None, *VALUES, "100"))


@given(CONDITIONS, CONDITIONS, LABEL)
def test_an_intersection_admits_what_both_admit(a: ValueCondition, b: ValueCondition, value: str | None) -> None:
    assert (a & b).admits(value) == (a.admits(value) and b.admits(value))


@given(CONDITIONS, CONDITIONS, CONDITIONS)
def test_intersection_commutes_and_associates(a: ValueCondition, b: ValueCondition, c: ValueCondition) -> None:
    assert same(a & b, b & a)
    assert same((a & b) & c, a & (b & c))
    assert same(a & a, a)


@given(CONDITIONS, CONDITIONS, LABEL)
def test_what_both_admit_overlaps(a: ValueCondition, b: ValueCondition, value: str | None) -> None:
    if a.admits(value) and b.admits(value):
        assert a.overlaps(b) and b.overlaps(a)


@given(CONDITIONS, CONDITIONS)
def test_overlap_of_finite_conditions_has_a_witness(a: ValueCondition, b: ValueCondition) -> None:
    if a.overlaps(b) and not (a & b).complement:
        witnesses = (None, *(a & b).values)
        assert any(a.admits(value) and b.admits(value) for value in witnesses)


@given(REQUIREMENTS.filter(lambda both: both[0] not in ("Gte", "Lte")), LABEL)
def test_one_requirement_is_as_kubernetes_matches_it(both: tuple[str, list[str]], value: str | None) -> None:
    operator, values = both
    labels = {} if value is None else {"key": value}
    theirs = Requirement("key", operator, tuple(values)).matches(labels)
    if operator in ("Gt", "Lt") and value is not None and not (value.isascii() and value.isdigit()):
        theirs = False  # kube-scheduler reads -1 as a number; Karpenter's bounds count from 0
    assert condition_of(operator, values).admits(value) == theirs


@pytest.mark.parametrize(
    "operator, values, words",
    [
        ("In", ["b", "a"], "In a, b"),
        ("NotIn", ["a"], "NotIn a"),
        ("Exists", [], "Exists"),
        ("DoesNotExist", [], "DoesNotExist"),
        ("Gt", ["3"], "Gte 4"),
        ("Lt", ["3"], "Lte 2"),
        ("Gte", ["3"], "Gte 3"),
        ("Lte", ["3"], "Lte 3"),
    ],
)
def test_words_of_a_condition(operator: str, values: list[str], words: str) -> None:
    assert str(condition_of(operator, values)) == words


def test_crossing_bounds_admit_no_value() -> None:
    both = condition_of("Gt", ["5"]) & condition_of("Lt", ["4"])
    assert not both.admits("5") and not both.admits(None)


def test_the_larger_min_values_holds() -> None:
    assert (condition_of("In", ["a", "b"], 2) & condition_of("Exists", (), 1)).min_values == 2


def test_beta_names_are_todays() -> None:
    merged = merge_requirements([("beta.kubernetes.io/arch", condition_of("In", ["arm64"]))])
    assert merged == {"kubernetes.io/arch": condition_of("In", ["arm64"])}


def test_labels_of_a_pool_are_requirements_of_one_value() -> None:
    pool = pool_conditions([PoolRequirement(key="team", operator="In", values=("red", "blue"))], {"team": "red"})
    assert admits_labels(pool, {"team": "red"})
    assert not admits_labels(pool, {"team": "blue"})
    assert not admits_labels(pool, {})


def test_a_conflict_names_both_sides() -> None:
    pool = pool_conditions([PoolRequirement(key="zone", operator="In", values=("a", "b"))], {})
    pod = merge_requirements([("zone", condition_of("In", ["c"])), ("arch", condition_of("In", ["arm64"]))])
    assert first_conflict(pool, pod) == "zone: the pod wants In c, the pool has In a, b"
    assert first_conflict(pool, {"zone": condition_of("NotIn", ["a"])}) == ""


def test_min_values_count_only_what_the_requirement_admits() -> None:
    pool = pool_conditions([PoolRequirement(key="type", operator="NotIn", values=("x",), min_values=2)], {})
    assert lacking_values(pool, [{"type": "a"}, {"type": "b"}, {"type": "a"}]) == ""
    assert lacking_values(pool, [{"type": "a"}, {"type": "x"}]) == "minValues of type is 2, and 1 would be left"

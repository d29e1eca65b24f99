"""A user of one namespace writes pods and annotations: no text of theirs ends the decision about all nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api import nodeclaim
from gpuplane.autoscaler.disruption.eviction_budgets import (
    EvictionBudget,
    EvictionBudgetSpec,
    EvictionBudgetStatus,
    compile_budgets,
)
from gpuplane.autoscaler.disruption.observe import DELETION_COST_ANNOTATION, weigh_pod, why_held
from gpuplane.autoscaler.termination.observe import drain_pod, hold_end
from kubekit.api.core import Pod, PodSpec, PodStatus
from kubekit.api.meta import ObjectMeta
from kubekit.scheduling.selectors import Selector, compile_selector

NOW = 1_795_000_000.0


def pod(annotations: dict[str, str] | None = None, *, deleted: str = "", priority: int = 0) -> Pod:
    meta = ObjectMeta(
        name="p",
        namespace="ml",
        uid="u",
        annotations=annotations or {},
        creation_timestamp="2026-11-18T11:06:40Z",
        deletion_timestamp=deleted,
    )
    return Pod(metadata=meta, spec=PodSpec(priority=priority), status=PodStatus())


texts = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"-?[0-9]{1,400}(h|m|s|ms)?", fullmatch=True),
    st.sampled_from(["true", "True", "9" * 400, "9" * 5000, "9" * 400 + "h", "0" * 400 + "h", "٣", "nan", "1e999h"]),
)


@given(text=texts, priority=st.integers(-(2**31), 2**31 - 1))
def test_any_annotation_has_a_finite_cost_and_an_end(text: str, priority: int) -> None:
    names = (DELETION_COST_ANNOTATION, nodeclaim.DO_NOT_DISRUPT, nodeclaim.DO_NOT_EVICT)
    written = pod(dict.fromkeys(names, text), priority=priority)
    weight = weigh_pod(written, {}, NOW)
    assert -10.0 <= weight.cost <= 10.0
    assert not math.isnan(hold_end(written))
    assert drain_pod(written).held_until == hold_end(written)


@pytest.mark.parametrize("name", [nodeclaim.DO_NOT_DISRUPT, nodeclaim.DO_NOT_EVICT])
def test_the_annotation_is_called_by_the_name_that_the_pod_has(name: str) -> None:
    assert why_held(pod({name: "true"}), {}, NOW) == f"pod ml/p has {name}"


def test_a_pod_that_leaves_already_holds_its_node_no_more() -> None:
    leaving = pod({nodeclaim.DO_NOT_DISRUPT: "true"}, deleted="2026-11-18T11:06:41Z")
    assert why_held(leaving, {}, NOW) == ""


def test_a_duration_holds_from_the_start_of_the_pod() -> None:
    held = pod({nodeclaim.DO_NOT_DISRUPT: "1h"})
    assert why_held(held, {}, NOW + 3599.0) and not why_held(held, {}, NOW + 3601.0)


def budget(name: str, selector: dict[str, Any] | None, allowed: int = 0) -> EvictionBudget:
    status = EvictionBudgetStatus(disruptions_allowed=allowed)
    meta = ObjectMeta(name=name, namespace="ml")
    return EvictionBudget(metadata=meta, spec=EvictionBudgetSpec(selector=selector), status=status)


keys, values = st.sampled_from("ab"), st.sampled_from("xyz")
expressions = st.one_of(
    st.builds(
        lambda key, operator, some: {"key": key, "operator": operator, "values": some},
        keys,
        st.sampled_from(["In", "NotIn"]),
        st.lists(values, min_size=1, max_size=3),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator}, keys, st.sampled_from(["Exists", "DoesNotExist"])
    ),
)
selectors = st.fixed_dictionaries(
    {}, optional={"matchLabels": st.dictionaries(keys, values), "matchExpressions": st.lists(expressions, max_size=2)}
)


@given(some=st.lists(st.one_of(st.none(), selectors), max_size=6), labels=st.dictionaries(keys, values))
def test_a_pod_has_the_budgets_whose_selectors_match(some: list[dict[str, Any] | None], labels: dict[str, str]) -> None:
    budgets = [budget(f"b{number}", selector) for number, selector in enumerate(some)]
    matching = {
        one.metadata.name
        for one in budgets
        if one.spec.selector is not None and compile_selector(one.spec.selector).matches(labels)
    }
    index = compile_budgets(budgets).get("ml")
    found = {one.name for one in index.covering(labels)} if index is not None else set()
    assert found <= matching and len(found) == min(2, len(matching))


def test_thousands_of_budgets_of_one_namespace_cost_its_pods_a_look_at_their_own_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    matches = Selector.matches

    def counted(self: Selector, labels: Mapping[str, str]) -> bool:
        nonlocal looks
        looks += 1
        return matches(self, labels)

    monkeypatch.setattr(Selector, "matches", counted)
    many = [budget(f"b{number}", {"matchLabels": {"app": str(number)}}) for number in range(5000)]
    written = msgspec.structs.replace(pod(), metadata=ObjectMeta(name="p", namespace="ml", labels={"app": "7"}))
    assert why_held(written, compile_budgets(many), NOW) == "PodDisruptionBudget b7 admits no eviction of ml/p"
    assert looks == 1
    hostile = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["7"]}]}
    for selector in (hostile, {"matchLabels": {"app": "7"}, **hostile}):
        some = compile_budgets([budget(f"b{number}", selector) for number in range(5000)])
        assert why_held(written, some, NOW) == "pod ml/p may have more than 500 PodDisruptionBudgets"
    assert looks == 1
    shared = [budget(f"b{n}", {"matchLabels": {"a-part-of": "all", "app": str(n)}}) for n in range(5000)]
    labels = {"a-part-of": "all", "app": "7"}
    written = msgspec.structs.replace(pod(), metadata=ObjectMeta(name="p", namespace="ml", labels=labels))
    assert why_held(written, compile_budgets(shared), NOW).startswith("PodDisruptionBudget b7 ")

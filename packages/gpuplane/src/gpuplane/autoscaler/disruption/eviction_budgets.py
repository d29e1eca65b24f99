"""PodDisruptionBudgets as disruption reads them, found by the labels of a pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, ClassVar, Final

import msgspec

from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.scheduling.selectors import Selector, compile_selector

MOST_SEARCHED: Final = 500  # budgets that a pod's labels do not exclude at once


class EvictionBudgetSpec(Struct):
    """`spec` of a PodDisruptionBudget: its pods."""

    selector: dict[str, Any] | None = None
    unhealthy_pod_eviction_policy: str = ""


class EvictionBudgetStatus(Struct):
    """`status` of a PodDisruptionBudget: how many evictions it admits now."""

    disruptions_allowed: int = 0


class EvictionBudget(Struct):
    """A PodDisruptionBudget."""

    RESOURCE: ClassVar[Resource] = built_in("policy/v1", "PodDisruptionBudget")

    metadata: ObjectMeta = ObjectMeta()
    spec: EvictionBudgetSpec = EvictionBudgetSpec()
    status: EvictionBudgetStatus = EvictionBudgetStatus()


class CompiledBudget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget with its selector compiled. `always`: it lets pods go that are not ready."""

    name: str
    selector: Selector | None
    allowed: int
    always: bool


class NamespaceBudgets:
    """The PodDisruptionBudgets of a namespace, found by the labels of a pod.

    NB: a user of the namespace makes as many as they like. Without the index, thousands of them would take longer than
    the lease lasts, and no node of any other namespace would be decided about.
    """

    def __init__(self) -> None:
        self._by_label: dict[tuple[str, str], list[CompiledBudget]] = {}
        self._others: list[CompiledBudget] = []

    def add(self, budget: CompiledBudget) -> None:
        """Add a budget."""
        if budget.selector is None:
            return  # it has no pods
        equals = [one for one in budget.selector.requirements if one.operator == "In"]
        if not equals:
            self._others.append(budget)
            return
        # By the label that finds the fewest others: `part-of` is common to many, `name` is not.
        equal = min(
            equals, key=lambda one: max((len(self._by_label.get((one.key, v), ())) for v in one.values), default=0)
        )
        for value in set(equal.values):
            self._by_label.setdefault((equal.key, value), []).append(budget)

    def covering(self, labels: Mapping[str, str]) -> list[CompiledBudget]:
        """Return the budgets of a pod, at most two: with two it cannot be evicted, whatever the others say."""
        found: list[CompiledBudget] = []
        for one in chain(self._others, *(self._by_label.get(label, ()) for label in labels.items())):
            if one.selector is not None and one.selector.matches(labels):
                found.append(one)
                if len(found) > 1:
                    break
        return found

    def are_too_many(self, labels: Mapping[str, str]) -> bool:
        """Return whether a pod's labels leave more budgets to look at than is sensible."""
        return len(self._others) + sum(len(self._by_label.get(label, ())) for label in labels.items()) > MOST_SEARCHED


EvictionBudgets = Mapping[str, NamespaceBudgets]
"""Namespace -> its PodDisruptionBudgets."""


def compile_budgets(budgets: Iterable[EvictionBudget]) -> EvictionBudgets:
    """Return the budgets by namespace."""
    found: dict[str, NamespaceBudgets] = {}
    for one in budgets:
        selector = compile_selector(one.spec.selector) if one.spec.selector is not None else None
        always = one.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
        compiled = CompiledBudget(one.metadata.name, selector, one.status.disruptions_allowed, always)
        found.setdefault(one.metadata.namespace, NamespaceBudgets()).add(compiled)
    return found

"""The algebra of node requirements: which label values a pool, an instance type and a pod admit together.

The requirements of one key are a set of values, or the complement of a set, with an optional range of whole numbers.
Every operator is one of these, and an intersection is one again, so that any number of requirements is one condition
for each key. Invariants: intersection commutes, and admits a value if, and only if, each part does.

Source: the semantics of requirements of Karpenter 1.14.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.karpenter import PoolRequirement

_ALIASES: Final = {
    "beta.kubernetes.io/arch": karpenter.ARCH_LABEL,
    "beta.kubernetes.io/os": karpenter.OS_LABEL,
    "beta.kubernetes.io/instance-type": karpenter.TYPE_LABEL,
    "failure-domain.beta.kubernetes.io/zone": karpenter.ZONE_LABEL,
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.ebs.csi.aws.com/zone": karpenter.ZONE_LABEL,
}


_COMPARE: Final = ("Gt", "Gte", "Lt", "Lte")
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")


class ValueCondition(msgspec.Struct, frozen=True):
    """The values that a label may have: `values`, or with `complement` all others; absence too with `absent`.

    `least` and `most` bound whole numbers, and no other value is admitted then. `min_values` is the least number of
    different values that a choice must leave. `absent` is so for NotIn and DoesNotExist, as in Kubernetes.
    """

    values: frozenset[str] = frozenset()
    complement: bool = True
    absent: bool = True
    least: int | None = None
    most: int | None = None
    min_values: int = 0

    def admits(self, value: str | None) -> bool:
        """Return whether the label may have the value; None stands for an absent label."""
        if value is None:
            return self.absent
        return ((value in self.values) != self.complement) and _within(value, self.least, self.most)

    def __and__(self, other: ValueCondition) -> ValueCondition:
        least = max((bound for bound in (self.least, other.least) if bound is not None), default=None)
        most = min((bound for bound in (self.most, other.most) if bound is not None), default=None)
        absent, min_values = self.absent and other.absent, max(self.min_values, other.min_values)
        if least is not None and most is not None and least > most:
            return ValueCondition(frozenset(), False, absent, min_values=min_values)
        if self.complement and other.complement:
            return ValueCondition(self.values | other.values, True, absent, least, most, min_values)
        listed, against = (other, self) if self.complement else (self, other)
        kept = frozenset(value for value in listed.values if against.admits(value) and _within(value, least, most))
        return ValueCondition(kept, False, absent, min_values=min_values)

    def overlaps(self, other: ValueCondition) -> bool:
        """Return whether some label, or its absence, satisfies both."""
        both = self & other
        return both.absent or both.complement or bool(both.values)

    def __str__(self) -> str:
        if not self.complement:
            nothing = "DoesNotExist" if self.absent else "a value that no node can have"
            return f"In {', '.join(sorted(self.values))}" if self.values else nothing
        parts = [f"NotIn {', '.join(sorted(self.values))}"] if self.values else []
        parts += [f"Gte {self.least}"] if self.least is not None else []
        parts += [f"Lte {self.most}"] if self.most is not None else []
        return " and ".join(parts) or "Exists"


def condition_of(operator: str, values: Iterable[str] = (), min_values: int = 0) -> ValueCondition:
    """Return the condition of one requirement. Its operator and values are valid, see `requirement_problems`."""
    listed = tuple(values)
    match operator:
        case "In":
            return ValueCondition(frozenset(listed), False, False, min_values=min_values)
        case "NotIn":
            return ValueCondition(frozenset(listed), True, True, min_values=min_values)
        case "DoesNotExist":
            return ValueCondition(frozenset(), False, True, min_values=min_values)
        case "Gt" | "Gte":
            least = int(listed[0]) + (operator == "Gt")
            return ValueCondition(frozenset(), True, False, least=least, min_values=min_values)
        case "Lt" | "Lte":
            most = int(listed[0]) - (operator == "Lt")
            return ValueCondition(frozenset(), True, False, most=most, min_values=min_values)
        case _:
            return ValueCondition(absent=False, min_values=min_values)


def pod_condition(operator: str, values: Iterable[str] = ()) -> ValueCondition:
    """Return the condition of one requirement of a pod; one that compares with no whole number admits nothing.

    The API server admits such pods, and kube-scheduler finds no node for them.
    """
    listed = tuple(values)
    if operator in _COMPARE and not (len(listed) == 1 and _WHOLE.fullmatch(listed[0])):
        return ValueCondition(frozenset(), False, False)
    return condition_of(operator, listed)


NodeConditions = dict[str, ValueCondition]
"""Label -> its condition; labels without an entry may have any value or none."""


def merge_requirements(parts: Iterable[tuple[str, ValueCondition]]) -> NodeConditions:
    """Return the intersection of conditions, label by label; beta names of labels count as today's."""
    merged: NodeConditions = {}
    for key, condition in parts:
        name = label_of_today(key)
        merged[name] = merged[name] & condition if name in merged else condition
    return merged


def pool_conditions(requirements: Iterable[PoolRequirement], labels: Mapping[str, str]) -> NodeConditions:
    """Return the conditions that a pool sets on its nodes: its requirements, and its labels with one value each."""
    asked = ((r.key, condition_of(r.operator, r.values, r.min_values)) for r in requirements)
    return merge_requirements([*asked, *((key, condition_of("In", (value,))) for key, value in labels.items())])


def admits_labels(conditions: NodeConditions, labels: Mapping[str, str]) -> bool:
    """Return whether a node with the labels satisfies every condition."""
    return all(condition.admits(labels.get(key)) for key, condition in conditions.items())


def label_of_today(key: str) -> str:
    """Return the name by which nodes carry a label that has several."""
    return _ALIASES.get(key, key)


def first_conflict(pool: NodeConditions, pod: NodeConditions) -> str:
    """Return the first label, by name, for which pool and pod admit nothing in common, as words; empty for none."""
    for key in sorted(pod):
        wanted, offered = pod[key], pool.get(key)
        if offered is not None and not wanted.overlaps(offered):
            return f"{key}: the pod wants {wanted}, the pool has {offered}"
    return ""


def lacking_values(conditions: NodeConditions, choice: Iterable[Mapping[str, str]]) -> str:
    """Return the first label whose minValues a choice of nodes does not leave, as words; empty for none."""
    offered = list(choice)
    for key in sorted(key for key, condition in conditions.items() if condition.min_values):
        condition = conditions[key]
        left = {labels[key] for labels in offered if key in labels and condition.admits(labels[key])}
        if len(left) < condition.min_values:
            return f"minValues of {key} is {condition.min_values}, and {len(left)} would be left"
    return ""


def _within(value: str, least: int | None, most: int | None) -> bool:
    if least is None and most is None:
        return True
    # NB: int() would accept signs, spaces, underscores and digits of other scripts, which no label's number has.
    if not (value.isascii() and value.isdigit()):
        return False
    number = int(value)
    return (least is None or number >= least) and (most is None or number <= most)
